use super::*;

const LATENCY: ProducerId = ProducerId {
    number: 1,
    requests: Requests::Several,
};
const THROUGHPUT: ProducerId = ProducerId {
    number: 2,
    requests: Requests::Several,
};
const ONE_REQUEST: ProducerId = ProducerId {
    number: 3,
    requests: Requests::One,
};
const COUNT: i32 = 8;
const KNOWS: Knows = Knows::Partitions(COUNT);

fn gate() -> PartitionGate {
    PartitionGate::new(0, Keyless::Sticky(Duration::from_millis(10)))
}

fn offer_of(producer: ProducerId, seq: u64, from: Option<HoldQueue>, now: Instant) -> Offer {
    Offer {
        seq,
        producer,
        from,
        now,
    }
}

/// Offers a record with a key that hashes to `partition`, to a producer that knows the topic.
fn offer_to(
    gate: &PartitionGate,
    producer: ProducerId,
    seq: u64,
    partition: i32,
    from: Option<HoldQueue>,
    now: Instant,
) -> Result<(), HoldQueue> {
    let offer = offer_of(producer, seq, from, now);
    if let Some(HoldQueue::Partition(_)) = from {
        return gate.enter_at(partition, offer);
    }
    match gate.enter(offer, KNOWS, true, |count| partition % count)? {
        Some(chosen) => assert_eq!(chosen, partition),
        None => assert_eq!(gate.place(offer, partition, true, COUNT)?, partition),
    }
    Ok(())
}

fn offer(
    gate: &PartitionGate,
    seq: u64,
    partition: i32,
    from: Option<HoldQueue>,
    now: Instant,
) -> Result<(), HoldQueue> {
    offer_to(gate, LATENCY, seq, partition, from, now)
}

fn enter_at(
    gate: &PartitionGate,
    partition: i32,
    from: Option<HoldQueue>,
    now: Instant,
) -> Result<(), HoldQueue> {
    gate.enter_at(partition, offer_of(LATENCY, 99, from, now))
}

/// Offers a record to a producer that does not know the topic yet.
fn enter(gate: &PartitionGate, seq: u64, now: Instant) -> Result<Option<i32>, HoldQueue> {
    gate.enter(
        offer_of(LATENCY, seq, None, now),
        Knows::Nothing,
        true,
        |_| 3,
    )
}

fn delivered(gate: &PartitionGate, seq: u64, partition: i32, fresh: bool, now: Instant) -> bool {
    gate.delivered(seq, partition, LATENCY, fresh, now)
}

fn enters(gate: &PartitionGate, seq: u64, partition: i32, now: Instant) -> bool {
    offer(gate, seq, partition, None, now).is_ok()
}

const THREE: HoldQueue = HoldQueue::Partition(3);

#[test]
fn the_first_record_of_a_partition_is_alone_until_it_is_acknowledged() {
    let (gate, now) = (gate(), Instant::now());
    assert!(enters(&gate, 0, 3, now));
    assert_eq!(offer(&gate, 1, 3, None, now), Err(THREE));
    assert!(enters(&gate, 2, 4, now), "another partition");
    assert!(
        !delivered(&gate, 2, 4, true, now),
        "nothing is queued there"
    );
    assert_eq!(enter_at(&gate, 3, Some(THREE), now), Err(THREE), "still");
    assert!(
        delivered(&gate, 0, 3, true, now),
        "a record is queued there"
    );
    assert_eq!(enter_at(&gate, 3, Some(THREE), now), Ok(()));
    for seq in 3..10 {
        assert!(enters(&gate, seq, 3, now));
        assert!(enters(&gate, seq + 10, 4, now));
    }
    assert!(
        !delivered(&gate, 1, 3, true, now),
        "nothing is queued there"
    );
}

/// Otherwise a key's records would be reordered: those in the queue came first.
#[test]
fn no_record_passes_a_queue() {
    let (gate, now) = (gate(), Instant::now());
    assert!(enters(&gate, 0, 3, now));
    for seq in 1..4 {
        assert_eq!(offer(&gate, seq, 3, None, now), Err(THREE));
    }
    assert!(delivered(&gate, 0, 3, true, now));
    for round in 1..4 {
        assert_eq!(offer(&gate, 9, 3, None, now), Err(THREE), "{round}");
        assert_eq!(enter_at(&gate, 3, None, now), Err(THREE), "{round}");
        for _ in 0..3 {
            // Two of five records stay: two more were queued in this round.
            assert_eq!(enter_at(&gate, 3, Some(THREE), now), Ok(()));
        }
        assert!(gate.state().partitions[&3].queued == 2);
        for _ in 0..2 {
            assert_eq!(enter_at(&gate, 3, Some(THREE), now), Ok(()));
        }
        assert!(enters(&gate, 9, 3, now), "the queue is empty");
        for _ in 0..3 {
            let state = &mut gate.state();
            state.hold(THREE, None);
        }
    }
}

/// The queue may proceed, and the sender has not learnt of it yet: an unplaced record of the
/// partition would pass those in the queue.
#[test]
fn an_unplaced_record_passes_no_queue() {
    for producer in [LATENCY, THROUGHPUT] {
        for knows in [Knows::Nothing, Knows::Topic, KNOWS] {
            let (gate, now) = (gate(), Instant::now());
            assert!(enters(&gate, 0, 3, now));
            assert_eq!(offer(&gate, 1, 3, None, now), Err(THREE));
            assert!(delivered(&gate, 0, 3, true, now));
            let entered = gate.enter(offer_of(producer, 2, None, now), knows, true, |_| 3);
            assert_eq!(entered, Err(THREE), "{producer:?} {knows:?}");
            assert_eq!(enter_at(&gate, 3, Some(THREE), now), Ok(()));
        }
    }
}

#[test]
fn one_retry_is_requested_until_it_is_started() {
    let (gate, now) = (gate(), Instant::now());
    assert!(enters(&gate, 0, 3, now));
    assert!(enters(&gate, 1, 4, now));
    assert!(!enters(&gate, 2, 3, now));
    assert!(!enters(&gate, 3, 4, now));
    assert!(delivered(&gate, 0, 3, true, now));
    assert!(!delivered(&gate, 1, 4, true, now), "requested already");
    gate.retry_started();
    assert!(enters(&gate, 4, 5, now));
    assert!(!enters(&gate, 5, 5, now));
    assert!(delivered(&gate, 4, 5, true, now), "once more");
}

#[test]
fn a_partition_closes_when_nothing_was_acknowledged_for_long() {
    let (gate, start) = (gate(), Instant::now());
    assert!(enters(&gate, 0, 3, start));
    assert!(!delivered(&gate, 0, 3, true, start));
    let later = start + OPEN;
    assert!(enters(&gate, 1, 3, later), "nothing is in flight");
    assert!(!enters(&gate, 2, 3, later));
    assert!(delivered(&gate, 1, 3, true, later));
    assert_eq!(enter_at(&gate, 3, Some(THREE), later), Ok(()));
    assert!(enters(&gate, 3, 3, later));
}

#[test]
fn an_old_timestamp_opens_nothing_and_closes_what_was_open() {
    let (gate, now) = (gate(), Instant::now());
    for fresh in [false, true, false] {
        assert!(enters(&gate, 0, 3, now));
        assert!(!delivered(&gate, 0, 3, fresh, now));
    }
    assert!(enters(&gate, 1, 3, now));
    assert!(!enters(&gate, 2, 3, now));
    assert!(delivered(&gate, 1, 3, false, now));
    assert_eq!(enter_at(&gate, 3, Some(THREE), now), Ok(()), "it is alone");
    assert!(!enters(&gate, 4, 3, now), "and no other beside it");
}

#[test]
fn one_record_of_a_topic_is_unplaced() {
    let (gate, now) = (gate(), Instant::now());
    let topic = Some(HoldQueue::Topic);
    assert_eq!(enter(&gate, 0, now), Ok(None));
    assert_eq!(enter(&gate, 1, now), Err(HoldQueue::Topic));
    let at = enter_at(&gate, 5, None, now);
    assert_eq!(
        at,
        Err(HoldQueue::Topic),
        "it may come to this very partition"
    );
    assert!(delivered(&gate, 0, 2, true, now));
    assert_eq!(
        enter(&gate, 9, now),
        Err(HoldQueue::Topic),
        "behind those two"
    );
    assert_eq!(offer(&gate, 1, 2, topic, now), Ok(()), "it is open");
    assert_eq!(enter_at(&gate, 5, topic, now), Ok(()));
    let fifth = HoldQueue::Partition(5);
    let moved = offer(&gate, 9, 5, topic, now);
    assert_eq!(moved, Err(fifth), "from one queue to another");
    assert!(enters(&gate, 10, 2, now), "nothing is queued for the topic");
    assert_eq!(gate.state().all_queued, 1);
    gate.retry_started();
    assert!(delivered(&gate, 2, 5, true, now));
    assert_eq!(enter_at(&gate, 5, Some(fifth), now), Ok(()));
    assert_eq!(gate.state().all_queued, 0);
}

/// A topic may be unknown again after it was deleted: the gate chooses while a partition has a
/// queue.
#[test]
fn no_record_is_unplaced_while_a_partition_has_a_queue() {
    let (gate, now) = (gate(), Instant::now());
    assert!(enters(&gate, 0, 3, now));
    assert!(!enters(&gate, 1, 3, now));
    let unknown = |seq| offer_of(LATENCY, seq, None, now);
    let chosen = |seq, partition| gate.enter(unknown(seq), Knows::Topic, true, |_| partition);
    assert_eq!(chosen(2, 3), Err(THREE));
    assert_eq!(chosen(3, 6), Ok(Some(6)));
    assert!(delivered(&gate, 0, 3, true, now));
    gate.retry_started();
    for _ in 0..2 {
        assert_eq!(enter_at(&gate, 3, Some(THREE), now), Ok(()));
    }
    assert_eq!(chosen(4, 6), Ok(None));
}

#[test]
fn a_withdrawn_record_leaves_no_trace() {
    let (gate, now) = (gate(), Instant::now());
    assert_eq!(enter(&gate, 0, now), Ok(None));
    gate.withdraw(LATENCY, None);
    assert!(enters(&gate, 1, 3, now));
    gate.withdraw(LATENCY, Some(3));
    assert_eq!(enter_at(&gate, 3, None, now), Ok(()));
    gate.withdraw(LATENCY, Some(3));
    assert!(enters(&gate, 2, 3, now));
    assert!(!enters(&gate, 3, 3, now));
    assert!(delivered(&gate, 2, 3, false, now));
    assert!(gate.state().in_flight.is_empty());
}

#[test]
fn records_without_a_key_stay_with_a_partition_for_a_while() {
    let place = |gate: &PartitionGate, seq, choice, count, at| {
        let offer = offer_of(LATENCY, seq, None, at);
        assert_eq!(gate.enter(offer, KNOWS, false, |_| 0), Ok(None));
        let placed = gate.place(offer, choice, false, count);
        if let Ok(partition) = placed {
            assert!(!delivered(gate, seq, partition, true, at));
        }
        placed
    };
    let (sticky, now) = (gate(), Instant::now());
    assert_eq!(place(&sticky, 0, 3, 8, now), Ok(3));
    assert_eq!(place(&sticky, 1, 5, 8, now), Ok(3));
    let later = now + Duration::from_millis(10);
    assert_eq!(place(&sticky, 2, 5, 8, later), Ok(5));
    let fewer = place(&sticky, 3, 1, 4, later);
    assert_eq!(fewer, Ok(1), "there is no fifth any more");
    let hashed = PartitionGate::new(0, Keyless::Hashed);
    assert_eq!(place(&hashed, 0, 3, 8, now), Ok(3));
    assert_eq!(place(&hashed, 1, 5, 8, now), Ok(5));
}

/// The hash would choose the same partition for all of them.
#[test]
fn records_without_a_key_are_spread_also_where_the_gate_chooses() {
    let (gate, now) = (
        PartitionGate::new(0, Keyless::Sticky(Duration::ZERO)),
        Instant::now(),
    );
    assert!(enters(&gate, 0, 3, now));
    assert_eq!(offer(&gate, 1, 3, None, now), Err(THREE));
    let chosen =
        (2..6).map(|seq| gate.enter(offer_of(LATENCY, seq, None, now), KNOWS, false, |_| 4));
    let chosen: Vec<_> = chosen.collect();
    assert_eq!(chosen, [4, 5, 6, 7].map(|partition| Ok(Some(partition))));
}

/// Otherwise a key's records could be reordered: nothing orders the requests of two producers.
#[test]
fn a_partition_changes_its_owner_only_when_nothing_is_in_flight() {
    for (first, second) in [(LATENCY, THROUGHPUT), (THROUGHPUT, LATENCY)] {
        let (gate, now) = (gate(), Instant::now());
        let offer_to =
            |producer, seq, partition, from| offer_to(&gate, producer, seq, partition, from, now);
        assert_eq!(offer_to(first, 0, 3, None), Ok(()));
        assert!(!gate.delivered(0, 3, first, true, now));
        for seq in 1..3 {
            assert_eq!(offer_to(first, seq, 3, None), Ok(()), "open for it");
        }
        assert_eq!(offer_to(second, 3, 3, None), Err(THREE));
        assert_eq!(offer_to(first, 4, 3, None), Err(THREE), "behind that");
        assert_eq!(offer_to(second, 5, 4, None), Ok(()), "another partition");
        assert!(!gate.delivered(5, 4, second, true, now));
        assert!(!gate.delivered(1, 3, first, true, now), "one is left");
        assert_eq!(offer_to(second, 3, 3, Some(THREE)), Err(THREE), "still");
        assert!(gate.delivered(2, 3, first, true, now), "none is left");
        gate.retry_started();
        assert_eq!(offer_to(second, 3, 3, Some(THREE)), Ok(()));
        assert_eq!(offer_to(second, 4, 3, Some(THREE)), Err(THREE), "not open");
        assert!(gate.delivered(3, 3, second, true, now));
        gate.retry_started();
        // The broker has state of both producers now.
        for (producer, seq) in [(second, 4), (second, 5)] {
            let from = (seq == 4).then_some(THREE);
            assert_eq!(offer_to(producer, seq, 3, from), Ok(()));
        }
        for seq in 4..6 {
            assert!(!gate.delivered(seq, 3, second, true, now));
        }
        for seq in 6..8 {
            assert_eq!(offer_to(first, seq, 3, None), Ok(()), "open as before");
        }
        for seq in 6..8 {
            assert!(!gate.delivered(seq, 3, first, true, now));
        }
    }
}

#[test]
fn a_producer_of_one_request_needs_ownership_but_no_open_partition() {
    let (gate, now) = (gate(), Instant::now());
    assert!(enters(&gate, 0, 3, now));
    let one = |seq, from| offer_to(&gate, ONE_REQUEST, seq, 3, from, now);
    assert_eq!(one(1, None), Err(THREE));
    assert!(delivered(&gate, 0, 3, false, now));
    assert_eq!(one(1, Some(THREE)), Ok(()));
    for seq in 2..5 {
        assert_eq!(one(seq, None), Ok(()), "none was acknowledged");
    }
    assert!(!enters(&gate, 5, 3, now), "a producer of several");
}

/// The first record of a topic may belong to a partition that is down.
#[test]
fn a_record_that_is_placed_late_holds_back_its_partition_only() {
    let (gate, now) = (gate(), Instant::now());
    let topic = Some(HoldQueue::Topic);
    assert_eq!(enter(&gate, 0, now), Ok(None));
    assert_eq!(enter(&gate, 1, now), Err(HoldQueue::Topic));
    assert_eq!(enter(&gate, 2, now), Err(HoldQueue::Topic));
    assert!(!gate.placed_late(7, 3, COUNT), "another record");
    assert!(gate.placed_late(0, 3, COUNT));
    gate.retry_started();
    assert_eq!(offer(&gate, 1, 4, topic, now), Ok(()));
    assert_eq!(offer(&gate, 2, 3, topic, now), Err(THREE));
    assert!(delivered(&gate, 0, 3, true, now));
    assert_eq!(enter_at(&gate, 3, Some(THREE), now), Ok(()));
}

/// Otherwise the record might be unplaced and belong to a partition with records in another
/// producer.
#[test]
fn the_gate_chooses_where_another_producer_has_records_or_this_one_may_not_know() {
    let (gate, now) = (gate(), Instant::now());
    let offer = |producer, seq| offer_of(producer, seq, None, now);
    let hash = |count| count - 5;
    assert_eq!(gate.enter_at(1, offer(LATENCY, 0)), Ok(()));
    let chosen = gate.enter(offer(LATENCY, 1), Knows::Nothing, true, hash);
    assert_eq!(chosen, Err(HoldQueue::Topic), "of how many is not known");
    assert!(delivered(&gate, 0, 1, true, now));
    gate.retry_started();
    let first = offer_of(LATENCY, 1, Some(HoldQueue::Topic), now);
    assert_eq!(gate.enter(first, Knows::Nothing, true, hash), Ok(None));
    assert_eq!(gate.place(first, 3, true, COUNT), Ok(3));
    let chosen = gate.enter(offer(THROUGHPUT, 2), Knows::Topic, true, hash);
    assert_eq!(chosen, Err(THREE), "chosen, and not its own");
    let chosen = gate.enter(offer(THROUGHPUT, 3), Knows::Partitions(6), true, |count| {
        count - 2
    });
    assert_eq!(chosen, Ok(Some(4)));
    assert_eq!(
        gate.enter(offer(LATENCY, 4), KNOWS, true, |_| 0),
        Ok(Some(0))
    );
    let open = |seq, partition, producer| gate.delivered(seq, partition, producer, true, now);
    assert!(open(1, 3, LATENCY));
    assert!(!open(4, 0, LATENCY), "requested already");
    let chosen = gate.enter(offer(THROUGHPUT, 5), Knows::Nothing, true, |_| 5);
    assert_eq!(chosen, Ok(Some(5)), "it may not know the topic");
    let chosen = gate.enter(offer(THROUGHPUT, 6), KNOWS, true, |_| 6);
    assert_eq!(chosen, Ok(Some(6)), "a partition has a queue");
    let first = offer_of(THROUGHPUT, 2, Some(THREE), now);
    assert_eq!(gate.enter_at(3, first), Ok(()));
    assert_eq!(
        gate.enter(offer(THROUGHPUT, 7), KNOWS, true, |_| 5),
        Ok(None)
    );
}

/// Otherwise no record would ever be sent to the partition again.
#[test]
fn a_record_that_was_moved_does_not_block_its_partition_for_ever() {
    let (gate, now) = (gate(), Instant::now());
    let seventh = HoldQueue::Partition(7);
    assert!(enters(&gate, 0, 7, now));
    assert!(!enters(&gate, 1, 7, now));
    assert!(delivered(&gate, 0, 2, true, now), "reported from elsewhere");
    assert_eq!(enter_at(&gate, 7, Some(seventh), now), Ok(()));
}
