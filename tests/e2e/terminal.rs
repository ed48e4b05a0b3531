//! What a person meets at a terminal: lines that fit it, colours, and a pipe whose reader has gone away.

use std::process::Command;

use walrelay_testkit::output as run;

use crate::rig::{
    Rig, assert_has, assert_lacks, command_with, output_unread, said, stdout, walrelay,
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

/// The path of the binary.
fn binary() -> String {
    let command = walrelay(&[]);
    command.get_program().to_str().expect("UTF-8").to_owned()
}

/// Asserts that each line has at most so many columns, but for those of one long word.
fn assert_fits(text: &str, columns: usize) {
    for line in text.lines() {
        let width = line.trim_end().chars().count();
        assert!(width <= columns, "{width} columns: {line}\n{text}");
    }
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
        let longest = |text: &str| {
            text.lines()
                .map(|line| line.trim_end().chars().count())
                .max()
        };
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
