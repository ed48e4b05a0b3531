//! What a person meets at a terminal: lines that fit it, colours, a pipe whose reader has gone away, and the
//! questions of `walrelay new`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use walrelay_testkit::{eventually, output as run};
use walrelay_throwaway::ChildGuard;

use crate::rig::{
    NOWHERE, PATIENCE, Rig, assert_has, assert_lacks, command_with, output, output_unread, refused,
    said, stdout, walrelay,
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

/// Runs a line that asks for a password, and types the answer once the terminal does not show it. Returns what the
/// terminal showed.
fn with_password(line: &str, password: &str) -> String {
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
    let shown = with_password(&shell, "secret-word");
    assert_has(&shown, &["Your password for the database: ", "is written"]);
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
