use serde_json::json;
use walrelay_testkit::Nats;

use super::checked;
use crate::rig::{Rig, done, insert_of, output_with};

/// The relay's role reads no table: the topics are those of the rows that wait.
#[test]
fn check_finds_a_stream_that_only_waiting_rows_need() {
    if !Nats::is_wanted() {
        return;
    }
    let rig = Rig::without_broker(18);
    let db = rig.db();
    done(&output_with("init --role least", &rig.config(), &[]));
    db.batch("ALTER ROLE least PASSWORD 'hunter2'");
    let config = rig.config_with(&rig.url_as("least", "hunter2", "postgres"), "");
    insert_of(&db, "order", "key", 1);
    let port = Nats::shared().port();
    let stream = rig.prefix.replace(['.', '-'], "_");
    let set = format!(
        "sink.kind=nats sink.nats.hosts=[\"127.0.0.1:{port}\"] \
         sink.nats.subject={stream}.{{aggregatetype}}"
    );
    let subject = format!("{stream}.order");
    let missing = checked(&config, &[], &set);
    missing.fails("nats/nats-streams", &["[nats-no-stream]", &subject]);
    missing.ends(78);
    let mut client = Nats::shared().client();
    client.create_stream(&stream, &[&format!("{stream}.>")], &json!({}));
    checked(&config, &[], &set).passes("nats/nats-streams", &[&stream]);
    client.delete_stream(&stream);
}

#[test]
fn check_reports_faults_of_a_nats_sink() {
    if !Nats::is_wanted() {
        return;
    }
    let rig = Rig::without_broker(18).outbox();
    let config = rig.config();
    let with = |host: &str, set: &str| format!("sink.kind=nats sink.nats.hosts=[\"{host}\"] {set}");
    let item = "configuration/nats-settings";
    let offline = with("h", "sink.nats.token=secret-word");
    checked(&config, &["--offline"], &offline).warns(item, &["without TLS"]);
    let no_file = with("h", "sink.nats.credentials_file=/nonexistent");
    let words = ["[nats-settings]", "/nonexistent"];
    checked(&config, &["--offline"], &no_file).fails(item, &words);

    let server = Nats::start();
    let host = format!("127.0.0.1:{}", server.port());
    let item = "nats/nats-login";
    // No server listens at this port.
    let nobody = with("127.0.0.1:1", "");
    checked(&config, &[], &nobody).fails(item, &["[nats-unreachable]", "127.0.0.1:1"]);

    let more = "sink.nats.subject=ev.x poison.oversize=dead-letter poison.topic=dead";
    let set = with(&host, more);
    let streams = "nats/nats-streams";
    let letters = "nats/nats-dead-letters";
    let none = checked(&config, &[], &set);
    none.passes(item, &[&host]);
    none.passes("nats/nats-server", &["NATS 2.", "1048576"]);
    none.fails(streams, &["[nats-no-stream]", "ev.x"]);
    none.fails(letters, &["[nats-no-stream]", "dead"]);

    let mut client = server.client();
    client.create_stream("EV", &["ev.*"], &json!({"max_msgs": 1_000_000}));
    let short = json!({"discard": "new", "duplicate_window": 1_000_000_000});
    client.create_stream("DEAD", &["dead"], &short);
    let found = checked(&config, &[], &set);
    found.passes(streams, &["EV"]);
    found.warns(
        "nats/nats-durability",
        &["one replica: EV", "sync_interval"],
    );
    found.warns("nats/nats-discard", &["oldest messages", "EV"]);
    found.passes("nats/nats-window", &["120 s"]);
    found.passes(letters, &["DEAD"]);
    let short = json!({"discard": "new", "max_msgs": 1_000_000, "duplicate_window": 1_000_000_000});
    client.update_stream("EV", &["ev.*"], &short);
    let found = checked(
        &config,
        &[],
        &format!("{set} sink.nats.max_message_size=2MiB"),
    );
    found.warns("nats/nats-server", &["2097152", "max_payload"]);
    found.passes("nats/nats-discard", &["no stream"]);
    found.warns("nats/nats-window", &["below 2 minutes: EV"]);
}
