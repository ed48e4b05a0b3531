use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;

use walrelay_testkit::eventually;

use super::checked;
use crate::docs::block;
use crate::rig::{
    PATIENCE, Rig, assert_has, assert_lacks, command_with, output_unread, output_with, refused,
    stdout, walrelay, words,
};

/// Errors of the file alone are found without a server.
#[test]
fn check_reports_errors_of_the_configuration() {
    let rig = Rig::without_broker(18);
    let config = rig.config();
    let offline = |set: &str| checked(&config, &["--offline"], set);
    let fails = |set: &str, item: &str, words: &[&str]| {
        offline(set).fails(item, words);
    };
    let fine = offline("");
    fine.ends(0);
    fine.nothing_fails("configuration");
    let unknown = ["[config-unknown-key]", "guarantee"];
    fails("delivery.garanty=x", "configuration/file", &unknown);
    let url = "source.url=postgres://h/db?sslmode=sometimes";
    let words = ["[source-url]", "sslmode"];
    fails(url, "configuration/database-url", &words);
    let plain = ["unencrypted", "sslmode=verify-full"];
    let item = "configuration/database-url";
    offline("source.url=postgres://r@db.internal/app").warns(item, &plain);
    for demanded in ["localhost", "127.0.0.1", "db.internal/app?sslmode=require"] {
        let checked = offline(&format!("source.url=postgres://r@{demanded}"));
        assert_eq!(checked.worst(item)["verdict"], "pass");
    }
    let column = "source.messages.prefix=outbox \
                  router.debezium.table.fields.additional.placement=nothing:header";
    let words = ["[message-column]", "nothing"];
    fails(column, "configuration/routes", &words);
    let clear = "sink.kafka.security.protocol=SASL_PLAINTEXT sink.kafka.sasl.mechanism=PLAIN \
                 sink.kafka.sasl.username=u sink.kafka.sasl.password=p";
    offline(clear).warns("configuration/kafka-properties", &["SASL_SSL"]);
    let authority = "router.registry.url=https://registry router.registry.format=json \
                     router.registry.ca_file=/nonexistent";
    fails(authority, "configuration/registry-ca", &["[registry-ca]"]);
    let item = "configuration/state-file";
    let snapshot = "source.snapshot=initial";
    let dropped = ["a slot that is dropped later", "remove source.snapshot"];
    offline(snapshot).warns(item, &dropped);
    let new = rig.path("new");
    let new = format!("{snapshot} source.state_file={}", new.display());
    offline(&new).passes(item, &["run makes it"]);
    let state = rig.path("state");
    fs::write(&state, "nonsense").expect("written");
    let checked = offline(&format!("source.state_file={}", state.display()));
    checked.fails(item, &["[state-file]"]);
    checked.ends(78);
}

/// A dead letter without the value of its event cannot be redriven.
#[test]
fn of_a_shape_of_dead_letters_without_the_value() {
    let rig = Rig::without_broker(18);
    let shaped = |template: &str| {
        let poison = format!("\n[poison]\nrejected = \"dead-letter\"\nvalue = '{template}'\n");
        checked(&rig.config_and(&poison), &["--offline"], "")
    };
    let without = shaped("{\"error\": {error}}");
    without.ends(0);
    without.warns(
        "configuration/dead-letter-value",
        &["neither redrive nor show", "add {value}"],
    );
    let with = shaped("{\"error\": {error}, \"event\": {value}}");
    with.nothing_fails("configuration");
    assert!(with.all("configuration/dead-letter-value").is_empty());
}

/// A pipeline that builds a repository has neither the servers nor the secrets.
#[test]
fn check_offline_connects_to_nothing_and_needs_no_secret() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("walrelay.toml");
    // A server that would see each connection.
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = server.local_addr().expect("an address");
    server.set_nonblocking(true).expect("a listener");
    let text = format!(
        "[source]\nurl = \"postgres://relay:${{RELAY_PASSWORD}}@{address}/app\"\ntables = [\"public.outbox\"]\n\
         [sink.kafka]\n\"bootstrap.servers\" = \"{address}\"\n[http]\nlisten = \"{address}\"\n\
         [router.registry]\nurl = \"http://{address}\"\nformat = \"json\"\n"
    );
    fs::write(&config, &text).expect("written");
    let line = words(&block("docs/operate/check.md", "offline")).join(" ");
    let (variable, command) = line.split_once(" walrelay ").expect("a variable before it");
    let (name, value) = variable.split_once('=').expect("a variable");
    let offline = |more: &[&str], env: &[(&str, &str)]| {
        let mut offline = walrelay(&words(command));
        offline
            .args(more)
            .current_dir(&folder)
            .envs(env.iter().copied());
        walrelay_testkit::output(&mut offline)
    };
    let set = [(name, value)];
    assert_has(&stdout(&offline(&[], &set)), &[" 0 fail\n"]);
    let code = |more: &[&str], env: &[(&str, &str)]| offline(more, env).status.code();
    assert_eq!(code(&["--set", "source.slto=x"], &set), Some(78));
    assert_eq!(code(&[], &[]), Some(78), "a variable is missing");
    assert_eq!(code(&["--set", "nonsense"], &set), Some(64));
    let missing =
        walrelay_testkit::output(&mut walrelay(&words("check --offline --config /missing")));
    assert_eq!(missing.status.code(), Some(78));
    let asked = server.accept().expect_err("a connection");
    assert_eq!(asked.kind(), ErrorKind::WouldBlock);
}

/// What standard output cannot do is refused before a server is asked, with the key that asks for it.
#[test]
fn check_reports_what_the_sink_cannot_do() {
    let rig = Rig::without_broker(18);
    let config = rig.config();
    let stdout = "sink.kind=stdout poison.oversize=dead-letter";
    for (asks, words) in [
        (
            "sink.stdout.confirm=true poison.park_key=true",
            ["cannot park the events of a key", "[poison] park_key"],
        ),
        (
            "sink.stdout.confirm=true prune.keep=24h prune.before_slot=true",
            ["cannot read dead letters back", "[prune] keep"],
        ),
        (
            "sink.stdout.confirm=true source.snapshot=unsent source.mark_sent=sent_at=now()",
            ["cannot read dead letters back", "[source] mark_sent"],
        ),
    ] {
        let set = format!("{stdout} {asks}");
        let words = [&["the sink stdout", "[sink-ability]"][..], &words].concat();
        let checked = checked(&config, &["--offline"], &set);
        checked.fails("configuration/sink", &words);
        checked.ends(78);
        let set: Vec<&str> = set.split(' ').flat_map(|set| ["--set", set]).collect();
        refused(&output_with("run", &config, &set), 78, &words);
    }
    // Nothing is confirmed: a restart begins anew, and no row is marked or deleted.
    let look = format!("{stdout} poison.park_key=true prune.keep=24h prune.before_slot=true");
    let offline = checked(&config, &["--offline"], &look);
    offline.nothing_fails("configuration");
    offline.ends(0);
    // Commands that need more of a sink than `run` does.
    let with = |command: &str| output_with(command, &config, &["--set", "sink.kind=stdout"]);
    for (command, id, words) in [
        ("dlq list", "[dlq-sink]", "cannot read dead letters back"),
        (
            "bench --yes --only=kafka",
            "[bench-sink]",
            "cannot read and create topics",
        ),
        (
            "cutover verify --since 1h",
            "[cutover-sink]",
            "cannot read and create topics",
        ),
    ] {
        refused(&with(command), 78, &["the sink stdout", id, words]);
    }
    let set = format!("{stdout} prune.before_slot=true");
    let set: Vec<&str> = set.split(' ').flat_map(|set| ["--set", set]).collect();
    let pruned = output_with("prune --keep 24h --yes", &config, &set);
    refused(&pruned, 78, &["[sink-ability]", "their rows must be kept"]);
}

/// A state file that `run` could not write fails, and none is made or changed.
#[test]
fn check_reports_an_unwritable_state_file() {
    let rig = Rig::without_broker(18).outbox();
    let files = || {
        let mut files: Vec<_> = fs::read_dir(rig.folder())
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        files.sort();
        files
    };
    let item = "configuration/state-file";
    fs::write(rig.path("file"), "").expect("written");
    // What is left of a write that failed has the name that the next write begins with.
    fs::create_dir(rig.path("left.new")).expect("created");
    let config = rig.config();
    let before = files();
    for (name, cause) in [
        ("missing/state", "No such file or directory"),
        ("file/state", "Not a directory"),
        ("left", "Is a directory"),
    ] {
        let state = rig.path(name);
        let set = format!("source.state_file={}", state.display());
        let checked = checked(&config, &["--offline"], &set);
        checked.fails(
            item,
            &["[state-file]", "cannot be", cause, "directory that exists"],
        );
        checked.ends(78);
        let output = output_with("run", &config, &["--set", &set]);
        refused(&output, 78, &["[state-file]"]);
    }
    let fine = format!("source.state_file={}", rig.path("fine").display());
    checked(&config, &["--offline"], &fine).passes(item, &["run makes it"]);
    assert_eq!(files(), before);
    let relay = rig.start_with(&config, &["--set", &fine]);
    eventually(PATIENCE, || rig.path("fine").exists());
    drop(relay);
    let other = format!("{fine} source.slot=other");
    let of_other = checked(&config, &["--offline"], &other);
    of_other.fails(item, &["[state-file]", "is of slot walrelay, not other"]);
}

/// The table for people has a line for each item, remedies below, and figures at the end.
#[test]
fn the_table_is_for_people() {
    let rig = Rig::without_broker(18).outbox();
    rig.db()
        .batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'update')");
    let output = output_with("check", &rig.config(), &["--set", "sink.kind=stdout"]);
    assert_eq!(output.status.code(), Some(78));
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let failed = text.lines().find(|line| line.starts_with("  FAIL  "));
    let failed = failed.expect("a failure");
    assert_has(failed, &["publication-operations"]);
    assert!(failed.ends_with("[publication-without-insert]"), "{text}");
    assert_has(&text, &[" help: run ALTER PUBLICATION"]);
    let last = text.lines().last().expect("a line");
    assert_has(last, &[" checks: "]);
    assert!(last.ends_with(" 1 fail"), "{text}");
    assert_lacks(&text, &["\u{1b}"]);
}

/// The exit code is that of the checks also if nobody reads the report.
#[test]
fn a_reader_may_end_early() {
    let rig = Rig::without_broker(18);
    for (format, set, code) in [
        ("table", "source.slot=walrelay", 0),
        ("table", "delivery.garanty=x", 78),
        ("json", "delivery.garanty=x", 78),
    ] {
        let more = ["--offline", "--output", format, "--set", set];
        let output = output_unread(command_with("check", &rig.config(), &more));
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}
