//! Every way to give a secret, at the chattiest log level, with connections that succeed and that
//! fail: no output and no command line holds one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use walrelay_lab::servers::ChildGuard;
use walrelay_testkit::{SecureKafka, eventually};

use super::{Secured, bearer, jwt, login};
use crate::rig::{PATIENCE, walrelay};

const USER: &str = SecureKafka::USER;
const PASSWORD: &str = SecureKafka::PASSWORD;
const PG_PASSWORD: &str = "pg-s3cret-swordfish";
const WRONG: &str = "wr0ng-s3cret-marlin";
const KEY_PASSWORD: &str = "key-s3cret-tuna";
/// What a run must come to: not words, but that an event has arrived.
const ARRIVED: &str = "an event arrives";
/// librdkafka's own debugging too.
const CHATTY: &str = "\"debug\" = \"all\"\n";

/// A run of the binary, with what it said so far.
struct Run {
    child: ChildGuard,
    files: [PathBuf; 2],
}

impl Run {
    fn start(command: &mut Command, directory: &Path, name: &str) -> Self {
        let files = ["out", "err"].map(|kind| directory.join(format!("{name}.{kind}")));
        let [out, err] = files
            .each_ref()
            .map(|path| File::create(path).expect("a file"));
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = ChildGuard::spawn(command).expect("the program runs");
        Self { child, files }
    }

    fn said(&self) -> String {
        let [out, err] = self.files.each_ref();
        let read = |path| String::from_utf8_lossy(&fs::read(path).expect("a file")).into_owned();
        read(out) + &read(err)
    }

    /// `/proc/<pid>/cmdline` of the process and of what it has started. Empty where there is no /proc.
    fn command_lines(&self) -> String {
        let pid = self.child.id().to_string();
        let mut lines = String::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let parent = fs::read_to_string(entry.path().join("stat"))
                .ok()
                .and_then(|stat| {
                    let (_, rest) = stat.rsplit_once(')')?;
                    rest.split_whitespace().nth(1).map(str::to_owned)
                });
            if entry.file_name().to_str() == Some(&pid) || parent.as_deref() == Some(&pid) {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                lines.push_str(&String::from_utf8_lossy(&line));
            }
        }
        lines
    }

    /// Waits until it says these words.
    fn says(&mut self, words: &str) {
        eventually(PATIENCE, || {
            let ended = self.child.try_wait().expect("a child").is_some();
            let said = self.said();
            assert!(
                !ended || said.contains(words),
                "ended without {words:?}: {}",
                tail(&said)
            );
            said.contains(words)
        });
    }

    /// The same, then ends it. Gives everything it said, and command lines.
    fn until(mut self, words: &str) -> String {
        self.says(words);
        let lines = self.command_lines();
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.said() + &lines
    }
}

fn tail(text: &str) -> &str {
    from(text, text.len().saturating_sub(2000))
}

/// From this byte on, or a little after it where it lies within a character.
fn from(text: &str, start: usize) -> &str {
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[start.unwrap_or(text.len())..]
}

#[test]
fn are_in_no_output() {
    let secured = Secured::new();
    let rig = &secured.rig;
    secured.db.batch(&format!(
        "CREATE ROLE relay LOGIN REPLICATION SUPERUSER PASSWORD '{PG_PASSWORD}'"
    ));
    let tcp = |login: &str| {
        format!(
            "postgres://{login}@127.0.0.1:{}/postgres",
            rig.postgres.port()
        )
    };
    let client = secured.broker.authority.client(USER);
    let key_line = client
        .key
        .lines()
        .nth(1)
        .expect("a line of base64")
        .to_owned();
    let inline_key = format!(
        "\"ssl.key.password\" = \"{KEY_PASSWORD}\"\n\"ssl.key.pem\" = '''\n{}'''\n\
         \"ssl.certificate.pem\" = '''\n{}'''\n",
        client.key, client.certificate
    );
    let token = jwt(USER, 3600);
    let refused_token = format!("refused-{token}");
    fs::write(rig.path("token"), &token).expect("written");
    fs::write(rig.path("refused"), &refused_token).expect("written");
    fs::write(rig.path("password"), PG_PASSWORD).expect("written");
    fs::write(rig.path("wrong"), WRONG).expect("written");
    fs::write(rig.path("url"), tcp(&format!("relay:{WRONG}"))).expect("written");
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
    // Name, [source], [sink.kafka], and what shows that it got where it should.
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
    let mut secrets = vec![
        PG_PASSWORD,
        WRONG,
        PASSWORD,
        KEY_PASSWORD,
        &key_line,
        &token,
        &refused_token,
    ];
    // And the part of a token that says whose it is.
    secrets.push(token.split('.').nth(1).expect("claims"));
    let source = format!("url = \"{}\"", rig.postgres.url());
    for (index, (name, wanted_source, lines, words)) in runs.iter().enumerate() {
        // `debug` stands before the sections that the lines may open.
        let path = secured.config(&secured.secure(), &format!("{CHATTY}{lines}"));
        let text = fs::read_to_string(&path).expect("the configuration");
        assert!(text.contains(&source), "{text}");
        let text = text
            .replace(&source, wanted_source)
            .replace("[log]\n", "[log]\nlevel = \"trace\"\n");
        fs::write(&path, text).expect("written");
        let file = path.to_str().expect("text");
        for command in ["check", "run"] {
            let mut process = walrelay(&[command, "--config", file]);
            process.env("PGPASSWORD", PG_PASSWORD);
            let mut run = Run::start(
                &mut process,
                path.parent().expect("a folder"),
                &format!("{index}-{command}"),
            );
            let said = match (command, *words) {
                ("run", ARRIVED) => {
                    run.says("\"streaming\"");
                    let number = u32::try_from(index).expect("small") + 1;
                    secured.insert(number);
                    rig.caught_up();
                    run.until("\"streaming\"")
                }
                ("check", ARRIVED) => run.until("broker(s) answer"),
                // `check` has other words for what a broker refuses.
                ("check", words) if words.starts_with("check ") => run.until("[kafka-access]"),
                (_, words) => run.until(words),
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

/// The test above can fail: it finds what stands on a command line, of the process and its children.
#[test]
fn on_a_command_line_would_be_found() {
    if !Path::new("/proc/self/cmdline").exists() {
        return; // where there is no /proc, nobody reads command lines there
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut shell = Command::new("sh");
    // The shell's child ends soon after the shell does.
    shell.args([
        "-c",
        "sh -c 'while kill -0 $PPID; do sleep 0.1; done' & wait",
    ]);
    let run = Run::start(&mut shell, directory.path(), "shell");
    eventually(PATIENCE, || {
        let lines = run.command_lines();
        lines.contains("& wait") && lines.contains("-c\x00while kill")
    });
}
