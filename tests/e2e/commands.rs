use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::json;
use walrelay_testkit::{RabbitMq, eventually, eventually_some, servers};
use walrelay_throwaway::{ChildGuard, RabbitMqBinaries};

use crate::check::Checked;
use crate::rig::{
    PATIENCE, Relay, Rig, SLOT, assert_has, assert_lacks, done, ends, insert, insert_of,
    json_lines, output, output_with, psql, refused, run_command, said, stdout, unique, walrelay,
    with_source,
};

fn stdout_with(command: &str, config: &Path, more: &[&str]) -> String {
    stdout(&output_with(command, config, more))
}

/// The five minutes of the README: init, check, run, all with a role that may only replicate.
#[test]
fn a_newcomer_needs_only_the_printed_commands() {
    let rig = Rig::new(18);
    let config = rig.config();
    let first = stdout_with("init", &config, &["--role", "relay"]);
    let parts = [
        "created table public.outbox",
        "created publication",
        "created slot",
    ];
    assert_has(&first, &parts);
    let again = stdout_with("init", &config, &[]);
    assert_eq!(again, "everything is there already\n");
    let again = json_lines(&output_with("init --output=json", &config, &[]));
    assert_eq!(again, [json!({"created": [], "notes": []})]);
    let dry = json_lines(&output_with("init --dry-run --output=json", &config, &[]));
    assert_has(dry[0]["sql"].as_str().expect("SQL"), &["CREATE TABLE"]);

    let db = rig.db();
    db.batch("ALTER ROLE relay PASSWORD 'hunter2'");
    let url = rig.url_as("relay", "hunter2", "postgres");
    let config = rig.config_with(&url, "");
    let checked = Checked::run(&config, &[]);
    checked.ends(0);
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
    assert_lacks(&log, &["hunter2"]);
}

/// `migrations/` do the same as `init`, and can be run again.
#[test]
fn the_migration_prepares_an_outbox() {
    let rig = Rig::without_broker(15);
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../migrations/0001_outbox.sql"
    );
    let db = rig.db();
    let text = fs::read_to_string(script).expect("the migration");
    psql(&db, &text);
    psql(&db, &text);
    let again = stdout_with("init", &rig.config(), &[]);
    assert_eq!(again, "everything is there already\n");
}

/// The SQL of `init --consumer` can be run again: an event is claimed once by each consumer, and
/// ids are of version 7 and rise.
fn prepares_a_consumer(major: u32) {
    let rig = Rig::without_broker(major);
    let script = stdout(&output(&["init", "--consumer"]));
    let lines = json_lines(&output(&[
        "init",
        "--consumer",
        "--dry-run",
        "--output=json",
    ]));
    assert_eq!(lines, [json!({ "sql": script })]);
    let db = rig.db();
    db.batch(&script);
    db.batch(&script);
    let claim = "INSERT INTO processed_events (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING \
                 RETURNING event_id";
    let claims = [("a", "1"), ("b", "1"), ("a", "1"), ("a", "2")];
    let claimed = claims.map(|(consumer, id)| db.query(claim, &[&consumer, &id]).len());
    assert_eq!(claimed, [1, 1, 0, 1]);

    let started: f64 = db.value("SELECT extract(epoch FROM clock_timestamp())::float8 * 1000");
    // As a role without privileges. Also after a rollback, which takes settings back.
    db.batch(
        "CREATE ROLE nobody; GRANT CREATE ON SCHEMA public TO nobody; SET ROLE nobody; \
         CREATE TABLE ids (id uuid, n serial)",
    );
    for end in ["COMMIT", "ROLLBACK", "COMMIT"] {
        db.batch(&format!(
            "BEGIN; INSERT INTO ids (id) SELECT outbox.uuidv7() FROM generate_series(1, 5000); {end}"
        ));
    }
    let ids: Vec<String> = db.column("SELECT id::text FROM ids ORDER BY n", &[]);
    assert_eq!(ids.len(), 10_000);
    assert!(ids.is_sorted_by(|a, b| a < b), "ids rise");
    for id in &ids {
        let variant = id.as_bytes()[19];
        assert!(
            id.as_bytes()[14] == b'7' && b"89ab".contains(&variant),
            "{id}"
        );
    }
    let ended: f64 = db.value("SELECT extract(epoch FROM clock_timestamp())::float8 * 1000");
    let milliseconds = |id: &String| {
        let digits = id.replace('-', "");
        u64::from_str_radix(&digits[..12], 16).expect("digits") as f64
    };
    let (first, last) = (milliseconds(&ids[0]), milliseconds(&ids[9_999]));
    assert!(
        started.floor() <= first && last <= ended + 1.0,
        "{started} {first} {last} {ended}"
    );
    // The random part differs.
    let ends: HashSet<&str> = ids.iter().map(|id| &id[24..]).collect();
    assert!(ends.len() > 9_990, "{}", ends.len());
}

#[test]
fn a_consumer_is_prepared_before_postgres_has_uuidv7() {
    prepares_a_consumer(15);
}

#[test]
fn a_consumer_is_prepared_where_postgres_has_uuidv7() {
    prepares_a_consumer(18);
}

/// The script of a dry run creates the role that the URL names, and can be continued after a
/// failure in its middle.
#[test]
fn the_script_of_a_dry_run_makes_the_role_of_the_url() {
    let rig = Rig::without_broker(18);
    let url = rig.url_as("o'relay", "hunter2", "postgres");
    let config = rig.config_with(&url, "");
    let script = stdout_with("init", &config, &["--dry-run"]);
    let db = rig.db();
    let (first, _) = script
        .split_once("-- From here on")
        .expect("the slot's part");
    psql(&db, first);
    psql(&db, &script);
    psql(&db, &script);
    db.batch("ALTER ROLE \"o'relay\" PASSWORD 'hunter2'");
    let slots: i64 = db.value("SELECT count(*) FROM pg_replication_slots");
    assert_eq!(slots, 1);
    Checked::run(&config, &[]).nothing_fails("postgres");
    let named = stdout_with("init", &config, &["--dry-run", "--role", "other"]);
    assert_has(&named, &["CREATE ROLE \"other\""]);
}

/// The script of a dry run makes the table with the configured names of columns: `check` accepts it,
/// and so does `init` without `--dry-run`.
#[test]
fn the_script_of_a_dry_run_has_the_configured_columns() {
    let rig = Rig::without_broker(15);
    let names = [
        "router.debezium.\"table.field.event.id\"=event_id",
        "router.debezium.\"table.field.event.key\"=order",
        "router.debezium.\"table.field.event.payload\"=data",
        "router.debezium.\"table.field.event.timestamp\"=at",
        "router.debezium.\"route.by.field\"=Kind of order",
        "router.debezium.\"table.fields.additional.placement\"=tenant:header,part:partition",
    ];
    let set: Vec<&str> = names.iter().flat_map(|name| ["--set", name]).collect();
    let config = rig.config();
    let script = stdout_with("init", &config, &[&["--dry-run"][..], &set].concat());
    let db = rig.db();
    psql(&db, &script);
    let again = stdout_with("init", &config, &set);
    assert_eq!(again, "everything is there already\n");
    let checked = || Checked::run(&config, &[&crate::check::WITHOUT_KAFKA[..], &set].concat());
    checked().passes("postgres/table", &[]);
    checked().passes("postgres/route", &[]);
    checked().ends(0);
    db.batch("DROP TABLE outbox");
    db.batch("DROP PUBLICATION walrelay; SELECT pg_drop_replication_slot('walrelay')");
    let made = stdout_with("init", &config, &set);
    assert_has(&made, &["created table public.outbox"]);
    checked().ends(0);
}

/// `check` reports beforehand what would stop `run`.
#[test]
fn check_knows_who_may_create_the_publication() {
    let rig = Rig::new(15).outbox();
    let db = rig.db();
    db.batch("CREATE ROLE relay LOGIN REPLICATION PASSWORD 'hunter2'");
    let url = rig.url_as("relay", "hunter2", "postgres");
    let config = rig.config_with(&url, "");
    let check = || output_with("check", &config, &[]);
    assert_eq!(check().status.code(), Some(77));
    let text = said(&check());
    let parts = [
        "[privilege]",
        "CREATE on database postgres",
        "ownership of table public.outbox",
    ];
    assert_has(&text, &parts);
    let run = output_with("run", &config, &[]);
    assert_eq!(run.status.code(), Some(77), "{run:?}");
    db.batch("GRANT CREATE ON DATABASE postgres TO relay");
    let text = said(&check());
    assert_lacks(&text, &["CREATE on database"]);
    assert_has(&text, &["ownership"]);
    db.batch("ALTER TABLE outbox OWNER TO relay");
    let text = said(&check());
    assert_has(&text, &["run creates it"]);
    assert_lacks(&text, &["[privilege]"]);
}

/// A run logs the first event, and nothing about streaming if it never streamed.
#[test]
fn a_run_says_that_it_is_well() {
    let rig = Rig::with_outbox(15);
    let relay = rig.relay();
    assert_lacks(&relay.log(), &["the first event is relayed"]);
    rig.workload().rows(100).run();
    relay.says("the first event is relayed");
    rig.caught_up();
    let second = rig.start(&rig.config());
    second.says("standing by");
    second.says("is being read by server process");
    let (code, stood_by) = second.terminate();
    assert_eq!(code, Some(0), "{stood_by}");
    assert_eq!(stood_by.matches("standing by").count(), 1, "{stood_by}");
    let parts = ["\"records\":0", "trying again", "suppressed"];
    assert_lacks(&stood_by, &parts);
    let log = relay.ends_well();
    let said = log.matches("the first event is relayed").count();
    assert_eq!(said, 1, "{log}");
    let parts = ["\"suppressed\":0", "\"partitions\":-1"];
    assert_lacks(&log, &parts);
    for line in log.lines() {
        assert_eq!(line.matches("\"slot\":\"walrelay\"").count(), 1, "{line}");
        serde_json::from_str::<serde_json::Value>(line).expect("an object");
    }
}

/// One problem with the brokers is one log line, for both producers and for librdkafka's two
/// channels.
#[test]
fn a_broker_that_is_away_is_named_once() {
    let rig = Rig::without_broker(15).outbox();
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

/// The remedy for a table without a column of the preset works.
#[test]
fn the_remedy_of_a_missing_column_works() {
    let rig = Rig::new(15);
    let db = rig.db();
    db.batch(
        "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, \
         event_type text, payload jsonb, created_at timestamptz)",
    );
    let config = rig.config();
    let text = fs::read_to_string(&config).expect("the configuration");
    let (source, rest) = text.split_once("[router.debezium]").expect("a route");
    let (_, rest) = rest.split_once("[log]").expect("a log");
    let with = |more: &str| {
        let text = format!("{source}{more}\n[log]{rest}");
        fs::write(&config, text).expect("written");
        said(&output_with("check", &config, &[]))
    };
    let said = with("[router]\npreset = \"outbox\"\n");
    assert_has(&said, &["[column-missing]", "no column metadata"]);
    assert_lacks(&said, &["[router.debezium]"]);
    let (_, value) = said.split_once("[router.route.value]").expect("a remedy");
    let members = value.lines().filter(|line| line.contains(" = \"{"));
    let value = members.collect::<Vec<&str>>().join("\n");
    let said = with(&format!(
        "[router]\npreset = \"outbox\"\n[router.route.value]\n{value}\n"
    ));
    assert_has(&said, &["can be routed"]);
    let said = with("");
    assert_has(&said, &["preset \"outbox\" fits but for its value"]);
}

#[test]
fn a_dry_run_connects_to_nothing() {
    let rig = Rig::without_broker(15);
    let config = rig.config_with("postgres://nobody@127.0.0.1:9/nowhere", "");
    let sql = stdout_with("init", &config, &["--dry-run"]);
    let parts = [
        "CREATE TABLE",
        "CREATE PUBLICATION",
        "CREATE ROLE",
        "pg_create_logical_replication_slot",
    ];
    assert_has(&sql, &parts);
}

/// A `walrelay run` that prints, and the file of its lines.
struct Printing {
    relay: Relay,
    lines: PathBuf,
}

impl Printing {
    fn start(rig: &Rig, config: &Path, more: &[&str]) -> Self {
        let number = unique();
        let lines = rig.path(&format!("lines-{number}"));
        let mut command = run_command(config);
        command.args(["--set", "sink.kind=stdout"]).args(more);
        let log = rig.path(&format!("printing-{number}.log"));
        let stdout = File::create(&lines).expect("a file");
        let relay = Relay::spawn_to(&mut command, stdout, &log);
        Self { relay, lines }
    }

    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.lines).expect("lines");
        text.lines().map(str::to_owned).collect()
    }

    fn prints(&self, lines: u64) {
        let printed = || self.lines().len() as u64;
        self.relay.until("lines", || printed() >= lines);
        assert_eq!(printed(), lines, "{}", self.relay.log());
    }
}

/// With `sink.stdout.confirm`, each event is one line of JSON and confirmed once it is written.
#[test]
fn standard_output_is_a_sink() {
    let rig = Rig::without_broker(15).outbox();
    let printing = Printing::start(&rig, &rig.config(), &["--set", "sink.stdout.confirm=true"]);
    printing.relay.streaming();
    let written = rig.workload().rows(500).run();
    rig.caught_up();
    printing.prints(written.rows);
    let lines = printing.lines();
    let is_object = |line: &String| line.starts_with('{') && line.ends_with('}');
    assert!(lines.iter().all(is_object), "{lines:?}");
}

/// A try-out takes no event away: Kafka gets every event that was printed.
fn printing_confirms_nothing(major: u32) {
    let rig = Rig::with_outbox(major);
    let state = rig.path("state");
    let config = rig.config();
    let with_state = format!("source.state_file={}", state.display());
    rig.relay().ends_well();
    let slot = rig.slot();
    let before = slot.confirmed();
    let first = rig.workload().rows(300).seed(1).run().rows;
    let printing = Printing::start(&rig, &config, &["--set", &with_state]);
    printing.relay.says("reading a temporary copy of the slot");
    printing.prints(first);
    assert_eq!(slot.confirmed(), before);

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
    assert_has(&log, &["the slot stands where it stood"]);
    third.relay.ends_well();
    assert!(!state.exists(), "a state file was written");
    let committed = (first + second + last) as usize;
    rig.finish(relay).assert_counts(committed, 0);
    let db = rig.db();
    eventually(PATIENCE, || {
        let slots = db.text("SELECT string_agg(slot_name, ',') FROM pg_replication_slots");
        slots.as_deref() == Some(SLOT)
    });
}

tests! {
    fn standard_output_confirms_nothing_on_15() { printing_confirms_nothing(15) }
    fn standard_output_confirms_nothing_on_18() { printing_confirms_nothing(18) }
}

/// Nothing that outlives the try-out is created.
#[test]
fn standard_output_needs_no_slot() {
    let rig = Rig::without_broker(15).outbox();
    let config = rig.config();
    let db = rig.db();
    let made = || {
        db.value::<String>(
            "SELECT concat((SELECT count(*) FROM pg_replication_slots), ' ', \
             (SELECT count(*) FROM pg_publication))",
        )
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
    assert_has(&stdout(&output(&["completions", "bash"])), &["walrelay"]);
    let version = format!("walrelay {}\n", env!("CARGO_PKG_VERSION"));
    // The build of a release adds the commit.
    assert_eq!(stdout(&output(&["--version"])), version);
}

/// By the build script itself: tests build no release.
#[test]
fn the_version_of_a_release_has_its_commit() {
    let rig = tempfile::tempdir().expect("a folder");
    let script = rig.path().join("build-script");
    let crate_folder = env!("CARGO_MANIFEST_DIR");
    let mut compiler = Command::new("rustc");
    compiler.args(["--edition=2024", "-o"]).arg(&script);
    let compiled = compiler.arg(format!("{crate_folder}/build.rs")).output();
    let compiled = compiled.expect("rustc runs");
    assert!(compiled.status.success(), "{}", said(&compiled));
    let version = |profile: &str, folder: &str, commit: &str| {
        let mut run = Command::new(&script);
        run.env("PROFILE", profile)
            .env("CARGO_PKG_VERSION", "1.2.3");
        run.env("WALRELAY_COMMIT", commit).current_dir(folder);
        let printed = stdout(&run.output().expect("the script runs"));
        let line = printed
            .lines()
            .find_map(|line| line.split_once("WALRELAY_VERSION="));
        line.expect("a version").1.to_owned()
    };
    let elsewhere = rig.path().to_str().expect("UTF-8");
    assert_eq!(version("debug", elsewhere, "0ab262a 2026-11-27"), "1.2.3");
    assert_eq!(version("release", elsewhere, ""), "1.2.3");
    let given = version("release", elsewhere, "0ab262a 2026-11-27");
    assert_eq!(given, "1.2.3 (0ab262a 2026-11-27)");
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%h %cs"])
        .current_dir(crate_folder);
    let commit = git.output().ok().filter(|output| output.status.success());
    let commit = commit.map_or_else(String::new, |output| {
        format!(" ({})", stdout(&output).trim())
    });
    assert_eq!(
        version("release", crate_folder, ""),
        format!("1.2.3{commit}")
    );
}

#[test]
fn make_install_puts_binary_completions_and_manual_there() {
    let rig = tempfile::tempdir().expect("a folder");
    let target = rig.path().join("other target");
    fs::create_dir_all(target.join("release")).expect("a folder");
    let install = || {
        let mut make = Command::new("make");
        make.args([
            "--silent",
            "-C",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
            "install",
        ]);
        make.env("CARGO_TARGET_DIR", &target);
        make.arg(format!("DESTDIR={}", rig.path().display()));
        make.output().expect("make runs")
    };
    let missing = install();
    assert!(!missing.status.success());
    assert_has(&said(&missing), &["run make build first"]);
    let binary = walrelay(&[]).get_program().to_owned();
    std::os::unix::fs::symlink(binary, target.join("release/walrelay")).expect("a link");
    done(&install());
    let usr = rig.path().join("usr/local");
    let installed = Command::new(usr.join("bin/walrelay"))
        .arg("--version")
        .output();
    assert_has(&stdout(&installed.expect("it runs")), &["walrelay "]);
    for (file, word) in [
        ("man/man1/walrelay.1", "Kafka"),
        ("man/man1/walrelay-run.1", "accept"),
        ("bash-completion/completions/walrelay", "import"),
        ("zsh/site-functions/_walrelay", "import"),
        ("fish/vendor_completions.d/walrelay.fish", "import"),
    ] {
        let text = fs::read_to_string(usr.join("share").join(file)).expect("a file");
        assert_has(&text, &[word]);
    }
}

/// Runs a demonstration, which must succeed; returns its output.
fn demo(arguments: &[&str]) -> String {
    let mut command = walrelay(&[&["demo"], arguments].concat());
    command
        .env("WALRELAY_POSTGRES_BIN", servers::binaries(15).dir())
        // An argument has precedence over the variable, and a drill runs to its end.
        .env("DEMO_SECONDS", "1")
        .stdin(Stdio::null());
    let shown = command.output().expect("walrelay runs");
    assert!(shown.status.success(), "{}", said(&shown));
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let parts = [
        "lost          0",
        "not committed 0",
        "out of order  0",
        "in the slot: yes",
        "p99",
    ];
    assert_has(&text, &parts);
    text
}

/// The demonstration shows the expected figures and leaves no server behind.
#[test]
fn the_demo_shows_what_it_promises() {
    demo(&["--seconds", "3", "--rate", "50"]);
}

/// The same by HTTP: the receiver shows path, key and body of each request.
#[test]
fn the_demo_posts_events_to_its_receiver() {
    let text = demo(&["--sink", "http", "--seconds", "3", "--rate", "50"]);
    let parts = [
        "an HTTP receiver",
        "outbox.event.Order",
        "order-",
        "commit → answer",
        "kind = \"http\"",
    ];
    assert_has(&text, &parts);
}

/// The same by RabbitMQ, twice in a row.
#[test]
fn the_demo_publishes_events_to_its_rabbitmq() {
    if !RabbitMq::is_wanted() {
        return;
    }
    for _ in 0..2 {
        let text = demo(&["--sink", "rabbitmq", "--seconds", "3", "--rate", "50"]);
        let parts = [
            "and RabbitMQ",
            "outbox.event.Order",
            "order-",
            "commit → confirm",
            "kind = \"rabbitmq\"",
        ];
        assert_has(&text, &parts);
    }
}

/// A machine without RabbitMQ gets a sentence that says how to have one.
#[test]
fn a_demo_without_rabbitmq_says_what_to_install() {
    if RabbitMqBinaries::installed().is_some() {
        return;
    }
    let none = tempfile::tempdir().expect("a directory");
    let mut command = walrelay(&["demo", "--sink", "rabbitmq"]);
    command
        .env("WALRELAY_POSTGRES_BIN", servers::binaries(15).dir())
        .env("WALRELAY_CACHE", none.path());
    let shown = command.output().expect("walrelay runs");
    assert_eq!(shown.status.code(), Some(69), "{}", said(&shown));
    assert_has(
        &said(&shown),
        &[
            "demo-rabbitmq",
            "no RabbitMQ found",
            "apt-get",
            "--sink http",
        ],
    );
}

/// The drill needs a broker that it can stop.
#[test]
fn a_drill_is_of_kafka() {
    let shown = walrelay(&["demo", "--drill", "--sink", "http"]).output();
    let shown = shown.expect("walrelay runs");
    assert_eq!(shown.status.code(), Some(64), "{}", said(&shown));
    assert_has(&said(&shown), &["demo-drill", "leave out --sink"]);
}

/// A demonstration whose reader has gone away, as in `walrelay demo | head -1`, ends.
#[test]
fn a_demo_that_nobody_reads_ends() {
    let mut command = walrelay(&["demo", "--rate", "50"]);
    command
        .env("WALRELAY_POSTGRES_BIN", servers::binaries(15).dir())
        .stdout(Stdio::piped());
    let mut demo = ChildGuard::spawn(&mut command).expect("walrelay runs");
    let mut first = String::new();
    let mut lines = BufReader::new(demo.stdout.take().expect("a pipe"));
    lines.read_line(&mut first).expect("a line");
    assert!(first.starts_with("Starting"), "{first}");
    drop(lines);
    let ended = eventually_some(PATIENCE, || demo.try_wait().expect("a child"));
    assert!(ended.success(), "{ended}");
}

/// Each fault shows up in the status and in the metrics, and nothing is lost.
#[test]
fn the_drill_shows_each_fault() {
    // Without a terminal, nobody presses Enter: the pause ends at the end of standard input.
    let text = demo(&["--drill", "--pause", "--rate", "50"]);
    assert_eq!(text.matches("press Enter").count(), 5, "{text}");
    assert_has(&text, &["dead letters  1"]);
    let steps: Vec<&str> = text.split("\n--- ").skip(1).collect();
    let shown = [
        ["All is well", "streaming", "walrelay_ready 1.0"],
        [
            "broker stops",
            "NOT READY",
            "walrelay_sink_all_endpoints_down 1.0",
        ],
        [
            "started again",
            "1 of 1 brokers up",
            "walrelay_sink_all_endpoints_down 0.0",
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
        assert_has(step, &parts);
    }
}

/// `walrelay tail` prints what the topic has, what follows, and what was asked for.
#[test]
fn a_tail_prints_the_records_of_a_topic() {
    let rig = Rig::with_outbox(17);
    let config = rig.config();
    let topic = format!("{}order", rig.prefix);
    let tail = |options: &str| output_with(&format!("tail {topic} {options}"), &config, &[]);
    refused(&tail(""), 65, &["[tail-topic]", "--follow"]);
    refused(&tail("--set sink.kind=stdout"), 78, &["[tail-sink]"]);
    let keys = |output: &Output| -> Vec<String> {
        let lines = json_lines(output).into_iter();
        lines
            .map(|line| line["key"].as_str().expect("a key").to_owned())
            .collect()
    };
    let relay = rig.streaming(&config);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| tail("--follow -n 3"));
        for (key, number) in [("k1", 1), ("k2", 1), ("k1", 2)] {
            insert_of(&rig.db(), "order", key, number);
        }
        let waited = waiting.join().expect("it ends");
        let mut arrived = keys(&waited);
        arrived.sort();
        assert_eq!(arrived, ["k1", "k1", "k2"]);
    });
    assert_eq!(keys(&tail("--key k1")), ["k1", "k1"]);
    assert_eq!(keys(&tail("-n 1")).len(), 1);
    assert_eq!(keys(&tail("--from end")), [""; 0]);
    assert_eq!(keys(&tail("--from 2020-01-01T00:00:00Z")).len(), 3);
    relay.ends_well();
}

/// An administrator prepares the database for a relay that connects as another role.
#[test]
fn init_works_for_an_administrator() {
    let rig = Rig::new(15);
    rig.db()
        .batch("CREATE ROLE admin SUPERUSER LOGIN PASSWORD 'secret'");
    let config = rig.config_with(&rig.url_as("relay", "hunter2", "postgres"), "");
    // For which the role must be allowed to read the table.
    let config = with_source(config, "snapshot = \"initial\"");
    let admin = rig.url_as("admin", "secret", "postgres");
    let done = stdout_with("init", &config, &["--admin-url", &admin]);
    assert_has(
        &done,
        &["created table public.outbox", "created role relay"],
    );
    rig.db().batch("ALTER ROLE relay PASSWORD 'hunter2'");
    insert(&rig.db(), 1);
    rig.streaming(&config).ends_well();
    assert_eq!(rig.records(1).len(), 1);
}

/// The table whose columns a preset reads is found among others, and `run` works with the file.
#[test]
fn new_finds_the_outbox_and_its_preset() {
    let rig = Rig::new(17);
    rig.db().batch(
        "CREATE SCHEMA app; CREATE TABLE public.messages (id int, body text); \
         CREATE TABLE app.\"Events\" (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, \
         payload jsonb, metadata jsonb, created_at timestamptz, seq bigserial); \
         CREATE TABLE app.old_outbox (id int, aggregatetype text, aggregateid text, type text, payload text)",
    );
    rig.db().batch("CREATE ROLE admin LOGIN PASSWORD 'secret'");
    let url = rig.url_as("admin", "secret", "postgres");
    let file = rig.path("new.toml");
    let path = file.to_str().expect("UTF-8");
    let new = [
        "new",
        "--database",
        &url,
        "--brokers",
        &rig.bootstrap,
        "--output-file",
        path,
    ];
    let said = stdout(&output(&new));
    assert_has(
        &said,
        &["table app.Events has the columns of preset outbox; so have 1 more"],
    );
    let written = fs::read_to_string(&file).expect("written");
    let parts = [
        "tables = [\"app.\\\"Events\\\"\"]",
        "preset = \"outbox\"",
        "too: \"app.old_outbox\"",
        ":${RELAY_PASSWORD}@",
    ];
    assert_has(&written, &parts);
    assert_lacks(&written, &["secret"]);
    rig.db().batch("CREATE ROLE walrelay LOGIN REPLICATION PASSWORD 'a/b@c'; GRANT CREATE ON DATABASE postgres TO walrelay; \
                    ALTER TABLE app.\"Events\" OWNER TO walrelay; GRANT USAGE ON SCHEMA app TO walrelay");
    // Another test may have the port of the file.
    let port = "http.listen=127.0.0.1:0";
    let mut run = walrelay(&["run", "--config", path, "--set", port]);
    run.env("RELAY_PASSWORD", "a/b@c");
    let relay = Relay::spawn(&mut run, &rig.path("log"));
    relay.says("streaming");
    relay.ends_well();
    // Nobody can be asked here.
    refused(
        &output(&["new", "--database", &url]),
        64,
        &["[new-unknown]", "--brokers"],
    );
}
