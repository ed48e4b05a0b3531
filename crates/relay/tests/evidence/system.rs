//! The system as a value: the log, the table, the relays with their slots, notes and accounts, and
//! the actions. `actions.rs` has which are possible, `step.rs` their effect, `database.rs` that of pruning.

use crate::database::{Event, Numbers, Row, Snapshot, Sums, Version};
use crate::machine::{Batch, START, commit_of, end_of};
use crate::mistake::Mistake;
use crate::relay::{Processes, StateId, known};
use crate::scenario::{Change, Scenario};
use crate::search::State;

pub(crate) struct Model {
    pub(crate) scenario: Scenario,
    pub(crate) mistake: Option<Mistake>,
    pub(crate) processes: Processes,
    /// The real numbers and hashes of each event.
    known: Vec<(Numbers, [u8; 16])>,
}

impl Model {
    pub(crate) fn new(scenario: Scenario, mistake: Option<Mistake>) -> Self {
        let of_event = |index| {
            let (sums, hash) = known(Event::at(index));
            (sums.total(), hash.expect("each row has a key"))
        };
        Self {
            scenario,
            mistake,
            processes: Processes::new(scenario.marks, scenario.marks_dead),
            known: (0..Event::ALL).map(of_event).collect(),
        }
    }

    pub(crate) fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    pub(crate) fn numbers(&self, event: Event) -> Numbers {
        self.known[event.index()].0
    }

    pub(crate) fn event_of(&self, hash: &[u8; 16]) -> Event {
        let found = self.known.iter().position(|(_, known)| known == hash);
        Event::at(found.expect("a row of the model"))
    }
}

/// The dead letters of a relay, as bits by [`Event::index`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Letters {
    pub(crate) open: u16,
    pub(crate) resolved: u16,
}

impl Letters {
    pub(crate) fn is_open(self, event: Event) -> bool {
        self.open & 1 << event.index() != 0
    }

    pub(crate) fn is_known(self, event: Event) -> bool {
        (self.open | self.resolved) & 1 << event.index() != 0
    }
}

/// A committed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Transaction {
    pub(crate) rows: [Option<Row>; 2],
    /// For each relay: bits of the rows that its slot carries.
    pub(crate) carried: [u8; 2],
}

/// An attempt to note a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    pub(crate) position: u16,
    /// The sums of the attempt are not written yet.
    pub(crate) adds: bool,
}

/// The thread that marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Marking {
    Idle,
    /// Keys are taken.
    Taken,
    /// Their rows are marked, or the keys are stored.
    Done,
}

/// A process of a relay.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) state: StateId,
    /// The number of the transaction that the server sends next; `None`: there is no stream.
    pub(crate) reads: Option<u8>,
    /// The highest position that may be confirmed.
    pub(crate) noted: u16,
    /// The highest position before which rows were marked.
    pub(crate) marked: u16,
    pub(crate) attempt: Option<Attempt>,
    /// The last attempt failed.
    pub(crate) fails: bool,
    pub(crate) marking: Marking,
}

/// A relay with its slot, and what the database and the destination have of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Relay {
    pub(crate) slot: u16,
    pub(crate) note: u16,
    /// The user has accepted that inserts before this position are not sent.
    pub(crate) accepted: u16,
    pub(crate) through: u16,
    pub(crate) sums: Sums,
    /// The sum of all that was ever added to the account.
    pub(crate) added: Numbers,
    /// Bits of inserts whose records were acknowledged, and of those whose dead letters were.
    pub(crate) acked: u16,
    pub(crate) diverted: u16,
    pub(crate) letters: Letters,
    pub(crate) is_filtered: bool,
    pub(crate) is_published: bool,
    pub(crate) process: Option<Process>,
    /// Sums that a killed process has sent to the server.
    pub(crate) late: Option<Batch>,
}

/// What can happen to a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// Opens a stream, in a new process if there is none.
    Connect,
    /// As `Connect`, with `--accept-gap`.
    AcceptGap,
    Read,
    Cut(u8),
    Ack(u8),
    /// Begins to note the position, with the sums up to there.
    Note,
    /// The server adds the sums to the account.
    Add,
    /// The server raises the note.
    Raise,
    /// The server executes the next statement or not, and its answer is lost.
    LoseAnswer {
        executed: bool,
    },
    /// The slot takes the noted position.
    Confirm,
    TakeKeys,
    Mark,
    Store,
    Settle,
    /// The answer of the marks is lost: the keys are taken again.
    LoseMarks,
    WorkOff,
    /// Marks the rows of stored keys of dead letters: as sent, if those are resolved.
    WorkDead,
    Disconnect,
    FailSink,
    Kill,
    /// The statement of a killed process is executed.
    AddLate,
    /// The server has restarted, and the slot is at its first position.
    SetBack,
    /// SQL moves the slot to the end of the log, or drops it and creates it there.
    Move,
    Filter,
    Publish,
    /// All dead letters are resolved: their events were sent, or may go.
    Resolve,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// The service commits its next transaction.
    Commit,
    Relay(u8, Op),
    /// A change of the row with this index.
    Change(Change, u8),
    /// A process of this number takes its snapshot, for this relay.
    TakeSnapshot(u8, u8),
    Prune(u8),
    PruneMarked,
}

impl Action {
    /// Returns true if it is no fault, and nothing that others do.
    pub(crate) const fn is_progress(self) -> bool {
        match self {
            Self::Commit | Self::Prune(_) => true,
            Self::Change(..) | Self::TakeSnapshot(..) | Self::PruneMarked => false,
            Self::Relay(_, op) => !matches!(
                op,
                Op::Cut(_)
                    | Op::LoseAnswer { .. }
                    | Op::LoseMarks
                    | Op::Store
                    | Op::Disconnect
                    | Op::FailSink
                    | Op::Kill
                    | Op::AddLate
                    | Op::SetBack
                    | Op::Move
                    | Op::Filter
                    | Op::Publish
            ),
        }
    }
}

/// A state of the system.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct System {
    pub(crate) committed: u8,
    pub(crate) log: Vec<Transaction>,
    pub(crate) rows: Vec<Version>,
    pub(crate) next_place: u8,
    /// Keys of rows that were sent and are not marked.
    pub(crate) stored: Vec<Event>,
    /// Keys of rows whose events became dead letters.
    pub(crate) dead: Vec<Event>,
    pub(crate) relays: Vec<Relay>,
    pub(crate) prunes: [Option<Snapshot>; 2],
    pub(crate) crashes: u8,
    pub(crate) lost: u8,
    pub(crate) changes: u8,
    pub(crate) ddl: u8,
    pub(crate) moves: u8,
    pub(crate) snapshots: u8,
}

impl State for System {
    type Model = Model;
    type Action = Action;

    const WITHOUT_END: &str = "E3: without further faults, no way leads to an end";

    fn first(model: &Model) -> Self {
        Self::new(model)
    }

    fn actions(&self, model: &Model, actions: &mut Vec<Action>) {
        self.actions(model, actions);
    }

    fn step(&self, action: Action, model: &mut Model) -> Result<Self, String> {
        self.step(action, model)
    }

    fn is_progress(action: Action) -> bool {
        action.is_progress()
    }

    fn check_end(&self, model: &Model) -> Result<(), String> {
        self.check_end(model)
    }

    fn describe(&self, action: Action, _model: &mut Model) -> String {
        format!("{action:?}")
    }
}

impl System {
    pub(crate) fn new(model: &Model) -> Self {
        let Scenario {
            relays,
            crashes,
            lost,
            changes,
            ddl,
            moves,
            prunes,
            ..
        } = model.scenario;
        let relay = Relay {
            slot: START,
            note: START,
            accepted: START,
            through: 0,
            sums: Sums::default(),
            added: Numbers::default(),
            acked: 0,
            diverted: 0,
            letters: Letters::default(),
            is_filtered: false,
            is_published: true,
            process: None,
            late: None,
        };
        Self {
            committed: 0,
            log: Vec::new(),
            rows: Vec::new(),
            next_place: 0,
            stored: Vec::new(),
            dead: Vec::new(),
            relays: vec![relay; relays],
            prunes: [None, None],
            crashes,
            lost,
            changes: changes.1,
            ddl,
            moves,
            snapshots: prunes,
        }
    }

    /// Returns the end of the log.
    pub(crate) fn end(&self) -> u16 {
        self.log.len().checked_sub(1).map_or(START, end_of)
    }

    /// Returns the first transaction that a slot at this position sends.
    pub(crate) fn first_from(&self, slot: u16) -> u8 {
        let all = 0..self.log.len();
        all.filter(|number| commit_of(*number) < slot).count() as u8
    }

    pub(crate) fn has_key(&self, key: u8) -> bool {
        self.rows.iter().any(|row| row.event.key == key)
    }
}
