use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::*;
use crate::in_flight::partition_gate::{
    Keyless, Knows, Offer, PartitionGate, ProducerId, Requests,
};

const PARTITIONS: i32 = 5;

fn queued(seq: u64, partition: Option<i32>) -> Queued {
    let record = Record {
        topic: "t",
        partition,
        key: Some(b"key"),
        ..Record::default()
    };
    Queued {
        seq,
        weight: 100,
        timestamp_ms: 7,
        is_aside: false,
        record: HeldRecord::new(&record),
    }
}

#[test]
fn a_held_record_is_unchanged_but_for_its_partition() {
    let one = queued(3, None);
    for (queue, partition) in [(HoldQueue::Topic, None), (HoldQueue::Partition(4), Some(4))] {
        one.with(queue, |record| {
            assert_eq!(record.partition, partition);
            assert_eq!((record.topic, record.key), ("t", Some(&b"key"[..])));
        });
    }
}

#[test]
fn a_topic_has_its_own_queue_and_its_partitions_come_first() {
    let mut queues = HoldQueues::default();
    for (topic, queue) in [
        (1, HoldQueue::Topic),
        (1, HoldQueue::Partition(i32::MAX)),
        (1, HoldQueue::Partition(0)),
        (0, HoldQueue::Partition(3)),
        (2, HoldQueue::Topic),
    ] {
        queues.push(topic, queue, queued(0, None));
    }
    let of_one = [
        HoldQueue::Partition(i32::MAX),
        HoldQueue::Partition(0),
        HoldQueue::Topic,
    ];
    assert_eq!(queues.topic_queues(1), of_one);
    assert_eq!(queues.topic_queues(0), [HoldQueue::Partition(3)]);
    for queue in of_one {
        assert!(queues.pop(1, queue).is_some());
        assert!(queues.pop(1, queue).is_none());
    }
    assert_eq!(queues.topic_queues(1), []);
    assert_eq!(queues.take_all().count(), 2);
    assert!(queues.is_empty());
}

/// A model of one topic, of several producers that may not know its partitions, and of brokers that
/// acknowledge in any order or, for a while, not at all.
struct Model {
    gate: PartitionGate,
    hold_queues: HoldQueues,
    /// The partition of each record.
    home: HashMap<u64, i32>,
    /// The producer that records are offered to.
    producer: ProducerId,
    /// The number of the last producer created.
    made: u32,
    /// Producers that know the partitions now.
    knowing: BTreeSet<u32>,
    /// Producers that have known the partitions.
    knew: BTreeSet<u32>,
    /// A partitioner was called, so the gate knows the number of partitions.
    asked: bool,
    /// The records in the order of sending.
    in_flight: Vec<InFlight>,
    /// Producers and the partitions that an acknowledgement opened for them.
    open: BTreeSet<(u32, i32)>,
    down: BTreeSet<i32>,
    /// All records given to the client, in the order of sending.
    handed_over: Vec<u64>,
    now: Instant,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    seq: u64,
    producer: u32,
    /// The partition; `None`: unplaced.
    at: Option<i32>,
}

impl Model {
    fn new() -> Self {
        Self {
            gate: PartitionGate::new(0, Keyless::Sticky(Duration::from_millis(10))),
            hold_queues: HoldQueues::default(),
            home: HashMap::new(),
            producer: ProducerId {
                number: 1,
                requests: Requests::Several,
            },
            made: 1,
            knowing: BTreeSet::new(),
            knew: BTreeSet::new(),
            asked: false,
            in_flight: Vec::new(),
            open: BTreeSet::new(),
            down: BTreeSet::new(),
            handed_over: Vec::new(),
            now: Instant::now(),
        }
    }

    fn produce(
        &mut self,
        seq: u64,
        named: Option<i32>,
        from: Option<HoldQueue>,
    ) -> Result<(), HoldQueue> {
        let home = self.home[&seq];
        let producer = self.producer;
        let offer = Offer {
            seq,
            producer,
            from,
            now: self.now,
        };
        let placed = if let Some(partition) = named {
            assert_eq!(partition, home);
            self.gate.enter_at(partition, offer)?;
            Some(home)
        } else {
            let knew = if self.knew.contains(&producer.number) {
                Knows::Topic
            } else {
                Knows::Nothing
            };
            let chosen = self.gate.enter(offer, knew, true, |count| {
                assert_eq!(count, PARTITIONS);
                home
            })?;
            let knows = self.knowing.contains(&producer.number);
            if chosen.is_none() && knows {
                self.knew.insert(producer.number);
                self.asked = true;
                self.gate.place(offer, home, true, PARTITIONS)?;
            }
            (chosen.is_some() || knows).then_some(home)
        };
        // Whether another record may be in flight at the same time.
        let open = self.open.contains(&(producer.number, home));
        let beside = |other: &InFlight| match (placed, other.at) {
            (_, None) => false,
            // The record may belong to the same partition. Its client queues it behind its others.
            (None, Some(_)) => other.producer == producer.number,
            (Some(_), Some(at)) if at != home => true,
            (Some(_), Some(_)) => {
                let orders = open || producer.requests == Requests::One;
                other.producer == producer.number && orders
            }
        };
        assert!(
            self.in_flight.iter().all(beside),
            "{seq} of {producer:?} may not be beside others at {home}: {:?}",
            self.in_flight
        );
        if let Some(last) = self.handed_over.iter().rev().find(|s| self.home[s] == home) {
            assert!(*last < seq, "{seq} comes after {last}");
        }
        self.handed_over.push(seq);
        self.in_flight.push(InFlight {
            seq,
            producer: producer.number,
            at: placed,
        });
        Ok(())
    }

    fn offer(&mut self, seq: u64, named: Option<i32>) {
        if let Err(queue) = self.produce(seq, named, None) {
            self.hold_queues.push(0, queue, queued(seq, named));
        }
    }

    /// Retries the hold queues, as the sink does.
    fn resume(&mut self) {
        self.gate.retry_started();
        for queue in self.hold_queues.topic_queues(0) {
            while let Some(first) = self.hold_queues.first(0, queue) {
                let named = first.with(queue, |record| record.partition);
                let seq = first.seq;
                let produced = self.produce(seq, named, Some(queue));
                if produced == Err(queue) {
                    break;
                }
                let first = self.hold_queues.pop(0, queue).expect("it is the first");
                if let Err(other) = produced {
                    self.hold_queues.push(0, other, first);
                }
            }
        }
    }

    /// Passes the topic's metadata to a producer. True: the gate requests a retry.
    fn learn(&mut self, producer: u32) -> bool {
        self.knowing.insert(producer);
        let aside = |record: &&mut InFlight| record.producer == producer && record.at.is_none();
        let Some(record) = self.in_flight.iter_mut().find(aside) else {
            return false;
        };
        let home = self.home[&record.seq];
        record.at = Some(home);
        self.knew.insert(producer);
        self.asked = true;
        self.gate.placed_late(record.seq, home, PARTITIONS)
    }

    /// Acknowledges the first record of a random partition that is not down. True: the gate
    /// requests a retry.
    fn acknowledge(&mut self, random: &mut fastrand::Rng) -> bool {
        let answering: Vec<usize> = (0..self.in_flight.len())
            .filter(|at| !self.down.contains(&self.home[&self.in_flight[*at].seq]))
            .collect();
        let Some(any) = random.choice(answering) else {
            return false;
        };
        // A partition acknowledges its records in order.
        let home = self.home[&self.in_flight[any].seq];
        let first = self
            .in_flight
            .iter()
            .position(|record| self.home[&record.seq] == home)
            .expect("there is one");
        // A producer that has sent a record knows the partitions.
        let mut retry = self.learn(self.in_flight[first].producer);
        let record = self.in_flight.remove(first);
        let fresh = random.u8(..8) != 0;
        if fresh {
            self.open.insert((record.producer, home));
        } else {
            self.open.remove(&(record.producer, home));
        }
        self.knew.insert(record.producer);
        let number = ProducerId {
            number: record.producer,
            requests: Requests::Several,
        };
        retry |= self
            .gate
            .delivered(record.seq, home, number, fresh, self.now);
        retry
    }

    /// Changes the producer: to the one for latency, or to one for throughput, which may be a new
    /// one.
    fn change(&mut self, random: &mut fastrand::Rng) {
        if self.producer.number != 1 {
            self.producer = ProducerId {
                number: 1,
                requests: Requests::Several,
            };
            return;
        }
        if self.made == 1 || random.bool() {
            self.made += 1;
        }
        // A new producer may have another number of requests.
        let requests = [Requests::Several, Requests::One][self.made as usize % 2];
        self.producer = ProducerId {
            number: self.made,
            requests,
        };
    }
}

/// In random sequences of events, the records of a partition are sent in order and are in one
/// producer at a time; a partition that is not open has one record in flight, unless the producer
/// has one request at a time; and in the end no record is left in a queue, though queues are
/// retried only on request. Partitions that are down hold back their own records only.
#[test]
fn nobody_is_passed_or_forgotten() {
    const RECORDS: u64 = 60;
    let (mut passed, mut changed) = (0, 0);
    for seed in 0..5_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model = Model::new();
        let mut called = false;
        for seq in 0..RECORDS {
            let home = random.i32(0..PARTITIONS);
            model.home.insert(seq, home);
            if random.u8(..8) == 0 {
                model.change(&mut random);
                changed += 1;
            }
            if random.u8(..16) == 0 {
                model.down.insert(random.i32(0..PARTITIONS));
            }
            if random.u8(..32) == 0 {
                model.down.clear();
            }
            model.offer(seq, (random.u8(..4) == 0).then_some(home));
            if random.bool() {
                called |= model.learn(model.producer.number);
            }
            // By the seed, brokers fall behind or leave no record in flight.
            for _ in 0..random.u8(..4 + 4 * (seed % 4) as u8) {
                called |= model.acknowledge(&mut random);
            }
            if random.u8(..50) == 0 {
                // The topic was deleted, and its metadata are requested again.
                model.knowing.clear();
            }
            // The sender may learn of a request late.
            if called && random.u8(..2 + 2 * (seed % 3) as u8) == 0 {
                called = false;
                model.resume();
            }
        }
        for answer in [false, true] {
            if answer {
                model.down.clear();
            }
            loop {
                // Metadata arrive also while partitions are down.
                for producer in 1..=model.made {
                    called |= model.learn(producer);
                }
                let before = model.in_flight.len();
                called |= model.acknowledge(&mut random);
                if std::mem::take(&mut called) {
                    model.resume();
                } else if model.in_flight.len() == before {
                    break;
                }
            }
            // If all records sent so far named their partition, their number is not known.
            let known = model.asked || model.down.is_empty();
            for seq in (0..RECORDS).filter(|_| known) {
                if !model.down.contains(&model.home[&seq]) {
                    passed += u64::from(!answer && !model.down.is_empty());
                    let held = model.hold_queues.seqs().contains(&seq);
                    assert!(!held, "seed {seed}: {seq} is held back by others");
                }
            }
        }
        assert!(
            model.hold_queues.is_empty(),
            "seed {seed}: {:?}",
            model.hold_queues.seqs()
        );
        assert_eq!(model.handed_over.len() as u64, RECORDS, "seed {seed}");
    }
    assert!(passed > 10_000 && changed > 10_000, "{passed}, {changed}");
}
