//! What refused events cost the others, for each sink: run by `cargo test -p walrelay --test e2e refused_cost --
//! --ignored --nocapture --test-threads=1`. `WALRELAY_SECONDS` is the length of each load, 60 by default, and
//! `WALRELAY_RETRY_FOR` the `retry_for`, 5s by default. `WALRELAY_SINK` chooses one sink, and
//! `WALRELAY_ONE_IN` how many events are refused, zero for none. With the path of another version of the binary in `WALRELAY_BASELINE` the healthy path is measured with both, in turns.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use walrelay_testkit::{
    Db, History, HttpReceiver, Nats, NatsMessage, QueueOptions, RabbitMq, Reaction, Received,
    Redis, eventually_some, millis_now,
};

use crate::endpoint::{LISTEN, address, metric, status};
use crate::rig::{PATIENCE, Relay, Rig, edit, run_command, strict_kafka, unique};

/// Rows of a transaction, and keys.
const ROWS: u64 = 10;
const KEYS: u64 = 1_000;
/// Rows that were committed before the relay starts.
const BACKLOG: u64 = 50_000;
const KINDS: [&str; 5] = ["kafka", "http", "rabbitmq", "nats", "redis"];

/// The servers of a measurement, whose destination refuses the events of the type `bad`.
struct Servers {
    rig: Rig,
    config: PathBuf,
    /// What is stored: the good events and the dead letters. Has the server, if no other test uses it.
    stored: Box<dyn Fn() -> [Vec<Arrival>; 2]>,
}

/// A stored event: its id, and when the server had it, as a timestamp or in seconds since 1970. Empty: the server does
/// not say.
type Arrival = (String, String);

fn at_millis(millis: i64) -> String {
    format!("{}.{:03}", millis / 1_000, millis % 1_000)
}

/// Counts how often each event is stored.
fn counted(stored: &[Arrival]) -> BTreeMap<&str, usize> {
    let mut times = BTreeMap::new();
    for (id, _) in stored {
        *times.entry(&**id).or_default() += 1;
    }
    times
}

/// Notes when messages come into a queue of RabbitMQ, which does not.
struct Watch {
    thread: JoinHandle<Vec<Arrival>>,
    stop: Arc<AtomicBool>,
}

impl Watch {
    fn start(server: &'static RabbitMq, queue: String) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut client = server.client();
            let mut arrivals = Vec::new();
            while !stopped.load(Ordering::SeqCst) {
                let messages = client.take_some(&queue, 100);
                let now = millis_now();
                let new = messages.into_iter().filter_map(|it| it.message_id);
                arrivals.extend(new.map(|id| (id, at_millis(now))));
                thread::sleep(Duration::from_millis(5));
            }
            arrivals
        });
        Self { thread, stop }
    }

    fn stop(self) -> Vec<Arrival> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("it watches")
    }
}

/// The events that are stored.
struct Counts {
    good: usize,
    dead: usize,
    again: usize,
    /// From the commit to the arrival, of good ones, in ms.
    late: Vec<f64>,
}

impl Servers {
    fn start(kind: &str) -> Self {
        let rig = match kind {
            "kafka" => Rig::with_kafka(18, strict_kafka()),
            _ => Rig::without_broker(18).outbox(),
        };
        // No dot: it would part a subject.
        let name = rig.prefix.trim_end_matches('.').replace(['.', '-'], "_");
        let [good, bad, dead] = ["good", "bad", "dead"].map(|it| format!("{name}_{it}"));
        let mut poison = format!("topic = \"{dead}\"\n");
        let route = format!("{name}_{{aggregatetype}}");
        let (sink, stored): (String, Box<dyn Fn() -> _>) = match kind {
            "kafka" => {
                let kafka = strict_kafka();
                for topic in [&good, &dead] {
                    let append_time = ("message.timestamp.type", "LogAppendTime");
                    kafka.create_topic(topic, 3, &[append_time]);
                }
                let servers = kafka.bootstrap_servers();
                let stored = move || {
                    [&good, &dead].map(|topic| {
                        let records = History::records(&servers, topic, 0, Duration::ZERO);
                        let records = records.into_iter().filter_map(|record| {
                            Some((record.id?, at_millis(record.appended.unwrap_or_default())))
                        });
                        records.collect()
                    })
                };
                (String::new(), Box::new(stored))
            }
            "http" => {
                let server = HttpReceiver::start(false, None, |_, received| {
                    if received.path.ends_with("_bad") {
                        Reaction::Answer(422, Vec::new())
                    } else {
                        Reaction::Store(200)
                    }
                });
                let host = server.address();
                let stored = move || {
                    [&good, &dead].map(|topic| {
                        let path = format!("/{topic}");
                        let stored = server.stored().into_iter().filter(|it| it.path == path);
                        let arrival = |it: Received| {
                            Some((it.header("webhook-id")?.to_owned(), at_millis(it.at)))
                        };
                        stored.filter_map(arrival).collect()
                    })
                };
                let url = format!("http://{host}/{route}");
                poison = String::new();
                (
                    format!("url = \"{url}\"\ndead_letter_url = \"http://{host}/{name}_dead\"\n"),
                    Box::new(stored),
                )
            }
            "rabbitmq" => {
                let server = RabbitMq::shared();
                let mut client = server.client();
                for exchange in [&good, &bad] {
                    client.declare_exchange(exchange, "fanout");
                }
                for queue in [&good, &dead] {
                    let options = QueueOptions {
                        queue_type: "quorum",
                        ..QueueOptions::default()
                    };
                    client.declare_queue(queue, options);
                }
                client.bind(&good, &good, "");
                // A message is taken from it at less cost.
                let seen = format!("{good}_seen");
                client.declare_queue(&seen, QueueOptions::default());
                client.bind(&seen, &good, "");
                let login = format!(
                    "hosts = [\"127.0.0.1:{}\"]\nusername = \"guest\"\npassword = \"guest\"\n\
                     exchange = \"{route}\"\ndead_letter_routing_key = \"{dead}\"\n",
                    server.port()
                );
                let watch = Mutex::new(Some(Watch::start(server, seen)));
                let stored = move || {
                    let watch = watch.lock().expect("it is whole").take();
                    let seen = watch.into_iter().flat_map(Watch::stop);
                    let seen: HashMap<String, String> = seen.collect();
                    [&good, &dead].map(|queue| {
                        let messages = server.client().take(queue).into_iter();
                        let ids = messages.filter_map(|message| message.message_id);
                        let seen = |id: &String| seen.get(id).cloned().unwrap_or_default();
                        ids.map(|id| (id.clone(), seen(&id))).collect()
                    })
                };
                (login, Box::new(stored))
            }
            "nats" => {
                let server = Nats::in_turn();
                for stream in [&good, &dead] {
                    let mut client = server.client();
                    client.create_stream(stream, &[stream], &json!({}));
                }
                let port = server.port();
                let lines = format!("hosts = [\"127.0.0.1:{port}\"]\nsubject = \"{route}\"\n");
                let stored = move || {
                    [&good, &dead].map(|stream| {
                        let messages = server.client().messages(stream, stream).into_iter();
                        let header = |it: &NatsMessage, name| it.headers[name].clone();
                        let arrivals = messages
                            .map(|it| (header(&it, "Nats-Msg-Id"), header(&it, "Nats-Time-Stamp")));
                        arrivals.collect()
                    })
                };
                (lines, Box::new(stored))
            }
            _ => {
                let server = Redis::shared();
                server.client().done(&format!("SET {bad} value"));
                let port = server.port();
                let lines = format!(
                    "hosts = [\"127.0.0.1:{port}\"]\nstream = \"{route}\"\nids = \"server\"\n"
                );
                let stored = move || {
                    [&good, &dead].map(|stream| {
                        let entries = server.client().entries(stream);
                        let arrivals = entries.iter().filter_map(|it| {
                            let (millis, _) = it.id.split_once('-')?;
                            Some((it.text("id")?.to_owned(), at_millis(millis.parse().ok()?)))
                        });
                        arrivals.collect()
                    })
                };
                (lines, Box::new(stored))
            }
        };
        let sink = match kind {
            "kafka" => String::new(),
            _ => format!("[sink]\nkind = \"{kind}\"\n[sink.{kind}]\n{sink}"),
        };
        let config = rig.config_and(&format!(
            "{sink}[poison]\nrejected = \"dead-letter\"\nunroutable = \"dead-letter\"\n\
             retry_for = \"{}\"\n{poison}",
            retry_for()
        ));
        edit(&config, &rig.prefix, &format!("{name}_"));
        Self {
            rig,
            config,
            stored,
        }
    }

    fn relay(&self, binary: Option<&Path>) -> Relay {
        let mut command = match binary {
            Some(binary) => {
                let mut command = Command::new(binary);
                command.args(["run", "--config"]).arg(&self.config);
                command
            }
            None => run_command(&self.config),
        };
        let log = self.rig.path(&format!("cost-{}.log", unique()));
        let relay = Relay::spawn(&mut command, &log);
        relay.streaming();
        relay
    }

    /// Counts the events that are stored now: good ones, dead letters, and those that were stored again.
    fn counts(&self) -> Counts {
        let [good, dead] = (self.stored)();
        let all = good.len() + dead.len();
        let [good_ids, dead_ids] = [&good, &dead].map(|it| counted(it).len());
        Counts {
            good: good_ids,
            dead: dead_ids,
            again: all - good_ids - dead_ids,
            late: self.late(&good),
        }
    }

    /// Returns the time from the commit of good events to their arrival in ms, in ascending order.
    fn late(&self, good: &[Arrival]) -> Vec<f64> {
        let known: Vec<&Arrival> = good.iter().filter(|(_, at)| !at.is_empty()).collect();
        let ids: Vec<&str> = known.iter().map(|(id, _)| &**id).collect();
        let times: Vec<&str> = known.iter().map(|(_, at)| &**at).collect();
        self.rig.db().column(
            "SELECT 1000 * extract(epoch FROM CASE WHEN at LIKE '%T%' THEN at::timestamptz \
             ELSE to_timestamp(at::float8) END - (payload->>'at')::timestamptz)::float8 \
             FROM unnest($1::text[], $2::text[]) AS arrived (event, at) JOIN outbox ON id = event::uuid \
             ORDER BY 1",
            &[&ids, &times],
        )
    }
}

/// Inserts `count` rows in one transaction; of `one_in` rows one is refused, none if that is zero.
fn insert(db: &Db, count: u64, one_in: u64) {
    db.batch(&format!(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), \
         CASE WHEN {one_in} > 0 AND random() * {one_in} < 1 THEN 'bad' ELSE 'good' END, \
         'key-' || (random() * {KEYS})::int, 'T', jsonb_build_object('at', clock_timestamp(), 'text', repeat('x', 100)) \
         FROM generate_series(1, {count}) n"
    ));
}

/// Inserts 1,000 rows a second.
fn load(db: &Db, seconds: u64, one_in: u64) {
    let begun = Instant::now();
    let mut rows = 0;
    while begun.elapsed().as_secs() < seconds {
        while rows < (begun.elapsed().as_secs_f64() * 1_000.0) as u64 {
            insert(db, ROWS, one_in);
            rows += ROWS;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn rows(db: &Db, kind: &str) -> usize {
    let count: i64 = db.value(&format!(
        "SELECT count(*) FROM outbox WHERE aggregatetype = '{kind}'"
    ));
    count as usize
}

/// The figures of the relay's last line.
fn figures(log: &str) -> (f64, f64) {
    let line = log
        .lines()
        .rfind(|line| line.contains("commit_to_ack_p50_ms"));
    let line: Value = serde_json::from_str(line.unwrap_or("{}")).expect("JSON");
    let figure = |name: &str| line[name].as_f64().unwrap_or(f64::NAN);
    (
        figure("commit_to_ack_p50_ms"),
        figure("commit_to_ack_p99_ms"),
    )
}

/// The time for which a refused event is sent again.
fn retry_for() -> String {
    env::var("WALRELAY_RETRY_FOR").unwrap_or_else(|_| "5s".to_owned())
}

/// The sinks that are measured.
fn kinds() -> impl Iterator<Item = &'static str> {
    let chosen = env::var("WALRELAY_SINK").ok();
    let is_chosen = move |kind: &&str| chosen.as_deref().is_none_or(|chosen| chosen == *kind);
    KINDS.into_iter().filter(is_chosen)
}

/// One of so many events is refused; zero: none is.
fn one_in() -> u64 {
    env::var("WALRELAY_ONE_IN").map_or(100, |text| text.parse().expect("a number"))
}

fn seconds() -> u64 {
    env::var("WALRELAY_SECONDS").map_or(60, |text| text.parse().expect("a number"))
}

/// Events of a destination that a row chooses, and that refuses all for ever, fill the window. They are named, and
/// after `retry_for` the others go on.
#[test]
#[ignore = "a minute: docs/adr/measurements/0057-refusals.md says what it shows"]
fn a_destination_that_refuses_all_is_named_and_stops_others_for_retry_for_only() {
    for kind in KINDS {
        let servers = Servers::start(kind);
        let db = servers.rig.db();
        let bounds = format!(
            "{LISTEN}[delivery]\nmax_in_flight_records = 32\nmax_retrying_bytes = \"0B\"\n[poison]\n"
        );
        edit(&servers.config, "[poison]\n", &bounds);
        let relay = servers.relay(None);
        // The receiver refuses events, not an address: each key waits by itself.
        let bad = if kind == "http" { 20 } else { 100 };
        for (count, of) in [(bad, "bad"), (100, "good")] {
            db.batch(&format!(
                "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), \
                 '{of}', 'key-' || n, 'T', jsonb_build_object('at', clock_timestamp()) \
                 FROM generate_series(1, {count}) n"
            ));
        }
        let at = address(&relay);
        let shown = eventually_some(PATIENCE, || {
            let shown = status(at);
            let waiting = &shown["delivery"]["retrying"];
            let is_named = waiting["keys"].as_u64() > Some(1)
                // A broker is asked for a topic once a second.
                && (kind == "kafka" || waiting["next_seconds"].is_number())
                && metric(at, "walrelay_retrying_keys") > Some(1.0)
                && metric(at, "walrelay_in_flight_bytes") > Some(0.0);
            is_named.then_some(shown)
        });
        let waiting = &shown["delivery"]["retrying"];
        let event = waiting["event_id"].as_str().expect("an id");
        let is_bad = format!("SELECT aggregatetype = 'bad' FROM outbox WHERE id = '{event}'");
        assert!(db.value::<bool>(&is_bad), "{kind}: {waiting:#}");
        let topic = waiting["topic"].as_str().expect("a topic");
        assert!(topic.ends_with("_bad"), "{kind}: {waiting:#}");
        assert_ne!(waiting["why"], "", "{kind}");
        let words = [" keys wait, up to ", event, topic, " has been refused for "];
        let problems = shown["problems"].as_array().expect("a list").iter();
        let reasons = problems.filter_map(|it| it["reason"].as_str());
        let named = reasons.filter(|reason| words.iter().all(|word| reason.contains(word)));
        assert_eq!(named.count(), 1, "{kind}: {:#}", shown["problems"]);
        servers.rig.caught_up();
        relay.ends_well();
        let stored = servers.counts();
        let counts = (stored.good, stored.dead, stored.again);
        assert_eq!(counts, (100, bad, 0), "{kind}");
    }
}

#[test]
#[ignore = "minutes: its figures are in docs/adr/measurements/0057-refusals.md"]
fn one_percent_poison_at_a_thousand_a_second() {
    let seconds = seconds();
    println!(
        "| sink | rows | dead letters | stored again | caught up after the load, s | commit to ack, ms (p50, p99) | \
         commit to arrival of good ones, ms (p50, p99, max) |"
    );
    for kind in kinds() {
        let servers = Servers::start(kind);
        let db = servers.rig.db();
        let relay = servers.relay(None);
        load(&db, seconds, one_in());
        let end = Instant::now();
        servers.rig.caught_up();
        let caught_up = end.elapsed().as_secs_f64();
        let log = relay.ends_well();
        let warnings = log.lines().filter(|line| line.contains("\"WARN\""));
        for line in warnings
            .filter(|line| !line.contains("dead letter"))
            .take(20)
        {
            println!("{line}");
        }
        let Counts {
            good,
            dead,
            again,
            late,
        } = servers.counts();
        assert_eq!(
            (good, dead),
            (rows(&db, "good"), rows(&db, "bad")),
            "{kind}"
        );
        let (p50, p99) = figures(&log);
        let all = good + dead;
        let share = |share: f64| late[((late.len() - 1) as f64 * share) as usize];
        println!(
            "| {kind} | {all} | {dead} | {again} | {caught_up:.1} | {p50:.1}, {p99:.1} | \
             {:.0}, {:.0}, {:.0} |",
            share(0.5),
            share(0.99),
            share(1.0)
        );
        assert_eq!(again, 0, "{kind}: stored again");
    }
}

#[test]
#[ignore = "minutes: its figures are in docs/adr/measurements/0057-refusals.md"]
fn one_in_seven_of_21000() {
    println!(
        "| sink | rows | dead letters | stored again | last dead letter, s after the insert |"
    );
    for kind in KINDS {
        let servers = Servers::start(kind);
        let db = servers.rig.db();
        let relay = servers.relay(None);
        let begun = Instant::now();
        for _ in 0..3 {
            insert(&db, 7_000, 7);
        }
        servers.rig.caught_up();
        let taken = begun.elapsed().as_secs_f64();
        relay.ends_well();
        let Counts {
            good, dead, again, ..
        } = servers.counts();
        assert_eq!(
            (good, dead),
            (rows(&db, "good"), rows(&db, "bad")),
            "{kind}"
        );
        println!(
            "| {kind} | {} | {dead} | {again} | {taken:.1} |",
            good + dead
        );
        assert_eq!(again, 0, "{kind}: stored again");
    }
}

#[test]
#[ignore = "minutes: its figures are in docs/adr/measurements/0057-refusals.md"]
fn the_cost_of_the_healthy_path_is_measured() {
    let baseline = env::var_os("WALRELAY_BASELINE").map(PathBuf::from);
    let binaries = [("baseline", baseline), ("this", None)];
    println!("| sink | binary | {BACKLOG} rows, s | commit to ack at 1,000/s, ms (p50, p99) |");
    for kind in KINDS {
        for (name, binary) in &binaries {
            if *name == "baseline" && binary.is_none() {
                continue;
            }
            let servers = Servers::start(kind);
            let db = servers.rig.db();
            servers.relay(binary.as_deref()).ends_well();
            for _ in 0..BACKLOG / 1_000 {
                insert(&db, 1_000, 0);
            }
            let begun = Instant::now();
            let relay = servers.relay(binary.as_deref());
            servers.rig.caught_up();
            let drained = begun.elapsed().as_secs_f64();
            relay.ends_well();
            let relay = servers.relay(binary.as_deref());
            load(&db, seconds().min(20), 0);
            servers.rig.caught_up();
            let (p50, p99) = figures(&relay.ends_well());
            println!("| {kind} | {name} | {drained:.1} | {p50:.1}, {p99:.1} |");
        }
    }
}
