use std::collections::BTreeMap;

use fastrand::Rng;
use walrelay_testkit::{Committed, Delivered, check, rng};

use super::*;

/// A record of partition 0: key, event, and whether it is of the first partition or another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sent {
    key: u64,
    /// The event, and its place in the log.
    event: u64,
    partition: i32,
}

/// Reads `key event` pairs such as `a1 b2 a3`; `a1'` is in another partition.
fn log(text: &str) -> Vec<Sent> {
    let records = text.split_whitespace();
    let records = records.map(|word| {
        let (key, event) = word.split_at(1);
        Sent {
            key: u64::from(key.as_bytes()[0]),
            event: event.trim_end_matches('\'').parse().expect("a number"),
            partition: i32::from(event.ends_with('\'')),
        }
    });
    records.collect()
}

/// The way in which the log is read.
#[derive(Debug, Clone, Copy)]
struct Reading {
    positions: bool,
    /// The first record that is read.
    from: usize,
    remembered: usize,
    on_purpose: bool,
}

/// A reading from the beginning, all remembered.
const WHOLE: Reading = Reading {
    positions: true,
    from: 0,
    remembered: 1000,
    on_purpose: false,
};

/// Looks for the events 1 to `rows` in the log.
fn read(log: &[Sent], rows: u64, reading: Reading) -> Findings {
    let mut analysis = Analysis::new(reading.remembered);
    let topic = analysis.add_topic();
    if reading.from > 0 {
        analysis.begins_late(topic, 0);
    }
    for event in 1..=rows {
        analysis.expect(topic, event.to_string().into());
    }
    for (offset, sent) in log.iter().enumerate().skip(reading.from) {
        let position = format!("{:016X}/{:08X}", 100 + sent.event / 10, sent.event % 10);
        let position = Order::from_header(position.as_bytes()).expect("a position");
        analysis.add(&Delivery {
            at: At {
                topic,
                partition: sent.partition,
                offset: offset as i64,
            },
            key: Some(&sent.key.to_be_bytes()),
            id: Some(&sent.event.to_string()),
            position: reading.positions.then_some(position),
            on_purpose: reading.on_purpose,
            latency: None,
        });
    }
    analysis.finish()
}

/// Returns the counts of all kinds: repeated, out of order, stale, split, lost.
fn counts(findings: &Findings) -> [u64; 5] {
    use FindingKind::{Lost, OutOfOrder, Repeated, Split, Stale};
    [Repeated, OutOfOrder, Stale, Split, Lost].map(|kind| findings.count(kind))
}

/// Returns the offset of the record and of the other one, of each finding that is shown.
fn places(findings: &Findings) -> Vec<(Option<i64>, Option<i64>)> {
    let shown = findings.shown.values().flatten();
    let offset = |at: Option<At>| at.map(|at| at.offset);
    shown
        .map(|finding| (offset(finding.at), offset(finding.other)))
        .collect()
}

#[test]
fn each_planted_fault_is_found_and_nothing_else() {
    let clean = "a1 b2 a3 b4 a5";
    let found = |at: i64, other: i64| vec![(Some(at), Some(other))];
    for (text, with_positions, without, places_of) in [
        (clean, [0; 5], [0; 5], vec![]),
        // A whole suffix again, as after a crash.
        (
            "a1 b2 a3 b4 b2 a3 b4 a5",
            [3, 0, 0, 0, 0],
            [3, 0, 0, 0, 0],
            vec![(Some(4), Some(1)), (Some(5), Some(2)), (Some(6), Some(3))],
        ),
        (
            "a1 b2 b4 a5",
            [0, 0, 0, 0, 1],
            [0, 0, 0, 0, 1],
            vec![(None, None)],
        ),
        (
            "a1 b2 a3 a3 b4 a5",
            [1, 0, 0, 0, 0],
            [1, 0, 0, 0, 0],
            found(3, 2),
        ),
        // Without positions, the order of first deliveries is that of the key.
        ("a3 b2 a1 b4 a5", [0, 1, 0, 0, 0], [0; 5], found(2, 0)),
        // At the end of its key, the last record is an older one, too.
        (
            "a1 b2 a5 b4 a3",
            [0, 1, 1, 0, 0],
            [0; 5],
            vec![(Some(4), Some(2)), (Some(4), Some(2))],
        ),
        (
            "a1 b2 a3 b4 a5 a3",
            [1, 0, 1, 0, 0],
            [1, 0, 1, 0, 0],
            vec![(Some(5), Some(2)), (Some(5), Some(4))],
        ),
        (
            "a1 b2 a3' b4 a5",
            [0, 0, 0, 1, 0],
            [0, 0, 0, 1, 0],
            found(2, 0),
        ),
    ] {
        let log = log(text);
        let findings = read(&log, 5, WHOLE);
        assert_eq!(counts(&findings), with_positions, "{text}");
        assert_eq!(places(&findings), places_of, "{text}");
        let blind = Reading {
            positions: false,
            ..WHOLE
        };
        let findings = read(&log, 5, blind);
        assert_eq!(counts(&findings), without, "{text}, no positions");
        assert_eq!(findings.unjudged, 0);
    }
}

#[test]
fn records_that_an_operator_sent_again_are_no_repeats() {
    let on_purpose = Reading {
        on_purpose: true,
        ..WHOLE
    };
    // The replay leaves the key at an older event: this is shown.
    let findings = read(&log("a1 a2 a1"), 2, on_purpose);
    assert_eq!(counts(&findings), [0, 0, 1, 0, 0]);
    assert_eq!(findings.on_purpose, 3);
}

#[test]
fn a_record_without_position_among_those_with_one_is_not_judged() {
    let mut analysis = Analysis::new(10);
    let topic = analysis.add_topic();
    let mut offset = 0;
    let mut add = |id: &str, position: Option<&[u8]>| {
        offset += 1;
        analysis.add(&Delivery {
            at: At {
                topic,
                partition: 0,
                offset,
            },
            key: Some(b"k"),
            id: Some(id),
            position: position.and_then(Order::from_header),
            on_purpose: true,
            latency: Some(Latency::Millis(3)),
        });
    };
    add("1", Some(b"00000000016B3748/0000000C"));
    add("0", None);
    add("0", None);
    let findings = analysis.finish();
    assert_eq!(counts(&findings), [0; 5]);
    assert_eq!((findings.unjudged, findings.events), (2, 2));
    assert_eq!(findings.latency_ms.at(1.0), Some(3.0));
}

#[test]
fn positions_are_read() {
    let order = |text: &str| Order::from_header(text.as_bytes());
    let ascending = [
        "0000000000000001/0000000C",
        "00000000016B3748/0000000C",
        "00000000016B3748/FFFFFFFF",
        "FFFFFFFFFFFFFFFF/00000000",
    ];
    let read: Vec<_> = ascending.map(order).into_iter().flatten().collect();
    assert!(
        read.len() == 4 && read.is_sorted_by(|a, b| a < b),
        "{read:?}"
    );
    for wrong in ["", "1/1", "00000000016B3748", "00000000016B374X/0000000C"] {
        assert_eq!(order(wrong), None, "{wrong}");
    }
}

/// Records as a relay sends them that goes back now and then, and repeats everything from there.
fn at_least_once(rng: &mut Rng, events: u64) -> Vec<Sent> {
    let keys: Vec<u64> = (0..events).map(|_| rng.u64(0..5)).collect();
    let (mut log, mut next) = (Vec::new(), 1);
    while next <= events {
        log.push(Sent {
            key: keys[next as usize - 1],
            event: next,
            partition: 0,
        });
        next += 1;
        if rng.u8(0..12) == 0 {
            next = rng.u64(next.saturating_sub(8).max(1)..=next);
        }
    }
    log
}

/// Every deviation is counted as the history checker of the tests counts it.
#[test]
fn random_faults_are_counted_as_the_history_checker_does() {
    let mut rng = rng("verify-topic faults");
    for round in 0..400 {
        let events = rng.u64(1..40);
        let mut log = at_least_once(&mut rng, events);
        for _ in 0..rng.u8(0..4) {
            let (one, other) = (rng.usize(0..log.len()), rng.usize(0..log.len()));
            match rng.u8(0..4) {
                0 => log.swap(one, other),
                1 => drop(log.remove(one)),
                2 => log.insert(one, log[other]),
                _ => log.push(log[other]),
            }
            if log.is_empty() {
                break;
            }
        }
        let keys: BTreeMap<u64, u64> = at_keys(&log);
        let committed = |(event, key): (&u64, &u64)| Committed {
            id: event.to_string(),
            topic: "t".to_owned(),
            key: Some(key.to_be_bytes().to_vec()),
            number: event.cast_signed(),
            payload: None,
        };
        let delivered = |(offset, sent): (usize, &Sent)| Delivered {
            id: Some(sent.event.to_string()),
            topic: "t".to_owned(),
            offset: offset as i64,
            key: Some(sent.key.to_be_bytes().to_vec()),
            ..Delivered::default()
        };
        let committed: Vec<Committed> = keys.iter().map(committed).collect();
        let records: Vec<Delivered> = log.iter().enumerate().map(delivered).collect();
        let verdict = check(&committed, &records);
        let mut ends: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for sent in &log {
            let (newest, last) = ends.entry(sent.key).or_default();
            *newest = sent.event.max(*newest);
            *last = sent.event;
        }
        let stale = ends.values().filter(|(newest, last)| last < newest).count();
        let lost = events - keys.len() as u64;
        let expected = [verdict.duplicates, verdict.reordered.len(), stale, 0];
        let expected = expected.map(|count| count as u64);
        let found = counts(&read(&log, events, WHOLE));
        assert_eq!(found[..4], expected, "round {round}: {log:?}");
        assert_eq!(found[4], lost, "round {round}: {log:?}");
    }
}

/// Returns the key of each event of the log.
fn at_keys(log: &[Sent]) -> BTreeMap<u64, u64> {
    log.iter().map(|sent| (sent.event, sent.key)).collect()
}

/// Reading from the middle, or with little memory, finds nothing in a history that has repeats alone.
#[test]
fn what_was_not_read_or_is_forgotten_is_no_finding() {
    let mut rng = rng("verify-topic memory");
    for round in 0..400 {
        let log = at_least_once(&mut rng, 60);
        let reading = Reading {
            positions: rng.bool(),
            from: rng.usize(0..log.len()),
            remembered: rng.usize(1..30),
            on_purpose: false,
        };
        let [_, disorder @ .., _] = counts(&read(&log, 0, reading));
        assert_eq!(disorder, [0; 3], "round {round}, {reading:?}: {log:?}");
    }
}

/// Memory does not grow with the topic, and a clean one has no findings.
#[test]
fn a_long_clean_topic_has_no_findings() {
    let mut analysis = Analysis::new(20_000);
    let topic = analysis.add_topic();
    for event in 0..200_000_u64 {
        let position = format!("{event:016X}/00000000");
        analysis.add(&Delivery {
            at: At {
                topic,
                partition: 0,
                offset: event.cast_signed(),
            },
            key: Some(&(event % 30_011).to_be_bytes()),
            id: Some(&event.to_string()),
            position: Order::from_header(position.as_bytes()),
            on_purpose: false,
            latency: Some(Latency::Millis(event.cast_signed() % 50)),
        });
    }
    let findings = analysis.finish();
    assert_eq!(counts(&findings), [0; 5]);
    assert_eq!((findings.events, findings.unjudged), (200_000, 0));
    assert!(findings.forgot && findings.positions);
}
