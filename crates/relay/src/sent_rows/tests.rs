use std::sync::Arc;

use walrelay_lsn::{CommitEnd, Lsn, Xid};
use walrelay_pgoutput::{Message, decode};
use walrelay_sink::EventPosition;

use super::keys::HEAD;
use super::queue::CHUNK;
use super::*;
use crate::table::TableName;

/// Announces `public.outbox (body, id)`, whose key is `id`.
fn announce(rows: &mut PendingRows, identity: u8) {
    let mut body = b"R\0\0\0\x07public\0outbox\0".to_vec();
    body.push(identity);
    body.extend(b"\0\x02\0body\0\0\0\0\x19\xff\xff\xff\xff\x01id\0\0\0\0\x19\xff\xff\xff\xff");
    let Ok(Message::Relation(relation)) = decode(&body) else {
        panic!("no relation");
    };
    rows.announce(&relation, &TableName::new("public", "outbox"));
}

/// Notes a row with this id, as the core does.
fn note(rows: &mut PendingRows, at: (u64, u64), id: &str, taken: bool) {
    let mut body = b"I\0\0\0\x07N\0\x02t\0\0\0\x01xt".to_vec();
    body.extend((id.len() as u32).to_be_bytes());
    body.extend(id.as_bytes());
    let Ok(Message::Insert(insert)) = decode(&body) else {
        panic!("no row");
    };
    rows.offer(
        event(at.0, at.1),
        insert.relation,
        Xid::new(9),
        &insert.tuple,
    );
    if taken {
        rows.keep_offered();
    }
}

fn event(lsn: u64, row: u64) -> EventPosition {
    EventPosition::in_first_epoch(lsn, row)
}

fn end(lsn: u64) -> CommitEnd {
    CommitEnd::from_slot(Lsn::new(lsn))
}

fn pending(limit: usize) -> (Arc<SentRows>, PendingRows) {
    let shared = Arc::new(SentRows::with_limit(limit));
    let mut rows = PendingRows::new(Arc::clone(&shared));
    announce(&mut rows, b'd');
    (shared, rows)
}

fn ids(taken: &TakenKeys) -> Vec<String> {
    let values = taken
        .keys
        .iter()
        .flat_map(|key| key.values().map(<[u8]>::to_vec).collect::<Vec<_>>());
    values
        .map(|value| String::from_utf8(value).expect("a text"))
        .collect()
}

/// Another session reads the rows of the same table: the keys of before keep the time zone of theirs.
#[test]
fn a_key_keeps_the_time_zone_of_the_session_that_read_its_row() {
    let (shared, mut rows) = pending(SentRows::LIMIT);
    note(&mut rows, (10, 0), "a", true);
    shared.set_time_zone("Asia/Tokyo");
    rows.clear_tables();
    announce(&mut rows, b'd');
    note(&mut rows, (20, 0), "b", true);
    rows.release(Some(event(30, 0)), end(30));
    let taken = shared.take(usize::MAX);
    let zones = taken.keys.iter().map(|key| {
        let table = shared.table(key.table).expect("a table");
        table.time_zone.clone()
    });
    assert_eq!(zones.collect::<Vec<_>>(), ["", "Asia/Tokyo"]);
}

#[test]
fn a_key_is_released_once_it_and_all_before_it_are_acknowledged() {
    let (shared, mut rows) = pending(SentRows::LIMIT);
    for (at, id) in [
        ((10, 0), "a"),
        ((10, 1), "b"),
        ((10, 2), "c"),
        ((20, 0), "d"),
    ] {
        note(&mut rows, at, id, true);
    }
    note(&mut rows, (20, 1), "not taken by the sink", false);
    rows.release(None, end(5));
    assert!(
        ids(&shared.take(1000)).is_empty(),
        "nothing is acknowledged"
    );
    // Also of a transaction that is not whole.
    rows.release(Some(event(10, 2)), end(5));
    assert_eq!(ids(&shared.take(1000)), ["a", "b"]);
    note(&mut rows, (20, 1), "e", true);
    rows.release(Some(event(20, 1)), end(15));
    assert_eq!(ids(&shared.take(1000)), ["a", "b", "c", "d"]);
    let table = shared.table(0).expect("a table");
    assert_eq!(table.columns, ["id"]);
    assert_eq!(table.row_columns, ["body", "id"]);
    rows.release(Some(event(20, 2)), end(25));
    assert_eq!(ids(&shared.take(1)), ["a", "b"], "the keys of one release");
}

#[test]
fn a_position_is_settled_once_the_keys_before_it_are() {
    let (shared, mut rows) = pending(SentRows::LIMIT);
    assert_eq!(shared.settled(), None, "nothing holds a position up");
    note(&mut rows, (10, 0), "a", true);
    assert_eq!(shared.settled(), None, "the event is not acknowledged");
    rows.release(Some(event(10, 1)), end(15));
    assert_eq!(shared.settled(), Some(end(0)));
    let first = shared.take(1);
    assert_eq!(ids(&first), ["a"]);
    // Acknowledged while the first is marked.
    note(&mut rows, (20, 0), "b", true);
    rows.release(Some(event(20, 1)), end(25));
    // A later position without a row.
    rows.release(Some(event(20, 1)), end(27));
    assert_eq!(shared.settled(), Some(end(0)));
    shared.settle(&first);
    assert_eq!(shared.settled(), Some(end(15)));
    let second = shared.take(1);
    assert_eq!(ids(&second), ["b"]);
    shared.settle(&second);
    assert_eq!(shared.settled(), None);
    // Keys that were taken are not added to.
    note(&mut rows, (30, 0), "c", true);
    rows.release(Some(event(30, 1)), end(27));
    let third = shared.take(1);
    note(&mut rows, (30, 1), "d", true);
    rows.release(Some(event(30, 2)), end(27));
    shared.settle(&third);
    assert_eq!(shared.settled(), Some(end(27)));
    assert_eq!(ids(&shared.take(1)), ["d"]);
}

#[test]
fn events_that_are_sent_again_are_forgotten() {
    let (shared, mut rows) = pending(SentRows::LIMIT);
    for (row, id) in ["a", "b", "c"].into_iter().enumerate() {
        note(&mut rows, (10, row as u64), id, true);
    }
    rows.release(Some(event(10, 1)), end(5));
    rows.forget_from(event(10, 2));
    rows.forget_from(event(10, 0));
    note(&mut rows, (10, 1), "b", true);
    rows.release(Some(event(10, 2)), end(15));
    let taken = shared.take(1000);
    assert_eq!(ids(&taken), ["a", "b"]);
    // On another timeline other rows may have these keys.
    rows.forget();
    assert_eq!(shared.settled(), None);
    note(&mut rows, (10, 0), "e", true);
    rows.release(Some(event(10, 1)), end(12));
    shared.settle(&taken);
    assert_eq!(
        shared.settled(),
        Some(end(0)),
        "the taken keys are no longer those of the queue"
    );
    assert_eq!(ids(&shared.take(1)), ["e"]);
}

/// A connection is lost amid a transaction, so its rows are noted twice. The second row is sent by the next
/// sink, or becomes a dead letter: nothing of it may be left, also if its keys are in several chunks.
#[test]
fn a_transaction_that_is_read_again_leaves_no_key_of_an_unacknowledged_event() {
    for rows_between in [0, 2 * CHUNK / (HEAD + 5)] {
        let (shared, mut rows) = pending(SentRows::LIMIT);
        note(&mut rows, (10, 0), "a", true);
        note(&mut rows, (10, 1), "b", true);
        for row in 0..rows_between {
            note(&mut rows, (10, 2 + row as u64), "c", true);
        }
        note(&mut rows, (10, 0), "a", true);
        note(&mut rows, (10, 1), "b", true);
        rows.forget_from(event(10, 1));
        rows.release(Some(event(20, 0)), end(15));
        assert_eq!(ids(&shared.take(SentRows::LIMIT)), ["a"]);
    }
}

#[test]
fn a_full_queue_is_told_until_keys_are_settled() {
    // Two keys of one byte.
    let (shared, mut rows) = pending(2 * (HEAD + 5));
    for row in 0..2 {
        assert!(!rows.is_full());
        note(&mut rows, (10, row), "a", true);
        rows.release(Some(event(10, row + 1)), end(5));
    }
    assert!(rows.is_full());
    shared.settle(&shared.take(1));
    assert!(!rows.is_full());
}

#[test]
fn rows_without_a_key_are_told_by_their_table() {
    let (shared, mut rows) = pending(SentRows::LIMIT);
    for without_key in *b"fn" {
        announce(&mut rows, without_key);
        note(&mut rows, (10, 0), "a", true);
        rows.release(Some(event(10, 1)), end(15));
        assert_eq!(shared.settled(), None);
        assert_eq!(shared.take_without_key().len(), 1);
    }
}

#[test]
fn the_hash_is_of_all_columns() {
    let (shared, mut rows) = pending(SentRows::LIMIT);
    for (row, id) in ["a", "a", "b"].into_iter().enumerate() {
        note(&mut rows, (10, row as u64), id, true);
    }
    rows.release(Some(event(10, 3)), end(15));
    let taken = shared.take(1000);
    let hashes: Vec<&[u8]> = taken.keys.iter().map(|key| key.hash()).collect();
    assert_eq!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], hashes[2]);
    // SHA-256 of "t1:xt1:a".
    assert_eq!(hashes[0].len(), HASH_BYTES);
}

#[test]
fn every_key_is_released_once_in_any_order_of_releases() {
    let (shared, mut rows) = pending(SentRows::LIMIT);
    let mut expected = Vec::new();
    let mut seen = Vec::new();
    let mut random = 7_u64;
    for row in 0..5000_u64 {
        let id = format!("key-{row}");
        note(&mut rows, (10 + row / 7, row % 7), &id, false);
        if row % 5 == 0 {
            note(&mut rows, (10 + row / 7, row % 7), &id, false);
        }
        rows.keep_offered();
        expected.push(id);
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        if random >> 60 == 0 {
            let behind = (random >> 40) % 300;
            let first = row.saturating_sub(behind);
            rows.release(Some(event(10 + first / 7, first % 7)), end(10 + first / 7));
        }
        if random >> 59 == 3 {
            let taken = shared.take(1000);
            seen.extend(ids(&taken));
            shared.settle(&taken);
        }
    }
    rows.release(Some(event(10_000, 0)), end(10_000));
    loop {
        let taken = shared.take(1000);
        shared.settle(&taken);
        if taken.keys.is_empty() {
            break;
        }
        seen.extend(ids(&taken));
    }
    assert_eq!(seen, expected);
}

/// Returns the ids of keys, each with the reason of its dead letter.
fn with_reasons(taken: &TakenKeys) -> Vec<(String, Option<String>)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("a text");
    let keys = taken.keys.iter();
    keys.map(|key| {
        let values: Vec<String> = key.values().map(text).collect();
        (values.concat(), key.dead_reason().map(text))
    })
    .collect()
}

fn sent(id: &str) -> (String, Option<String>) {
    (id.to_owned(), None)
}

fn dead(id: &str, reason: &str) -> (String, Option<String>) {
    (id.to_owned(), Some(reason.to_owned()))
}

fn pending_with_dead() -> (Arc<SentRows>, PendingRows) {
    let shared = Arc::new(SentRows::with_limit(SentRows::LIMIT).noting_dead(true));
    let mut rows = PendingRows::new(Arc::clone(&shared));
    announce(&mut rows, b'd');
    (shared, rows)
}

#[test]
fn the_key_of_a_dead_letter_comes_in_its_place_with_the_reason() {
    let (shared, mut rows) = pending_with_dead();
    note(&mut rows, (10, 0), "a", true);
    note(&mut rows, (10, 1), "b", false);
    rows.offered_is_dead("no topic");
    rows.keep_offered();
    note(&mut rows, (10, 2), "c", true);
    note(&mut rows, (10, 3), "d", true);
    // Refused while the one after it is in flight.
    rows.event_is_dead(event(10, 2), "refused");
    rows.release(Some(event(10, 3)), end(5));
    let expected = [sent("a"), dead("b", "no topic"), dead("c", "refused")];
    assert_eq!(with_reasons(&shared.take(1000)), expected);
    let table = shared.take(1000).keys.iter().map(|key| key.table).max();
    assert_eq!(table, Some(0), "the bit is no part of the number");
    rows.release(Some(event(20, 0)), end(15));
    assert_eq!(with_reasons(&shared.take(1000)).last(), Some(&sent("d")));
}

#[test]
fn the_reason_of_a_dead_letter_is_cut_between_characters() {
    let (shared, mut rows) = pending_with_dead();
    note(&mut rows, (10, 0), "a", false);
    rows.offered_is_dead(&format!("x{}", "\u{e9}".repeat(600)));
    rows.keep_offered();
    rows.release(Some(event(10, 1)), end(5));
    let cut = format!("x{}", "\u{e9}".repeat(499));
    assert_eq!(with_reasons(&shared.take(1000)), [dead("a", &cut)]);
}

#[test]
fn without_mark_dead_no_key_of_a_dead_letter_is_noted() {
    let (shared, mut rows) = pending(SentRows::LIMIT);
    note(&mut rows, (10, 0), "a", false);
    rows.offered_is_dead("no topic");
    rows.keep_offered();
    note(&mut rows, (10, 1), "b", true);
    rows.event_is_dead(event(10, 1), "refused");
    note(&mut rows, (10, 2), "c", true);
    rows.release(Some(event(10, 3)), end(5));
    assert_eq!(with_reasons(&shared.take(1000)), [sent("c")]);
}

#[test]
fn an_acknowledged_dead_letter_keeps_its_key_past_a_sink_that_ends() {
    let (shared, mut rows) = pending_with_dead();
    let dead_letter = |rows: &mut PendingRows, at, id| {
        note(rows, at, id, false);
        rows.offered_is_dead("refused");
        rows.keep_offered();
    };
    note(&mut rows, (10, 0), "a", true);
    dead_letter(&mut rows, (10, 1), "b");
    dead_letter(&mut rows, (10, 2), "c");
    // The sink ends: the first event is open, the dead letter of the second is acknowledged.
    rows.forget_from(event(10, 0));
    rows.clear_tables();
    announce(&mut rows, b'd');
    note(&mut rows, (10, 0), "a", true);
    rows.resume_dead(event(10, 1));
    rows.resume_dead(event(9, 0));
    dead_letter(&mut rows, (10, 2), "c");
    rows.release(Some(event(10, 1)), end(5));
    assert_eq!(with_reasons(&shared.take(1000)), [sent("a")]);
    rows.release(Some(event(10, 3)), end(5));
    let expected = [sent("a"), dead("b", "refused"), dead("c", "refused")];
    assert_eq!(with_reasons(&shared.take(1000)), expected);
    // No key is left over, and none is shown.
    rows.resume_dead(event(10, 2));
    rows.release(Some(event(20, 0)), end(15));
    assert_eq!(with_reasons(&shared.take(1000)), expected);
    rows.forget_from(event(10, 0));
}
