//! Writes the table of measured faults into docs/trust/proof.md.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::destination::Kind;
use crate::outcome::{MedianMax, Outcome};
use crate::run::Done;
use crate::table::{SCENARIOS, Scenario};

const DOCUMENT: &str = "docs/trust/proof.md";

/// The marks before and behind the table of a sink.
fn marks(sink: Kind) -> (String, String) {
    match sink {
        Kind::Kafka => (
            "<!-- faults -->\n".to_owned(),
            "<!-- end of faults -->".to_owned(),
        ),
        sink => (
            format!("<!-- faults of {sink} -->\n"),
            format!("<!-- end of faults of {sink} -->"),
        ),
    }
}

/// The versions that the page presumes; a line names its versions if they differ.
const ALL_MAJORS: &[u32] = &[14, 15, 16, 17, 18];

/// Faults that other tests cover.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "slot dropped while it is read: stops",
        "tests/e2e/crashes.rs::a_lost_slot_stops_the_relay",
    ),
    (
        "slot invalidated by `max_slot_wal_keep_size`: stops",
        "tests/e2e/docs.rs::way_out_when_the_slot_is_lost",
    ),
    (
        "publication loses a table: stops",
        "tests/e2e/crashes.rs::a_table_removed_from_the_publication_stops_the_relay",
    ),
    (
        "`wal_level` below logical",
        "tests/e2e/errors.rs::a_server_without_logical_decoding_is_refused",
    ),
    (
        "role without REPLICATION, wrong password, no such database",
        "tests/e2e/errors.rs::errors_of_access_have_ids",
    ),
    (
        "oversize record",
        "tests/e2e/poison.rs::an_event_too_large_for_kafka_stops_the_relay",
    ),
    (
        "a record of a batch is refused by the broker",
        "tests/e2e/poison.rs::an_event_that_the_broker_refuses_is_not_overtaken",
    ),
    (
        "idle outbox, 200 MB of other tables",
        "tests/e2e/idle.rs::an_idle_outbox_releases_the_log_on_postgres_18",
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The table of [`ELSEWHERE`]; panics if a test does not exist.
fn elsewhere() -> String {
    let mut text = String::from("\nElsewhere:\n\n| fault | shown by |\n|---|---|\n");
    for (fault, test) in ELSEWHERE {
        let (file, name) = test.split_once("::").expect("a file and a name");
        let code = fs::read_to_string(root().join(file)).expect("the test's file");
        assert!(code.contains(&format!("fn {name}(")), "there is no {test}");
        let short = file.trim_start_matches("tests/").trim_end_matches(".rs");
        let _ = writeln!(text, "| {fault} | `{short}::{name}` |");
    }
    text
}

/// Replaces the table between its marks.
pub(crate) fn write(done: &[Done], sink: Kind, seed: u64) {
    let path = root().join(DOCUMENT);
    let document = fs::read_to_string(&path).expect(DOCUMENT);
    let (begin, end) = marks(sink);
    let (before, rest) = document.split_once(&begin).expect("the mark of the table");
    let (_, after) = rest.split_once(&end).expect("the end of the table");
    let table = table(done, sink, seed);
    fs::write(&path, format!("{before}{begin}{table}{end}{after}")).expect("the table is written");
    println!("faults: the table is in {DOCUMENT}");
}

fn table(done: &[Done], sink: Kind, seed: u64) -> String {
    let mut text = format!(
        "{}\n\n\
         | fault | rows | repeated | first record, s | caught up, s |\n\
         |---|---|---|---|---|\n",
        command(sink, seed)
    );
    for scenario in SCENARIOS {
        if let Some(row) = row(scenario, sink, done) {
            text.push_str(&row);
        }
    }
    if sink == Kind::Kafka {
        text.push_str(&elsewhere());
    }
    text
}

/// The line of a scenario; `None` if it did not run.
fn row(scenario: &Scenario, sink: Kind, done: &[Done]) -> Option<String> {
    let mut text = String::new();
    let mut of: Vec<&Done> = done
        .iter()
        .filter(|done| done.scenario.name == scenario.name)
        .collect();
    of.sort_by_key(|done| done.major);
    if of.is_empty() {
        return None;
    }
    let majors: Vec<u32> = of.iter().map(|done| done.major).collect();
    let covers = match sink {
        Kind::Kafka => scenario.covers.to_owned(),
        _ => scenario.covers.replace("Kafka", "the server"),
    };
    let _ = write!(text, "| {covers} (`{}`)", scenario.name);
    if majors != ALL_MAJORS && sink == Kind::Kafka {
        let majors: Vec<String> = majors.iter().map(u32::to_string).collect();
        let _ = write!(text, ", on {}", majors.join(" "));
    }
    text.push_str(" |");
    let failed: Vec<String> = of
        .iter()
        .filter(|done| !done.is_clean())
        .map(|done| done.major.to_string())
        .collect();
    let outcomes: Vec<&Outcome> = of
        .iter()
        .filter_map(|done| done.outcome.as_ref().ok())
        .collect();
    if !failed.is_empty() {
        let _ = writeln!(text, " **failed on {}** | | | |", failed.join(", "));
        return Some(text);
    }
    if let Some(why) = outcomes.iter().find_map(|outcome| outcome.skipped.as_ref()) {
        let _ = writeln!(text, " not run: {why} | | | |");
        return Some(text);
    }
    let rows: usize = outcomes.iter().map(|outcome| outcome.committed).sum();
    let repeated = outcomes.iter().map(|outcome| outcome.duplicates);
    let (least, most) = (repeated.clone().min(), repeated.max());
    let repeated = match (least.unwrap_or(0), most.unwrap_or(0)) {
        (least, most) if least == most => least.to_string(),
        (least, most) => format!("{least}–{most}"),
    };
    let times = |figure: fn(&Outcome) -> &Vec<Duration>| {
        let all: Vec<Duration> = outcomes
            .iter()
            .flat_map(|outcome| figure(outcome).iter().copied())
            .collect();
        let figures =
            MedianMax::from_durations(&all).map_or_else(String::new, |figures| figures.to_string());
        figures.trim_end_matches(" s").to_owned()
    };
    let _ = writeln!(
        text,
        " {rows} | {repeated} | {} | {} |",
        times(|outcome| &outcome.first),
        times(|outcome| &outcome.caught_up),
    );
    Some(text)
}

/// The command that generates the table.
fn command(sink: Kind, seed: u64) -> String {
    match sink {
        Kind::Kafka => format!("`FAULTS_SEED={seed} make test-faults`"),
        sink => format!("`FAULTS_SINK={sink} FAULTS_SEED={seed} make test-faults`"),
    }
}

/// Replaces the lines of scenarios that were run again on all their versions.
///
/// Lines of another seed stay unchanged: one command must generate the whole table.
pub(crate) fn update(done: &[Done], sink: Kind, seed: u64) {
    let path = root().join(DOCUMENT);
    let document = fs::read_to_string(&path).expect(DOCUMENT);
    let (begin, end) = marks(sink);
    let (before, rest) = document.split_once(&begin).expect("the mark of the table");
    let (table, after) = rest.split_once(&end).expect("the end of the table");
    if !table.contains(&command(sink, seed)) {
        return;
    }
    let mut table = table.to_owned();
    for scenario in SCENARIOS {
        let Some(row) = row(scenario, sink, done) else {
            continue;
        };
        let mark = format!("(`{}`)", scenario.name);
        let Some(old) = table.lines().find(|line| line.contains(&mark)) else {
            println!("faults: {} has no line in the table yet", scenario.name);
            continue;
        };
        table = table.replacen(&format!("{old}\n"), &row, 1);
    }
    fs::write(&path, format!("{before}{begin}{table}{end}{after}")).expect("the table is written");
    println!("faults: the lines of what was run are in {DOCUMENT}");
}
