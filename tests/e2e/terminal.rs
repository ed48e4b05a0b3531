//! What a person meets at a terminal: lines that fit it, colours, a pipe whose reader has gone away, and the
//! questions of `walrelay new`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use walrelay_testkit::{eventually, output as run};
use walrelay_throwaway::ChildGuard;

use crate::rig::{
    NOWHERE, PATIENCE, Relay, Rig, assert_has, assert_lacks, command_with, output, output_unread,
    refused, said, stdout, unique, walrelay,
};

/// A line of a shell at a terminal of so many columns.
fn at_terminal(columns: u16, line: &str, env: &[(&str, &str)]) -> Command {
    let mut script = Command::new("script");
    let shell = format!("stty rows 24 cols {columns}; {line}");
    script
        .args(["--quiet", "--return", "--command", &shell, "/dev/null"])
        .env_remove("NO_COLOR")
        .env_remove("COLUMNS")
        .env_remove("PGPASSWORD")
        .env_remove("PGPASSFILE")
        .env_remove("WALRELAY_CONFIG")
        .env("TERM", "xterm")
        .env("HOME", "/nonexistent")
        .envs(env.iter().copied());
    script
}

/// Runs a line that asks for a password, and types the answer once the terminal does not show it. Then it types the
/// answers to other questions. Returns what the terminal showed.
fn with_password(line: &str, password: &str, answers: &[&str]) -> String {
    let mut script = at_terminal(100, &format!("tty; {line}"), &[]);
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = ChildGuard::spawn(&mut script).expect("script runs");
    let mut shown = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut tty = String::new();
    shown.read_line(&mut tty).expect("its name");
    let hides = || {
        let state = Command::new("stty").args(["-F", tty.trim(), "-a"]).output();
        stdout(&state.expect("stty runs")).contains(" -echo ")
    };
    eventually(PATIENCE, hides);
    let mut stdin = child.stdin.take().expect("a pipe");
    writeln!(stdin, "{password}").expect("typed");
    for answer in answers {
        writeln!(stdin, "{answer}").expect("typed");
    }
    let mut text = String::new();
    shown.read_to_string(&mut text).expect("text");
    assert!(child.wait().expect("it ends").success(), "{text}");
    text
}

/// The path of the binary.
fn binary() -> String {
    let command = walrelay(&[]);
    command.get_program().to_str().expect("UTF-8").to_owned()
}

/// The column in which the text of a finding starts: behind the result and the item.
const TEXT: usize = 32;

/// The columns of the longest line, without those whose text is one long word: a path of the machine is not cut.
fn longest(text: &str) -> usize {
    let broken = |line: &&str| line.chars().skip(TEXT).any(char::is_whitespace);
    let lines = text.lines().map(str::trim_end).filter(broken);
    lines.map(|line| line.chars().count()).max().unwrap_or(0)
}

fn assert_fits(text: &str, columns: usize) {
    let longest = longest(text);
    assert!(longest <= columns, "{longest} columns\n{text}");
}

#[test]
fn check_and_status_fit_the_terminal_and_have_colours_there_alone() {
    let rig = Rig::without_broker(17);
    let config = rig.config();
    let path = config.to_str().expect("UTF-8");
    for (line, mark) in [
        (
            format!("check --config {path}"),
            "\u{1b}[1;31mFAIL\u{1b}[0m",
        ),
        (format!("status --config {path}"), "\u{1b}[1;32m->\u{1b}[0m"),
    ] {
        let shell = format!("{} {line}", binary());
        let coloured = said(&run(&mut at_terminal(100, &shell, &[])));
        assert_has(&coloured, &[mark]);
        let plain = said(&run(&mut at_terminal(100, &shell, &[("NO_COLOR", "1")])));
        assert_lacks(&plain, &["\u{1b}["]);
        assert_fits(&plain, 100);
        // Without a terminal the width is not known.
        let words: Vec<&str> = line.split(' ').collect();
        let mut piped = walrelay(&words);
        piped.env_remove("COLUMNS").env_remove("NO_COLOR");
        let piped = said(&run(&mut piped));
        assert_lacks(&piped, &["\u{1b}["]);
        assert_fits(&piped, 80);
        assert!(longest(&plain) > longest(&piped), "{plain}{piped}");
    }
}

#[test]
fn status_without_an_endpoint_has_the_lines_to_add() {
    let rig = Rig::without_broker(17);
    let config = rig.config();
    let shown = stdout(&run(&mut command_with("status", &config, &[])));
    let parts = [
        "[http] listen is not configured",
        "[http]\n",
        "listen = \"127.0.0.1:9187\"\n",
    ];
    assert_has(&shown, &parts);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let rig = Rig::without_broker(17);
    let config = rig.config();
    for line in [
        "check --offline",
        "status",
        "status --watch",
        "init --dry-run",
    ] {
        let ended = output_unread(command_with(line, &config, &[]));
        assert_eq!(ended.status.code(), Some(0), "{line}: {}", said(&ended));
        assert_lacks(&said(&ended), &["Broken pipe"]);
    }
    for line in ["completions bash", "schema", "--help"] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = output_unread(walrelay(&words));
        assert_eq!(ended.status.code(), Some(0), "{line}: {}", said(&ended));
        assert_lacks(&said(&ended), &["Broken pipe"]);
    }
}

#[test]
fn new_takes_the_password_from_the_environment_or_asks() {
    let rig = Rig::new(17);
    rig.db()
        .batch("CREATE ROLE admin LOGIN PASSWORD 'secret-word'");
    let url = rig.url_as("admin", "x", "postgres").replace(":x@", "@");
    let file = |name: &str| rig.path(name).join("walrelay.toml");
    let line = |name: &str| {
        fs::create_dir(rig.path(name)).expect("a folder");
        [
            "new".to_owned(),
            format!("--database={url}"),
            format!("--brokers={NOWHERE}"),
            format!("--output-file={}", file(name).display()),
        ]
    };
    let new = |name: &str, env: &[(&str, &str)]| {
        let line = line(name);
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        let mut command = walrelay(&words);
        command
            .env("HOME", "/nonexistent")
            .env_remove("PGPASSWORD")
            .env_remove("PGPASSFILE")
            .envs(env.iter().copied())
            .stdin(Stdio::null());
        run(&mut command)
    };
    let none = new("none", &[]);
    refused(
        &none,
        78,
        &["asks for a password", "PGPASSWORD", "~/.pgpass"],
    );
    assert!(!file("none").exists());
    stdout(&new("environment", &[("PGPASSWORD", "secret-word")]));
    let pass = rig.path("pgpass");
    fs::write(&pass, "*:*:*:admin:secret-word\n").expect("written");
    let owner_only = fs::Permissions::from_mode(0o600);
    fs::set_permissions(&pass, owner_only).expect("its mode");
    let pass = pass.to_str().expect("UTF-8");
    stdout(&new("passfile", &[("PGPASSFILE", pass)]));
    let shell = format!("{} {}", binary(), line("terminal").join(" "));
    let shown = with_password(&shell, "secret-word", &[""]);
    let parts = [
        "Your password for the database: ",
        "Your outbox table, or nothing for a new one, public.outbox: ",
        "is written",
    ];
    assert_has(&shown, &parts);
    assert_lacks(&shown, &["secret-word"]);
    for name in ["environment", "passfile", "terminal"] {
        let written = fs::read_to_string(file(name)).expect("written");
        let parts = [
            "#:schema ./walrelay.schema.json\n",
            "\n[http]\nlisten = \"127.0.0.1:9187\"\n",
        ];
        assert_has(&written, &parts);
        assert_lacks(&written, &["secret-word", "admin"]);
        let schema = file(name).with_file_name("walrelay.schema.json");
        let schema = fs::read_to_string(schema).expect("the schema");
        assert_eq!(schema, stdout(&output(&["schema"])));
    }
}

/// A table with the columns of no preset: its columns are named by options, recognised by their names, or asked for,
/// and an event arrives by the written file.
#[test]
fn new_writes_the_columns_of_a_table_that_no_preset_fits() {
    let rig = Rig::new(17);
    rig.db().batch(
        "CREATE SCHEMA app; CREATE TABLE app.order_outbox (event_id uuid PRIMARY KEY, topic text, order_id text, \
         doc jsonb); CREATE ROLE admin LOGIN PASSWORD 'secret-word'",
    );
    let url = rig.url_as("admin", "x", "postgres").replace(":x@", "@");
    let env = [("PGPASSWORD", "secret-word")];
    let line = |name: &str, options: &str| {
        let file = rig.path(name);
        let line = format!(
            "new --database={url} --brokers={} --output-file={} {options}",
            rig.bootstrap,
            file.display()
        );
        (line, file)
    };
    let new = |name: &str, options: &str| {
        let (line, file) = line(name, options);
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = walrelay(&words);
        (run(command.envs(env).stdin(Stdio::null())), file)
    };
    // Nobody can be asked: the file names a new table, and the text this one.
    let (ended, _) = new("none.toml", "");
    assert_has(
        &stdout(&ended),
        &["names public.outbox", "such as app.order_outbox", "--table"],
    );
    let table = "--table app.order_outbox";
    let (ended, file) = new("key.toml", table);
    refused(
        &ended,
        64,
        &[
            "[new-unknown]",
            "--column key=…",
            "event_id, topic, order_id, doc",
        ],
    );
    assert!(!file.exists());
    let options = format!("{table} --column key=orderid");
    refused(
        &new("column.toml", &options).0,
        64,
        &["[new-column]", "did you mean \"order_id\"?"],
    );
    let options = format!("{table} --column key=order_id --column payload=doc");
    let (ended, by_options) = new("options.toml", &options);
    let parts = ["[router.debezium] names the columns of table app.order_outbox"];
    assert_has(&stdout(&ended), &parts);

    // The table, a wrong column, the columns; an empty answer accepts the one that is offered.
    let (line, by_answers) = line("answers.toml", "");
    let mut script = at_terminal(200, &format!("{} {line}", binary()), &env);
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = ChildGuard::spawn(&mut script).expect("script runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    let answers = "app.order_outbox\n\n\norderid\norder_id\ndoc\n";
    stdin.write_all(answers.as_bytes()).expect("typed");
    let mut shown = String::new();
    let mut terminal = child.stdout.take().expect("a pipe");
    terminal.read_to_string(&mut shown).expect("text");
    assert!(child.wait().expect("it ends").success(), "{shown}");
    let parts = [
        "(tables with the name of one: app.order_outbox)",
        "Column of the event's id [event_id]: ",
        "Column of the topic, or of a part of it [topic]: ",
        "did you mean \"order_id\"?",
    ];
    assert_has(&shown, &parts);
    let read = |file| fs::read_to_string(file).expect("written");
    assert_eq!(read(&by_answers), read(&by_options));

    let relay = "CREATE ROLE walrelay LOGIN REPLICATION PASSWORD 'x'; GRANT CREATE ON DATABASE postgres TO walrelay; \
                 ALTER TABLE app.order_outbox OWNER TO walrelay; GRANT USAGE ON SCHEMA app TO walrelay";
    rig.db().batch(relay);
    // Another test may have the port of the file.
    let mut command = command_with("run", &by_options, &["--set=http.listen=127.0.0.1:0"]);
    let relay = Relay::spawn(command.env("RELAY_PASSWORD", "x"), &rig.path("log"));
    relay.says("streaming");
    let topic = format!("orders_{}", unique());
    rig.db().batch(&format!(
        "INSERT INTO app.order_outbox VALUES (gen_random_uuid(), '{topic}', 'k-7', '{{\"total\": 7}}')"
    ));
    let records = rig.records_in(&topic, 1);
    assert_eq!(records[0].key.as_deref(), Some(b"k-7".as_slice()));
    relay.ends_well();
}

#[test]
fn the_name_of_another_program_s_command_leads_to_the_right_one() {
    for (name, tip) in [
        ("doctor", "tip: use walrelay check\n"),
        ("chekc", "'check'"),
    ] {
        let ended = output(&[name]);
        assert_eq!(ended.status.code(), Some(64));
        assert_has(&said(&ended), &[tip]);
    }
}
