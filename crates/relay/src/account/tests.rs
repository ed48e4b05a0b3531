use std::sync::Arc;

use walrelay_lsn::{Lsn, RelationId};
use walrelay_pgoutput::{Message, decode};
use walrelay_sink::EventPosition;

use super::*;

const ID: RelationId = RelationId::new(7);

/// Returns the Relation message of `public.outbox (id, body, created_at)`, whose key is `id` with the
/// replica identity `d`.
fn relation(identity: u8) -> Vec<u8> {
    let mut body = b"R\0\0\0\x07public\0outbox\0".to_vec();
    body.extend([identity, 0, 3]);
    for (key, name) in [(1, "id"), (0, "body"), (0, "created_at")] {
        body.push(key);
        body.extend(name.bytes());
        body.extend(b"\0\0\0\0\x19\xff\xff\xff\xff");
    }
    body
}

fn row(id: &str, age: &str) -> Vec<u8> {
    let mut body = b"I\0\0\0\x07N\0\x03".to_vec();
    for value in [id, "x", age] {
        body.push(b't');
        body.extend((value.len() as u32).to_be_bytes());
        body.extend(value.bytes());
    }
    body
}

fn pending(writes_dead_letters: bool) -> (Arc<SentAccount>, PendingAccount) {
    pending_of(Some("id"), b'd', writes_dead_letters)
}

/// Returns an account that began. `id`: the column of the event's id. `identity`: the table's replica identity.
fn pending_of(
    id: Option<&str>,
    identity: u8,
    writes_dead_letters: bool,
) -> (Arc<SentAccount>, PendingAccount) {
    let columns = AccountColumns {
        id: id.map(str::to_owned),
        age: ["occurred_at", "created_at"].map(str::to_owned).to_vec(),
    };
    let shared = Arc::new(SentAccount::new(columns, writes_dead_letters));
    let mut pending = PendingAccount::new(Arc::clone(&shared));
    shared.begin(Some(Lsn::new(1)));
    pending.connected();
    announce_as(&mut pending, identity);
    (shared, pending)
}

fn announce(pending: &mut PendingAccount) {
    announce_as(pending, b'd');
}

fn announce_as(pending: &mut PendingAccount, identity: u8) {
    let body = relation(identity);
    let Ok(Message::Relation(relation)) = decode(&body) else {
        panic!("no relation");
    };
    pending.announce(&relation);
}

fn offer(pending: &mut PendingAccount, lsn: u64, row_number: u64, id: &str) {
    offer_at(pending, (lsn, row_number), id, "2026-11-28 10:07:00+00");
}

fn offer_at(pending: &mut PendingAccount, (lsn, number): (u64, u64), id: &str, age: &str) {
    let body = row(id, age);
    let Ok(Message::Insert(insert)) = decode(&body) else {
        panic!("no row");
    };
    let position = EventPosition::in_first_epoch(lsn, number);
    pending.offer(position, insert.relation, &insert.tuple);
}

/// Sends a transaction of rows with these ids.
fn send(pending: &mut PendingAccount, lsn: u64, ids: &[&str]) {
    for (number, id) in ids.iter().enumerate() {
        offer(pending, lsn, number as u64, id);
        pending.keep_offered(false);
    }
    pending.committed(Lsn::new(lsn));
}

/// Returns the rows and dead letters that were counted, and the sum that they have.
fn counted(shared: &SentAccount) -> (i64, i64, i128) {
    let counted = shared.take();
    shared.written();
    let sums: Vec<BucketSum> = counted
        .into_iter()
        .flat_map(|counted| counted.sums.into_values())
        .collect();
    let sum = |each: fn(&BucketSum) -> i64| sums.iter().map(each).sum();
    (
        sum(|one| one.sent.rows),
        sum(|one| one.diverted.rows),
        sums.iter().map(|one| one.sent.high).sum(),
    )
}

/// With the replica identity FULL all columns are key columns, so there is no key.
#[test]
fn rows_that_only_their_age_would_identify_are_not_counted() {
    for (id, identity, expected) in [
        (None, b'f', 0),
        (None, b'n', 0),
        (None, b'd', 1),
        (None, b'i', 1),
        (Some("id"), b'f', 1),
        (Some("other"), b'f', 0),
    ] {
        let (shared, mut rows) = pending_of(id, identity, false);
        send(&mut rows, 10, &["a"]);
        rows.release(Lsn::new(11), None);
        assert_eq!(counted(&shared).0, expected, "{id:?}, {identity}");
    }
}

#[test]
fn acknowledged_transactions_are_counted_once() {
    let (shared, mut rows) = pending(false);
    send(&mut rows, 10, &["a", "b"]);
    send(&mut rows, 20, &["c"]);
    rows.release(Lsn::new(11), None);
    let (first, _, sum) = counted(&shared);
    assert_eq!(first, 2);
    // The server sends all of it again on a new connection: the database has the first one.
    shared.begin(Some(Lsn::new(11)));
    rows.connected();
    announce(&mut rows);
    send(&mut rows, 10, &["a", "b"]);
    rows.release(Lsn::new(21), None);
    assert_eq!(counted(&shared).0, 1, "the second one, once");
    // Another process, from the beginning of the WAL.
    let (other, mut again) = pending(false);
    send(&mut again, 10, &["b", "a"]);
    again.release(Lsn::new(11), None);
    assert_eq!(counted(&other), (2, 0, sum), "whatever the order");
}

#[test]
fn a_transaction_that_was_cut_is_counted_anew() {
    let (shared, mut rows) = pending(false);
    offer(&mut rows, 10, 0, "a");
    rows.keep_offered(false);
    rows.forget_from(EventPosition::in_first_epoch(10, 0));
    send(&mut rows, 10, &["a", "b"]);
    rows.release(Lsn::new(11), None);
    assert_eq!(counted(&shared).0, 2);
}

/// The first row became a dead letter, and the sink failed after it. The next core passes over it.
#[test]
fn a_dead_letter_is_told_from_a_sent_row_also_after_a_failure_of_the_sink() {
    let (shared, mut rows) = pending(true);
    offer(&mut rows, 10, 0, "a");
    rows.keep_offered(true);
    offer(&mut rows, 10, 1, "b");
    rows.keep_offered(false);
    rows.forget_from(EventPosition::in_first_epoch(10, 2));
    for (number, id) in ["a", "b"].iter().enumerate() {
        offer(&mut rows, 10, number as u64, id);
        rows.keep_acknowledged();
    }
    offer(&mut rows, 10, 2, "c");
    rows.keep_offered(false);
    rows.committed(Lsn::new(10));
    rows.release(Lsn::new(11), None);
    let (sent, diverted, _) = counted(&shared);
    assert_eq!((sent, diverted), (2, 1));
}

/// The connection was lost after the first row, whose dead letter was acknowledged then. The sink failed
/// before the transaction was read again.
#[test]
fn a_dead_letter_is_told_from_a_sent_row_also_after_a_lost_connection() {
    let (shared, mut rows) = pending(true);
    for (number, id) in ["a", "b"].iter().enumerate() {
        offer(&mut rows, 10, number as u64, id);
        rows.keep_offered(true);
    }
    rows.forget_from(EventPosition::in_first_epoch(10, 0));
    rows.forget_from(EventPosition::in_first_epoch(10, 1));
    offer(&mut rows, 10, 0, "a");
    rows.keep_acknowledged();
    // The second row is no dead letter any more.
    offer(&mut rows, 10, 1, "b");
    rows.keep_offered(false);
    rows.committed(Lsn::new(10));
    rows.release(Lsn::new(11), None);
    let (sent, diverted, _) = counted(&shared);
    assert_eq!((sent, diverted), (1, 1));
    assert!(rows.diverted.is_empty());
}

#[test]
fn a_row_whose_record_is_refused_is_counted_as_a_dead_letter() {
    let (shared, mut rows) = pending(true);
    for (number, id) in ["a", "b", "c"].iter().enumerate() {
        offer(&mut rows, 10, number as u64, id);
        rows.keep_offered(false);
    }
    rows.committed(Lsn::new(10));
    let event = |row| EventPosition::in_first_epoch(10, row);
    rows.release(Lsn::new(5), Some(event(1)));
    assert_eq!(rows.in_flight.len(), 2, "the first is acknowledged");
    rows.divert(event(1));
    rows.divert(event(1));
    rows.release(Lsn::new(11), None);
    let (sent, diverted, sum) = counted(&shared);
    assert_eq!((sent, diverted), (2, 1));
    assert!(rows.in_flight.is_empty());
    let (shared, mut others) = pending(false);
    send(&mut others, 10, &["a", "c"]);
    others.release(Lsn::new(11), None);
    assert_eq!(counted(&shared).2, sum);
}

/// The connection is lost before the sink refuses the record of the first row.
#[test]
fn a_refusal_counts_also_if_its_transaction_is_read_again() {
    for before in [false, true] {
        let (shared, mut rows) = pending(true);
        let refused = EventPosition::in_first_epoch(10, 0);
        offer(&mut rows, 10, 0, "a");
        rows.keep_offered(false);
        rows.forget_from(refused);
        if before {
            rows.divert(refused);
        }
        offer(&mut rows, 10, 0, "a");
        rows.keep_acknowledged();
        rows.committed(Lsn::new(10));
        if !before {
            rows.divert(refused);
        }
        rows.release(Lsn::new(11), None);
        let (sent, diverted, _) = counted(&shared);
        assert_eq!((sent, diverted), (0, 1));
    }
}

/// The sink of an earlier process had these rows: they may be dead letters.
#[test]
fn rows_that_the_sink_had_are_counted_only_if_they_cannot_be_dead_letters() {
    for (writes_dead_letters, expected) in [(false, 1), (true, 0)] {
        let (shared, mut rows) = pending(writes_dead_letters);
        offer(&mut rows, 10, 0, "a");
        rows.keep_stored();
        rows.committed(Lsn::new(10));
        rows.release(Lsn::new(11), None);
        assert_eq!(counted(&shared).0, expected);
    }
}

#[test]
fn sums_that_may_be_written_are_taken_again_as_they_were() {
    let (shared, mut rows) = pending(false);
    send(&mut rows, 10, &["a"]);
    rows.release(Lsn::new(11), None);
    let first = shared.take().expect("sums");
    send(&mut rows, 20, &["b"]);
    rows.release(Lsn::new(21), None);
    assert_eq!(shared.take().as_ref(), Some(&first));
    // The connection was lost, and the statement was not executed.
    shared.begin(Some(first.from));
    assert_eq!(shared.take().as_ref(), Some(&first));
    // The connection was lost, and the database has them.
    shared.begin(Some(first.to));
    let second = shared.take().expect("sums");
    assert_eq!((second.from, second.to), (first.to, Lsn::new(21)));
    assert_eq!(counted(&shared).0, 1);
}

/// Another relay has counted meanwhile, or the log is another one.
#[test]
fn sums_that_continue_nothing_are_forgotten() {
    let (shared, mut rows) = pending(false);
    send(&mut rows, 10, &["a"]);
    rows.release(Lsn::new(11), None);
    send(&mut rows, 20, &["b"]);
    shared.begin(Some(Lsn::new(15)));
    rows.connected();
    announce(&mut rows);
    assert_eq!(counted(&shared).0, 0);
    send(&mut rows, 20, &["b"]);
    rows.release(Lsn::new(21), None);
    assert_eq!(counted(&shared).0, 1);
    // Without the database nothing is counted.
    shared.begin(None);
    rows.connected();
    announce(&mut rows);
    send(&mut rows, 30, &["c"]);
    rows.release(Lsn::new(31), None);
    assert_eq!(counted(&shared).0, 0);
}

#[test]
fn a_row_belongs_to_the_ten_minutes_of_its_age() {
    let (shared, mut rows) = pending(false);
    for (number, age) in [
        "2026-11-28 10:00:00+00",
        "2026-11-28 12:09:59.999999+02",
        "2026-11-28 10:10:00",
        "infinity",
        "1969-12-31 23:59:59+00",
    ]
    .iter()
    .enumerate()
    {
        offer_at(&mut rows, (10, number as u64), "a", age);
        rows.keep_offered(false);
    }
    rows.committed(Lsn::new(10));
    rows.release(Lsn::new(11), None);
    let counted = shared.take().expect("sums");
    let mut buckets: Vec<(i64, i64)> = counted
        .sums
        .iter()
        .map(|(bucket, sum)| (bucket.number, sum.sent.rows))
        .collect();
    buckets.sort_unstable();
    let first = 2_993_100;
    assert_eq!(buckets, [(-1, 1), (first, 2), (first + 1, 1)]);
    let names = counted.sums.keys().map(|bucket| bucket.columns.join(","));
    assert!(names.into_iter().all(|names| names == "id,created_at"));
    assert_eq!(
        counted.sums.keys().next().map(|bucket| bucket.relation),
        Some(ID)
    );
}
