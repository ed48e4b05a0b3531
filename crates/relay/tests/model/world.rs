//! Everything around the core, as a value: the server and its slot, the connection, the broker, the
//! sink, and where the pipeline (`crates/relay/src/pipeline`) stands. What can happen next is an
//! [`Action`]; `step.rs` says what comes of each.
//!
//! # What stands for what
//! - A partition for each key. The sink hands a partition's records to the broker in order, as an
//!   idempotent producer does; their reports come in any order.
//! - A status is under way until the server has it, and lost with the connection. Only one is: a
//!   second that is sent before the first arrives makes no difference but to be the later one.
//! - Acknowledgements reach the ring when they come; the core collects them when it looks.
//! - What a sink that ends has in flight may reach the broker at any later time, as one request of a
//!   partition ([`World::late`]), or never.
//! - A restart of the server sets the slot back to any position since the last one it is sure to
//!   have on disk.
//! - The log of a broker is what is needed to judge it: how many first deliveries there were, and
//!   where the last record stands. It is judged when it grows.

use std::fmt::Write as _;

use crate::core::{Automaton, Input, Output, State, View};
use crate::log::{Log, Piece};
use crate::mistake::Mistake;

/// What is searched, and how far.
pub(crate) struct Model {
    pub(crate) log: Log,
    pub(crate) core: Automaton,
    pub(crate) mistake: Option<Mistake>,
    /// How many things may go wrong.
    pub(crate) faults: u8,
    /// How many times a relay may be asked to stop.
    pub(crate) drains: u8,
}

impl Model {
    pub(crate) fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    pub(crate) fn step(&mut self, state: State, input: Input) -> Result<(State, Output), String> {
        let step = self.core.step(state, input, &self.log);
        step.map_err(|error| format!("the core stops at a sound stream: {error}"))
    }
}

/// What may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// The relay opens a stream, with a new sink if it has none.
    Connect,
    /// It takes the next message of it.
    Frame,
    /// It offers the next row's record to a sink that is full.
    Full,
    /// It collects acknowledgements and sends a status.
    Report,
    /// The server gets it.
    Receive,
    /// The relay gets a keepalive.
    Keepalive,
    /// The `nth` record of a partition that has no report yet is acknowledged.
    Ack { partition: usize, nth: u8 },
    /// Or it fails, after the broker appended it or without that.
    Nack {
        partition: usize,
        nth: u8,
        appended: bool,
    },
    /// The relay sees that a delivery failed.
    Notice,
    /// It sends a last status, ends the connection and throws the sink away. What is in flight
    /// reaches the broker up to these.
    ThrowAway { received: bool, reach: [u8; 2] },
    /// The connection breaks.
    Disconnect { received: bool },
    /// The server restarts and finds its slot here.
    Restart { to: u16 },
    /// The relay is killed, and another started.
    Crash { received: bool, reach: [u8; 2] },
    /// A request of a sink that is no more reaches the broker.
    Late { request: u8 },
    /// The relay is asked to stop.
    Drain,
    /// It has sent and confirmed everything, and ends; another is started.
    Stop,
}

impl Action {
    /// Whether it is what a relay, a server and a broker do when nothing goes wrong.
    pub(crate) fn is_progress(self) -> bool {
        match self {
            Self::Connect
            | Self::Frame
            | Self::Report
            | Self::Receive
            | Self::Keepalive
            | Self::Ack { .. }
            | Self::Notice
            | Self::ThrowAway { .. }
            | Self::Stop => true,
            Self::Full
            | Self::Nack { .. }
            | Self::Disconnect { .. }
            | Self::Restart { .. }
            | Self::Crash { .. }
            | Self::Late { .. }
            | Self::Drain => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// The slot's `confirmed_flush_lsn`, and what of it is on disk for sure.
    pub(crate) slot: u16,
    pub(crate) durable: u16,
    pub(crate) partitions: [Partition; 2],
    /// Rows that the broker acknowledged, to whomever.
    pub(crate) acked: u16,
    /// Rows that were handed to a sink while nothing had gone wrong.
    pub(crate) handed: u16,
    /// Requests of sinks that are no more: the partition and its rows.
    pub(crate) late: Vec<(usize, Vec<u8>)>,
    pub(crate) process: Process,
    pub(crate) faults: u8,
    pub(crate) drains: u8,
}

/// What is known of a partition's log, in rows of its key counted from the first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Partition {
    /// This many were delivered at least once.
    pub(crate) reached: u8,
    /// The one after the last that was appended in order.
    pub(crate) next: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) phase: Phase,
    pub(crate) connection: Option<Connection>,
    pub(crate) generation: Option<SinkSession>,
    /// `Resume::confirmed`, while there is no connection: what was confirmed when the last was lost.
    pub(crate) resume: Option<u16>,
    /// For [`Mistake::PassOverLostSink`].
    pub(crate) passed: u16,
    /// For [`Mistake::StaleReport`].
    pub(crate) stale: Vec<u8>,
    /// For [`Mistake::StartAhead`].
    pub(crate) ahead: u16,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    #[default]
    Streaming,
    Draining,
    /// A delivery failed; what is acknowledged beside it is awaited.
    Settling {
        draining: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    /// The next piece to be read.
    pub(crate) at: usize,
    /// Whether the table was announced on it, as it is before the first row.
    pub(crate) announced: bool,
    /// What the server was told last, or where it stood.
    pub(crate) told: u16,
    /// Whether that is still under way.
    pub(crate) under_way: bool,
    /// For [`Mistake::ReorderRetry`]: this piece and the next change places.
    pub(crate) swapped: Option<usize>,
    /// For [`Mistake::TrustKeepalive`].
    pub(crate) trusted: u16,
}

impl Connection {
    pub(crate) fn piece(&self, log: &Log) -> Option<Piece> {
        let at = match self.swapped {
            Some(swapped) if self.at == swapped => self.at + 1,
            Some(swapped) if self.at == swapped + 1 => swapped,
            _ => self.at,
        };
        log.pieces.get(at).copied()
    }
}

/// A sink with its core, see `sink_session.rs`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SinkSession {
    pub(crate) core: State,
    pub(crate) queues: [Queue; 2],
    /// Transactions that were enqueued with their commit.
    pub(crate) whole: u8,
    /// For [`Mistake::ConfirmRow`].
    pub(crate) row: u16,
}

/// What a sink holds for a partition: records without a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    /// Their numbers and rows, in the order in which they were taken.
    pub(crate) records: Vec<(u8, u8)>,
    /// This many of them the broker has appended.
    pub(crate) appended: u8,
    /// It appends no more than this many: behind a record that failed nothing gets through.
    pub(crate) limit: Option<u8>,
}

impl Queue {
    /// How many can have been appended at most.
    fn most(&self) -> u8 {
        let len = self.records.len() as u8;
        self.limit.map_or(len, |limit| limit.min(len))
    }
}

impl World {
    pub(crate) fn new(model: &Model) -> Self {
        Self {
            slot: model.log.start,
            durable: model.log.start,
            partitions: Default::default(),
            acked: 0,
            handed: 0,
            late: Vec::new(),
            process: Process::default(),
            faults: model.faults,
            drains: model.drains,
        }
    }

    pub(crate) fn view<'a>(&self, model: &'a Model) -> Option<&'a View> {
        let generation = self.process.generation.as_ref()?;
        Some(model.core.view(generation.core))
    }

    /// How far what is in flight may still reach, for each partition.
    fn reaches(&self) -> Vec<[u8; 2]> {
        let Some(generation) = &self.process.generation else {
            return vec![[0; 2]];
        };
        let [a, b] = &generation.queues;
        let range = |queue: &Queue| queue.appended..=queue.most();
        range(a)
            .flat_map(|a| range(b).map(move |b| [a, b]))
            .collect()
    }

    /// What may happen next.
    pub(crate) fn actions(&self, model: &Model, actions: &mut Vec<Action>) {
        let Process {
            phase, connection, ..
        } = &self.process;
        let view = self.view(model);
        let streaming = *phase == Phase::Streaming;
        let settling = matches!(phase, Phase::Settling { .. });
        let failed = view.is_some_and(|view| view.has_failed);
        let received: &[bool] = match connection {
            Some(connection) if connection.under_way => &[true, false],
            _ => &[false],
        };

        // First what goes on by itself, so that paths to what goes wrong read easily.
        if let (Some(connection), Some(view)) = (connection, view) {
            let reads = streaming || (*phase == Phase::Draining && view.is_inside);
            if reads {
                if connection.piece(&model.log).is_some() {
                    actions.push(Action::Frame);
                }
                actions.push(Action::Keepalive);
            }
            if connection.under_way {
                actions.push(Action::Receive);
            } else {
                actions.push(Action::Report);
            }
            if failed && !settling {
                actions.push(Action::Notice);
            }
            if *phase == Phase::Draining {
                actions.push(Action::Stop);
            }
            let next = (connection.piece(&model.log), connection.at + 1);
            if model.has(Mistake::ReorderRetry)
                && reads
                && connection.swapped.is_none()
                && matches!(next.0, Some(Piece::Row(_)))
                && matches!(model.log.pieces.get(next.1), Some(Piece::Row(_)))
            {
                actions.push(Action::Full);
            }
        } else if streaming {
            actions.push(Action::Connect);
        }
        self.reports(failed, actions);
        if settling {
            for reach in self.reaches() {
                if connection.is_some() {
                    let received = true;
                    actions.push(Action::ThrowAway { received, reach });
                }
                let received = false;
                actions.push(Action::ThrowAway { received, reach });
            }
        }
        for request in 0..self.late.len() as u8 {
            actions.push(Action::Late { request });
        }

        if self.drains > 0 && streaming && connection.is_some() {
            actions.push(Action::Drain);
        }
        if self.faults == 0 {
            return;
        }
        if streaming && connection.is_some() {
            actions.extend(
                received
                    .iter()
                    .map(|&received| Action::Disconnect { received }),
            );
        }
        // While it drains, a broken connection ends the process as a crash does.
        if *phase != Phase::Draining {
            let highest = match connection {
                Some(connection) if connection.under_way => connection.told.max(self.slot),
                _ => self.slot,
            };
            if connection.is_some() || self.durable < highest {
                let positions = model.log.positions.range(self.durable..=highest);
                actions.extend(positions.map(|&to| Action::Restart { to }));
            }
        }
        if self.process.generation.is_some() {
            for reach in self.reaches() {
                for &received in received {
                    actions.push(Action::Crash { received, reach });
                }
            }
        }
    }

    fn reports(&self, failed: bool, actions: &mut Vec<Action>) {
        let Some(generation) = &self.process.generation else {
            return;
        };
        for (partition, queue) in generation.queues.iter().enumerate() {
            for nth in 0..queue.records.len() as u8 {
                let may_pass = nth < queue.most();
                if may_pass {
                    actions.push(Action::Ack { partition, nth });
                }
                // One failure makes the sink give up all it holds, so that only the first costs.
                if !failed && self.faults == 0 {
                    continue;
                }
                let is_appended = nth < queue.appended;
                for appended in [true, false] {
                    if (appended && may_pass) || (!appended && !is_appended) {
                        actions.push(Action::Nack {
                            partition,
                            nth,
                            appended,
                        });
                    }
                }
            }
        }
    }

    /// That what holds always holds here.
    pub(crate) fn check(&self, model: &mut Model) -> Result<(), String> {
        self.may_be_confirmed(self.slot, model)?;
        let Some(generation) = &self.process.generation else {
            return Ok(());
        };
        let view = *model.core.view(generation.core);
        self.may_be_confirmed(view.confirmed, model)?;
        if let Some(connection) = &self.process.connection {
            self.may_be_confirmed(connection.told, model)?;
            if view.confirmed < self.slot {
                return Err("the core stands behind the slot it was connected to".to_owned());
            }
        }
        if matches!(self.process.phase, Phase::Settling { .. }) {
            settled_is_settled(generation, model)?;
        }
        Ok(())
    }

    /// G1.
    pub(crate) fn may_be_confirmed(&self, at: u16, model: &Model) -> Result<(), String> {
        let limit = model.log.limit(self.acked);
        if at > limit {
            return Err(format!(
                "G1: {at} is confirmed, and not all before it is acknowledged, only up to {limit}"
            ));
        }
        if !model.log.positions.contains(&at) {
            return Err(format!(
                "G1: {at} is confirmed, which is neither the end of a commit nor what an idle \
                 server has read"
            ));
        }
        Ok(())
    }

    /// That this can be the end: nothing is left to do, and all is done.
    pub(crate) fn is_whole(&self, model: &Model) -> Result<(), String> {
        for (partition, total) in self.partitions.iter().zip(model.log.totals) {
            if partition.reached != total {
                return Err(format!(
                    "G1: nothing is left to do, and {} of {total} events of a key arrived",
                    partition.reached
                ));
            }
        }
        if self.slot != model.log.end {
            return Err(format!(
                "G4: nothing is left to do, and the slot stands at {} of {}",
                self.slot, model.log.end
            ));
        }
        Ok(())
    }

    /// In a few words, for people.
    pub(crate) fn summary(&self, model: &Model) -> String {
        let mut text = format!("slot {}", self.slot);
        if let Some(view) = self.view(model) {
            let _ = write!(
                text,
                ", relay has confirmed {}, {} in flight",
                view.confirmed, view.in_flight
            );
        }
        text
    }
}

/// What is called settled cannot move any more, whatever is still reported.
fn settled_is_settled(generation: &SinkSession, model: &mut Model) -> Result<(), String> {
    let (mut core, _) = model.step(generation.core, Input::Advance)?;
    let view = *model.core.view(core);
    if !view.is_settled {
        return Ok(());
    }
    for (seq, _) in generation.queues.iter().flat_map(|queue| &queue.records) {
        (core, _) = model.step(core, Input::Ack(*seq))?;
    }
    (core, _) = model.step(core, Input::Advance)?;
    if model.core.view(core).confirmed > view.confirmed {
        return Err("the core is settled, and an acknowledgement moves it all the same".to_owned());
    }
    Ok(())
}
