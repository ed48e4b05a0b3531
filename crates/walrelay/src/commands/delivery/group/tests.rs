use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tracing::Level;
use walrelay_kafka_sink::embedded::EmbeddedBroker;
use walrelay_observe::{StatusReport, subscriber};
use walrelay_sink::lock;
use walrelay_testkit::{Db, PATIENCE, eventually, eventually_some, servers};

use super::*;
use crate::commands::delivery::relay::{RelayRun, start_views};
use crate::commands::inspect::endpoint::fetch;
use crate::config::{Config, Http, Log, LogFormat};

/// The log of this process.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Returns the lines, with those of other tests of this process.
    fn all(&self) -> Vec<Value> {
        let bytes = lock(&self.0);
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }

    /// Returns the lines of a pipeline with this message.
    fn lines(&self, pipeline: &str, message: &str) -> Vec<Value> {
        let lines = self.all().into_iter();
        let wanted = |line: &Value| {
            line["pipeline"] == pipeline
                && line["message"]
                    .as_str()
                    .is_some_and(|text| text.contains(message))
        };
        lines.filter(wanted).collect()
    }
}

fn config(url: &str, broker: &str, name: &str) -> Config {
    let text = format!(
        "[source]\nurl = \"{url}\"\ntables = [\"public.{name}\"]\nslot = \"{name}\"\n\
         publication = \"{name}\"\n[sink.kafka]\n\"bootstrap.servers\" = \"{broker}\"\n\
         [poison]\nunroutable = \"skip\"\n[http]\nlisten = \"127.0.0.1:0\"\n"
    );
    Config::parse(&text, "two.toml", &[], &|_| None).unwrap()
}

/// Set in the process that runs a test alone.
const ALONE: &str = "WALRELAY_TEST_ALONE";

/// Two relays of one process, with slots and topics of their own, deliver; one endpoint shows both
/// apart; the log names the pipeline of each line; one request stops both.
#[test]
#[expect(
    clippy::too_many_lines,
    reason = "a test is one story, from the setup to the end"
)]
fn two_relays_of_a_process_are_told_apart_and_stop_together() {
    const NAMES: [&str; 2] = ["orders", "bills"];
    // The log is one for a process, and other tests have another.
    if std::env::var_os(ALONE).is_none() {
        let test = "commands::delivery::group::tests::\
                    two_relays_of_a_process_are_told_apart_and_stop_together";
        let alone = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&[alone.stdout, alone.stderr].concat()).into_owned();
        assert!(
            alone.status.success() && said.contains("1 passed"),
            "{said}"
        );
        return;
    }
    let postgres = servers::postgres(17);
    let broker =
        EmbeddedBroker::start(&[("outbox.event.orders", 1), ("outbox.event.bills", 1)]).unwrap();
    let db = Db::connect(&postgres.url());
    for name in NAMES {
        db.batch(&format!(
            "CREATE TABLE {name} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text, \
             aggregateid text, type text, payload jsonb)"
        ));
    }
    let lines = Lines::default();
    let of_log = lines.clone();
    let log = Log {
        level: Level::INFO,
        format: LogFormat::Json,
    };
    let (subscriber, errors) = subscriber(log, &NAMES, move || of_log.clone(), false);
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let configs = NAMES.map(|name| config(&postgres.url(), broker.bootstrap_servers(), name));
    let relays = configs.each_ref().map(|config| {
        let run = RelayRun {
            config: &config.pipeline,
            process: &config.process,
            env: &|_| None,
            args: None,
            accept_gap: false,
            accept_loss: false,
            switches: false,
            errors: errors.clone(),
        };
        run.prepare().unwrap()
    });
    let process = &configs[0].process;
    let _views = start_views(process, &[&relays[0], &relays[1]]).unwrap();
    let listening = |line: Value| line["listen"].as_str()?.parse::<SocketAddr>().ok();
    let listen = eventually_some(PATIENCE, || lines.all().into_iter().find_map(listening));
    let http = Http {
        listen,
        ..process.http.clone().unwrap()
    };
    let status = |name: &str| -> StatusReport {
        let document = fetch(&http, &format!("/api/status?pipeline={name}")).unwrap();
        serde_json::from_str(&document).unwrap()
    };
    let look = || {
        for name in NAMES {
            eventually(PATIENCE, || status(name).ready);
            let rows = if name == "orders" { 3 } else { 5 };
            db.batch(&format!(
                "INSERT INTO {name} (aggregatetype, aggregateid, type, payload) \
                 SELECT '{name}', n, 'Placed', '{{}}' FROM generate_series(1, {rows}) n"
            ));
            let topic = format!("outbox.event.{name}");
            eventually(PATIENCE, || {
                let topics = status(name).delivery.topics;
                topics.len() == 1 && topics[0].topic == topic && topics[0].delivered == rows
            });
        }
        assert!(fetch(&http, "/readyz").unwrap().contains("true"));
        let metrics = fetch(&http, "/metrics").unwrap();
        for (name, rows) in [("orders", 3), ("bills", 5)] {
            let line = format!(
                "walrelay_records_total{{pipeline=\"{name}\",topic=\"outbox.event.{name}\",\
                 outcome=\"delivered\"}} {rows}.0\n"
            );
            assert!(metrics.contains(&line), "{line} is missing in\n{metrics}");
        }
        // No topic can be made of this row of one of them.
        db.batch("INSERT INTO bills (aggregateid, type, payload) VALUES ('1', 'Placed', '{}')");
        eventually(PATIENCE, || !status("bills").errors.is_empty());
        assert_eq!(status("bills").dead_letters.skipped["unroutable"], 1);
        assert_eq!(status("orders").errors, []);
        assert_eq!(status("orders").dead_letters.skipped["unroutable"], 0);
    };
    let observer = || RunObserver::new(&|_| None);
    let relays = relays.into_iter().map(|relay| (relay, observer()));
    // The future that stops both is polled on this thread, where it may block.
    let relayed = run_together(relays.collect(), || Ok(async { look() }));
    assert_eq!(relayed.len(), 2);
    for relayed in relayed {
        assert!(relayed.unwrap().is_some(), "latencies were measured");
    }
    for (name, tables) in [("orders", "public.orders"), ("bills", "public.bills")] {
        let starting = lines.lines(name, "starting");
        assert_eq!(starting.len(), 1);
        assert!(starting[0]["tables"].to_string().contains(tables));
        assert_eq!(lines.lines(name, "drained").len(), 1);
        assert_eq!(lines.lines(name, "the first event is relayed").len(), 1);
        assert!(
            lines
                .lines(name, "")
                .iter()
                .all(|line| line["slot"] == name)
        );
    }
    assert_eq!(lines.lines("bills", "skip").len(), 1);
    assert_eq!(lines.lines("orders", "skip").len(), 0);
}
