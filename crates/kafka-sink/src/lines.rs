//! Records that were accepted and that a [`Gate`](crate::gate::Gate) holds back: kept by topic and
//! [`Line`], first come first served. They count as in flight, so the window bounds them as well.

use std::collections::{BTreeMap, VecDeque};

use walrelay_sink::{Header, Record};

use crate::gate::Line;

/// The lines of all topics of one producer.
#[derive(Default)]
pub(crate) struct Lines {
    /// By the topic's number. None is empty.
    of: BTreeMap<(usize, Line), VecDeque<Standing>>,
}

/// A record that stands in a line: a copy, without its topic's name. In few allocations, as there may be a
/// window full of them.
pub(crate) struct Standing {
    pub(crate) seq: u64,
    /// What it has taken of the window.
    pub(crate) weight: u64,
    /// As the client wants it.
    pub(crate) timestamp_ms: i64,
    partition: Option<i32>,
    key: Length,
    value: Length,
    /// Of names and values.
    headers: Box<[(usize, Length)]>,
    /// Key, value, and each header's name and value, one behind the other.
    bytes: Box<[u8]>,
}

/// Of something that may be null.
type Length = Option<usize>;

impl Standing {
    pub(crate) fn new(record: &Record<'_>, timestamp_ms: i64, seq: u64, weight: u64) -> Self {
        let mut bytes = Vec::with_capacity(record.payload_bytes());
        let mut put = |part: Option<&[u8]>| {
            bytes.extend_from_slice(part.unwrap_or_default());
            part.map(<[u8]>::len)
        };
        let (key, value) = (put(record.key), put(record.value));
        let header = |header: &Header<'_>| {
            put(Some(header.name.as_bytes()));
            (header.name.len(), put(header.value))
        };
        let headers = record.headers.iter().map(header).collect();
        Self {
            seq,
            weight,
            timestamp_ms,
            partition: record.partition,
            key,
            value,
            headers,
            bytes: bytes.into(),
        }
    }

    /// Calls with the record as it was, of that topic. It goes to the partition whose line it stands in: one
    /// without a key has been given that, and might be given another one.
    pub(crate) fn with<T>(
        &self,
        topic: &str,
        line: Line,
        call: impl FnOnce(&Record<'_>) -> T,
    ) -> T {
        let mut rest = &*self.bytes;
        let mut take = |length: usize| {
            let (part, behind) = rest.split_at(length);
            rest = behind;
            part
        };
        let (key, value) = (self.key.map(&mut take), self.value.map(&mut take));
        let headers: Vec<Header<'_>> = self
            .headers
            .iter()
            .map(|(name, value)| Header {
                // It came from one.
                name: std::str::from_utf8(take(*name)).unwrap_or_default(),
                value: value.map(&mut take),
            })
            .collect();
        call(&Record {
            topic,
            partition: match line {
                Line::Topic => self.partition,
                Line::Partition(partition) => Some(partition),
            },
            timestamp_ms: None,
            key,
            value,
            headers: &headers,
        })
    }
}

impl Lines {
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// The sequence numbers of all.
    #[cfg(test)]
    pub(crate) fn seqs(&self) -> Vec<u64> {
        let all = self.of.values().flatten();
        all.map(|standing| standing.seq).collect()
    }

    /// Behind all others of the line.
    pub(crate) fn push(&mut self, topic: usize, line: Line, standing: Standing) {
        self.of
            .entry((topic, line))
            .or_default()
            .push_back(standing);
    }

    /// The lines of a topic, its own after those of its partitions: it may lengthen those.
    pub(crate) fn of_topic(&self, topic: usize) -> Vec<Line> {
        let all = (topic, Line::Topic)..=(topic, Line::Partition(i32::MAX));
        self.of
            .range(all)
            .rev()
            .map(|((_, line), _)| *line)
            .collect()
    }

    pub(crate) fn first(&self, topic: usize, line: Line) -> Option<&Standing> {
        self.of.get(&(topic, line))?.front()
    }

    /// Takes the first away.
    pub(crate) fn pop(&mut self, topic: usize, line: Line) -> Option<Standing> {
        let standing = self.of.get_mut(&(topic, line))?;
        let first = standing.pop_front();
        if standing.is_empty() {
            self.of.remove(&(topic, line));
        }
        first
    }

    /// Takes all away, with their topics' numbers.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (usize, Standing)> + use<> {
        std::mem::take(&mut self.of)
            .into_iter()
            .flat_map(|((topic, _), standing)| standing.into_iter().map(move |one| (topic, one)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::gate::Gate;

    const PARTITIONS: i32 = 5;

    fn standing(seq: u64, partition: Option<i32>) -> Standing {
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
        Standing::new(&record, 7, seq, 100)
    }

    #[test]
    fn a_record_is_what_it_was_but_for_its_partition() {
        let one = standing(3, None);
        for (line, partition) in [(Line::Topic, None), (Line::Partition(4), Some(4))] {
            one.with("t", line, |record| {
                assert_eq!(record.partition, partition);
                assert_eq!((record.topic, record.key), ("t", Some(&b"key"[..])));
                assert_eq!(record.value, None);
                let headers: Vec<_> = record.headers.iter().map(|h| (h.name, h.value)).collect();
                assert_eq!(headers, [("h", Some(&b""[..])), ("n", None)]);
            });
        }
    }

    #[test]
    fn a_topic_has_its_own_lines_and_its_partitions_come_first() {
        let mut lines = Lines::default();
        for (topic, line) in [
            (1, Line::Topic),
            (1, Line::Partition(i32::MAX)),
            (1, Line::Partition(0)),
            (0, Line::Partition(3)),
            (2, Line::Topic),
        ] {
            lines.push(topic, line, standing(0, None));
        }
        let of_one = [Line::Partition(i32::MAX), Line::Partition(0), Line::Topic];
        assert_eq!(lines.of_topic(1), of_one);
        assert_eq!(lines.of_topic(0), [Line::Partition(3)]);
        for line in of_one {
            assert!(lines.pop(1, line).is_some());
            assert!(lines.pop(1, line).is_none());
        }
        assert_eq!(lines.of_topic(1), []);
        assert_eq!(lines.take_all().count(), 2);
        assert!(lines.is_empty());
    }

    /// One topic of a client that may not know its partitions, and of brokers that answer in any order.
    struct Model {
        gate: Gate,
        lines: Lines,
        /// Where each record belongs.
        home: HashMap<u64, i32>,
        known: bool,
        /// In the order of handing over; `None`: the client keeps it aside.
        in_flight: Vec<(u64, Option<i32>)>,
        /// Those with an acknowledgement that opens.
        open: BTreeSet<i32>,
        handed_over: Vec<u64>,
        now: Instant,
    }

    impl Model {
        fn produce(
            &mut self,
            seq: u64,
            named: Option<i32>,
            from: Option<Line>,
        ) -> Result<(), Line> {
            let home = self.home[&seq];
            let placed = if let Some(partition) = named {
                assert_eq!(partition, home);
                self.gate.enter_at(partition, from, self.now)?;
                Some(home)
            } else {
                self.gate.enter(seq, from)?;
                if self.known {
                    self.gate.place(home, true, PARTITIONS, self.now)?;
                }
                self.known.then_some(home)
            };
            // Of one without a place only so much is known that there is no other.
            let beside = |at: &Option<i32>| match placed {
                Some(_) => at.is_some_and(|at| at != home || self.open.contains(&home)),
                None => at.is_some(),
            };
            assert!(
                self.in_flight.iter().all(|(_, at)| beside(at)),
                "{seq} is not alone at {home}: {:?}",
                self.in_flight
            );
            if let Some(last) = self.handed_over.iter().rev().find(|s| self.home[s] == home) {
                assert!(*last < seq, "{seq} comes after {last}");
            }
            self.handed_over.push(seq);
            self.in_flight.push((seq, placed));
            Ok(())
        }

        fn offer(&mut self, seq: u64, named: Option<i32>) {
            if let Err(line) = self.produce(seq, named, None) {
                self.lines.push(0, line, standing(seq, named));
            }
        }

        /// As the sink does.
        fn resume(&mut self) {
            self.gate.heard();
            for line in self.lines.of_topic(0) {
                while let Some(first) = self.lines.first(0, line) {
                    let named = first.with("t", line, |record| record.partition);
                    let seq = first.seq;
                    let produced = self.produce(seq, named, Some(line));
                    if produced == Err(line) {
                        break;
                    }
                    let first = self.lines.pop(0, line).expect("it is the first");
                    if let Err(other) = produced {
                        self.lines.push(0, other, first);
                    }
                }
            }
        }

        /// True: the gate calls.
        fn acknowledge(&mut self, random: &mut fastrand::Rng) -> bool {
            if self.in_flight.is_empty() {
                return false;
            }
            let any = random.usize(..self.in_flight.len());
            let home = self.home[&self.in_flight[any].0];
            // A partition's come in order.
            let first = self
                .in_flight
                .iter()
                .position(|(s, _)| self.home[s] == home);
            let (seq, _) = self.in_flight.remove(first.expect("there is one"));
            let fresh = random.u8(..8) != 0;
            if fresh {
                self.open.insert(home);
            } else {
                self.open.remove(&home);
            }
            self.known = true;
            self.gate.delivered(seq, home, fresh, self.now)
        }
    }

    /// Whatever comes first: each partition's records in their order, each that is not open with one on
    /// its way, and in the end nobody stands anywhere, though nobody looks without being called.
    #[test]
    fn nobody_is_passed_or_forgotten() {
        for seed in 0..2_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut model = Model {
                gate: Gate::new(0, Some(Duration::from_millis(10))),
                lines: Lines::default(),
                home: HashMap::new(),
                known: false,
                in_flight: Vec::new(),
                open: BTreeSet::new(),
                handed_over: Vec::new(),
                now: Instant::now(),
            };
            let mut called = false;
            for seq in 0..60 {
                let home = random.i32(..PARTITIONS);
                model.home.insert(seq, home);
                model.offer(seq, (random.u8(..4) == 0).then_some(home));
                for _ in 0..random.u8(..4) {
                    called |= model.acknowledge(&mut random);
                }
                if random.u8(..50) == 0 {
                    // The topic was deleted, and is looked up again.
                    model.known = false;
                }
                if called && random.bool() {
                    called = false;
                    model.resume();
                }
            }
            while called || !model.in_flight.is_empty() {
                called |= model.acknowledge(&mut random);
                if std::mem::take(&mut called) {
                    model.resume();
                }
            }
            assert!(
                model.lines.is_empty(),
                "seed {seed}: {:?}",
                model.lines.seqs()
            );
            assert_eq!(model.handed_over.len(), 60, "seed {seed}");
        }
    }
}
