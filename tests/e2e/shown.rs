//! Each fault that a relay waits for, as each view shows it by itself: the document of the page,
//! `/readyz`, `walrelay status` and `walrelay check`. `docs/shown.txt` lists these and other tests by
//! fault.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{SchemaRegistry, eventually, servers};
use walrelay_throwaway::{Shutdown, Signal};

use crate::check::Checked;
use crate::endpoint::{address, config, get, status};
use crate::rig::{
    PATIENCE, Relay, Rig, insert, kafka_in_turn, output_with, strict_kafka, with_source,
};

/// A running relay with its endpoint.
struct Views<'a> {
    rig: &'a Rig,
    config: PathBuf,
    at: SocketAddr,
}

impl<'a> Views<'a> {
    fn of(rig: &'a Rig, config: &Path, relay: &Relay) -> Self {
        Self {
            rig,
            config: config.to_path_buf(),
            at: address(relay),
        }
    }

    /// Waits until each view names the state, these words of its reason, and this remedy.
    #[track_caller]
    fn show(&self, state: &str, words: &[&str], remedy: &str) {
        let has =
            |text: &str| text.contains(remedy) && words.iter().all(|word| text.contains(word));
        let set = format!("--set=http.listen={}", self.at);
        let wait = |view: &str, shown: &dyn Fn() -> (bool, String)| {
            let begun = Instant::now();
            loop {
                let (is_there, text) = shown();
                if is_there {
                    return;
                }
                let late = begun.elapsed() > PATIENCE;
                assert!(!late, "{view} does not show {words:?}, {remedy}: {text}");
                thread::sleep(Duration::from_millis(100));
            }
        };
        wait("the document of the page", &|| {
            let shown = status(self.at);
            let pipeline = &shown["pipeline"];
            let said = pipeline["state"] == state && has(&pipeline.to_string());
            (said && shown["ready"] == false, pipeline.to_string())
        });
        wait("/readyz", &|| match get(self.at, "/readyz") {
            Some((code, text)) => (code == 503 && has(&text), text),
            None => (false, "no answer".to_owned()),
        });
        wait("status", &|| {
            let output = output_with("status", &self.config, &[&set, "--exit-code"]);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let not_ready = output.status.code() == Some(75) && text.contains("NOT READY");
            (not_ready && has(&text), text)
        });
        wait("check", &|| {
            let found = Checked::of(&self.config, &[&set])
                .worst("relay/state")
                .clone();
            let text = format!("{}{}", found["finding"], found["remedy"]);
            (found["id"] == "not-ready" && has(&text), found.to_string())
        });
    }

    /// Waits until the relay is ready again, and has confirmed everything.
    #[track_caller]
    fn heal(&self, relay: Relay) {
        eventually(PATIENCE, || {
            get(self.at, "/readyz").is_some_and(|(code, _)| code == 200)
        });
        self.rig.caught_up();
        relay.ends_well();
    }
}

#[test]
fn brokers_that_are_down() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka);
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&configured);
    let views = Views::of(&rig, &configured, &relay);
    insert(&rig.db(), 1);
    rig.caught_up();
    kafka.kill();
    insert(&rig.db(), 2);
    views.show("blocked", &["no broker answers"], "start the brokers");
    kafka.start_again();
    views.heal(relay);
}

#[test]
fn brokers_that_answer_nothing() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka);
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&configured);
    let views = Views::of(&rig, &configured, &relay);
    insert(&rig.db(), 1);
    rig.caught_up();
    kafka.pause();
    insert(&rig.db(), 2);
    views.show("blocked", &["no broker answers"], "start the brokers");
    kafka.resume();
    views.heal(relay);
}

/// Kafka creates no topic. `check` also names the topic by itself.
#[test]
fn a_topic_that_is_missing() {
    let kafka = strict_kafka();
    let rig = Rig::with_kafka(18, kafka);
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&configured);
    let views = Views::of(&rig, &configured, &relay);
    insert(&rig.db(), 1);
    let topic = format!("{}order", rig.prefix);
    views.show("blocked", &[&topic, "does not exist"], "create the topic");
    let checked = Checked::of(&configured, &[]);
    checked.fails("kafka/topics", &[&topic, "[kafka-topic]"]);
    kafka.create_topic(&topic, 1, &[]);
    views.heal(relay);
}

/// The address is a controller's: it answers, and takes no record.
#[test]
fn a_port_that_is_no_brokers() {
    let kafka = kafka_in_turn();
    let rig = Rig::with(servers::postgres(18), kafka.controller_address()).outbox();
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&configured);
    let views = Views::of(&rig, &configured, &relay);
    insert(&rig.db(), 1);
    views.show("retrying", &[], "port of a controller (KRaft)");
    relay.kill();
}

#[test]
fn a_database_that_is_down() {
    let rig = Rig::with_outbox(18);
    // The relay tries again seldom, so that it waits most of the time.
    let more = "[delivery]\nbackoff_initial = \"8s\"\n";
    let configured = config(&rig, &rig.postgres.url(), more);
    let relay = rig.streaming(&configured);
    let views = Views::of(&rig, &configured, &relay);
    rig.postgres.stop(Shutdown::Immediate).expect("it stops");
    views.show("retrying", &[], "see that Postgres runs");
    rig.postgres.start_again().expect("it starts again");
    insert(&rig.db(), 1);
    views.heal(relay);
}

#[test]
fn a_slot_that_was_taken() {
    let rig = Rig::with_outbox(18);
    let thief = format!("{}&application_name=thief", rig.postgres.url());
    let thief = with_source(rig.config_with(&thief, ""), "wal_sender_timeout = \"10m\"");
    let thief = rig.streaming(&thief);
    thief.signal(Signal::Stop);
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.start(&configured);
    let views = Views::of(&rig, &configured, &relay);
    views.show("waiting-for-slot", &["(thief)"], "pg_terminate_backend(");
    thief.kill();
    rig.db()
        .batch("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
    insert(&rig.db(), 1);
    views.heal(relay);
}

#[test]
fn a_schema_registry_that_is_away() {
    let rig = Rig::with_outbox(18);
    let away = SchemaRegistry::address_to_come();
    let more = format!(
        "[router.registry]\nurl = \"http://{away}\"\nformat = \"avro\"\ntimeout = \"2s\"\n"
    );
    let configured = config(&rig, &rig.postgres.url(), &more);
    let relay = rig.streaming(&configured);
    let views = Views::of(&rig, &configured, &relay);
    insert(&rig.db(), 1);
    let remedy = "see whether the schema registry answers";
    views.show("waiting-for-schema", &["gives no answer"], remedy);
    relay.kill();
}
