//! The promises about records that are refused for the moment, and sent again until `retry_for` has passed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::event::Event;
use super::run::Run;
use super::session::Session;
use crate::reports::ReportState;
use crate::wait::eventually;

/// More keys than any sink of the suite may hold back in one destination (`max_retrying_keys`).
const WAITING: u64 = 150;
/// Records of another topic than the refused ones.
const OTHERS: u64 = 100;
/// A patience that no run waits for.
const HOUR: Duration = Duration::from_secs(3_600);
/// A patience that a run waits for.
const RETRY_FOR: Duration = Duration::from_secs(3);

/// Makes events of another topic, which the server accepts.
fn others(run: &mut Run<'_>, topic: &str, first: u64) -> Vec<Event> {
    let events = (0..OTHERS).map(|number| Event {
        topic: topic.to_owned(),
        ..run.event(first + number, 8)
    });
    events.collect()
}

/// Asserts that the events of a topic were stored, each once, and those of a key in their order.
fn assert_stored_once(run: &Run<'_>, topic: &str, events: &[Event]) {
    let number = |id: &String| events.iter().position(|event| event.id == *id);
    let stored = run.stored_ids(topic);
    let order: Vec<usize> = stored.iter().filter_map(number).collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    let all: Vec<usize> = (0..events.len()).collect();
    assert_eq!(sorted, all, "records of the other topic on the server");
    assert_eq!(stored.len(), order.len(), "an id that no event has");
    for event in events {
        let of_key = order.iter().filter(|it| events[**it].key == event.key);
        assert!(of_key.is_sorted(), "events of a key are in another order");
    }
}

pub(super) fn refused_records_wait_apart(run: &mut Run<'_>) {
    let Some((mut factory, refusal)) = run.destination.patient(HOUR) else {
        return;
    };
    let topic = run.another_topic("other");
    let mut session = run.open_by(&mut factory);
    let mut waiting = BTreeSet::new();
    for number in 0..WAITING {
        let mut event = run.event(number, 1);
        event.key.extend(number.to_string().into_bytes());
        waiting.insert(event.id.clone());
        (refusal.spoil)(&mut event);
        assert_eq!(session.offer(&event, number), Ok(()), "it may be accepted");
    }
    let others = others(run, &topic, WAITING);
    for (seq, event) in (WAITING..).zip(&others) {
        assert_eq!(session.offer(event, seq), Ok(()), "it is good");
    }
    session.wait("the delivery of a record of another topic", |state| {
        (WAITING..WAITING + OTHERS).all(|seq| state.is_delivered(seq))
    });
    eventually(run.limits.patience, || {
        let retrying = session.retrying();
        let named = retrying.as_ref().and_then(|it| it.event_id.as_ref());
        named.is_some_and(|id| waiting.contains(id)) && retrying.is_some_and(|it| it.keys > 1)
    });
    let failures = session.reports.failures();
    assert_eq!(failures, [], "given up before `retry_for` has passed");
    let closed = session.close(Duration::ZERO);
    assert_eq!(closed.failures().len() as u64, WAITING, "they have waited");
    assert_stored_once(run, &topic, &others);
}

pub(super) fn ten_refusals_take_one_retry_for(run: &mut Run<'_>) {
    let alone = refused(run, "alone", 1);
    let ten = refused(run, "ten", 10);
    let (Some(alone), Some(ten)) = (alone, ten) else {
        return;
    };
    // Each by itself would take ten times as long.
    assert!(
        ten < 8 * alone,
        "ten refused records take {ten:?}, and one takes {alone:?}"
    );
}

/// Sends so many refused records of one key, with others between them. Returns how long it took until their
/// dead letters, and all others, were delivered; `None` if no other record may pass a refused one.
fn refused(run: &mut Run<'_>, name: &str, count: u64) -> Option<Duration> {
    let (mut factory, refusal) = run.destination.patient(RETRY_FOR)?;
    let topic = run.another_topic(name);
    // Events of another topic stand for the dead letters, which a sink may send elsewhere.
    let dead_topic = run.another_topic(&format!("dead-{name}"));
    let mut bad = Vec::new();
    let mut session = run.open_by(&mut factory);
    let start = Instant::now();
    for number in 0..count {
        let mut event = run.event(number, 1);
        let dead_letter = Event {
            topic: dead_topic.clone(),
            value: b"refused".to_vec(),
            ..event.clone()
        };
        bad.push(dead_letter.id.clone());
        session.dead_letters.insert(number, dead_letter);
        (refusal.spoil)(&mut event);
        assert_eq!(session.offer(&event, number), Ok(()), "it may be accepted");
    }
    let others = others(run, &topic, count);
    for (seq, event) in (count..).zip(&others) {
        assert_eq!(session.offer(event, seq), Ok(()), "it is good");
    }
    session.wait("the end of a record, or of its dead letter,", |state| {
        (0..count + OTHERS).all(|seq| state.is_delivered(seq))
    });
    let taken = start.elapsed();
    session.close(run.limits.patience);
    assert_stored_once(run, &topic, &others);
    let mut dead = run.stored_ids(&dead_topic);
    dead.sort();
    bad.sort();
    assert_eq!(dead, bad, "dead letters");
    Some(taken)
}

pub(super) fn withdrawn_records_come_back(run: &mut Run<'_>) {
    for behind in [false, true] {
        let Some((mut factory, refusal)) = run.destination.patient(RETRY_FOR) else {
            return;
        };
        let topic = run.another_topic(if behind { "behind" } else { "one" });
        let mut session = run.open_by(&mut factory);
        let mut bad = Vec::new();
        for number in 0..10 {
            let mut event = run.event(number, 1);
            event.key.push(b'a' + (number % 2) as u8);
            (refusal.spoil)(&mut event);
            assert_eq!(session.offer(&event, number), Ok(()), "it may be accepted");
            bad.push(event);
        }
        let count = bad.len() as u64;
        let others = others(run, &topic, count);
        for (seq, event) in (count..).zip(&others) {
            assert_eq!(session.offer(event, seq), Ok(()), "it is good");
        }
        let mut taken = BTreeSet::new();
        while taken.len() < bad.len() {
            let refused = |state: &ReportState| -> Vec<u64> {
                let failed = state.outcomes.iter().filter(|(_, it)| it.is_err());
                failed.map(|(seq, _)| *seq).collect()
            };
            let new =
                |state: &ReportState| refused(state).into_iter().find(|seq| !taken.contains(seq));
            session.wait_for_report("a refusal", |state| new(state).is_some());
            let state = session.reports.state();
            let Some(first) = new(&state) else { continue };
            take_back(
                &mut session,
                &bad,
                &mut taken,
                (first, behind, &refused(&state)),
            );
        }
        session.wait_for_report("the delivery of a record of another topic", |state| {
            (count..count + OTHERS).all(|seq| state.is_delivered(seq))
        });
        assert!(session.withdraw(count, true).is_empty(), "it was delivered");
        session.close(run.limits.patience);
        assert_stored_once(run, &topic, &others);
        let stored = run.stored_ids(&run.topic);
        assert_eq!(stored, <[String; 0]>::default(), "refused, and stored");
    }
}

/// Takes the refused record `first` back, with those of its key if `behind`. `refused`: all that are reported.
fn take_back(
    session: &mut Session,
    bad: &[Event],
    taken: &mut BTreeSet<u64>,
    (first, behind, refused): (u64, bool, &[u64]),
) {
    let is_of_key = |seq: &u64| bad[*seq as usize].key == bad[first as usize].key;
    let before = (0..first)
        .filter(is_of_key)
        .find(|seq| !taken.contains(seq));
    assert_eq!(before, None, "a later record of the key is refused before");
    let withdrawn = session.withdraw(first, behind);
    let numbers: Vec<u64> = withdrawn.iter().map(|(seq, _)| *seq).collect();
    let may_follow = |seq: &u64| behind && !refused.contains(seq) && !taken.contains(seq);
    let behind = (first + 1..bad.len() as u64)
        .filter(is_of_key)
        .filter(may_follow);
    let expected: Vec<u64> = [first].into_iter().chain(behind).collect();
    assert_eq!(numbers, expected, "taken back with record {first}");
    for (seq, held) in &withdrawn {
        let is_same = held.with(|record| bad[*seq as usize].is(record));
        assert!(is_same, "record {seq} comes back changed");
    }
    assert!(session.withdraw(first, true).is_empty(), "taken back twice");
    taken.extend(numbers);
}
