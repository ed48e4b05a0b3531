//! `walrelay resend`: sends chosen rows again.

use std::collections::BTreeSet;

use walrelay_testkit::Delivered;

use super::rig;
use crate::rig::{assert_has, done, output_with, refused, said};

const HEADER: &str = "walrelay-resend";

fn run_of(record: &Delivered) -> Option<&str> {
    record.header(HEADER)
}

/// Chosen rows are sent again with a mark while the relay runs, and nothing else changes.
#[test]
fn sends_chosen_rows_again_beside_the_relay() {
    let rig = rig(15);
    let relay = rig.relay();
    let config = rig.config();
    let written = rig.workload().rows(300).seed(1).run();
    rig.caught_up();
    let ids: Vec<String> = rig
        .db()
        .column("SELECT id::text FROM outbox ORDER BY seq", &[]);
    let resend = |line: &str| output_with(&format!("resend {line}"), &config, &[]);
    // There is no terminal to ask.
    let asked = resend(&format!("--id {}", ids[7]));
    refused(&asked, 64, &["[resend-not-agreed]"]);
    let dry = resend("--where 'seq BETWEEN 100 AND 149' --dry-run");
    assert_has(&done(&dry), &["would be sent again"]);
    refused(&resend("--where false --yes"), 65, &["[resend-no-rows]"]);
    let before = written.rows as usize;
    assert_eq!(rig.records(before).len(), before);

    let again = resend(&format!("--id {} --id {} --yes", ids[7], ids[3]));
    assert_has(&done(&again), &["2 records acknowledged"]);
    let found = rig.records(before);
    assert_eq!(found.len(), before + 2);
    let marked = found.iter().filter(|record| run_of(record).is_some());
    let marked: Vec<&Delivered> = marked.collect();
    let of = marked.iter().filter_map(|record| record.id.as_deref());
    let of: BTreeSet<_> = of.collect();
    assert_eq!(of, BTreeSet::from([&*ids[3], &*ids[7]]));
    let runs: BTreeSet<_> = marked.iter().filter_map(|record| run_of(record)).collect();
    assert_eq!(runs.len(), 1, "one run has one id");
    // Apart from the mark it equals the record that the relay sent.
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
    done(&resend("--where 'seq > 0' --yes"));
    assert_eq!(rig.records(before).len(), before * 2 + 2);
    assert!(rig.verdict().lost.is_empty());
    relay.ends_well();
}

/// A wrong condition and a wrong id are errors with the server's message.
#[test]
fn names_what_is_wrong() {
    let rig = rig(15);
    let relay = rig.relay();
    rig.workload().rows(20).seed(1).run();
    let config = rig.config();
    let wrong = output_with("resend --where 'no_such_column = 1' --yes", &config, &[]);
    refused(&wrong, 78, &["no_such_column"]);
    let wrong = output_with("resend --id no-uuid --yes", &config, &[]);
    assert!(!wrong.status.success(), "{wrong:?}");
    let help = said(&output_with("resend", &config, &["--help"]));
    assert_has(&help, &["Examples:", "--dry-run"]);
    rig.caught_up();
    relay.ends_well();
}
