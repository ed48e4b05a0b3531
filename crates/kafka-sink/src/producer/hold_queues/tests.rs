use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::*;
use crate::producer::partition_gate::{Keyless, Knows, Offer, PartitionGate, Producer, Requests};

const PARTITIONS: i32 = 5;

fn queued(seq: u64, partition: Option<i32>) -> HeldRecord {
    let record = Record {
        topic: "t",
        partition,
        timestamp_ms: None,
        key: Some(b"key"),
        value: None,
        headers: &[
            Header {
                name: "h",
                value: Some(b""),
            },
            Header {
                name: "n",
                value: None,
            },
        ],
    };
    HeldRecord::new(&record, 7, seq, 100)
}

#[test]
fn a_record_is_what_it_was_but_for_its_partition() {
    let one = queued(3, None);
    for (queue, partition) in [(HoldQueue::Topic, None), (HoldQueue::Partition(4), Some(4))] {
        one.with("t", queue, |record| {
            assert_eq!(record.partition, partition);
            assert_eq!((record.topic, record.key), ("t", Some(&b"key"[..])));
            assert_eq!(record.value, None);
            let headers: Vec<_> = record.headers.iter().map(|h| (h.name, h.value)).collect();
            assert_eq!(headers, [("h", Some(&b""[..])), ("n", None)]);
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
    assert_eq!(queues.of_topic(1), of_one);
    assert_eq!(queues.of_topic(0), [HoldQueue::Partition(3)]);
    for queue in of_one {
        assert!(queues.pop(1, queue).is_some());
        assert!(queues.pop(1, queue).is_none());
    }
    assert_eq!(queues.of_topic(1), []);
    assert_eq!(queues.take_all().count(), 2);
    assert!(queues.is_empty());
}

/// One topic of two producers that may not know its partitions, and of brokers that answer in any order or, for
/// a while, not at all.
struct Model {
    gate: PartitionGate,
    hold_queues: HoldQueues,
    /// Where each record belongs.
    home: HashMap<u64, i32>,
    /// The producer that records are offered to, and the next one's number.
    producer: Producer,
    made: u32,
    /// Producers that know the partitions now, and those that have known them.
    knowing: BTreeSet<u32>,
    knew: BTreeSet<u32>,
    /// A partitioner was asked: the gate knows how many partitions there are.
    asked: bool,
    /// In the order of handing over.
    in_flight: Vec<InFlight>,
    /// Partitions with an acknowledgement that opens them for a producer.
    open: BTreeSet<(u32, i32)>,
    down: BTreeSet<i32>,
    handed_over: Vec<u64>,
    now: Instant,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    seq: u64,
    producer: u32,
    /// `None`: the client keeps it aside.
    at: Option<i32>,
}

impl Model {
    fn new() -> Self {
        Self {
            gate: PartitionGate::new(0, Keyless::Sticky(Duration::from_millis(10))),
            hold_queues: HoldQueues::default(),
            home: HashMap::new(),
            producer: Producer {
                id: 1,
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
            let knew = if self.knew.contains(&producer.id) {
                Knows::Topic
            } else {
                Knows::Nothing
            };
            let chosen = self.gate.enter(offer, knew, true, |count| {
                assert_eq!(count, PARTITIONS);
                home
            })?;
            let knows = self.knowing.contains(&producer.id);
            if chosen.is_none() && knows {
                self.knew.insert(producer.id);
                self.asked = true;
                self.gate.place(offer, home, true, PARTITIONS)?;
            }
            (chosen.is_some() || knows).then_some(home)
        };
        // What may be in flight beside it.
        let open = self.open.contains(&(producer.id, home));
        let beside = |other: &InFlight| match (placed, other.at) {
            (_, None) => false,
            // It may come to the same partition. The client has it behind those of its own.
            (None, Some(_)) => other.producer == producer.id,
            (Some(_), Some(at)) if at != home => true,
            (Some(_), Some(_)) => {
                let orders = open || producer.requests == Requests::One;
                other.producer == producer.id && orders
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
            producer: producer.id,
            at: placed,
        });
        Ok(())
    }

    fn offer(&mut self, seq: u64, named: Option<i32>) {
        if let Err(queue) = self.produce(seq, named, None) {
            self.hold_queues.push(0, queue, queued(seq, named));
        }
    }

    /// As the sink does.
    fn resume(&mut self) {
        self.gate.retry_started();
        for queue in self.hold_queues.of_topic(0) {
            while let Some(first) = self.hold_queues.first(0, queue) {
                let named = first.with("t", queue, |record| record.partition);
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

    /// A producer gets its metadata. True: the gate requests a retry.
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

    /// Some partition that is not down acknowledges its first. True: the gate requests a retry.
    fn acknowledge(&mut self, random: &mut fastrand::Rng) -> bool {
        let answering: Vec<usize> = (0..self.in_flight.len())
            .filter(|at| !self.down.contains(&self.home[&self.in_flight[*at].seq]))
            .collect();
        let Some(any) = random.choice(answering) else {
            return false;
        };
        // A partition's come in order.
        let home = self.home[&self.in_flight[any].seq];
        let first = self
            .in_flight
            .iter()
            .position(|record| self.home[&record.seq] == home)
            .expect("there is one");
        // Only a producer that knows the partitions sends.
        let mut retry = self.learn(self.in_flight[first].producer);
        let record = self.in_flight.remove(first);
        let fresh = random.u8(..8) != 0;
        if fresh {
            self.open.insert((record.producer, home));
        } else {
            self.open.remove(&(record.producer, home));
        }
        self.knew.insert(record.producer);
        let number = Producer {
            id: record.producer,
            requests: Requests::Several,
        };
        retry |= self
            .gate
            .delivered(record.seq, home, number, fresh, self.now);
        retry
    }

    /// Another producer's turn: that of latency, or one for throughput, which may have been made anew.
    fn change(&mut self, random: &mut fastrand::Rng) {
        if self.producer.id != 1 {
            self.producer = Producer {
                id: 1,
                requests: Requests::Several,
            };
            return;
        }
        if self.made == 1 || random.bool() {
            self.made += 1;
        }
        // Of one made anew the number of requests may be another.
        let requests = [Requests::Several, Requests::One][self.made as usize % 2];
        self.producer = Producer {
            id: self.made,
            requests,
        };
    }
}

/// Whatever comes first: each partition's records in their order and in one producer at a time, one in flight
/// to each that is not open, and in the end none is left in a queue, though no queue is retried without a request.
/// Partitions that are down hold back their own records only.
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
                called |= model.learn(model.producer.id);
            }
            // From brokers that fall behind to such that leave nothing in flight.
            for _ in 0..random.u8(..4 + 4 * (seed % 4) as u8) {
                called |= model.acknowledge(&mut random);
            }
            if random.u8(..50) == 0 {
                // The topic was deleted, and is looked up again.
                model.knowing.clear();
            }
            // The sender may be late to hear of a call.
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
                // Metadata come also while partitions are down.
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
            // If all rows that were sent named partitions, nobody knows how many there are.
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
