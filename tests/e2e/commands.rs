use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::Ordering;

use walrelay_testkit::{Db, eventually, servers};

use crate::rig::{
    self, Checked, PATIENCE, Relay, Rig, SLOT, ends, eventually_or, output, output_with, walrelay,
};

fn stdout(args: &[&str]) -> String {
    succeeded(output(args))
}

fn stdout_with(command: &str, config: &Path, more: &[&str]) -> String {
    succeeded(output_with(command, config, more))
}

fn succeeded(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// All that the command said, and its exit code.
fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), rig::said(output))
}

/// The five minutes of the README: init, check, run, all as a role that may only replicate.
#[test]
fn a_newcomer_needs() {
    let rig = Rig::new(18);
    let config = rig.config();
    let first = stdout_with("init", &config, &["--role", "relay"]);
    for created in [
        "created table public.outbox",
        "created publication",
        "created slot",
    ] {
        assert!(first.contains(created), "{first}");
    }
    let again = stdout_with("init", &config, &[]);
    assert_eq!(again, "everything is there already\n");

    let db = Db::connect(&rig.postgres.url());
    db.batch("ALTER ROLE relay PASSWORD 'hunter2'");
    let url = rig.url_as("relay", "hunter2", "postgres");
    let config = rig.config_with(&url, "");
    let checked = Checked::of(&config, &[]);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    for group in ["configuration", "postgres", "kafka"] {
        checked.nothing_fails(group);
    }
    let relay = rig.streaming(&config);
    db.batch(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) \
         VALUES ('order', 'key', 'OrderPlaced', '{\"number\": 1}')",
    );
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.delivered, 1);
    let log = relay.ends_well();
    assert!(!log.contains("hunter2"), "{log}");
}

/// Statements one by one, as psql sends them: a slot cannot be made in a transaction that has written.
fn psql(db: &Db, script: &str) {
    let code: Vec<&str> = script
        .lines()
        .map(|line| line.split("--").next().unwrap_or(line).trim_end())
        .collect();
    for statement in code.join("\n").split(";\n") {
        if !statement.trim().is_empty() {
            db.batch(statement);
        }
    }
}

/// `migrations/` do by themselves what `init` does, and can be run again.
#[test]
fn the_migration_prepares() {
    let postgres = servers::postgres(15);
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../migrations/0001_outbox.sql"
    );
    let db = Db::connect(&postgres.url());
    let text = std::fs::read_to_string(script).expect("the migration");
    psql(&db, &text);
    psql(&db, &text);
    let rig = Rig::with(postgres, String::from("127.0.0.1:9"));
    let again = stdout_with("init", &rig.config(), &[]);
    assert_eq!(again, "everything is there already\n");
}

/// A dry run's script makes the role that the URL names, and goes on after a failure in its middle.
#[test]
fn the_script_of_a_dry_run_makes_the_role_of_the_url() {
    let rig = Rig::without_broker(18);
    let owner = rig.postgres.url();
    let url = rig.url_as("o'relay", "hunter2", "postgres");
    let config = rig.config_with(&url, "");
    let script = stdout_with("init", &config, &["--dry-run"]);
    let db = Db::connect(&owner);
    let (first, _) = script
        .split_once("-- From here on")
        .expect("the slot's part");
    psql(&db, first);
    psql(&db, &script);
    psql(&db, &script);
    db.batch("ALTER ROLE \"o'relay\" PASSWORD 'hunter2'");
    let slots = db.text("SELECT count(*)::text FROM pg_replication_slots");
    assert_eq!(slots.as_deref(), Some("1"));
    Checked::of(&config, &[]).nothing_fails("postgres");
    let named = stdout_with("init", &config, &["--dry-run", "--role", "other"]);
    assert!(named.contains("CREATE ROLE \"other\""), "{named}");
}

/// `check` says beforehand what `run` would end with.
#[test]
fn check_knows_who_may_create_the_publication() {
    let rig = Rig::without_broker(15);
    rig.workload().create_tables();
    let db = Db::connect(&rig.postgres.url());
    db.batch("CREATE ROLE relay LOGIN REPLICATION PASSWORD 'hunter2'");
    let url = rig.url_as("relay", "hunter2", "postgres");
    let config = rig.config_with(&url, "");
    let check = || said(&output_with("check", &config, &[]));
    let (code, said) = check();
    assert_eq!(code, Some(77), "{said}");
    for words in [
        "[privilege]",
        "CREATE on database postgres",
        "ownership of table public.outbox",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let run = output_with("run", &config, &[]);
    assert_eq!(run.status.code(), Some(77), "{run:?}");
    db.batch("GRANT CREATE ON DATABASE postgres TO relay");
    let (_, said) = check();
    assert!(
        !said.contains("CREATE on database") && said.contains("ownership"),
        "{said}"
    );
    db.batch("ALTER TABLE outbox OWNER TO relay");
    let (_, said) = check();
    assert!(
        said.contains("run creates it") && !said.contains("[privilege]"),
        "{said}"
    );
}

/// What a run says of itself: the first event, nothing when nothing was ever streamed.
#[test]
fn a_run_says_that_it_is_well() {
    let rig = Rig::with_outbox(15);
    let relay = rig.relay();
    assert!(!relay.log().contains("the first event is relayed"));
    rig.workload().rows(100).run();
    relay.says("the first event is relayed");
    rig.caught_up();
    let second = rig.start(&rig.config());
    second.says("standing by");
    second.says("is being read by server process");
    let (code, stood_by) = second.terminate();
    assert_eq!(code, Some(0), "{stood_by}");
    assert_eq!(stood_by.matches("standing by").count(), 1, "{stood_by}");
    for noise in ["\"records\":0", "trying again", "held_back", "not_said"] {
        assert!(!stood_by.contains(noise), "{noise}: {stood_by}");
    }
    let log = relay.ends_well();
    assert_eq!(
        log.matches("the first event is relayed").count(),
        1,
        "{log}"
    );
    for noise in ["\"held_back\":0", "\"not_said\":0", "\"partitions\":-1"] {
        assert!(!log.contains(noise), "{noise}: {log}");
    }
    for line in log.lines() {
        assert!(line.starts_with("{\"slot\":\"walrelay\",\""), "{line}");
        serde_json::from_str::<serde_json::Value>(line).expect("an object");
    }
}

/// One trouble with the brokers is one line, of both producers and of librdkafka's two channels.
#[test]
fn a_broker_that_is_away_is_named_once() {
    let rig = Rig::without_broker(15);
    rig.workload().create_tables();
    let relay = rig.relay();
    rig.workload().rows(100).run();
    relay.says("Connection refused");
    relay.says("AllBrokersDown");
    let log = relay.log();
    for words in ["Connection refused", "\"kind\":\"AllBrokersDown\""] {
        assert_eq!(log.matches(words).count(), 1, "{words}: {log}");
    }
    relay.kill();
}

/// The remedy of a table without a column that the preset reads works when it is followed.
#[test]
fn the_remedy_of_a_missing_column_works() {
    let rig = Rig::without_broker(15);
    let db = Db::connect(&rig.postgres.url());
    db.batch(
        "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, \
         event_type text, payload jsonb, created_at timestamptz)",
    );
    let config = rig.config();
    let text = std::fs::read_to_string(&config).expect("the configuration");
    let (source, rest) = text.split_once("[router.debezium]").expect("a route");
    let (_, rest) = rest.split_once("[log]").expect("a log");
    let with = |more: &str| {
        let text = format!("{source}{more}\n[log]{rest}");
        std::fs::write(&config, text).expect("written");
        said(&output_with("check", &config, &[])).1
    };
    let said = with("[router]\npreset = \"outbox\"\n");
    assert!(
        said.contains("[column-missing]") && said.contains("no column metadata"),
        "{said}"
    );
    assert!(!said.contains("[router.debezium]"), "{said}");
    let (_, value) = said.split_once("[router.route.value]").expect("a remedy");
    let members = value.lines().filter(|line| line.contains(" = \"{"));
    let value = members.collect::<Vec<&str>>().join("\n");
    let said = with(&format!(
        "[router]\npreset = \"outbox\"\n[router.route.value]\n{value}\n"
    ));
    assert!(said.contains("can be routed"), "{said}");
    let said = with("");
    assert!(
        said.contains("preset \"outbox\" fits but for its value"),
        "{said}"
    );
}

#[test]
fn a_dry_run_connects_to_nothing() {
    let rig = Rig::without_broker(15);
    let config = rig.config_with("postgres://nobody@127.0.0.1:9/nowhere", "");
    let sql = stdout_with("init", &config, &["--dry-run"]);
    for part in [
        "CREATE TABLE",
        "CREATE PUBLICATION",
        "CREATE ROLE",
        "pg_create_logical_replication_slot",
    ] {
        assert!(sql.contains(part), "{sql}");
    }
}

/// `walrelay run` that prints, and where its lines go.
struct Printing {
    relay: Relay,
    lines: PathBuf,
}

impl Printing {
    fn start(rig: &Rig, config: &Path, more: &[&str]) -> Self {
        let number = rig::TESTS.fetch_add(1, Ordering::Relaxed);
        let lines = rig.path(&format!("lines-{number}"));
        let mut command = Relay::command(config);
        command.args(["--set", "sink.kind=stdout"]).args(more);
        let log = rig.path(&format!("printing-{number}.log"));
        let stdout = File::create(&lines).expect("a file");
        let relay = Relay::spawn_to(&mut command, stdout, &log);
        Self { relay, lines }
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.lines).expect("lines");
        text.lines().map(str::to_owned).collect()
    }

    fn prints(&self, lines: u64) {
        let printed = || self.lines().len() as u64;
        eventually_or(PATIENCE, || printed() >= lines, || self.relay.log());
        assert_eq!(printed(), lines, "{}", self.relay.log());
    }
}

/// Asked to, it confirms: one JSON object a line, confirmed when it is written.
#[test]
fn standard_output_is_a_sink() {
    let rig = Rig::without_broker(15);
    rig.workload().create_tables();
    let printing = Printing::start(&rig, &rig.config(), &["--set", "sink.stdout.confirm=true"]);
    printing.relay.streaming();
    let written = rig.workload().rows(500).run();
    rig.caught_up();
    printing.prints(written.rows);
    let lines = printing.lines();
    assert!(
        lines
            .iter()
            .all(|line| line.starts_with('{') && line.ends_with('}')),
        "{lines:?}"
    );
}

/// A try-out takes nothing away: Kafka gets every event that was printed.
fn printing_confirms_nothing(major: u32) {
    let rig = Rig::with_outbox(major);
    let state = rig.path("state");
    let config = rig.config();
    let with_state = format!("source.state_file={}", state.display());
    rig.relay().ends_well();
    let slot = rig.slot();
    let before = slot.read().expect("the slot is there").confirmed_flush;
    let first = rig.workload().rows(300).seed(1).run().rows;
    let printing = Printing::start(&rig, &config, &["--set", &with_state]);
    printing.relay.says("reading a temporary copy of the slot");
    printing.prints(first);
    assert_eq!(
        slot.read().expect("the slot is there").confirmed_flush,
        before
    );

    // Beside a relay that reads the slot.
    let relay = rig.relay();
    let second = rig.workload().rows(200).seed(2).run().rows;
    rig.caught_up();
    printing.prints(first + second);
    let third = Printing::start(&rig, &config, &[]);
    third.relay.streaming();
    let last = rig.workload().rows(100).seed(3).run().rows;
    third.prints(last);
    rig.caught_up();
    let log = printing.relay.ends_well();
    assert!(log.contains("the slot stands where it stood"), "{log}");
    third.relay.ends_well();
    assert!(!state.exists(), "a state file was written");
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.committed as u64, first + second + last);
    assert_eq!(verdict.duplicates, 0, "{verdict}");
    relay.ends_well();
    let db = Db::connect(&rig.postgres.url());
    eventually(PATIENCE, || {
        let slots = db.text("SELECT string_agg(slot_name, ',') FROM pg_replication_slots");
        slots.as_deref() == Some(SLOT)
    });
}

#[test]
fn standard_output_confirms_nothing_on_15() {
    printing_confirms_nothing(15);
}

#[test]
fn standard_output_confirms_nothing_on_18() {
    printing_confirms_nothing(18);
}

/// Nothing that outlives the try-out is created.
#[test]
fn standard_output_needs_no_slot() {
    let rig = Rig::without_broker(15);
    rig.workload().create_tables();
    let config = rig.config();
    let db = Db::connect(&rig.postgres.url());
    let made = || {
        let sql = "SELECT concat((SELECT count(*) FROM pg_replication_slots), ' ', \
                   (SELECT count(*) FROM pg_publication))";
        db.text(sql).expect("two numbers")
    };
    let mut refused = Printing::start(&rig, &config, &[]);
    ends(&mut refused.relay, 78, "publication-missing");
    assert_eq!(made(), "0 0");

    db.batch("CREATE PUBLICATION walrelay FOR TABLE public.outbox WITH (publish = 'insert')");
    let printing = Printing::start(&rig, &config, &[]);
    printing.relay.says("the slot does not exist");
    printing.relay.streaming();
    let written = rig.workload().rows(50).run();
    printing.prints(written.rows);
    printing.relay.ends_well();
    eventually(PATIENCE, || made() == "0 1");
    let mut gap = Printing::start(&rig, &config, &["--accept-gap"]);
    ends(&mut gap.relay, 64, "accept-gap-unused");
}

#[test]
fn completions_and_version_are_printed() {
    assert!(stdout(&["completions", "bash"]).contains("walrelay"));
    assert_eq!(
        stdout(&["--version"]),
        format!("walrelay {}\n", env!("CARGO_PKG_VERSION"))
    );
}

/// What a demonstration prints, which ends well.
fn demo(arguments: &[&str]) -> String {
    let shown = walrelay(&[&["demo"], arguments].concat())
        .env("WALRELAY_POSTGRES_BIN", servers::binaries(15).dir())
        // An argument wins over it, and a drill goes on to its end.
        .env("DEMO_SECONDS", "1")
        .output()
        .expect("walrelay runs");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let log = String::from_utf8_lossy(&shown.stderr);
    assert!(shown.status.success(), "{text}{log}");
    for part in [
        "lost          0",
        "not committed 0",
        "out of order  0",
        "in the slot: yes",
        "p99",
    ] {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
    text
}

/// The demonstration comes out as it must and leaves no server behind.
#[test]
fn the_demo_shows_what_it_promises() {
    demo(&["--seconds", "3", "--rate", "50"]);
}

/// Each fault is seen in the status and in the metrics, and nothing is lost.
#[test]
fn the_drill_shows_each_fault() {
    let text = demo(&["--drill", "--rate", "50"]);
    let steps: Vec<&str> = text.split("\n--- ").skip(1).collect();
    let shown = [
        ["All is well", "streaming", "walrelay_ready 1.0"],
        [
            "broker stops",
            "NOT READY",
            "walrelay_kafka_all_brokers_down 1.0",
        ],
        [
            "started again",
            "1 of 1 brokers up",
            "walrelay_kafka_all_brokers_down 0.0",
        ],
        [
            "walsender is killed",
            "trying again",
            "walrelay_reconnects_total{cause=\"connection\"}",
        ],
        [
            "cannot be delivered",
            "1 written",
            "walrelay_dead_letters_total{class=\"unroutable\"} 1.0",
        ],
    ];
    assert_eq!(steps.len(), shown.len(), "{text}");
    for (step, parts) in steps.iter().zip(shown) {
        for part in parts {
            assert!(step.contains(part), "{part:?} is missing: {text}");
        }
    }
}
