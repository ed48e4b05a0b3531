//! Each fault of a relay, as each view shows it by itself: the page in a browser, `/readyz`,
//! `walrelay status` and `walrelay check` name reason, remedy and alert. `docs/shown.txt` lists the
//! tests by fault: those that inject it elsewhere call [`Views::show_problem`], too.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_sink::{EndpointStats, EventPosition};
use walrelay_testkit::{
    HttpReceiver, Nats, QueueOptions, RabbitMq, Reaction, Redis, SchemaRegistry, eventually,
    servers,
};
use walrelay_throwaway::{Shutdown, Signal};

use crate::check::Checked;
use crate::endpoint::{address, config, get, metric, status};
use crate::page::first_glance;
use crate::rig::{
    PATIENCE, Relay, Rig, assert_has, ends, insert, kafka_in_turn, output_with, refused, said,
    shared_kafka, strict_kafka, with_source,
};

pub(crate) const NOT_READY: &str = "WalrelayNotReady, after 2m";
pub(crate) const SINK_DOWN: &str = "WalrelaySinkDown, after 1m";

/// What each view must show of a fault.
struct Shown<'a> {
    /// The state of the pipeline; `None` if the fault is another one than the state.
    state: Option<&'a str>,
    /// Words of the reason.
    words: &'a [&'a str],
    /// Words of the remedy.
    remedy: &'a str,
    /// The alert with its time.
    alert: &'a str,
}

/// A running relay with its endpoint.
pub(crate) struct Views<'a> {
    config: &'a Path,
    at: SocketAddr,
}

impl<'a> Views<'a> {
    pub(crate) fn new(config: &'a Path, relay: &Relay) -> Self {
        let at = address(relay);
        Self { config, at }
    }

    /// Waits until each view alone shows the state of a relay that is not ready, with this alert.
    #[track_caller]
    pub(crate) fn show(&self, state: &str, words: &[&str], remedy: &str, alert: &str) {
        self.each_shows(&Shown {
            state: Some(state),
            words,
            remedy,
            alert,
        });
    }

    /// Waits until each view alone shows a fault of a relay that goes on, with this alert.
    #[track_caller]
    pub(crate) fn show_problem(&self, words: &[&str], remedy: &str, alert: &str) {
        self.each_shows(&Shown {
            state: None,
            words,
            remedy,
            alert,
        });
    }

    /// Waits until the page in a browser, its document, `/readyz`, `status` and `check` show the fault,
    /// each by itself.
    #[track_caller]
    fn each_shows(&self, shown: &Shown<'_>) {
        let Shown {
            state,
            words,
            remedy,
            alert,
        } = *shown;
        let has = |text: &str| {
            let all = words.iter().chain([&remedy, &alert]);
            all.into_iter().all(|word| text.contains(word))
        };
        let set = format!("--set=http.listen={}", self.at);
        let wait = |view: &str, look: &dyn Fn() -> (bool, String)| {
            let begun = Instant::now();
            loop {
                let (is_there, text) = look();
                if is_there {
                    return;
                }
                let late = begun.elapsed() > PATIENCE;
                assert!(
                    !late,
                    "{view} does not show {words:?}, {remedy}, {alert}: {text}"
                );
                thread::sleep(Duration::from_millis(100));
            }
        };
        wait("/readyz", &|| match get(self.at, "/readyz") {
            Some((code, text)) => {
                let as_ready = state.is_none() || code == 503;
                (as_ready && has(&text), text)
            }
            None => (false, "no answer".to_owned()),
        });
        wait("the document of the page", &|| {
            let document = status(self.at);
            let of_state = document["pipeline"]["state"].as_str() == state;
            let as_ready = state.is_none() || (of_state && document["ready"] == false);
            let text = document["problems"].to_string();
            // The time is a member of its own.
            (
                as_ready && has(&text.replace("\",\"alert_after\":\"", ", after ")),
                text,
            )
        });
        wait("the page", &|| {
            let text = first_glance(self.at);
            let is_well = text.starts_with("All is well");
            (has(&text) && !(is_well && state.is_some()), text)
        });
        wait("status", &|| {
            let output = output_with("status", self.config, &[&set, "--exit-code"]);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let not_ready = output.status.code() == Some(75) && text.contains("NOT READY");
            ((state.is_none() || not_ready) && has(&text), text)
        });
        wait("check", &|| {
            let checked = Checked::run(self.config, &[&set]);
            let (item, id) = match state {
                Some(_) => ("relay/state", Some("not-ready")),
                None => ("relay/problems", None),
            };
            let found = checked.all(item).into_iter().find(|found| {
                let text = format!("{}{}", found["finding"], found["remedy"]);
                found["id"].as_str() == id && has(&text)
            });
            (found.is_some(), format!("{checked:#?}"))
        });
    }

    /// Waits until the relay is ready again, and has confirmed everything.
    #[track_caller]
    fn are_well(&self, rig: &Rig) {
        eventually(PATIENCE, || {
            get(self.at, "/readyz").is_some_and(|(code, _)| code == 200)
        });
        rig.caught_up();
    }

    /// Does the same, and ends the relay.
    #[track_caller]
    fn heal(&self, rig: &Rig, relay: Relay) {
        self.are_well(rig);
        relay.ends_well();
    }
}

#[test]
fn brokers_that_are_down() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka);
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&configured);
    let views = Views::new(&configured, &relay);
    insert(&rig.db(), 1);
    rig.caught_up();
    kafka.kill();
    insert(&rig.db(), 2);
    views.show(
        "blocked",
        &["no broker answers"],
        "start the brokers",
        SINK_DOWN,
    );
    let first = status(views.at)["delivery"]["first_in_flight"].clone();
    let first = first.as_str().expect("the event that holds things up");
    assert!(first.parse::<EventPosition>().is_ok(), "{first}");
    let named = format!("first event that is not acknowledged: {first}");
    assert_has(&first_glance(views.at), &[&named]);
    kafka.start_again();
    views.heal(&rig, relay);
}

#[test]
fn brokers_that_answer_nothing() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka);
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&configured);
    let views = Views::new(&configured, &relay);
    insert(&rig.db(), 1);
    rig.caught_up();
    kafka.pause();
    insert(&rig.db(), 2);
    views.show(
        "blocked",
        &["no broker answers"],
        "start the brokers",
        SINK_DOWN,
    );
    kafka.resume();
    views.heal(&rig, relay);
}

/// A server of a sink, which a test has to itself.
trait Outage {
    /// Makes it answer nothing.
    fn pause(&self);
    fn resume(&self);
    fn kill(&self);
    fn start_again(&self);
}

macro_rules! outage {
    ($($server:ty),*) => {
        $(
            impl Outage for $server {
                fn pause(&self) {
                    <$server>::pause(self);
                }

                fn resume(&self) {
                    <$server>::resume(self);
                }

                fn kill(&self) {
                    <$server>::kill(self);
                }

                fn start_again(&self) {
                    <$server>::start_again(self);
                }
            }
        )*
    };
}

outage!(HttpReceiver, Nats, RabbitMq, Redis);

/// Asserts that each view shows a server that is silent, and one that is down, and that a relay with
/// this sink goes on by itself. The sink does not give up a request meanwhile.
#[track_caller]
fn is_outage_shown(rig: &Rig, server: &dyn Outage, port: u16, sink: &str) {
    let configured = config(rig, &rig.postgres.url(), &format!("[sink]\n{sink}"));
    let relay = rig.streaming(&configured);
    let views = Views::new(&configured, &relay);
    let (db, address) = (rig.db(), format!("127.0.0.1:{port}: "));
    insert(&db, 1);
    rig.caught_up();
    server.pause();
    insert(&db, 2);
    eventually(PATIENCE, || {
        status(views.at)["sink"]["endpoints"][0]["state"] == EndpointStats::NO_ANSWER
    });
    let all_down = || metric(views.at, "walrelay_sink_all_endpoints_down");
    assert_eq!(all_down(), Some(1.0));
    let silent = [&*address, "nothing was answered for 5 s"];
    views.show("blocked", &silent, "see that the server runs", SINK_DOWN);
    server.resume();
    views.are_well(rig);
    assert_eq!(all_down(), Some(0.0));
    server.kill();
    insert(&db, 3);
    views.show("blocked", &[&address], "that the server runs", SINK_DOWN);
    server.start_again();
    views.heal(rig, relay);
}

#[test]
fn an_http_receiver_that_is_silent_or_down() {
    let rig = Rig::without_broker(18).outbox();
    let server = HttpReceiver::start(false, None, |_, _| Reaction::Store(200));
    let sink = format!(
        "kind = \"http\"\n[sink.http]\nurl = \"http://{}/hooks\"\ntimeout = \"2m\"\n",
        server.address()
    );
    is_outage_shown(&rig, &server, server.address().port(), &sink);
}

#[test]
fn a_redis_that_is_silent_or_down() {
    if !Redis::is_wanted() {
        return;
    }
    let (rig, server) = (Rig::without_broker(18).outbox(), Redis::in_turn());
    let sink = format!(
        "kind = \"redis\"\n[sink.redis]\nhosts = [\"127.0.0.1:{}\"]\nstream = \"{}events\"\n\
         connect_timeout = \"2s\"\nreply_timeout = \"2m\"\n",
        server.port(),
        rig.prefix
    );
    is_outage_shown(&rig, &*server, server.port(), &sink);
}

#[test]
fn a_rabbitmq_that_is_silent_or_down() {
    if !RabbitMq::is_wanted() {
        return;
    }
    let (rig, server) = (Rig::without_broker(18).outbox(), RabbitMq::in_turn());
    let queue = format!("{}queue", rig.prefix);
    server
        .client()
        .declare_queue(&queue, QueueOptions::default());
    let sink = format!(
        "kind = \"rabbitmq\"\n[sink.rabbitmq]\nhosts = [\"127.0.0.1:{}\"]\nusername = \"guest\"\n\
         password = \"guest\"\nexchange = \"\"\nrouting_key = \"{queue}\"\nconnect_timeout = \"2s\"\n\
         confirm_timeout = \"2m\"\n",
        server.port()
    );
    is_outage_shown(&rig, &*server, server.port(), &sink);
}

#[test]
fn a_nats_that_is_silent_or_down() {
    if !Nats::is_wanted() {
        return;
    }
    let (rig, server) = (Rig::without_broker(18).outbox(), Nats::in_turn());
    let stream = rig.prefix.replace(['.', '-'], "_");
    let more = serde_json::json!({});
    server.client().create_stream(&stream, &[&stream], &more);
    let sink = format!(
        "kind = \"nats\"\n[sink.nats]\nhosts = [\"127.0.0.1:{}\"]\nsubject = \"{stream}\"\n\
         connect_timeout = \"2s\"\nack_timeout = \"1m\"\n",
        server.port()
    );
    is_outage_shown(&rig, &*server, server.port(), &sink);
}

/// Kafka creates no topic. `check` also names the topic by itself.
#[test]
fn a_topic_that_is_missing() {
    let kafka = strict_kafka();
    let rig = Rig::with_kafka(18, kafka);
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&configured);
    let views = Views::new(&configured, &relay);
    insert(&rig.db(), 1);
    let topic = format!("{}order", rig.prefix);
    views.show(
        "blocked",
        &[&topic, "does not exist"],
        "create the topic",
        NOT_READY,
    );
    let checked = Checked::run(&configured, &[]);
    checked.fails("kafka/topics", &[&topic, "[kafka-topic]"]);
    kafka.create_topic(&topic, 1, &[]);
    views.heal(&rig, relay);
}

/// The address is a controller's: it answers, and takes no record.
#[test]
fn a_port_that_is_no_brokers() {
    let kafka = kafka_in_turn();
    let rig = Rig::with(servers::postgres(18), kafka.controller_address()).outbox();
    let configured = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&configured);
    let views = Views::new(&configured, &relay);
    insert(&rig.db(), 1);
    views.show("retrying", &[], "port of a controller (KRaft)", NOT_READY);
    relay.kill();
}

#[test]
fn a_database_that_is_down() {
    let rig = Rig::with_outbox(18);
    // The relay tries again seldom, so that it waits most of the time.
    let more = "[delivery]\nbackoff_initial = \"8s\"\n";
    let configured = config(&rig, &rig.postgres.url(), more);
    let relay = rig.streaming(&configured);
    let views = Views::new(&configured, &relay);
    rig.postgres.stop(Shutdown::Immediate).expect("it stops");
    views.show("retrying", &[], "see that Postgres runs", NOT_READY);
    rig.postgres.start_again().expect("it starts again");
    insert(&rig.db(), 1);
    views.heal(&rig, relay);
}

/// The password has expired, and is prolonged on the server: the relay goes on by itself.
#[test]
fn a_login_that_postgres_refuses_meanwhile() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    db.batch("CREATE ROLE renewed SUPERUSER LOGIN PASSWORD 'hunter2'");
    let url = rig.url_as("renewed", "hunter2", "postgres");
    let configured = config(&rig, &url, "");
    let relay = rig.streaming(&configured);
    let views = Views::new(&configured, &relay);
    db.batch(
        "ALTER ROLE renewed VALID UNTIL '2020-01-01'; \
         SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots",
    );
    insert(&db, 1);
    views.show("retrying", &["28P01"], "(VALID UNTIL)", NOT_READY);
    db.batch("ALTER ROLE renewed VALID UNTIL 'infinity'");
    views.heal(&rig, relay);
    // A start finds a mistake of the configuration, and ends.
    db.batch("ALTER ROLE renewed VALID UNTIL '2020-01-01'");
    ends(&mut rig.start(&configured), 77, "password");
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
    let views = Views::new(&configured, &relay);
    let taken = "WalrelaySlotTaken, after 30s";
    views.show(
        "waiting-for-slot",
        &["(thief)"],
        "pg_terminate_backend(",
        taken,
    );
    thief.kill();
    rig.db()
        .batch("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
    insert(&rig.db(), 1);
    views.heal(&rig, relay);
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
    let views = Views::new(&configured, &relay);
    insert(&rig.db(), 1);
    let remedy = "see whether the schema registry answers";
    views.show(
        "waiting-for-schema",
        &["gives no answer"],
        remedy,
        NOT_READY,
    );
    relay.kill();
}

/// A relay that has ended has no endpoint: `status` reads the slot and the error of the run, or leads to `check`,
/// whose item has the reason and the remedy. An open page says that its relay is gone (`page`).
#[test]
fn relays_that_have_ended() {
    let postgres = servers::postgres_with(18, &[("max_slot_wal_keep_size", "1MB")]);
    let rig = Rig::with(postgres, shared_kafka().bootstrap_servers()).outbox();
    let db = rig.db();
    db.batch("CREATE ROLE relay LOGIN REPLICATION PASSWORD 'hunter2'");
    let usual = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&usual);
    insert(&db, 1);
    rig.caught_up();
    relay.ends_well();
    let checked = || Checked::run(&usual, &["--set=source.create=false"]);
    let unread = |fault: &str, on_status: &[&str]| {
        let output = output_with("status", &usual, &["--exit-code"]);
        assert_eq!(output.status.code(), Some(69), "{fault}: {output:?}");
        assert_has(&said(&output), on_status);
    };
    let ended = |fault: &str, on_status: &[&str], item: &str, on_check: &[&str]| {
        unread(fault, on_status);
        checked().fails(item, on_check);
    };

    unread(
        "nobody reads the slot",
        &["walrelay: not read", "-> start walrelay run"],
    );
    checked().passes("postgres/slot", &["no client reads it now"]);

    let url = rig.url_as("relay", "wrong", "postgres");
    let wrong = format!("--set=source.url={url}");
    let output = output_with("status", &usual, &[&wrong]);
    refused(&output, 77, &["[password]"]);
    Checked::run(&usual, &[&wrong]).fails("postgres/connection", &["[password]"]);

    db.batch("ALTER PUBLICATION walrelay DROP TABLE outbox");
    insert(&db, 2);
    let mut relay = rig.start(&usual);
    ends(&mut relay, 78, "publication-lacks-table");
    ended(
        "the publication lost a table",
        &[
            "walrelay: not read",
            "by [publication-lacks-table]",
            "ADD TABLE",
        ],
        "postgres/publication-tables",
        &["[publication-lacks-table]", "ADD TABLE"],
    );
    db.batch("ALTER PUBLICATION walrelay ADD TABLE outbox");

    eventually(PATIENCE, || {
        for sql in [
            "SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))",
            "SELECT pg_switch_wal()",
            "CHECKPOINT",
        ] {
            db.batch(sql);
        }
        db.value("SELECT wal_status = 'lost' FROM pg_replication_slots")
    });
    let mut relay = rig.start(&usual);
    ends(&mut relay, 65, "slot-lost");
    ended(
        "the slot is lost",
        &["LOST: wal_removed", "-> docs/operate/troubleshooting.md"],
        "postgres/slot",
        &["[slot-lost]", "--accept-gap"],
    );

    db.batch("SELECT pg_drop_replication_slot('walrelay')");
    let mut relay = rig.start_with(&usual, &["--set=source.create=false"]);
    ends(&mut relay, 78, "slot-missing");
    ended(
        "the slot is missing",
        &["walrelay does not exist", "-> if a relay has run before"],
        "postgres/slot",
        &["[slot-missing]"],
    );
}
