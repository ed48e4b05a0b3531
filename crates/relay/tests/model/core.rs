//! The real [`Core`], driven and looked at. The only file of the search that knows its interface.
//!
//! # Why each step of it is carried out once only
//! `Core` is no value that can be copied, so a state of it is kept as a number, with the inputs that
//! led to it first. To take a step from there, a new `Core` is given those inputs and one more, and
//! what it is then is looked up by its [snapshot](Machine::snapshot); the step is remembered. What
//! the search explores is therefore the real code, each of whose transitions was carried out.
//!
//! # Why two states with one snapshot are one state
//! `Core` is deterministic: no clock, no randomness, no I/O. What it does next follows from its
//! fields and from the ring it shares, and the snapshot has
//! - all of its fields, by its derived `Debug`, which reaches into ledger, router and ring. Left out
//!   are three that decide nothing ([`IDLE`]): `counts` and `sample` are read for reports to people,
//!   `received` for the position up to which a status says to have *written*, which moves no slot;
//! - what the ring's `Debug` leaves out: its words, which are the set of numbers acknowledged and not
//!   collected (what was collected was turned over, as `tail` tells), and whether it was nudged,
//!   which follows from `nacked`.
//!
//! Were something left out all the same, then two paths to one snapshot would go on differently.
//! [`Automaton::audit`] looks for that: it repeats whole walks on a `Core` of their own, and compares.

use std::collections::HashMap;
use std::sync::Arc;

use walrelay_checkpoint::{AckRing, Seq};
use walrelay_event_router::{Options, Router};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Core, Step, TableName};
use walrelay_walsender::Frame;

use crate::fingerprint::{Quick, fingerprint};
use crate::log::{Log, Piece};

/// Not at 0 but shortly before the end of a word of the ring, so that each search goes over it.
const FIRST: u8 = 30;
/// The smallest there is. It never fills up: that the ring goes around is for the tests of
/// `walrelay-checkpoint`.
const RING: usize = 32;

/// Fields of `Core` that decide nothing it does.
const IDLE: [&str; 3] = [" counts: ", " sample: ", " received: "];

/// What can happen to a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Input {
    /// To a slot that stands here.
    Connected(u16),
    Disconnected,
    /// A message of the stream. A row that is offered is not taken by that.
    Frame(Piece),
    /// The same row once more, and the sink takes it.
    Taken(u8),
    Keepalive(u16),
    /// A delivery report.
    Ack(u8),
    Nack(u8),
    /// The relay collects reports.
    Advance,
    /// The sink is thrown away: its router goes into a new core on a slot that stands here.
    Reborn(u16),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Done,
    /// A row's record is offered under this number.
    Offered(u8),
    Blocked,
}

/// What a core answers without changing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) confirmed: u16,
    pub(crate) seen: u16,
    pub(crate) in_flight: u64,
    pub(crate) is_settled: bool,
    pub(crate) is_inside: bool,
    pub(crate) has_failed: bool,
}

/// A live core.
struct Machine {
    core: Option<Core>,
    ring: Arc<AckRing>,
    acked: Vec<u8>,
    /// The number after the last record that was taken.
    next: u64,
}

fn commit_end(at: u16) -> CommitEnd {
    CommitEnd::from_slot(Lsn::new(u64::from(at)))
}

fn position(lsn: Lsn) -> u16 {
    u16::try_from(lsn.get()).expect("positions of the model are small")
}

impl Machine {
    fn new(router: Router, confirmed: u16) -> Self {
        let ring = Arc::new(AckRing::starting_at(Seq::new(u64::from(FIRST)), RING));
        let outbox = TableName {
            schema: "public".into(),
            name: "outbox".into(),
        };
        let core = Core::new(
            router,
            Arc::from([outbox]),
            Arc::clone(&ring),
            commit_end(confirmed),
        );
        Self {
            core: Some(core),
            ring,
            acked: Vec::new(),
            next: u64::from(FIRST),
        }
    }

    fn fresh(confirmed: u16) -> Self {
        Self::new(Router::new(Options::default()), confirmed)
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
                core.frame(&frame).map_err(|error| error.to_string())?;
            }
            Input::Frame(piece) => return self.frame(piece, log, false),
            Input::Taken(row) => return self.frame(Piece::Row(row), log, true),
            Input::Reborn(slot) => {
                let core = self.core.take().expect("it is there between two inputs");
                *self = Self::new(core.into_parts().0, slot);
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
        let seq = match core.frame(&frame).map_err(|error| error.to_string())? {
            Step::Consumed | Step::Reply => return Ok(Output::Done),
            Step::Blocked => return Ok(Output::Blocked),
            Step::AwaitsSchema => unreachable!("no value has a schema here"),
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

    fn view(&self) -> View {
        let core = self.core();
        assert!(
            core.received() >= core.confirmed().lsn(),
            "flushed further than written"
        );
        View {
            confirmed: position(core.confirmed().lsn()),
            seen: position(core.seen().lsn()),
            in_flight: core.in_flight(),
            is_settled: core.is_settled(),
            is_inside: core.is_inside_transaction(),
            has_failed: self.ring.nacked().is_some(),
        }
    }

    fn snapshot(&self) -> u128 {
        let mut text = format!("{:?}", self.core());
        for field in IDLE {
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

/// Takes a field out of a derived `Debug`.
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

/// A state of a core, see [`Automaton`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State(u32);

struct Known {
    /// The slot's position it was made for.
    born: u16,
    /// What led there.
    inputs: Box<[Input]>,
    view: View,
    snapshot: u128,
}

/// All that cores were seen to be and to do, see the [module](self).
pub(crate) struct Automaton {
    known: Vec<Known>,
    numbers: HashMap<u128, State, Quick>,
    steps: HashMap<(State, Input), (State, Output), Quick>,
    starts: HashMap<u16, State, Quick>,
    /// The steps of a walk, when they are recorded.
    walk: Option<Vec<(State, Input, State, Output)>>,
}

impl Automaton {
    pub(crate) fn new() -> Self {
        Self {
            known: Vec::new(),
            numbers: HashMap::default(),
            steps: HashMap::default(),
            starts: HashMap::default(),
            walk: None,
        }
    }

    /// A new core on a slot that stands at `slot`.
    pub(crate) fn start(&mut self, slot: u16) -> State {
        if let Some(state) = self.starts.get(&slot) {
            return *state;
        }
        let state = self.intern(&Machine::fresh(slot), slot, Vec::new);
        self.starts.insert(slot, state);
        state
    }

    /// What `state` becomes by `input`; an error if the core has one.
    pub(crate) fn step(
        &mut self,
        state: State,
        input: Input,
        log: &Log,
    ) -> Result<(State, Output), String> {
        let step = match self.steps.get(&(state, input)) {
            Some(known) => *known,
            None => self.carry_out(state, input, log)?,
        };
        if let Some(walk) = &mut self.walk {
            walk.push((state, input, step.0, step.1));
        }
        Ok(step)
    }

    fn carry_out(
        &mut self,
        state: State,
        input: Input,
        log: &Log,
    ) -> Result<(State, Output), String> {
        let from = &self.known[state.0 as usize];
        let mut machine = Machine::fresh(from.born);
        for earlier in &from.inputs {
            machine.apply(*earlier, log)?;
        }
        let output = machine.apply(input, log)?;
        let from = &self.known[state.0 as usize];
        let (born, inputs) = (from.born, from.inputs.clone());
        let next = match input {
            Input::Reborn(slot) => self.intern(&machine, slot, Vec::new),
            _ => self.intern(&machine, born, || [&*inputs, &[input]].concat()),
        };
        self.steps.insert((state, input), (next, output));
        Ok((next, output))
    }

    pub(crate) fn view(&self, state: State) -> &View {
        &self.known[state.0 as usize].view
    }

    /// How many states, and how many steps between them.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.known.len(), self.steps.len())
    }

    fn intern(
        &mut self,
        machine: &Machine,
        born: u16,
        inputs: impl FnOnce() -> Vec<Input>,
    ) -> State {
        let snapshot = machine.snapshot();
        if let Some(state) = self.numbers.get(&snapshot) {
            return *state;
        }
        let state = State(u32::try_from(self.known.len()).expect("memory ends before"));
        self.numbers.insert(snapshot, state);
        self.known.push(Known {
            born,
            inputs: inputs().into(),
            view: machine.view(),
            snapshot,
        });
        state
    }

    /// Notes from here on what each core of a walk is given, for [`Automaton::audit`].
    pub(crate) fn record(&mut self) {
        self.walk = Some(Vec::new());
    }

    /// Gives cores of their own what the walk gave to this, and compares them at each step. Returns
    /// how many there were.
    pub(crate) fn audit(&mut self, log: &Log) -> usize {
        let walk = self.walk.take().expect("a walk was recorded");
        let mut live: Option<(State, Machine)> = None;
        let mut steps = 0;
        for (from, input, to, output) in walk {
            let mut machine = match live.take() {
                Some((state, machine)) if state == from => machine,
                _ => {
                    let born = &self.known[from.0 as usize];
                    assert!(born.inputs.is_empty(), "the walk goes on elsewhere");
                    Machine::fresh(born.born)
                }
            };
            assert_eq!(machine.apply(input, log), Ok(output), "{input:?}");
            assert_eq!(&machine.view(), self.view(to), "{input:?}");
            assert_eq!(
                machine.snapshot(),
                self.known[to.0 as usize].snapshot,
                "{input:?}"
            );
            steps += 1;
            live = Some((to, machine));
        }
        steps
    }
}
