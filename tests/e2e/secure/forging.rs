//! No text of others can look like a line of walrelay's own, or hide a part of one.

use std::process::Command;

use crate::rig::{Rig, assert_has, assert_lacks, edit, output_with, refused, with_source};

/// A name that would forge a line of the log, an error and a remedy, and reverse what follows.
const NAME: &str = r"p\n2026-01-01T00:00:00Z  INFO forged\nhelp: forged\u202e\u001b[31m";

#[test]
fn a_name_or_an_error_of_the_server_forges_no_line() {
    let rig = Rig::with_outbox(17);
    let config = with_source(rig.config(), &format!("publication = \"{NAME}\""));
    edit(&config, "format = \"json\"", "format = \"text\"");
    let relay = rig.start(&config);
    relay.says(" streaming");
    let log = relay.ends_well();
    assert_has(
        &log,
        &[r"p\n2026-01-01T00:00:00Z  INFO forged\nhelp: forged\u{202e}\u{1b}[31m"],
    );
    assert!(!log.contains(['\u{202e}', '\u{1b}']), "{log}");
    for line in log.lines() {
        assert!(
            line.starts_with("20") && !line.starts_with("2026-01-01T00:00:00Z"),
            "{line}"
        );
    }

    // The server's errors, and those of the configuration, on a terminal and as JSON.
    let db = rig.db();
    db.batch("SELECT pg_drop_replication_slot('walrelay')");
    edit(&config, "format = \"text\"", "format = \"json\"");
    for command in ["run", "check", "status", "check --output json"] {
        let said = output_with(command, &config, &["--set=source.create=false"]);
        let said = String::from_utf8([said.stdout, said.stderr].concat()).expect("text");
        assert!(!said.contains(['\u{202e}', '\u{1b}']), "{command}: {said}");
        for line in said.lines() {
            assert_lacks(&line[..line.len().min(25)], &["2026-01-01T00:00:00Z"]);
            assert!(!line.starts_with("help: forged"), "{command}: {said}");
        }
    }
}

/// A FIFO without a reader would make the start wait, and the stop as well.
#[test]
fn a_fifo_as_state_file_is_refused() {
    let rig = Rig::with_outbox(17);
    let fifo = rig.path("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("mkfifo runs").success());
    for path in [&*fifo, "/dev/zero".as_ref()] {
        let line = format!("state_file = \"{}\"", path.display());
        let config = with_source(rig.config(), &line);
        for command in ["run", "check"] {
            let output = output_with(command, &config, &[]);
            refused(
                &output,
                78,
                &["[state-file]", "a FIFO, a socket or a device"],
            );
        }
    }
}
