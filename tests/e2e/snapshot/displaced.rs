//! A relay that loses the lock of its snapshot sends no more of its rows: another relay may have sent
//! newer events by then.

use std::collections::HashMap;

use walrelay_testkit::{Db, History, eventually};
use walrelay_throwaway::Signal;

use super::gate::{GATE_LOCK, GATED, Gate};
use super::rig;
use crate::endpoint::{LISTEN, address, status};
use crate::rig::{PATIENCE, Relay, Rig, with_source};

/// How the first relay is kept from noticing that its lock is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absence {
    /// SIGSTOP. The rows of its snapshot wait in its socket.
    Stopped,
    /// Its connections carry nothing in either direction.
    Silent,
}

/// PID of the session that holds the lock of the setup.
fn lock_holder(db: &Db) -> i32 {
    let sql = format!(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted \
         AND (classid, objid) <> (0, {GATE_LOCK})"
    );
    let holders: Vec<i32> = db.column(&sql, &[]);
    let [holder] = holders[..] else {
        panic!("{holders:?}");
    };
    holder
}

/// Waits until everything that the relay has read so far of its snapshot is in Kafka: what is in
/// flight when a relay is stopped may still arrive late.
fn wait_delivered(rig: &Rig, relay: &Relay) {
    let address = address(relay);
    let rows = || status(address)["snapshot"]["rows"].as_i64();
    eventually(PATIENCE, || {
        let read = rows().filter(|read| *read > 100);
        read.is_some() && History::count(&rig.bootstrap, &rig.prefix) >= read && rows() == read
    });
}

/// Number of keys, and of those whose last record is not their last event.
fn keys_that_end_old(rig: &Rig) -> (usize, usize) {
    let ids: Vec<String> = rig.db().column(
        "SELECT DISTINCT ON (aggregatetype, aggregateid) id::text FROM outbox \
         ORDER BY aggregatetype, aggregateid, seq DESC",
        &[],
    );
    let events: i64 = rig.db().value("SELECT count(*) FROM outbox");
    let mut records = rig.records(usize::try_from(events).expect("a count"));
    records.sort_by_key(|record| record.offset);
    let last: HashMap<_, _> = records
        .into_iter()
        .map(|record| ((record.topic, record.key), record.id))
        .collect();
    assert_eq!(last.len(), ids.len());
    let old = last.values().flatten().filter(|id| !ids.contains(id));
    (ids.len(), old.count())
}

/// The server ends the session that holds the first relay's lock. The second relay reads the
/// snapshot, makes the slot and sends newer events. Then the first relay comes back.
fn sends_nothing_behind_newer_events(absence: Absence) {
    let rig = rig(15);
    rig.workload().rows(2_000).seed(12).run();
    let gate = Gate::new(&rig);
    let db = rig.db();
    let (proxy, url) = rig.proxy();
    // A relay that was stopped shall notice by the session alone, not by the time that has passed.
    let timeout = match absence {
        Absence::Stopped => "10m",
        Absence::Silent => "2s",
    };
    let lines = format!("{GATED}\nwal_sender_timeout = \"{timeout}\"");
    let first = rig.start(&with_source(rig.config_with(&url, LISTEN), &lines));
    first.says("the snapshot begins");
    wait_delivered(&rig, &first);
    // On a busy machine the lease may expire before.
    let displaced = "may be read by another relay";
    let expired = first.log().matches(displaced).count();
    match absence {
        Absence::Stopped => first.signal(Signal::Stop),
        Absence::Silent => proxy.stall(),
    }
    let second = rig.start(&with_source(rig.config(), GATED));
    let holder = lock_holder(&db);
    db.query("SELECT pg_terminate_backend($1)", &[&holder]);
    second.says("the snapshot begins");
    gate.open();
    second.streaming();
    rig.workload().rows(1_000).seed(13).run();
    rig.caught_up();
    match absence {
        Absence::Stopped => first.signal(Signal::Cont),
        Absence::Silent => {
            first.says_often(displaced, expired + 1);
            proxy.resume();
        }
    }
    eventually(PATIENCE, || {
        let log = first.log();
        // Said by the next attempt, or by the thread of the lock before.
        log.contains("the snapshot cannot be read again")
            || log.contains("does not keep the snapshot any more")
    });
    let (keys, old) = keys_that_end_old(&rig);
    eprintln!("{old} of {keys} keys end on an old event");
    assert_eq!(old, 0, "{}", first.log());
    // The first relay waits for the slot that the second has made, and takes it over.
    second.ends_well();
    first.streaming();
    rig.workload().rows(200).seed(14).run();
    let verdict = rig.finish(first);
    eprintln!("{verdict}");
    verdict.assert_clean_but_for_ragged();
    assert_eq!(keys_that_end_old(&rig).1, 0);
}

tests! {
    fn a_relay_displaced_by_sigstop_sends_nothing_after_newer_events() {
        sends_nothing_behind_newer_events(Absence::Stopped)
    }
    fn a_relay_displaced_by_a_silent_link_sends_nothing_after_newer_events() {
        sends_nothing_behind_newer_events(Absence::Silent)
    }
}

/// A session that waits for the lock in the server would outlive its relay, and each new attempt
/// would add one.
#[test]
fn a_relay_that_waits_leaves_no_session_behind() {
    let rig = rig(15);
    rig.workload().rows(1_000).seed(15).run();
    let gate = Gate::new(&rig);
    let config = with_source(rig.config(), GATED);
    let first = rig.start(&config);
    first.says("the snapshot begins");
    let db = rig.db();
    let holder = lock_holder(&db);
    let second = rig.start(&config);
    let waiting = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%advisory_lock(%' \
                   AND application_name = 'walrelay' AND pid <> $1";
    let mut pids: Vec<i32> = Vec::new();
    eventually(PATIENCE, || {
        pids = db.column(waiting, &[&holder]);
        !pids.is_empty()
    });
    assert_eq!(pids.len(), 1, "{pids:?}");
    second.kill();
    eventually(PATIENCE, || db.query(waiting, &[&holder]).is_empty());
    gate.open();
    first.streaming();
    rig.finish(first).assert_clean_but_for_ragged();
}
