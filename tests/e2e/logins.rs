//! A login, a port or TLS that the servers of a sink refuse: log, page, `/readyz`, `status` and `check` of
//! a running relay have the id and the remedy that `check` has of the servers, and name the destination.

use std::fs;

use walrelay_testkit::{Authority, Nats, RabbitMq, Redis};

use crate::check::Checked;
use crate::endpoint::{address, config, status};
use crate::rig::{Rig, assert_lacks, insert};
use crate::shown::{SINK_DOWN, Views};

/// Asserts that a relay with this sink shows the finding of this item, which has the id and these words, before
/// an event waits and after that. `title`: what the page says of the destination.
#[track_caller]
fn is_refusal_shown(sink: &str, (item, id): (&str, &str), title: &str, words: &str) {
    let rig = Rig::without_broker(18).outbox();
    let configured = config(&rig, &rig.postgres.url(), &format!("[sink]\n{sink}"));
    let relay = rig.streaming(&configured);
    let checked = Checked::run(&configured, &[]);
    let found = checked.fails(item, &[words, &format!("[{id}]")]);
    let remedy = found["remedy"].as_str().expect("a remedy").to_owned();

    let views = Views::new(&configured, &relay);
    let named = format!("[{id}]");
    views.show_problem(&[title, words, &named], &remedy, SINK_DOWN);
    insert(&rig.db(), 1);
    views.show("blocked", &[words, &named], &remedy, SINK_DOWN);
    let problem = &status(address(&relay))["problems"][0];
    assert_eq!(problem["title"], title, "{problem:#}");
    relay.says(&format!("\"id\":\"{id}\",\"remedy\":\"{remedy}\""));
    relay.says(&format!("[{id}]\",\"remedy\":\"{remedy}\""));
    assert_lacks(&relay.log(), &["secret-word"]);
    relay.kill();
}

const REDIS: &str = "redis/redis-login";

fn redis(port: u16, more: &str) -> String {
    format!(
        "kind = \"redis\"\n[sink.redis]\nhosts = [\"127.0.0.1:{port}\"]\nstream = \"s\"\n{more}"
    )
}

#[test]
fn logins_that_redis_refuses_are_named_as_check_names_them() {
    if !Redis::is_wanted() {
        return;
    }
    let login = "username = \"weak\"\npassword = \"secret-word\"\n";
    let sink = redis(Redis::shared().port(), login);
    let title = "Redis refuses the relay";
    is_refusal_shown(&sink, (REDIS, "redis-access"), title, "WRONGPASS");
}

#[test]
fn a_port_of_another_service_is_no_redis() {
    if !Nats::is_wanted() {
        return;
    }
    let sink = redis(Nats::shared().port(), "");
    let title = "the server at hosts does not speak as Redis does";
    is_refusal_shown(&sink, (REDIS, "redis-protocol"), title, "the server sent");
}

const RABBITMQ: &str = "rabbitmq/rabbitmq-login";

fn rabbitmq(port: u16, more: &str) -> String {
    format!(
        "kind = \"rabbitmq\"\n[sink.rabbitmq]\nhosts = [\"127.0.0.1:{port}\"]\nusername = \"guest\"\n\
         exchange = \"\"\nrouting_key = \"q\"\n{more}"
    )
}

#[test]
fn logins_that_rabbitmq_refuses_are_named_as_check_names_them() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let port = RabbitMq::shared().port();
    let sink = rabbitmq(port, "password = \"secret-word\"\n");
    let title = "RabbitMQ refuses the relay";
    is_refusal_shown(
        &sink,
        (RABBITMQ, "rabbitmq-access"),
        title,
        "ACCESS_REFUSED",
    );
}

/// The limit is of the virtual host: neither login nor rights are wrong.
#[test]
fn a_limit_of_connections_of_rabbitmq_is_named_as_check_names_it() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let server = RabbitMq::shared();
    server.control(&["add_vhost", "full"]);
    server.control(&["set_permissions", "-p", "full", "guest", ".*", ".*", ".*"]);
    server.control(&["set_vhost_limits", "-p", "full", "{\"max-connections\":0}"]);
    let more = "password = \"guest\"\nvhost = \"full\"\n";
    let sink = rabbitmq(server.port(), more);
    let (title, words) = (
        "RabbitMQ lets in no more connections",
        "connection limit (0) is reached",
    );
    is_refusal_shown(&sink, (RABBITMQ, "rabbitmq-limit"), title, words);
    server.control(&["delete_vhost", "full"]);
}

/// It closes the connection without a word.
#[test]
fn the_management_interface_is_no_rabbitmq() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let (_server, port) = RabbitMq::start_managed();
    let sink = rabbitmq(port, "password = \"guest\"\n");
    let title = "RabbitMQ is down: no node answers";
    let words = "unexpected end of file";
    is_refusal_shown(&sink, (RABBITMQ, "rabbitmq-unreachable"), title, words);
}

#[test]
fn tls_at_a_port_without_it_is_named_as_check_names_it() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let ca = folder.path().join("ca.pem");
    fs::write(&ca, Authority::new("ca").pem()).expect("a file");
    let more = format!(
        "password = \"guest\"\ntls = true\nca_file = \"{}\"\n",
        ca.display()
    );
    let sink = rabbitmq(RabbitMq::shared().port(), &more);
    is_refusal_shown(
        &sink,
        (RABBITMQ, "rabbitmq-tls"),
        "TLS to RabbitMQ fails",
        "TLS fails",
    );
}

#[test]
fn logins_that_nats_refuses_are_named_as_check_names_them() {
    if !Nats::is_wanted() {
        return;
    }
    let server = Nats::start_with("authorization { token: right }");
    let sink = format!(
        "kind = \"nats\"\n[sink.nats]\nhosts = [\"127.0.0.1:{}\"]\nsubject = \"s\"\n\
         token = \"secret-word\"\n",
        server.port()
    );
    let (item, title) = ("nats/nats-login", "NATS refuses the relay");
    is_refusal_shown(&sink, (item, "nats-access"), title, "refuses the login");
}
