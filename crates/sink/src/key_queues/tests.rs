use std::time::Duration;

use super::*;

const MAX_BLOCKED: usize = 2;

fn push(queues: &mut KeyQueues, topic: &str, key: Option<u8>, seq: u64) {
    let key = key.map(|key| [key]);
    let record = Record {
        topic,
        key: key.as_ref().map(|key| &key[..]),
        ..Record::default()
    };
    queues.push(&record, "lane", seq, seq + 100);
}

fn next(queues: &mut KeyQueues, now: Instant) -> Option<u64> {
    queues.next(now).map(|queued| queued.seq)
}

#[test]
fn a_refused_record_holds_back_its_key_alone_until_too_many_are_held_back() {
    let mut queues = KeyQueues::new(MAX_BLOCKED);
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    push(&mut queues, "t", Some(1), 0);
    push(&mut queues, "t", Some(1), 1);
    push(&mut queues, "u", Some(1), 2);
    push(&mut queues, "t", None, 3);
    assert_eq!(next(&mut queues, now), Some(0));
    assert_eq!(queues.in_flight(0).map(|queued| queued.weight), Some(100));
    assert!(queues.in_flight(1).is_none(), "it waits for the first");
    queues.retry_at(0, "503", later);
    assert_eq!((queues.blocked(), queues.next_due()), (1, Some(later)));
    assert_eq!(next(&mut queues, now), Some(2), "another topic's key");
    queues.retry_at(2, "503", later + Duration::from_secs(1));
    assert_eq!(next(&mut queues, now), None, "two keys are held back");
    assert_eq!(next(&mut queues, later), Some(0), "sent again, alone");
    assert_eq!(next(&mut queues, later), None);
    let done = queues.done(0).expect("in flight");
    assert_eq!((done.weight, done.refusals), (100, 1));
    assert!(queues.done(0).is_none(), "it is reported once");
    assert_eq!(next(&mut queues, later), Some(3));
    assert_eq!(next(&mut queues, later), Some(1), "the next of the key");
    let left: Vec<u64> = queues.take_all().iter().map(|queued| queued.seq).collect();
    assert_eq!(left, [1, 2, 3]);
    assert!(queues.done(1).is_none(), "a late answer");
    queues.retry_at(3, "503", later);
    assert_eq!((queues.blocked(), queues.next_due()), (0, None));
}

#[test]
fn nothing_of_a_key_is_sent_until_its_refused_record_is_taken_back() {
    let now = Instant::now();
    for behind in [false, true] {
        let mut queues = KeyQueues::new(MAX_BLOCKED);
        for (seq, key) in [(0, Some(1)), (1, Some(1)), (2, None), (3, Some(2))] {
            push(&mut queues, "t", key, seq);
        }
        assert_eq!(next(&mut queues, now), Some(0));
        queues.retry_at(0, "503", now);
        assert_eq!(next(&mut queues, now), Some(0));
        assert_eq!(queues.refuse(0).map(|queued| queued.weight), Some(100));
        assert_eq!(queues.blocked(), 0, "it is not tried again");
        assert!(queues.refuse(0).is_none() && queues.done(0).is_none());
        push(&mut queues, "t", Some(1), 4);
        let sent = [(); 3].map(|()| next(&mut queues, now));
        assert_eq!(sent, [Some(2), Some(3), None]);
        let withdrawn = queues.withdraw(0, behind);
        let withdrawn: Vec<u64> = withdrawn.iter().map(|queued| queued.seq).collect();
        assert!(queues.withdraw(0, behind).is_empty(), "once");
        if behind {
            assert_eq!(withdrawn, [0, 1, 4]);
            assert_eq!(next(&mut queues, now), None);
            // They come again under their numbers.
            push(&mut queues, "t", Some(1), 1);
            push(&mut queues, "t", Some(1), 4);
        } else {
            assert_eq!(withdrawn, [0]);
        }
        assert_eq!(next(&mut queues, now), Some(1));
        queues.refuse(1);
        let left: Vec<u64> = queues.take_all().iter().map(|queued| queued.seq).collect();
        assert_eq!(left, [2, 3, 4], "a refused record was reported");
        assert!(queues.withdraw(1, true).is_empty());
    }
}

fn push_to(queues: &mut KeyQueues, lane: &str, key: u8, seq: u64) {
    let key = [key];
    let record = Record {
        topic: lane,
        key: Some(&key),
        ..Record::default()
    };
    queues.push(&record, lane, seq, seq + 100);
}

#[test]
fn no_lane_waits_for_another_one() {
    let mut queues = KeyQueues::new(MAX_BLOCKED);
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    for (seq, lane, key) in [
        (0, "bad", 1),
        (1, "bad", 2),
        (2, "bad", 3),
        (3, "good", 1),
        (4, "good", 2),
    ] {
        push_to(&mut queues, lane, key, seq);
    }
    let sent: Vec<u64> = std::iter::from_fn(|| next(&mut queues, now))
        .take(3)
        .collect();
    assert_eq!(sent, [0, 3, 1], "lanes take turns");
    queues.retry_at(0, "503", later);
    queues.retry_at(1, "503", later);
    assert_eq!(next(&mut queues, now), Some(4));
    assert_eq!(next(&mut queues, now), None, "too many are held back");
    for seq in [3, 4] {
        assert!(queues.done(seq).is_some());
    }
    push_to(&mut queues, "good", 3, 5);
    assert_eq!(next(&mut queues, now), Some(5));
    let again = [(); 3].map(|()| next(&mut queues, later));
    assert_eq!(again, [Some(0), Some(1), None], "side by side");
    assert!(queues.done(0).is_some());
    assert_eq!(next(&mut queues, later), Some(2));
}

#[test]
fn a_lane_that_fails_sends_one_record_at_a_time_until_one_is_done() {
    let mut queues = KeyQueues::new(MAX_BLOCKED);
    let now = Instant::now();
    let (soon, later) = (now + Duration::from_secs(1), now + Duration::from_secs(2));
    for seq in 0..4 {
        push_to(&mut queues, "bad", seq as u8, seq);
    }
    push_to(&mut queues, "good", 9, 9);
    let sent: Vec<u64> = std::iter::from_fn(|| next(&mut queues, now))
        .take(3)
        .collect();
    assert_eq!(sent, [0, 9, 1]);
    queues.fail_lane(0, later);
    queues.fail_lane(0, soon);
    queues.retry_at(0, "503", now);
    assert_eq!(next(&mut queues, now), None);
    assert_eq!(queues.next_due(), Some(later), "the longest pause counts");
    assert!(queues.done(9).is_some());
    push_to(&mut queues, "good", 9, 10);
    assert_eq!(next(&mut queues, now), Some(10), "another lane goes on");
    assert_eq!(next(&mut queues, later), None, "one is still in flight");
    queues.retry_at(1, "503", later);
    assert_eq!(next(&mut queues, later), Some(0));
    assert_eq!(next(&mut queues, later), None, "one at a time");
    assert!(queues.done(0).is_some());
    let sent = [(); 4].map(|()| next(&mut queues, later));
    assert_eq!(sent, [Some(1), Some(2), Some(3), None]);
    // A lane without a record is forgotten, with its pause.
    for seq in [1, 2, 3] {
        queues.fail_lane(seq, later);
        assert!(queues.refuse(seq).is_some());
    }
    assert_eq!(queues.next_due(), None);
    push_to(&mut queues, "bad", 8, 8);
    assert_eq!(next(&mut queues, now), Some(8));
}

/// Otherwise the first refusal after an outage would be the last one.
#[test]
fn an_outage_is_no_refusal() {
    let mut queues = KeyQueues::new(MAX_BLOCKED);
    let now = Instant::now();
    push(&mut queues, "t", Some(1), 0);
    assert_eq!(next(&mut queues, now), Some(0));
    queues.retry_at(0, "503", now);
    let later = now + Duration::from_secs(3_600);
    assert_eq!(
        queues
            .retrying()
            .map(|retrying| (retrying.keys, retrying.since, retrying.next)),
        Some((1, now, Some(now)))
    );
    assert_eq!(next(&mut queues, later), Some(0));
    let sent = queues.retrying().expect("it is not done");
    assert_eq!((&*sent.topic, &*sent.why, sent.next), ("t", "503", None));
    assert_eq!(queues.refused_since(0, later), Some(later));
    let last = later + Duration::from_secs(1);
    assert_eq!(queues.refused_since(0, last), Some(later));
}

#[test]
fn lanes_that_fail_leave_room_for_others() {
    let mut queues = KeyQueues::new(MAX_BLOCKED).with_probes(2);
    let now = Instant::now();
    for (seq, lane) in [(0, "a"), (1, "b"), (2, "c")] {
        push_to(&mut queues, lane, 1, seq);
    }
    let sent = [(); 3].map(|()| next(&mut queues, now));
    assert_eq!(sent, [Some(0), Some(1), Some(2)]);
    for seq in 0..3 {
        queues.fail_lane(seq, now);
        queues.retry_at(seq, "503", now);
    }
    push_to(&mut queues, "good", 1, 3);
    let sent: BTreeSet<u64> = std::iter::from_fn(|| next(&mut queues, now))
        .take(4)
        .collect();
    assert!(sent.contains(&3) && sent.len() == 3, "{sent:?}");
    let failing: Vec<u64> = sent.into_iter().filter(|seq| *seq < 3).collect();
    queues.retry_at(failing[0], "503", now + Duration::from_secs(1));
    let third = (0..3).find(|seq| !failing.contains(seq));
    assert_eq!(next(&mut queues, now), third);
    assert!(queues.done(failing[1]).is_some());
    assert_eq!(next(&mut queues, now), None);
}

#[test]
fn records_may_be_in_order_by_key_alone() {
    let now = Instant::now();
    for (queues, sent) in [
        (KeyQueues::new(MAX_BLOCKED), vec![0, 1, 2, 3, 4]),
        (
            KeyQueues::new(MAX_BLOCKED).across_topics(),
            vec![0, 2, 3, 4],
        ),
    ] {
        let mut queues = queues;
        push(&mut queues, "t", Some(1), 0);
        push(&mut queues, "u", Some(1), 1);
        push(&mut queues, "t", Some(2), 2);
        push(&mut queues, "t", None, 3);
        push(&mut queues, "t", None, 4);
        let order: Vec<u64> = std::iter::from_fn(|| next(&mut queues, now)).collect();
        assert_eq!(order, sent);
        assert_eq!(queues.take_all().len(), 5);
    }
}

/// Draws a random number below `limit`: xorshift, by Marsaglia.
fn random(state: &mut u64, limit: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % limit
}

/// In any order of pushes, answers and times: no record of a key is sent before an earlier one
/// is done, no key waits for another one unless too many are held back, and in the end each
/// record is done once.
#[test]
fn nobody_is_passed_or_forgotten() {
    for seed in 1..=500_u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut queues = KeyQueues::new(MAX_BLOCKED);
        let mut now = Instant::now();
        // The key of each record, the records to be done of each key, and those in flight.
        let mut keys: Vec<Option<u8>> = Vec::new();
        let mut open: BTreeMap<Option<u8>, VecDeque<u64>> = BTreeMap::new();
        let mut in_flight: Vec<u64> = Vec::new();
        let mut refused: BTreeSet<u64> = BTreeSet::new();
        let mut done = 0;
        for step in 0..2_000 {
            let faults = step < 300;
            match random(&mut state, 8) {
                0..3 if faults => {
                    let key = random(&mut state, 5);
                    let key = (key > 0).then_some(key as u8);
                    let seq = keys.len() as u64;
                    push(&mut queues, "t", key, seq);
                    keys.push(key);
                    open.entry(key).or_default().push_back(seq);
                }
                3 => now += Duration::from_millis(random(&mut state, 20)),
                4 | 5 if !in_flight.is_empty() => {
                    let at = random(&mut state, in_flight.len() as u64) as usize;
                    let seq = in_flight.swap_remove(at);
                    if faults && random(&mut state, 3) == 0 {
                        queues.retry_at(
                            seq,
                            "503",
                            now + Duration::from_millis(random(&mut state, 30)),
                        );
                        refused.insert(seq);
                    } else {
                        let record = queues.done(seq).expect("in flight");
                        assert_eq!((record.seq, record.weight), (seq, seq + 100));
                        let open = open.entry(keys[seq as usize]).or_default();
                        open.retain(|other| *other != seq);
                        refused.remove(&seq);
                        done += 1;
                    }
                }
                _ => {
                    let sent = next(&mut queues, now);
                    if let Some(seq) = sent {
                        assert!(!in_flight.contains(&seq), "{seed}: sent twice at a time");
                        let key = keys[seq as usize];
                        let first = open[&key].front() == Some(&seq);
                        assert!(key.is_none() || first, "{seed}: {seq} passes a record");
                        in_flight.push(seq);
                    } else if refused.len() < MAX_BLOCKED {
                        // What is not sent now is in flight, refused, or behind such a record.
                        let idle = open.iter().any(|(key, open)| {
                            let waits =
                                |seq: &u64| in_flight.contains(seq) || refused.contains(seq);
                            let mut candidates = open.iter().take(match key {
                                Some(_) => 1,
                                None => usize::MAX,
                            });
                            candidates.any(|seq| !waits(seq))
                        });
                        assert!(!idle, "{seed}: a key waits for nothing");
                    }
                }
            }
            assert_eq!(queues.blocked(), refused.len(), "{seed}");
        }
        while done < keys.len() {
            now += Duration::from_secs(1);
            while let Some(seq) = next(&mut queues, now) {
                in_flight.push(seq);
            }
            assert!(!in_flight.is_empty(), "{seed}: a record is forgotten");
            for seq in in_flight.drain(..) {
                assert!(queues.done(seq).is_some(), "{seed}");
                done += 1;
            }
        }
        assert!(
            queues.queues.is_empty() && queues.numbers.is_empty(),
            "{seed}"
        );
        assert!(queues.take_all().is_empty(), "{seed}");
    }
}
