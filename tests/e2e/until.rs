//! `walrelay run --until`: a run that ends by itself delivers and confirms everything that was committed before.

use std::collections::BTreeSet;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use walrelay_testkit::eventually;
use walrelay_throwaway::Signal;

use crate::rig::{PATIENCE, Rig, assert_has, done, ends, insert, output_with};

/// Asserts that so many events are in the topics, each once.
fn are_delivered(rig: &Rig, count: usize) {
    let records = rig.records(count);
    let ids: BTreeSet<_> = records.iter().map(|record| record.id.clone()).collect();
    assert_eq!((ids.len(), records.len()), (count, count));
}

#[test]
fn a_run_until_caught_up_delivers_what_was_committed_before_and_ends() {
    for major in [15, 18] {
        let rig = Rig::with_outbox(major);
        rig.create_slot();
        let config = rig.config();
        let written = rig.workload().rows(300).run();
        let records = format!("\"records\":{}", written.rows);
        let end = rig.db().flush_lsn();
        let output = output_with("run", &config, &["--until=caught-up"]);
        let log = done(&output);
        assert_has(&log, &[&records, "everything is delivered up to the end"]);
        assert!(rig.slot().confirmed() >= end, "{log}");
        assert_eq!(rig.slot().reader(), None, "it left its walsender");
        rig.verdict().assert_clean();
        // Nothing is left, on a server that writes nothing.
        let log = done(&output_with("run", &config, &["--until=caught-up"]));
        assert_has(&log, &["\"records\":0"]);
    }
}

#[test]
fn a_run_until_a_time_delivers_what_is_committed_before_it() {
    let rig = Rig::with_outbox(18);
    let config = rig.config();
    let end = OffsetDateTime::now_utc() + time::Duration::seconds(8);
    let until = format!("--until={}", end.format(&Rfc3339).expect("a time"));
    let mut relay = rig.start_with(&config, &[&until]);
    relay.streaming();
    let db = rig.db();
    let mut number = 0;
    while OffsetDateTime::now_utc() < end - time::Duration::seconds(2) {
        number += 1;
        insert(&db, number);
    }
    let last = db.flush_lsn();
    let status = relay.ended();
    assert_eq!(status.code(), Some(0), "{}", relay.log());
    assert!(rig.slot().confirmed() >= last, "{}", relay.log());
    are_delivered(&rig, number as usize);
}

/// Whoever runs it under a time limit must see that it did not come to its end.
#[test]
fn a_run_that_is_stopped_before_its_end_says_so() {
    let rig = Rig::with_outbox(16);
    let config = rig.config();
    let mut relay = rig.start_with(&config, &["--until=FF/0"]);
    relay.streaming();
    insert(&rig.db(), 1);
    eventually(PATIENCE, || relay.log().contains("is to be delivered"));
    rig.caught_up();
    relay.signal(Signal::Term);
    ends(&mut relay, 75, "until-not-reached");
    are_delivered(&rig, 1);
}
