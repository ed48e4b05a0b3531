use walrelay_testkit::HttpServer;

use super::checked;
use crate::rig::Rig;

#[test]
fn check_reports_faults_of_an_http_sink() {
    let rig = Rig::without_broker(18).outbox();
    let config = rig.config();
    let with = |set: &str| format!("sink.kind=http {set}");
    let item = "configuration/http-settings";
    let no_file = with("sink.http.url=https://h/hook sink.http.ca_file=/nonexistent");
    let words = ["[http-settings]", "/nonexistent"];
    checked(&config, &["--offline"], &no_file).fails(item, &words);
    let clear = with("sink.http.url=http://events.example/hook");
    checked(&config, &["--offline"], &clear).warns(item, &["without TLS"]);

    let item = "http/http-server";
    // No server listens at this port.
    let nobody = with("sink.http.url=http://127.0.0.1:1/hook");
    checked(&config, &[], &nobody).fails(item, &["[http-unreachable]", "127.0.0.1:1"]);
    let server = HttpServer::start(None, None, |_| panic!("check posts nothing"));
    let reached = with(&format!("sink.http.url={}/hook", server.url()));
    checked(&config, &[], &reached).passes(item, &["can be reached"]);
}
