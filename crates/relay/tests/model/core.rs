//! The real [`Core`] as a state machine whose states can be compared. No other file of the search
//! uses its interface.
//!
//! # Why each step is executed only once
//! A `Core` cannot be cloned, so a state is kept as a number, with the inputs that led to it first.
//! To take a step, a new `Core` gets those inputs and one more. Its new state is looked up by its
//! [snapshot](Machine::snapshot), and the step is stored. So the search explores the real code, and
//! each transition was executed.
//!
//! # Why two states with the same snapshot are one state
//! `Core` is deterministic: no clock, no randomness, no I/O. Its next step follows from its fields
//! and from the shared ring. The snapshot contains
//! - all fields, by the derived `Debug`, which includes ledger, router and ring, except three
//!   fields that decide nothing ([`IGNORED_FIELDS`]);
//! - two things that the ring's `Debug` omits. The ring's words are the set of sequence numbers
//!   that are acknowledged and not collected (those below `tail` are collected). Whether the ring
//!   was woken follows from `nacked`.
//!
//! If the snapshot omitted something that matters, two paths to one snapshot would continue
//! differently. [`Automaton::audit`] checks that: it repeats whole walks on a separate `Core`, and
//! compares.

use std::collections::HashMap;
use std::sync::Arc;

use walrelay_checkpoint::{AckRing, Seq};
use walrelay_event_router::{Options, Router};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{AcknowledgedEvents, Core, RecordSpace, Step, TableName};
use walrelay_sink::EventPosition;
use walrelay_walsender::Frame;

use crate::fingerprint::{FastBuildHasher, fingerprint};
use crate::log::{Log, Piece};

/// The first sequence number: shortly before the end of a word of the ring, so that each search
/// crosses it.
const FIRST: u8 = 30;
/// The smallest capacity. The ring never becomes full here; `walrelay-checkpoint` tests that.
const RING: usize = 32;

/// Fields of `Core` that decide nothing: `counts`, and `sample` and `received` of `Transactions`,
/// are only read for reports. Of several fields with one name the first in the output is left out.
const IGNORED_FIELDS: [&str; 3] = [" counts: ", " sample: ", " received: "];

/// An input of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Input {
    /// A connection to a slot at this position.
    Connected(u16),
    Disconnected,
    /// A message of the stream. The sink does not take the record of a row.
    Frame(Piece),
    /// A row as in `Frame`, whose record the sink takes.
    Taken(u8),
    Keepalive(u16),
    /// The delivery report of an acknowledged record.
    Ack(u8),
    /// The delivery report of a failed record.
    Nack(u8),
    /// The relay collects reports.
    Advance,
    /// The sink is dropped. Its router is moved to a new core.
    NewSink(Start),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Done,
    /// A row's record is offered with this sequence number.
    Offered(u8),
    Blocked,
}

/// The results of a core's getters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) confirmed: u16,
    pub(crate) seen: u16,
    pub(crate) in_flight: u64,
    pub(crate) is_settled: bool,
    pub(crate) is_inside: bool,
    pub(crate) has_failed: bool,
    pub(crate) first_unacknowledged: Option<EventPosition>,
    /// A bit for each row behind that event that is acknowledged.
    pub(crate) acknowledged: u16,
}

/// The core of a new sink: the position of the slot, and the first event that the core does not
/// pass over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Start {
    pub(crate) slot: u16,
    pub(crate) first: Option<EventPosition>,
    /// A bit for each row behind it that an earlier sink acknowledged.
    pub(crate) acknowledged: u16,
}

/// A core with its ring.
struct Machine {
    core: Option<Core>,
    ring: Arc<AckRing>,
    acked: Vec<u8>,
    /// The sequence number after that of the last record that was taken.
    next: u64,
}

fn commit_end(at: u16) -> CommitEnd {
    CommitEnd::from_slot(Lsn::new(u64::from(at)))
}

fn position(lsn: Lsn) -> u16 {
    u16::try_from(lsn.get()).expect("positions of the model are small")
}

impl Machine {
    fn new(router: Router, start: Start, log: &Log) -> Self {
        let ring = Arc::new(AckRing::starting_at(Seq::new(u64::from(FIRST)), RING));
        let outbox = [TableName::new("public", "outbox")];
        let confirmed = commit_end(start.slot);
        let rows = (0..16).filter(|row| start.acknowledged & (1 << row) != 0);
        let acknowledged: AcknowledgedEvents = rows.map(|row| (log.position(row), false)).collect();
        let core = Core::new(router, outbox.into(), Arc::clone(&ring), confirmed);
        Self {
            core: Some(core.resuming_at(start.first, acknowledged)),
            ring,
            acked: Vec::new(),
            next: u64::from(FIRST),
        }
    }

    fn fresh(start: Start, log: &Log) -> Self {
        Self::new(Router::new(Options::default()), start, log)
    }

    fn core(&self) -> &Core {
        self.core.as_ref().expect("it is there between two inputs")
    }

    fn apply(&mut self, input: Input, log: &Log) -> Result<Output, String> {
        let core = self.core.as_mut().expect("it is there between two inputs");
        match input {
            Input::Connected(slot) => core.connected(commit_end(slot)),
            Input::Disconnected => core.disconnected(),
            Input::Advance => {
                core.advance();
            }
            Input::Ack(seq) => {
                self.ring.ack(Seq::new(u64::from(seq)));
                self.acked.push(seq);
            }
            Input::Nack(seq) => {
                self.ring.nack(Seq::new(u64::from(seq)));
            }
            Input::Keepalive(wal_end) => {
                let frame = Frame::Keepalive {
                    wal_end: Lsn::new(u64::from(wal_end)),
                    sent_at: 0,
                    reply_requested: false,
                };
                core.frame(&frame, &mut RecordSpace::default())
                    .map_err(|error| error.to_string())?;
            }
            Input::Frame(piece) => return self.frame(piece, log, false),
            Input::Taken(row) => return self.frame(Piece::Row(row), log, true),
            Input::NewSink(start) => {
                let core = self.core.take().expect("it is there between two inputs");
                *self = Self::new(core.into_parts().0, start, log);
            }
        }
        Ok(Output::Done)
    }

    fn frame(&mut self, piece: Piece, log: &Log, take: bool) -> Result<Output, String> {
        let core = self.core.as_mut().expect("it is there between two inputs");
        let (lsn, body) = log.body(piece);
        let frame = Frame::XLogData {
            start: Lsn::new(u64::from(lsn)),
            end: Lsn::new(u64::from(lsn)),
            sent_at: 0,
            body: &body,
        };
        let seq = match core
            .frame(&frame, &mut RecordSpace::default())
            .map_err(|error| error.to_string())?
        {
            Step::Consumed | Step::Reply | Step::Committed(_) => return Ok(Output::Done),
            Step::Blocked => return Ok(Output::Blocked),
            Step::AwaitsSchema | Step::AwaitsPlace => {
                unreachable!("no value has a schema, and each table has the configured name")
            }
            Step::Send(outgoing) => {
                let Piece::Row(row) = piece else {
                    return Err(format!("{piece:?} became a record"));
                };
                let row = &log.rows[usize::from(row)];
                let record = outgoing.record();
                let id = record.headers.first().and_then(|header| header.value);
                if id != Some(row.id.as_bytes())
                    || record.key != Some(row.key.to_string().as_bytes())
                {
                    return Err(format!("row {} became another record", row.id));
                }
                outgoing.seq()
            }
        };
        if take {
            core.sent(seq).map_err(|error| error.to_string())?;
            self.next = seq.get() + 1;
        }
        Ok(Output::Offered(
            u8::try_from(seq.get()).expect("a search sends few records"),
        ))
    }

    fn view(&self, log: &Log) -> View {
        let core = self.core();
        assert!(
            core.received() >= core.acknowledged_position().lsn(),
            "flushed further than written"
        );
        View {
            confirmed: position(core.acknowledged_position().lsn()),
            seen: position(core.seen().lsn()),
            in_flight: core.in_flight(),
            is_settled: core.is_settled(),
            is_inside: core.is_inside_transaction(),
            has_failed: self.ring.nacked().is_some(),
            first_unacknowledged: core.first_unacknowledged(),
            acknowledged: core
                .acknowledged_events()
                .events()
                .fold(0, |rows, event| rows | 1 << log.row_at(event)),
        }
    }

    fn snapshot(&self) -> u128 {
        let mut text = format!("{:?}", self.core());
        for field in IGNORED_FIELDS {
            cut(&mut text, field);
        }
        let tail = self.next - self.core().in_flight();
        let mut waiting: Vec<u8> = self.acked.clone();
        waiting.retain(|seq| u64::from(*seq) >= tail);
        waiting.sort_unstable();
        waiting.dedup();
        fingerprint(&(text, waiting))
    }
}

/// Removes a field from the output of a derived `Debug`.
fn cut(text: &mut String, field: &str) {
    let from = text.find(field).expect("it is one of the core's fields");
    let mut depth = 0;
    let after = text[from..].find(|c| {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        depth < 0 || (depth == 0 && c == ',')
    });
    let to = from + after.expect("the struct ends somewhere");
    text.replace_range(from..to, "");
}

/// A state of a core: an index into [`Automaton`]'s states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StateId(u32);

struct KnownState {
    /// The values that the core was created with.
    start: Start,
    /// The inputs that led to this state.
    inputs: Box<[Input]>,
    view: View,
    snapshot: u128,
}

/// All known states and steps of cores, see the [module](self).
pub(crate) struct Automaton {
    states: Vec<KnownState>,
    numbers: HashMap<u128, StateId, FastBuildHasher>,
    steps: HashMap<(StateId, Input), (StateId, Output), FastBuildHasher>,
    starts: HashMap<Start, StateId, FastBuildHasher>,
    /// The steps of the walk that is being recorded, if one is.
    walk: Option<Vec<(StateId, Input, StateId, Output)>>,
}

impl Automaton {
    pub(crate) fn new() -> Self {
        Self {
            states: Vec::new(),
            numbers: HashMap::default(),
            steps: HashMap::default(),
            starts: HashMap::default(),
            walk: None,
        }
    }

    /// Returns the state of a new core.
    pub(crate) fn start(&mut self, start: Start, log: &Log) -> StateId {
        if let Some(state) = self.starts.get(&start) {
            return *state;
        }
        let state = self.intern(&Machine::fresh(start, log), (start, log), Vec::new);
        self.starts.insert(start, state);
        state
    }

    /// Returns the state after `input`, and the core's answer; or the core's error.
    pub(crate) fn step(
        &mut self,
        state: StateId,
        input: Input,
        log: &Log,
    ) -> Result<(StateId, Output), String> {
        let step = match self.steps.get(&(state, input)) {
            Some(step) => *step,
            None => self.execute(state, input, log)?,
        };
        if let Some(walk) = &mut self.walk {
            walk.push((state, input, step.0, step.1));
        }
        Ok(step)
    }

    fn execute(
        &mut self,
        state: StateId,
        input: Input,
        log: &Log,
    ) -> Result<(StateId, Output), String> {
        let from = &self.states[state.0 as usize];
        let mut machine = Machine::fresh(from.start, log);
        for earlier in &from.inputs {
            machine.apply(*earlier, log)?;
        }
        let output = machine.apply(input, log)?;
        let from = &self.states[state.0 as usize];
        let (start, inputs) = (from.start, from.inputs.clone());
        let next = match input {
            Input::NewSink(start) => self.intern(&machine, (start, log), Vec::new),
            _ => self.intern(&machine, (start, log), || [&*inputs, &[input]].concat()),
        };
        self.steps.insert((state, input), (next, output));
        Ok((next, output))
    }

    pub(crate) fn view(&self, state: StateId) -> &View {
        &self.states[state.0 as usize].view
    }

    /// Returns the numbers of states and of steps.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.states.len(), self.steps.len())
    }

    fn intern(
        &mut self,
        machine: &Machine,
        (start, log): (Start, &Log),
        inputs: impl FnOnce() -> Vec<Input>,
    ) -> StateId {
        let snapshot = machine.snapshot();
        if let Some(state) = self.numbers.get(&snapshot) {
            return *state;
        }
        let state = StateId(u32::try_from(self.states.len()).expect("memory ends before"));
        self.numbers.insert(snapshot, state);
        self.states.push(KnownState {
            start,
            inputs: inputs().into(),
            view: machine.view(log),
            snapshot,
        });
        state
    }

    /// Starts to record the steps of a walk, for [`Automaton::audit`].
    pub(crate) fn record(&mut self) {
        self.walk = Some(Vec::new());
    }

    /// Repeats the recorded walk on separate cores, and compares each step. Returns the number of
    /// steps.
    pub(crate) fn audit(&mut self, log: &Log) -> usize {
        let walk = self.walk.take().expect("a walk was recorded");
        let mut live: Option<(StateId, Machine)> = None;
        let mut steps = 0;
        for (from, input, to, output) in walk {
            let mut machine = match live.take() {
                Some((state, machine)) if state == from => machine,
                _ => {
                    let start = &self.states[from.0 as usize];
                    assert!(start.inputs.is_empty(), "the walk goes on elsewhere");
                    Machine::fresh(start.start, log)
                }
            };
            assert_eq!(machine.apply(input, log), Ok(output), "{input:?}");
            assert_eq!(&machine.view(log), self.view(to), "{input:?}");
            assert_eq!(
                machine.snapshot(),
                self.states[to.0 as usize].snapshot,
                "{input:?}"
            );
            steps += 1;
            live = Some((to, machine));
        }
        steps
    }
}
