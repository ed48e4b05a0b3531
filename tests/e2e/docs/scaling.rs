//! docs/how-to/scaling.md: its SQL and its configuration with real servers, and its tables compared with its
//! own constants.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use walrelay_measure::figures::thousands;
use walrelay_testkit::{Db, SlotWatch, eventually};

use super::{arguments, block, host, root, text, with};
use crate::rig::{PATIENCE, Relay, Rig, psql, walrelay};

const DOCUMENT: &str = "docs/how-to/scaling.md";
/// The share of a slot's ceiling that the model uses.
const HEADROOM: f64 = 0.7;
/// Beyond this number, another slot would mostly decode what the others decode.
const MOST_SLOTS: u32 = 4;

/// Writes the configuration of the document for these servers.
fn configuration(rig: &Rig) -> PathBuf {
    let config = block(DOCUMENT, "relay-0");
    let config = with(&config, "db.example.com:5432", &host(rig));
    // Use an existing database. The tests of `walsender` cover certificates.
    let config = with(
        &config,
        "/app?sslmode=verify-full",
        "/postgres?sslmode=disable",
    );
    let config = with(&config, "postgres://walrelay:", "postgres://postgres:");
    let config = with(&config, "broker.example.com:9092", &rig.bootstrap);
    let config = format!(
        "{config}\n[router.debezium]\n\"route.topic.replacement\" = \"{}${{routedByValue}}\"\n\n\
         [log]\nformat = \"json\"\n",
        rig.prefix
    );
    let path = rig.path("walrelay.toml");
    fs::write(&path, config).expect("written");
    path
}

/// Starts a relay with the document's configuration and the arguments of its second command.
fn start(rig: &Rig, number: u32) -> Relay {
    let config = configuration(rig);
    let command = block(DOCUMENT, "relay-1");
    let command = with(&command, "walrelay.toml", config.to_str().expect("text"));
    let command = command.replace("walrelay_1", &format!("walrelay_{number}"));
    let words = arguments(&command);
    assert_eq!(words[0], "run", "{command}");
    let mut command = walrelay(&words);
    command.env("PGPASSWORD", rig.postgres.superuser_password());
    let relay = Relay::spawn(&mut command, &rig.path(&format!("relay-{number}.log")));
    relay.streaming();
    relay
}

fn arrived(rig: &Rig, slot: &str) {
    let slot = SlotWatch::new(&rig.postgres.url(), slot);
    slot.wait_until(slot.wal_end(), PATIENCE);
}

/// Ids of the rows that a publication's filter contains.
fn carried(db: &Db, publication: &str) -> Vec<String> {
    let filter = db
        .text(&format!(
            "SELECT rowfilter FROM pg_publication_tables WHERE pubname = '{publication}'"
        ))
        .expect("a filter");
    let sql = format!("SELECT id::text FROM public.outbox WHERE {filter} ORDER BY 1");
    db.column(&sql, &[])
}

/// All rows arrive, each once, by the relay whose filter contains it, in order per key.
fn two_slots_share_a_table(major: u32) {
    let rig = Rig::with_outbox(major);
    let db = rig.db();
    psql(&db, &block(DOCUMENT, "shards"));
    let first = start(&rig, 0);
    rig.workload().rows(4_000).run();
    arrived(&rig, "walrelay_0");

    let expected = carried(&db, "walrelay_0");
    let mut sent = Vec::new();
    for kind in ["order", "payment", "customer"] {
        let topic = format!("{}{kind}", rig.prefix);
        let records = rig.records_in(&topic, 0);
        sent.extend(records.into_iter().filter_map(|record| record.id));
    }
    sent.sort_unstable();
    assert_eq!(sent, expected);
    let rest = carried(&db, "walrelay_1");
    assert!(
        expected.len() > 1_000 && rest.len() > 1_000,
        "{}",
        rest.len()
    );

    let second = start(&rig, 1);
    arrived(&rig, "walrelay_1");
    let committed = expected.len() + rest.len();
    rig.verdict().assert_counts(committed, 0);
    let covered = db.query(&block(DOCUMENT, "covered"), &[]);
    let count = |column: &str| covered[0].get::<_, i64>(column);
    assert_eq!(count("rows"), count("carried"));
    for relay in [first, second] {
        relay.ends_well();
    }
}

tests! {
    fn two_slots_share_a_table_on_15() { two_slots_share_a_table(15) }
    fn two_slots_share_a_table_on_18() { two_slots_share_a_table(18) }
}

/// The second relay joins while eight writers write.
fn one_slot_becomes_two(major: u32) {
    let rig = Rig::with_outbox(major);
    let db = rig.db();
    let first = rig.relay();
    let running = rig.workload().rate(400.0).start();
    let written = |rows: i64| {
        let count = "SELECT count(*) FROM public.outbox";
        eventually(PATIENCE, || db.value::<i64>(count) >= rows);
    };
    written(300);
    psql(&db, &block(DOCUMENT, "grow"));
    let narrowed = with(&block(DOCUMENT, "narrowed"), "()", "()::text");
    let narrowed = db.text(&narrowed).expect("a position");
    written(600);
    let passed = with(&block(DOCUMENT, "passed"), "0/16B3748", &narrowed);
    eventually(PATIENCE, || db.query(&passed, &[])[0].get("passed"));
    let second = start(&rig, 1);
    written(1_200);
    let written = running.stop();
    assert_eq!(written.errors, 0, "the lock was waited for");
    arrived(&rig, "walrelay");
    arrived(&rig, "walrelay_1");
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert!(verdict.committed >= 1_200, "{verdict}");
    // The repeats are rows of the second half, written between the creation of its slot and the
    // narrowing of the first publication.
    assert!(verdict.duplicates < verdict.committed / 2, "{verdict}");
    for relay in [first, second] {
        relay.ends_well();
    }
}

tests! {
    fn one_slot_becomes_two_on_15() { one_slot_becomes_two(15) }
    fn one_slot_becomes_two_on_18() { one_slot_becomes_two(18) }
}

/// The constants of the document, by name.
struct Constants(BTreeMap<String, f64>);

impl Constants {
    fn read(document: &str) -> Self {
        let (_, table) = document
            .split_once("<!-- constants -->\n")
            .expect("the constants");
        let (table, _) = table.split_once("<!-- end -->").expect("their end");
        let rows = table.lines().skip(2).map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let value = cells[1].parse().unwrap_or_else(|_| panic!("{row}"));
            (cells[0].to_owned(), value)
        });
        Self(rows.collect())
    }

    fn get(&self, name: &str) -> f64 {
        let found = self.0.get(name);
        *found.unwrap_or_else(|| panic!("{DOCUMENT} has no constant {name}"))
    }

    /// Events per second that `slots` slots carry at most.
    fn ceiling(&self, slots: f64) -> f64 {
        1e6 / (self.get("decode") + self.get("send") / slots)
    }

    /// The number of slots that carry `rate` with headroom; `None` if it exceeds [`MOST_SLOTS`].
    fn slots(&self, rate: f64) -> Option<f64> {
        (1..=MOST_SLOTS)
            .map(f64::from)
            .find(|slots| rate <= HEADROOM * self.ceiling(*slots))
    }

    /// CPU seconds per million events at `rate`: interpolated between the figures at a low rate and
    /// while draining.
    fn at(&self, rate: f64, single: &str, bulk: f64) -> f64 {
        let single = self.get(single);
        let full = 1e6 / (self.get("decode") + self.get("send"));
        let share = ((rate / 1_000.0).ln() / (full / 1_000.0).ln()).clamp(0.0, 1.0);
        (single.ln() * (1.0 - share) + bulk.ln() * share).exp()
    }

    fn relay(&self, rate: f64) -> f64 {
        self.at(rate, "relay_single", self.get("relay_bulk")) * rate / 1e6
    }

    fn broker(&self, rate: f64) -> f64 {
        self.at(rate, "broker_single", self.get("broker_bulk")) * rate / 1e6
    }

    /// CPU of one walsender that sends `rate` events of `whole` decoded events.
    fn walsender(&self, rate: f64, whole: f64) -> f64 {
        let bulk = self.get("decode") + self.get("send");
        let sent = (self.at(rate, "walsender_single", bulk) - self.get("decode")) * rate;
        (self.get("decode") * whole + sent) / 1e6
    }

    fn table_of_slots(&self) -> String {
        let mut out = String::from(
            "| slots | events/s, at most | cores of all walsenders at 100,000/s |\n|---:|---:|---:|\n",
        );
        for slots in [1.0, 2.0, 4.0, 8.0, 16.0] {
            let ceiling = self.ceiling(slots);
            let cores = (slots * self.get("decode") + self.get("send")) * 0.1;
            writeln!(out, "| {slots} | {} | {cores:.2} |", rounded(ceiling))
                .expect("a String takes all");
        }
        out
    }

    fn table_of_requests(&self) -> String {
        let mut out = String::from(
            "| brokers | partitions | round trip 1 ms | 5 ms | 20 ms |\n|---:|---:|---:|---:|---:|\n",
        );
        let in_flight = f64::from(12 * 1024 * 1024) / (self.get("produced") + 356.0);
        for (brokers, partitions) in [(1.0, 8.0), (3.0, 12.0), (3.0, 60.0), (3.0, 600.0)] {
            let records = f64::min(in_flight / partitions, 10_000.0);
            write!(out, "| {brokers} | {partitions} |").expect("a String takes all");
            for trip in [0.001, 0.005, 0.02] {
                // All records in flight can be sent once per round trip, no more.
                let rate = f64::min(5.0 * brokers * records, in_flight) / trip / 2.0;
                write!(out, " {} |", rounded(rate)).expect("a String takes all");
            }
            out.push('\n');
        }
        out
    }

    fn table_of_events(&self) -> String {
        let rates = [10_000.0, 100_000.0, 1_000_000.0];
        let mut out =
            String::from("| | 10,000/s | 100,000/s | 1,000,000/s |\n|---|---:|---:|---:|\n");
        let mut line = |name: &str, of: &dyn Fn(f64) -> String| {
            let cells = rates.map(of);
            writeln!(out, "| {name} | {} |", cells.join(" | ")).expect("a String takes all");
        };
        // Several clusters share the load if one WAL cannot be decoded fast enough.
        let clusters = |rate: f64| {
            let found = (1..=64)
                .map(f64::from)
                .find(|n| self.slots(rate / n).is_some());
            found.expect("a number of clusters")
        };
        let slots = |rate: f64| {
            let clusters = clusters(rate);
            clusters * self.slots(rate / clusters).expect("a number of slots")
        };
        line("clusters of Postgres", &|rate| clusters(rate).to_string());
        line("slots, and relays, in all", &|rate| slots(rate).to_string());
        line("cores of walsenders", &|rate| {
            let (slots, clusters) = (slots(rate), clusters(rate));
            let each = self.walsender(rate / slots, rate / clusters);
            format!("{:.1}", slots * each)
        });
        line("cores of relays", &|rate| {
            let slots = slots(rate);
            format!("{:.1}", slots * self.relay(rate / slots))
        });
        line("cores of brokers", &|rate| {
            let slots = slots(rate);
            format!("{:.1}", slots * self.broker(rate / slots))
        });
        line("memory of relays, MB", &|rate| {
            rounded(slots(rate) * self.get("drain_mb"))
        });
        for (name, constant) in [
            ("Postgres to relays, MB/s", "replicated"),
            ("relays to Kafka, MB/s", "produced"),
            ("WAL, MB/s", "wal"),
        ] {
            line(name, &|rate| {
                format!("{:.0}", rate * self.get(constant) / 1e6)
            });
        }
        out
    }

    fn table_of_services(&self) -> String {
        let (services, rate) = (1_000.0, 10.0);
        let mut out = String::from(
            "| layout | relays | memory of relays, MB | cores of relays | slots in a cluster | connections to it | \
             cores of its walsenders |\n|---|---:|---:|---:|---:|---:|---:|\n",
        );
        for (name, clusters, slots) in [
            ("a cluster for each service", 1_000.0, 1.0),
            ("10 clusters of 100 databases", 10.0, 100.0),
            ("one cluster of 1,000 databases", 1.0, 1_000.0),
            (
                "10 clusters, in each one database of 100 tables and one relay",
                10.0,
                1.0,
            ),
        ] {
            let relays = clusters * slots;
            let each = services * rate / relays;
            let of_cluster = services * rate / clusters;
            let idle = self.get("idle_ms") / 1_000.0;
            let others = (of_cluster - each) * self.get("skim") / 1e6;
            let walsender = self.walsender(each, each) + others;
            writeln!(
                out,
                "| {name} | {} | {} | {:.1} | {} | {} | {:.2} |",
                rounded(relays),
                rounded(relays * self.get("idle_mb")),
                relays * (idle + self.relay(each)),
                rounded(slots),
                rounded(2.0 * slots),
                slots * walsender,
            )
            .expect("a String takes all");
        }
        out
    }
}

/// Rounds to three significant digits, with commas.
fn rounded(number: f64) -> String {
    let digits = number.log10().floor().max(2.0);
    let unit = 10_f64.powf(digits - 2.0);
    thousands((number / unit).round() * unit)
}

/// `UPDATE_DOCS=1` rewrites the tables.
#[test]
fn tables_follow_from_the_constants() {
    let mut document = text(DOCUMENT);
    let constants = Constants::read(&document);
    let tables = [
        ("slots", constants.table_of_slots()),
        ("requests", constants.table_of_requests()),
        ("events", constants.table_of_events()),
        ("services", constants.table_of_services()),
    ];
    let mut wrong = Vec::new();
    for (name, table) in &tables {
        let mark = format!("<!-- model: {name} -->\n");
        let (before, rest) = document.split_once(&mark).expect("the table's mark");
        let (found, after) = rest.split_once("<!-- end -->").expect("the table's end");
        if found != table {
            wrong.push(format!("{name}:\n{table}"));
        }
        document = format!("{before}{mark}{table}<!-- end -->{after}");
    }
    assert_eq!(document.matches("<!-- model: ").count(), tables.len());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(root().join(DOCUMENT), document).expect("written");
    } else {
        assert!(
            wrong.is_empty(),
            "{DOCUMENT} is not what follows from its constants. To rewrite the tables: UPDATE_DOCS=1 \
             cargo test -p walrelay --test e2e docs::scaling::tables_follow_from_the_constants\n{}",
            wrong.join("\n")
        );
    }
}
