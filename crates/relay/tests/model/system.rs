//! The system around the core, as a value: the server and its slot, the connection, the broker, the
//! sink, and the state of the pipeline (`crates/relay/src/pipeline`). An [`Action`] is what can
//! happen next; `step.rs` has its effect.
//!
//! # The model
//! - Each key has a partition. The sink sends a partition's records to the broker in order, as an
//!   idempotent producer does; their reports arrive in any order.
//! - A status update is under way until the server receives it; it is lost with the connection. At
//!   most one is under way: a second one would only replace it.
//! - Acknowledgements set bits in the ring at once; the core collects them later.
//! - The records in flight of a dropped sink may reach the broker at any later time, as one request
//!   for each partition ([`System::late`]), or never.
//! - A restart of the server sets the slot to any position since the last one that is certainly on
//!   disk.
//! - Of a broker's log only what the checks need is kept: the number of first deliveries, and the
//!   place of the last record. It is checked when a record is appended.

use std::fmt::Write as _;

use walrelay_sink::EventPosition;

use crate::core::{Automaton, Input, Output, StateId, View};
use crate::log::{Log, Piece};
use crate::mistake::Mistake;
use crate::search::State;

/// The scenario that is searched, and the limits of the search.
pub(crate) struct Model {
    pub(crate) log: Log,
    pub(crate) core: Automaton,
    pub(crate) mistake: Option<Mistake>,
    /// The number of faults that may happen.
    pub(crate) faults: u8,
    /// The number of times that the relay may be asked to stop.
    pub(crate) drains: u8,
}

impl Model {
    pub(crate) fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    pub(crate) fn step(
        &mut self,
        state: StateId,
        input: Input,
    ) -> Result<(StateId, Output), String> {
        let step = self.core.step(state, input, &self.log);
        step.map_err(|error| format!("the core stops at a sound stream: {error}"))
    }
}

/// An action: what may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// The relay opens a stream, with a new sink if it has none.
    Connect,
    /// The relay processes the next message of the stream.
    Frame,
    /// The relay offers the next row's record to a full sink.
    Full,
    /// The relay collects acknowledgements and sends a status update.
    Report,
    /// The server receives the status update.
    Receive,
    /// The relay receives a keepalive.
    Keepalive,
    /// The `nth` record of a partition without a report is acknowledged.
    Ack { partition: usize, nth: u8 },
    /// The `nth` record fails, whether the broker appended it or not.
    Nack {
        partition: usize,
        nth: u8,
        appended: bool,
    },
    /// The relay sees that a delivery failed.
    SeeFailure,
    /// The relay sends a last status update, ends the connection and drops the sink. `reach`: how
    /// many records of each partition may still reach the broker.
    DropSink { received: bool, reach: [u8; 2] },
    /// The connection breaks.
    Disconnect { received: bool },
    /// The server restarts with its slot at this position.
    Restart { to: u16 },
    /// The relay is killed and starts again.
    Crash { received: bool, reach: [u8; 2] },
    /// A request of a dropped sink reaches the broker.
    Late { request: u8 },
    /// The relay is asked to stop.
    Drain,
    /// The relay stops if everything is acknowledged, confirms it, and starts again.
    Stop,
}

impl Action {
    /// Returns true if the action happens without a fault.
    pub(crate) fn is_progress(self) -> bool {
        match self {
            Self::Connect
            | Self::Frame
            | Self::Report
            | Self::Receive
            | Self::Keepalive
            | Self::Ack { .. }
            | Self::SeeFailure
            | Self::DropSink { .. }
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
pub(crate) struct System {
    /// The slot's `confirmed_flush_lsn`.
    pub(crate) slot: u16,
    /// The slot's position that is certainly on disk.
    pub(crate) durable: u16,
    pub(crate) partitions: [Partition; 2],
    /// A bit for each row that the broker acknowledged to any sink.
    pub(crate) acked: u16,
    /// A bit for each row that a sink took while no fault had happened.
    pub(crate) enqueued: u16,
    /// Requests of dropped sinks: the partition and its rows.
    pub(crate) late: Vec<(usize, Vec<u8>)>,
    pub(crate) process: Process,
    pub(crate) faults: u8,
    pub(crate) drains: u8,
}

/// A partition's log at the broker. Its rows are counted from the first of its key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Partition {
    /// The number of rows that were delivered at least once.
    pub(crate) reached: u8,
    /// The row after the last one that was appended, late requests aside.
    pub(crate) next: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) phase: Phase,
    pub(crate) connection: Option<Connection>,
    pub(crate) session: Option<SinkSession>,
    /// `Resume::confirmed` while there is no connection: the confirmed position at the end of the
    /// last one.
    pub(crate) resume: Option<u16>,
    /// `Sessions::acknowledged_before`: the first event that was not acknowledged to the last sink.
    pub(crate) first: Option<EventPosition>,
    /// `Sessions::acknowledged`: a bit for each row behind that event that sinks acknowledged.
    pub(crate) acknowledged: u16,
    /// For [`Mistake::SkipAfterLostSink`].
    pub(crate) lost_sink_seen: u16,
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
    /// A delivery failed; the relay waits for reports of other records.
    Settling {
        draining: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    /// The index of the next piece.
    pub(crate) at: usize,
    /// True if the table was announced on this connection.
    pub(crate) announced: bool,
    /// The position in the last status update, or else that of the slot at the start.
    pub(crate) reported: u16,
    /// True if the status update is still under way.
    pub(crate) under_way: bool,
    /// For [`Mistake::ReorderRetry`]: this piece and the next are exchanged.
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

/// A sink with its core, see `src/pipeline/session/sink_session.rs`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SinkSession {
    pub(crate) core: StateId,
    pub(crate) queues: [Queue; 2],
    /// The rows whose records it took.
    pub(crate) taken: u16,
    /// For [`Mistake::ConfirmRow`].
    pub(crate) row: u16,
}

/// The records of a partition in a sink that have no report yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    /// Sequence number and row of each record, in the order in which the sink took them.
    pub(crate) records: Vec<(u8, u8)>,
    /// The number of its records that the broker has appended.
    pub(crate) appended: u8,
    /// The greatest number of records that the broker may append: no record behind a failed one is
    /// appended.
    pub(crate) limit: Option<u8>,
}

impl Queue {
    /// Returns the greatest number of records that the broker can append.
    fn max_appended(&self) -> u8 {
        let len = self.records.len() as u8;
        self.limit.map_or(len, |limit| limit.min(len))
    }
}

impl State for System {
    type Model = Model;
    type Action = Action;

    const WITHOUT_END: &str =
        "once nothing goes wrong any more, no way leads to everything delivered";

    fn first(model: &Model) -> Self {
        Self::new(model)
    }

    fn actions(&self, model: &Model, actions: &mut Vec<Action>) {
        self.actions(model, actions);
    }

    fn step(&self, action: Action, model: &mut Model) -> Result<Self, String> {
        let next = self.step(action, model)?;
        next.check(model)?;
        Ok(next)
    }

    fn is_progress(action: Action) -> bool {
        action.is_progress()
    }

    fn check_end(&self, model: &Model) -> Result<(), String> {
        self.check_end(model)
    }

    fn describe(&self, action: Action, model: &mut Model) -> String {
        let line = self.describe(action, model);
        match self.step(action, model) {
            Ok(next) => format!("{line}  [{}]", next.summary(model)),
            Err(_) => line,
        }
    }
}

impl System {
    pub(crate) fn new(model: &Model) -> Self {
        Self {
            slot: model.log.start,
            durable: model.log.start,
            partitions: Default::default(),
            acked: 0,
            enqueued: 0,
            late: Vec::new(),
            process: Process::default(),
            faults: model.faults,
            drains: model.drains,
        }
    }

    pub(crate) fn view<'a>(&self, model: &'a Model) -> Option<&'a View> {
        let session = self.process.session.as_ref()?;
        Some(model.core.view(session.core))
    }

    /// Returns the numbers of records in flight that may reach the broker: all combinations for the
    /// two partitions.
    fn reaches(&self) -> Vec<[u8; 2]> {
        let Some(session) = &self.process.session else {
            return vec![[0; 2]];
        };
        let [a, b] = &session.queues;
        let range = |queue: &Queue| queue.appended..=queue.max_appended();
        range(a)
            .flat_map(|a| range(b).map(move |b| [a, b]))
            .collect()
    }

    /// Adds the actions that are possible next.
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

        // Actions without a fault first, so that counterexamples are easy to read.
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
                actions.push(Action::SeeFailure);
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
                    actions.push(Action::DropSink { received, reach });
                }
                let received = false;
                actions.push(Action::DropSink { received, reach });
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
        // While draining, a broken connection ends the process like a crash, so there is no
        // restart.
        if *phase != Phase::Draining {
            let highest = match connection {
                Some(connection) if connection.under_way => connection.reported.max(self.slot),
                _ => self.slot,
            };
            if connection.is_some() || self.durable < highest {
                let positions = model.log.positions.range(self.durable..=highest);
                actions.extend(positions.map(|&to| Action::Restart { to }));
            }
        }
        if self.process.session.is_some() {
            for reach in self.reaches() {
                for &received in received {
                    actions.push(Action::Crash { received, reach });
                }
            }
        }
    }

    fn reports(&self, failed: bool, actions: &mut Vec<Action>) {
        let Some(session) = &self.process.session else {
            return;
        };
        for (partition, queue) in session.queues.iter().enumerate() {
            for nth in 0..queue.records.len() as u8 {
                let may_pass = nth < queue.max_appended();
                if may_pass {
                    actions.push(Action::Ack { partition, nth });
                }
                // Only the first failure counts as a fault: after it the sink gives up all records.
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

    /// Checks what must be true in every state.
    pub(crate) fn check(&self, model: &mut Model) -> Result<(), String> {
        self.check_confirmed(self.slot, model)?;
        let Some(session) = &self.process.session else {
            return Ok(());
        };
        let view = *model.core.view(session.core);
        self.check_confirmed(view.confirmed, model)?;
        if let Some(connection) = &self.process.connection {
            self.check_confirmed(connection.reported, model)?;
            if view.confirmed < self.slot {
                return Err("the core stands behind the slot it was connected to".to_owned());
            }
        }
        if matches!(self.process.phase, Phase::Settling { .. }) {
            check_settled(session, model)?;
        }
        Ok(())
    }

    /// Checks by G1 that this position may be confirmed.
    pub(crate) fn check_confirmed(&self, at: u16, model: &Model) -> Result<(), String> {
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

    /// Checks a state in which nothing is left to do: all events are delivered and confirmed.
    pub(crate) fn check_end(&self, model: &Model) -> Result<(), String> {
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

    /// Writes a short summary in words.
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

/// Checks that no report can move the confirmed position of a settled core.
fn check_settled(session: &SinkSession, model: &mut Model) -> Result<(), String> {
    let (mut core, _) = model.step(session.core, Input::Advance)?;
    let view = *model.core.view(core);
    if !view.is_settled {
        return Ok(());
    }
    for (seq, _) in session.queues.iter().flat_map(|queue| &queue.records) {
        (core, _) = model.step(core, Input::Ack(*seq))?;
    }
    (core, _) = model.step(core, Input::Advance)?;
    if model.core.view(core).confirmed > view.confirmed {
        return Err("the core is settled, and an acknowledgement moves it all the same".to_owned());
    }
    Ok(())
}
