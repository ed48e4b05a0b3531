//! `walrelay resend`.

use std::collections::BTreeSet;

use walrelay_testkit::{Db, Delivered};

use super::{records, rig};
use crate::rig::{Rig, output_with, said};

const HEADER: &str = "walrelay-resend";

fn run_of(record: &Delivered) -> Option<String> {
    let found = record.headers.iter().find(|(name, _)| name == HEADER);
    let value = found.and_then(|(_, value)| value.clone());
    value.map(|value| String::from_utf8(value).expect("text"))
}

fn ids(rig: &Rig) -> Vec<String> {
    let rows =
        Db::connect(&rig.postgres.url()).query("SELECT id::text FROM outbox ORDER BY seq", &[]);
    rows.iter().map(|row| row.get(0)).collect()
}

/// Chosen rows are sent again while the relay runs, marked, and nothing else changes.
#[test]
fn sends_chosen_rows_again_beside_the_relay() {
    let rig = rig(15);
    let relay = rig.relay();
    let config = rig.config();
    let written = rig.workload().rows(300).seed(1).run();
    rig.caught_up();
    let ids = ids(&rig);
    let resend = |more: &[&str]| output_with("resend", &config, more);
    // Nobody is at the terminal.
    let asked = resend(&["--id", &ids[7]]);
    assert_eq!(asked.status.code(), Some(64), "{asked:?}");
    assert!(said(&asked).contains("[resend-not-agreed]"), "{asked:?}");
    let dry = resend(&["--where", "seq BETWEEN 100 AND 149", "--dry-run"]);
    assert!(
        dry.status.success() && said(&dry).contains("would be sent again"),
        "{dry:?}"
    );
    let none = resend(&["--where", "false", "--yes"]);
    assert_eq!(none.status.code(), Some(65), "{none:?}");
    assert!(said(&none).contains("[resend-no-rows]"), "{none:?}");
    let before = written.rows as usize;
    assert_eq!(records(&rig, before).len(), before);

    let again = resend(&["--id", &ids[7], "--id", &ids[3], "--yes"]);
    assert!(again.status.success(), "{again:?}");
    assert!(said(&again).contains("2 records acknowledged"), "{again:?}");
    let found = records(&rig, before);
    assert_eq!(found.len(), before + 2);
    let marked: Vec<&Delivered> = found
        .iter()
        .filter(|record| run_of(record).is_some())
        .collect();
    let of: BTreeSet<_> = marked
        .iter()
        .filter_map(|record| record.id.as_deref())
        .collect();
    assert_eq!(of, BTreeSet::from([&*ids[3], &*ids[7]]));
    let runs: BTreeSet<_> = marked.iter().filter_map(|record| run_of(record)).collect();
    assert_eq!(runs.len(), 1, "one run has one id");
    // Besides the mark it is the record that the relay sent.
    for record in marked {
        let first = found
            .iter()
            .find(|other| other.id == record.id && run_of(other).is_none());
        let first = first.expect("the relay's");
        assert_eq!(
            (&record.topic, &record.key, &record.payload),
            (&first.topic, &first.key, &first.payload)
        );
    }
    let many = resend(&["--where", "seq > 0", "--yes"]);
    assert!(many.status.success(), "{many:?}");
    assert_eq!(records(&rig, before).len(), before * 2 + 2);
    assert!(rig.verdict().lost.is_empty());
    relay.ends_well();
}

/// A broker that is away is waited for; a wrong condition and a wrong id are errors in the server's words.
#[test]
fn names_what_is_wrong() {
    let rig = rig(15);
    let relay = rig.relay();
    rig.workload().rows(20).seed(1).run();
    let config = rig.config();
    let wrong = output_with(
        "resend",
        &config,
        &["--where", "no_such_column = 1", "--yes"],
    );
    assert_eq!(wrong.status.code(), Some(78), "{wrong:?}");
    assert!(said(&wrong).contains("no_such_column"), "{wrong:?}");
    let wrong = output_with("resend", &config, &["--id", "no-uuid", "--yes"]);
    assert!(!wrong.status.success(), "{wrong:?}");
    let help = said(&output_with("resend", &config, &["--help"]));
    assert!(
        help.contains("Examples:") && help.contains("--dry-run"),
        "{help}"
    );
    relay.ends_well();
}
