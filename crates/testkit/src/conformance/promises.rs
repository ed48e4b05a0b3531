//! The promises. Each has an assertion that a sink fails that breaks it: `tests/`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use walrelay_sink::{DeliveryError, SendError};

use super::captured::lines_with;
use super::event::Event;
use super::run::{ROOMY, Run};
use super::session::Session;
use super::{Bounds, Refusal};
use crate::reports::ReportState;
use crate::wait::eventually;

/// A grace that a server which answers nothing does not make longer.
const SHORT: Duration = Duration::from_millis(100);
/// A grace that an idle sink does not use.
const HOUR: Duration = Duration::from_secs(3_600);
/// Records of the flood in which every seventh is refused.
const FLOOD: u64 = 6_000;

/// Offers events with their numbers from `first` on. Returns the errors of refused ones.
#[track_caller]
fn offer_all(session: &mut Session, first: usize, events: &[Event]) -> Vec<DeliveryError> {
    let numbered = events.iter().enumerate();
    let offered = numbered.map(|(at, event)| session.offer(event, (first + at) as u64));
    offered.filter_map(Result::err).collect()
}

fn assert_all_stored(run: &Run<'_>, events: &[Event]) {
    let stored: BTreeSet<usize> = run.stored(events).into_iter().collect();
    let lost: Vec<usize> = (0..events.len()).filter(|n| !stored.contains(n)).collect();
    assert!(
        lost.is_empty(),
        "delivered, and not on the server: {lost:?}"
    );
}

pub(super) fn acknowledged_means_durable(run: &mut Run<'_>) {
    let events = run.events(600, 8);
    let (paused, rest) = events.split_at(50);
    // While the server answers nothing, nothing is durable.
    run.destination.pause();
    let mut session = run.open();
    offer_all(&mut session, 0, paused);
    let early = session.close(SHORT).delivered();
    run.destination.resume();
    assert!(early.is_empty(), "delivered by a paused server: {early:?}");

    let mut session = run.open();
    let kill_at = run.rng.usize(100..rest.len());
    offer_all(&mut session, paused.len(), &rest[..kill_at]);
    let some = run.rng.usize(1..100);
    session.wait("the first reports", |state| state.outcomes.len() >= some);
    offer_all(&mut session, paused.len() + kill_at, &rest[kill_at..]);
    run.destination.kill();
    let delivered = session.close(Duration::ZERO).delivered();
    run.destination.start();
    let stored: BTreeSet<usize> = run.stored(&events).into_iter().collect();
    let lost: Vec<&u64> = delivered
        .iter()
        .filter(|number| !stored.contains(&(**number as usize)))
        .collect();
    assert!(
        lost.is_empty(),
        "delivered, and not on the server: {lost:?}"
    );
}

pub(super) fn order_per_key(run: &mut Run<'_>) {
    let events = run.events(600, 5);
    let destination = run.destination;
    let kill_at = run.rng.usize(50..250);
    let pause_at = run.rng.usize(300..400);
    let resume_at = pause_at + run.rng.usize(1..150);
    let poisoned = run.carry(&events, |number, session| {
        if number == kill_at {
            // The outage comes amid the records.
            if !session.accepted.is_empty() {
                session.wait("the first report", |state| !state.outcomes.is_empty());
            }
            destination.kill();
            destination.start();
        } else if number == pause_at {
            destination.pause();
        } else if number == resume_at {
            destination.resume();
        }
    });
    assert!(poisoned.is_empty(), "rejected by an outage: {poisoned:?}");
    assert_all_stored(run, &events);
    let mut newest: BTreeMap<&[u8], usize> = BTreeMap::new();
    let mut first_time = BTreeSet::new();
    for number in run.stored(&events) {
        if !first_time.insert(number) {
            continue;
        }
        let before = newest.insert(&events[number].key, number);
        assert!(
            before.is_none_or(|before| before < number),
            "event {number} comes behind event {before:?} of its key"
        );
    }
}

pub(super) fn one_report_per_record(run: &mut Run<'_>) {
    let events = run.events(300, 8);
    // Each end of a session asserts it.
    let mut session = run.open();
    offer_all(&mut session, 0, &events[..100]);
    session.settle();
    let closed = session.close(run.limits.patience);
    assert_eq!(closed.failures(), []);

    let mut session = run.open();
    offer_all(&mut session, 100, &events[100..200]);
    session.wait("the first report", |state| !state.outcomes.is_empty());
    run.destination.pause();
    offer_all(&mut session, 200, &events[200..]);
    let dropped = session.drop_sink();
    run.destination.resume();

    for refusal in run.destination.refusals() {
        let mut session = run.open();
        let good = run.event(0, 1);
        let mut refused = run.event(0, 1);
        (refusal.spoil)(&mut refused);
        offer_all(&mut session, 0, &[good, refused]);
        session.settle();
        session.close(Duration::ZERO);
    }
    // A late answer to a record that was given up changes no report.
    let last = run.event(300, 1);
    run.deliver(&last);
    closed.assert_reported_once("a later sink");
    dropped.assert_reported_once("a later sink");
}

pub(super) fn back_pressure(run: &mut Run<'_>) {
    let few = Bounds {
        records: 16,
        ..ROOMY
    };
    let small = Bounds {
        bytes: 64 << 10,
        ..ROOMY
    };
    let mut events = run.events(400, 8);
    for event in &mut events {
        event.value.resize(4 << 10, b'x');
    }
    let (by_records, by_bytes) = events.split_at(200);
    fill(run, few, 0, by_records);
    fill(run, small, by_records.len(), by_bytes);
    assert_all_stored(run, &events);
}

/// Fills a sink while the server answers nothing, and then delivers all events.
#[track_caller]
fn fill(run: &Run<'_>, bounds: Bounds, first: usize, events: &[Event]) {
    run.destination.pause();
    let offered = events.to_vec();
    let (mut session, count) = run
        .open_within(bounds)
        .returns("try_send", move |mut session| {
            let mut count = 0;
            for event in &offered {
                match session.try_offer(event, (first + count) as u64) {
                    Ok(()) => count += 1,
                    Err(SendError::Full) => break,
                    Err(SendError::Refused(error)) => panic!("refused instead of full: {error}"),
                }
            }
            (session, count)
        });
    let bytes: u64 = events[..count].iter().map(Event::bytes).sum();
    // The last record may exceed a bound of bytes, once in a queue and once in what is being sent.
    let slack = 2 * events[0].bytes();
    assert!(count > 0, "full at the first record");
    assert!(
        count <= bounds.records as usize && bytes <= bounds.bytes + slack,
        "{count} records, {bytes} bytes were accepted, beyond {bounds:?}"
    );
    run.destination.resume();
    let refused = offer_all(&mut session, first + count, &events[count..]);
    assert_eq!(refused, []);
    session.settle();
    assert_eq!(session.close(run.limits.patience).failures(), []);
}

pub(super) fn poison_is_no_outage(run: &mut Run<'_>) {
    let refusals = run.destination.refusals();
    for (number, refusal) in (0..).zip(&refusals) {
        is_refused_alone(run, 4_000_000 + 2 * number, refusal);
    }
    if refusals.is_empty() {
        is_delivered_whatever_it_is(run);
    } else {
        is_refused_in_a_flood(run, &refusals);
        is_left_out(run, &refusals);
    }
    outage_is_no_poison(run);
}

fn is_refused_alone(run: &mut Run<'_>, number: u64, refusal: &Refusal) {
    let good = run.event(number, 1);
    run.deliver(&good);
    let mut event = run.event(number + 1, 1);
    (refusal.spoil)(&mut event);
    let mut session = run.open();
    let refused = session.offer(&event, 0).err();
    session.settle();
    let reported = session.close(run.limits.patience).failures().pop();
    let error = refused.or(reported);
    let poison = error.as_ref().and_then(|error| error.poison);
    assert_eq!(
        poison,
        Some(refusal.poison),
        "of a refused record: {error:?}"
    );
    // The destination still takes others.
    run.deliver(&good);
}

/// Sends a flood in which every seventh record is refused. A sink may give up after the first.
fn is_refused_in_a_flood(run: &mut Run<'_>, refusals: &[Refusal]) {
    let is_bad = |number: u64| number % 7 == 3;
    let mut session = run.open();
    let mut ids = BTreeMap::new();
    for number in 0..FLOOD {
        // The ids of other events of the run are lower.
        let mut event = run.event(1_000_000 + number, 8);
        if is_bad(number) {
            (refusals[run.rng.usize(..refusals.len())].spoil)(&mut event);
        }
        match session.offer(&event, number) {
            Ok(()) => drop(ids.insert(number, event.id)),
            Err(error) if error.poison.is_some() => {
                assert!(is_bad(number), "a good record is refused: {error}");
            }
            Err(_) => break,
        }
    }
    session.settle();
    let accepted = ids.len();
    let ended = |state: &ReportState| state.outcomes.len() >= accepted;
    session.wait("the last report", ended);
    let delivered = session.close(run.limits.patience).delivered();
    let wrong: Vec<&u64> = delivered.iter().filter(|n| is_bad(**n)).collect();
    assert!(
        wrong.is_empty(),
        "refused, and reported as delivered: {wrong:?}"
    );
    let stored = run.destination.stored(&run.topic);
    let stored: BTreeSet<String> = stored.into_iter().map(|stored| stored.id).collect();
    let lost: Vec<&u64> = delivered
        .iter()
        .filter(|n| !stored.contains(&ids[*n]))
        .collect();
    assert!(
        lost.is_empty(),
        "delivered, and not on the server: {lost:?}"
    );
}

/// Sends events as the relay does, which leaves out the refused ones and no others.
fn is_left_out(run: &mut Run<'_>, refusals: &[Refusal]) {
    let mut events: Vec<Event> = (0..40).map(|n| run.event(2_000_000 + n, 4)).collect();
    let bad: BTreeSet<usize> = (0..events.len()).filter(|number| number % 7 == 3).collect();
    for number in &bad {
        (refusals[number % refusals.len()].spoil)(&mut events[*number]);
    }
    assert_eq!(run.carry(&events, |_, _| ()), bad, "rejected");
    let stored = run.destination.stored(&run.topic);
    let stored: BTreeSet<&str> = stored.iter().map(|stored| &*stored.id).collect();
    for (number, event) in events.iter().enumerate() {
        let is_stored = stored.contains(&*event.id);
        assert_eq!(
            is_stored,
            !bad.contains(&number),
            "event {number} is on the server"
        );
    }
}

/// Asserts that a destination which refuses nothing takes records of any bytes and sizes.
fn is_delivered_whatever_it_is(run: &mut Run<'_>) {
    for (number, value) in [vec![], vec![0, 0xff], vec![b'x'; 1 << 20]]
        .into_iter()
        .enumerate()
    {
        let event = Event {
            value,
            ..run.event(number as u64, 1)
        };
        run.deliver(&event);
        let stored = run.destination.stored(&run.topic).pop();
        assert_eq!(stored.and_then(|stored| stored.value), Some(event.value));
    }
}

pub(super) fn a_refusal_concerns_its_record_only(run: &mut Run<'_>) {
    let mut refusals = run.destination.refusals();
    refusals.retain(|refusal| refusal.in_place);
    // Events of another topic stand for the dead letters, which a sink may send elsewhere.
    let dead_topic = run.another_topic("dead");
    let mut events = run.events(400, 8);
    let mut dead_letters = BTreeMap::new();
    for (number, event) in (0..).zip(&mut events) {
        if number % 7 != 3 || refusals.is_empty() {
            continue;
        }
        let dead_letter = Event {
            topic: dead_topic.clone(),
            value: b"refused".to_vec(),
            ..event.clone()
        };
        dead_letters.insert(number, dead_letter);
        (refusals[run.rng.usize(..refusals.len())].spoil)(event);
    }
    let mut session = run.open();
    session.dead_letters.clone_from(&dead_letters);
    for (number, event) in (0..).zip(&events) {
        if session.offer(event, number).is_err() {
            session.offer_dead_letter(number);
        }
    }
    let count = events.len() as u64;
    session.wait("the end of a record, or of its dead letter,", |state| {
        (0..count).all(|seq| state.is_delivered(seq))
    });
    session.close(run.limits.patience);

    let order: Vec<usize> = run.stored(&events);
    let mut counts = vec![0; events.len()];
    for number in &order {
        counts[*number] += 1;
    }
    for (number, count) in counts.into_iter().enumerate() {
        let expected = usize::from(!dead_letters.contains_key(&(number as u64)));
        assert_eq!(count, expected, "event {number} is on the server so often");
    }
    for key in events.iter().map(|event| &event.key) {
        let of_key = order.iter().filter(|number| events[**number].key == *key);
        assert!(of_key.is_sorted(), "events of a key are in another order");
    }
    let mut stored = run.stored_ids(&dead_topic);
    let mut expected: Vec<String> = dead_letters.into_values().map(|it| it.id).collect();
    stored.sort();
    expected.sort();
    assert_eq!(stored, expected, "dead letters");
}

fn outage_is_no_poison(run: &mut Run<'_>) {
    let events: Vec<Event> = (0..50).map(|n| run.event(3_000_000 + n, 4)).collect();
    let mut session = run.open();
    offer_all(&mut session, 0, &events[..1]);
    session.settle();
    run.destination.kill();
    let mut errors = offer_all(&mut session, 1, &events[1..]);
    // The outage shows: by a failure, or by what the records wait for.
    eventually(run.limits.patience, || {
        let obstacle = session.obstacle();
        if let Some(obstacle) = &obstacle {
            assert_eq!(
                obstacle.disposition,
                run.destination.outage(),
                "{obstacle:?}"
            );
        }
        obstacle.is_some() || !errors.is_empty() || session.reports.is(|state| state.failures > 0)
    });
    errors.extend(session.close(SHORT).failures());
    assert!(!errors.is_empty(), "delivered by a server that has ended");
    for error in &errors {
        assert_eq!(error.poison, None, "an outage is no poison: {error}");
        assert_eq!(error.disposition, run.destination.outage(), "{error}");
    }
    run.destination.start();
    run.deliver(&events[0]);
}

pub(super) fn repeats_have_the_same_id(run: &mut Run<'_>) {
    let events = run.events(40, 4);
    let mut session = run.open();
    offer_all(&mut session, 0, &events[..10]);
    session.settle();
    run.destination.pause();
    offer_all(&mut session, 10, &events[10..]);
    // The server may have these records, or take them later.
    let unknown = session.close(SHORT).failures().len();
    assert!(unknown > 0, "no record was left without an answer");
    run.destination.resume();
    let poisoned = run.carry(&events, |_, _| ());
    assert!(
        poisoned.is_empty(),
        "rejected without an answer: {poisoned:?}"
    );
    assert_all_stored(run, &events);
}

pub(super) fn stops_in_time(run: &mut Run<'_>) {
    let events = run.events(200, 8);
    run.open().close(HOUR);

    let mut session = run.open();
    offer_all(&mut session, 0, &events);
    let closed = session.close(run.limits.patience);
    assert_eq!(closed.failures(), [], "given up though the server answers");
    assert_all_stored(run, &events);

    let mut session = run.open();
    offer_all(&mut session, 0, &events[..100]);
    session.settle();
    run.destination.pause();
    offer_all(&mut session, 100, &events[100..]);
    assert!(
        !session.close(SHORT).failures().is_empty(),
        "nothing given up"
    );
    let mut session = run.open();
    offer_all(&mut session, 0, &events);
    assert!(
        !session.drop_sink().failures().is_empty(),
        "nothing given up"
    );
    run.destination.resume();

    let mut session = run.open();
    offer_all(&mut session, 0, &events[..100]);
    session.settle();
    run.destination.kill();
    offer_all(&mut session, 100, &events[100..]);
    session.close(SHORT);
    run.destination.start();
}

pub(super) fn nothing_in_logs(run: &mut Run<'_>) {
    let events = run.events(60, 4);
    let mut said = Vec::new();
    let mut session = run.open();
    offer_all(&mut session, 0, &events[..20]);
    session.settle();
    session.close(run.limits.patience);
    for refusal in run.destination.refusals() {
        let mut event = run.event(0, 1);
        (refusal.spoil)(&mut event);
        let mut session = run.open();
        said.extend(offer_all(&mut session, 0, &[event]).iter().map(shown));
        session.settle();
        said.extend(session.close(SHORT).failures().iter().map(shown));
    }
    let mut session = run.open();
    offer_all(&mut session, 0, &events[..20]);
    session.settle();
    run.destination.kill();
    said.extend(offer_all(&mut session, 20, &events[20..]).iter().map(shown));
    eventually(run.limits.patience, || {
        let obstacle = session.obstacle();
        said.extend(obstacle.iter().map(|obstacle| format!("{obstacle:?}")));
        obstacle.is_some() || !session.reports.is(|state| state.failures == 0)
    });
    said.extend(session.close(SHORT).failures().iter().map(shown));
    run.destination.start();
    assert!(
        !said.is_empty(),
        "the outage has caused no error and no obstacle"
    );
    for text in &said {
        assert!(!text.contains(&run.marker), "shown: {text}");
    }
    let logged = lines_with(&run.marker);
    assert!(logged.is_empty(), "logged: {logged:?}");
}

/// Returns the part of an error that anybody may see.
fn shown(error: &DeliveryError) -> String {
    format!("{error} {error:?}")
}
