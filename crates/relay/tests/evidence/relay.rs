//! The processes of relays, as states that can be compared.
//!
//! As in `tests/model/core.rs`, a state is a number with the inputs that led to it. Each step is executed
//! once, on a new [`Machine`] that repeats these inputs.

use std::collections::HashMap;

use crate::database::{Event, Row, Sums};
use crate::fingerprint::FastBuildHasher;
use crate::machine::{Carried, Input, Machine, START, View};

/// A state of a process: an index into the states of [`Processes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StateId(u32);

/// All known states and steps of processes, see the [module](self).
pub(crate) struct Processes {
    /// Rows are marked, and those of dead letters.
    marks: (bool, bool),
    states: Vec<(Box<[Input]>, View)>,
    numbers: HashMap<u128, StateId, FastBuildHasher>,
    steps: HashMap<(StateId, Input), StateId, FastBuildHasher>,
    /// The steps of the walk that is being recorded, if one is.
    walk: Option<Vec<(StateId, Input, StateId)>>,
}

impl Processes {
    pub(crate) fn new(marks: bool, dead: bool) -> Self {
        Self {
            marks: (marks, dead),
            states: vec![(Box::default(), View::default())],
            numbers: HashMap::default(),
            steps: HashMap::default(),
            walk: None,
        }
    }

    /// Returns the state of a process before its first stream.
    pub(crate) const fn start() -> StateId {
        StateId(0)
    }

    pub(crate) fn view(&self, state: StateId) -> &View {
        &self.states[state.0 as usize].1
    }

    pub(crate) fn step(&mut self, state: StateId, input: Input) -> StateId {
        let known = self.steps.get(&(state, input)).copied();
        let next = known.unwrap_or_else(|| self.execute(state, input));
        if let Some(walk) = &mut self.walk {
            walk.push((state, input, next));
        }
        next
    }

    fn execute(&mut self, state: StateId, input: Input) -> StateId {
        let inputs = [&*self.states[state.0 as usize].0, &[input]].concat();
        let machine = self.repeat(&inputs);
        let view = machine.view();
        let known = StateId(u32::try_from(self.states.len()).expect("memory ends before"));
        let next = *self.numbers.entry(machine.snapshot()).or_insert(known);
        if next == known {
            self.states.push((inputs.into(), view));
        }
        self.steps.insert((state, input), next);
        next
    }

    fn machine(&self) -> Machine {
        let (marks, dead) = self.marks;
        Machine::new(marks, dead)
    }

    fn repeat(&self, inputs: &[Input]) -> Machine {
        let mut machine = self.machine();
        for input in inputs {
            machine.apply(*input);
        }
        machine
    }

    /// Starts to record the steps of a walk, for [`Processes::audit`].
    pub(crate) fn record(&mut self) {
        self.walk = Some(Vec::new());
    }

    /// Repeats the recorded walk of one relay on separate machines, and compares what the model sees.
    /// Returns the number of steps.
    pub(crate) fn audit(&mut self) -> usize {
        let walk = self.walk.take().expect("a walk was recorded");
        let mut machine = self.machine();
        for (from, input, to) in &walk {
            if *from == Self::start() {
                machine = self.machine();
            }
            machine.apply(*input);
            assert_eq!(&machine.view(), self.view(*to), "{input:?}");
        }
        walk.len()
    }

    /// Returns the numbers of states and of steps.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.states.len(), self.steps.len())
    }
}

/// Returns what the real code accounts of an event, and the hash of its row in the key of a mark.
pub(crate) fn known(event: Event) -> (Sums, Option<[u8; 16]>) {
    let row = Row::from(event);
    let read = |marks, last| {
        let mut machine = Machine::new(marks, false);
        let carried = Carried {
            number: 0,
            rows: [Some(row), None],
        };
        let begin = Input::Begin {
            slot: START,
            through: START,
        };
        for input in [begin, Input::Read(carried), Input::Ack(0), last] {
            machine.apply(input);
        }
        machine.view()
    };
    let sums = read(false, Input::Take).batch.expect("one row is counted");
    let keys = read(true, Input::TakeKeys).keys;
    (sums.sums, keys.and_then(|keys| Some(keys.first()?.hash)))
}
