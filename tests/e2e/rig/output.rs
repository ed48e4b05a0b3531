//! Commands that run to their end, and what their output must contain.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use walrelay_lsn::Lsn;

use super::walrelay;

/// Runs a command to its end.
pub(crate) fn output(args: &[&str]) -> Output {
    walrelay_testkit::output(&mut walrelay(args))
}

/// Runs a command with more arguments and this configuration to its end.
pub(crate) fn output_with(command: &str, config: &Path, more: &[&str]) -> Output {
    walrelay_testkit::output(&mut command_with(command, config, more))
}

/// The same command, not run yet.
pub(crate) fn command_with(command: &str, config: &Path, more: &[&str]) -> Command {
    let mut command = walrelay(&words(command));
    command.args(more).arg("--config").arg(config);
    command.stdin(Stdio::null());
    command
}

/// Runs a command whose standard output nobody reads to its end.
pub(crate) fn output_unread(mut command: Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("walrelay runs");
    drop(child.stdout.take());
    child.wait_with_output().expect("it ends")
}

/// The words of a command line. A word with blanks stands in quotes of either kind.
#[track_caller]
pub(crate) fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while let Some(first) = rest.chars().next() {
        let (word, after) = if matches!(first, '\'' | '"') {
            rest[1..].split_once(first).expect("a quote that is closed")
        } else {
            rest.split_once(' ').unwrap_or((rest, ""))
        };
        words.push(word);
        rest = after.trim_start();
    }
    words
}

/// The output of a command on both streams, [with failures as text](with_failures).
pub(crate) fn said(output: &Output) -> String {
    let said = [&output.stdout[..], &output.stderr].concat();
    with_failures(String::from_utf8(said).expect("text"))
}

/// A log, and below it the failures that are JSON lines of it, as other commands print them.
pub(crate) fn with_failures(mut log: String) -> String {
    let lines: Vec<String> = log.lines().map(str::to_owned).collect();
    for line in lines.iter().filter(|line| line.contains("\"exit_code\":")) {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let text = |name: &str| line[name].as_str().expect("a text").to_owned();
        let _ = writeln!(log, "error: {} [{}]", text("message"), text("id"));
        for cause in line["causes"].as_array().expect("causes") {
            let _ = writeln!(log, "  cause: {}", cause.as_str().expect("a text"));
        }
        if line["remedy"].is_string() {
            let _ = writeln!(log, "help: {}", text("remedy"));
        }
    }
    log
}

/// The output of a command, which must succeed.
#[track_caller]
pub(crate) fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    said(output)
}

/// Standard output of a command, which must succeed.
#[track_caller]
pub(crate) fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// The lines of JSON that a command printed, which must succeed.
#[track_caller]
pub(crate) fn json_lines(output: &Output) -> Vec<Value> {
    let text = stdout(output);
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON")
}

/// Asserts that the command ended with this exit code, these words and a remedy. Returns its output.
#[track_caller]
pub(crate) fn refused(output: &Output, code: i32, words: &[&str]) -> String {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    let remedy = said.contains(" help: ") || said.contains("\nhelp: ");
    assert!(remedy, "no remedy: {said}");
    assert_has(&said, words);
    said
}

/// The LSN that a text begins with.
#[track_caller]
pub(crate) fn lsn_of(text: &str) -> Lsn {
    let other = |c: char| !c.is_ascii_hexdigit() && c != '/';
    let lsn = text.split(other).next().unwrap_or_default();
    lsn.parse().unwrap_or_else(|_| panic!("no LSN: {text}"))
}

/// Asserts that a text has each of these parts.
#[track_caller]
pub(crate) fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
}

/// Asserts that a text has none of these parts.
#[track_caller]
pub(crate) fn assert_lacks(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(!text.contains(part), "{part:?} is there: {text}");
    }
}
