//! Every way to give a secret, at the most verbose log level, with connections that succeed and
//! that fail: no output and no command line contains a secret.

use std::fs;
use std::path::Path;
use std::process::Command;

use walrelay_testkit::{Program, SecureKafka, eventually};
use walrelay_throwaway::Signal;

use super::{Secured, bearer, jwt, login};
use crate::rig::{PATIENCE, command_with, edit};

const USER: &str = SecureKafka::USER;
const PASSWORD: &str = SecureKafka::PASSWORD;
const PG_PASSWORD: &str = "pg-s3cret-swordfish";
const WRONG: &str = "wr0ng-s3cret-marlin";
const KEY_PASSWORD: &str = "key-s3cret-tuna";
/// Instead of words in the log: the run succeeds when an event has arrived.
const ARRIVED: &str = "an event arrives";
/// Enables librdkafka's own debugging too.
const CHATTY: &str = "\"debug\" = \"all\"\n";

/// `/proc/<pid>/cmdline` of a process and of its children. Empty on systems without /proc.
fn command_lines(pid: u32) -> String {
    let pid = pid.to_string();
    let mut lines = String::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let parent = || {
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let (_, rest) = stat.rsplit_once(')')?;
            rest.split_whitespace().nth(1).map(str::to_owned)
        };
        if entry.file_name().to_str() == Some(&pid) || parent().as_ref() == Some(&pid) {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            lines.push_str(&String::from_utf8_lossy(&line));
        }
    }
    lines
}

/// Waits for the words, then kills the process. Returns its whole output, and command lines.
fn until(mut run: Program, words: &str) -> String {
    run.says(words);
    let lines = command_lines(run.pid());
    run.signal(Signal::Kill);
    run.ended();
    run.log() + &lines
}

fn tail(text: &str) -> &str {
    from(text, text.len().saturating_sub(2000))
}

/// The text from this byte on, or from the next character boundary.
fn from(text: &str, start: usize) -> &str {
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[start.unwrap_or(text.len())..]
}

#[test]
fn secrets_are_in_no_output() {
    let secured = Secured::new();
    let rig = &secured.rig;
    secured.db.batch(&format!(
        "CREATE ROLE relay LOGIN REPLICATION SUPERUSER PASSWORD '{PG_PASSWORD}'"
    ));
    let port = rig.postgres.port();
    let tcp = |login: &str| format!("postgres://{login}@127.0.0.1:{port}/postgres");
    let client = secured.broker.authority.client(USER);
    let key_line = client.key.lines().nth(1).expect("a line of base64");
    let inline_key = format!(
        "\"ssl.key.password\" = \"{KEY_PASSWORD}\"\n\"ssl.key.pem\" = '''\n{}'''\n\
         \"ssl.certificate.pem\" = '''\n{}'''\n",
        client.key, client.certificate
    );
    let token = jwt(USER, 3600);
    let refused_token = format!("refused-{token}");
    for (name, text) in [
        ("token", &*token),
        ("refused", &*refused_token),
        ("password", PG_PASSWORD),
        ("wrong", WRONG),
        ("url", &*tcp(&format!("relay:{WRONG}"))),
    ] {
        fs::write(rig.path(name), text).expect("written");
    }
    let command = format!(
        "token_command = [\"cat\", \"{}\"]",
        rig.path("token").display()
    );
    let by_file = "token_file = \"refused\"\ntoken_lifetime = \"1h\"";
    let from_environment = format!("url = \"{}\"", tcp("relay:${PGPASSWORD}"));
    let from_file = format!("url = \"{}\"\npassword_file = \"password\"", tcp("relay"));
    let wrong_password = format!(
        "\"security.protocol\" = \"SASL_SSL\"\n\"sasl.mechanism\" = \"SCRAM-SHA-512\"\n\
         \"sasl.username\" = \"{USER}\"\n\"sasl.password_file\" = \"wrong\"\n"
    );
    // Name, [source], [sink.kafka], and the words that show the run has come far enough.
    let runs: [(&str, &str, String, &str); 7] = [
        (
            "environment and inline",
            &from_environment,
            login("PLAIN", USER, PASSWORD) + &inline_key,
            ARRIVED,
        ),
        (
            "password file and SCRAM",
            &from_file,
            login("SCRAM-SHA-256", USER, PASSWORD),
            ARRIVED,
        ),
        ("a token by command", &from_file, bearer(&command), ARRIVED),
        (
            "a token that is refused",
            &from_environment,
            bearer(by_file),
            "check who issued the token",
        ),
        (
            "a password that is refused",
            &from_file,
            wrong_password.clone(),
            "check sasl.mechanism, sasl.username and sasl.password",
        ),
        (
            "Postgres refuses",
            "url_file = \"url\"",
            login("PLAIN", USER, PASSWORD),
            "[password]",
        ),
        (
            "a wrong key of the file",
            &format!("{from_environment}\npasword = \"{WRONG}\""),
            login("PLAIN", USER, PASSWORD) + "\"sasl.pasword\" = \"{WRONG}\"\n",
            "[config-unknown-key]",
        ),
    ];
    // Also the part of a token that names its subject.
    let claims = token.split('.').nth(1).expect("claims");
    let secrets = [
        PG_PASSWORD,
        WRONG,
        PASSWORD,
        KEY_PASSWORD,
        key_line,
        &token,
        &refused_token,
        claims,
    ];
    let source = format!("url = \"{}\"", rig.postgres.url());
    for (index, (name, wanted_source, lines, words)) in runs.iter().enumerate() {
        // `debug` comes before any section that the lines may open.
        let path = secured.config(&secured.secure(), &format!("{CHATTY}{lines}"));
        edit(&path, &source, wanted_source);
        edit(&path, "[log]\n", "[log]\nlevel = \"trace\"\n");
        for command in ["check", "run"] {
            let mut process = command_with(command, &path, &[]);
            process.env("PGPASSWORD", PG_PASSWORD);
            let log = rig.path(&format!("{index}-{command}.log"));
            let run = Program::spawn(&mut process, &log);
            let said = match (command, *words) {
                ("run", ARRIVED) => {
                    run.streaming();
                    let number = u32::try_from(index).expect("small") + 1;
                    secured.insert(number);
                    rig.caught_up();
                    until(run, "\"streaming\"")
                }
                ("check", ARRIVED) => until(run, "broker(s) answer"),
                // `check` uses other words for a broker's refusal.
                ("check", words) if words.starts_with("check ") => until(run, "[kafka-access]"),
                // The error is a JSON line of the log.
                ("run", id) if id.starts_with('[') => {
                    let id = id.trim_matches(['[', ']']);
                    until(run, &format!("\"id\":\"{id}\""))
                }
                (_, words) => until(run, words),
            };
            assert!(!said.is_empty(), "{name}: nothing was looked at");
            if command == "run" && !words.starts_with('[') {
                assert!(
                    said.contains("TRACE") && said.contains("facility"),
                    "{name}: not chatty: {}",
                    tail(&said)
                );
            }
            for secret in &secrets {
                if let Some(at) = said.find(secret) {
                    let before = from(&said[..at], at.saturating_sub(300));
                    panic!("{name}: {command} shows {secret} after: {before}");
                }
            }
        }
    }
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.committed, 3);
}

/// Shows that the test above can fail: it finds a text on the command lines of the process and its
/// children.
#[test]
fn a_secret_on_a_command_line_would_be_found() {
    if !Path::new("/proc/self/cmdline").exists() {
        return; // there are no command lines without /proc
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut shell = Command::new("sh");
    // The shell's child ends soon after the shell.
    shell.args([
        "-c",
        "sh -c 'while kill -0 $PPID; do sleep 0.1; done' & wait",
    ]);
    let run = Program::spawn(&mut shell, &directory.path().join("shell"));
    eventually(PATIENCE, || {
        let lines = command_lines(run.pid());
        lines.contains("& wait") && lines.contains("-c\x00while kill")
    });
}
