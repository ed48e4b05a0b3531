//! Searches all reachable states of a modelled system, breadth first: the first path to a broken promise is
//! a shortest one.
//!
//! States are identified by a hash, see [`short_fingerprint`].

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use crate::fingerprint::{FastBuildHasher, short_fingerprint};

/// A state of a modelled system.
pub(crate) trait State: PartialEq + Hash + Sized {
    type Model;
    type Action: Copy;

    /// The breach of a promise that a state has from which no end can be reached without further faults.
    const WITHOUT_END: &str;

    fn first(model: &Self::Model) -> Self;

    /// Adds the actions that are possible next.
    fn actions(&self, model: &Self::Model, actions: &mut Vec<Self::Action>);

    /// Returns the state after `action`, or the broken promise.
    fn step(&self, action: Self::Action, model: &mut Self::Model) -> Result<Self, String>;

    /// Returns true if the action is no fault, and nothing that others do.
    fn is_progress(action: Self::Action) -> bool;

    /// Checks a state in which nothing is left to do.
    fn check_end(&self, model: &Self::Model) -> Result<(), String>;

    /// Writes the action for a person.
    fn describe(&self, action: Self::Action, model: &mut Self::Model) -> String;
}

/// A path to a broken promise.
pub(crate) struct Counterexample {
    /// The broken promise.
    pub(crate) what: String,
    /// One line for each step.
    pub(crate) path: Vec<String>,
}

impl std::fmt::Display for Counterexample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, line) in self.path.iter().enumerate() {
            writeln!(f, "{:4}. {line}", number + 1)?;
        }
        write!(f, "      => {}", self.what)
    }
}

/// The extent of a search.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    /// The number of states in which nothing is left to do.
    pub(crate) ends: usize,
    /// The number of steps on the longest of the shortest paths.
    pub(crate) depth: u16,
}

struct Search<A> {
    numbers: HashMap<u64, u32, FastBuildHasher>,
    /// For each state but the first: the state and the action before it on a shortest path, and the
    /// length of that path.
    parents: Vec<Option<(u32, A, u16)>>,
    /// For each state: the index in `progress` at which its successors begin.
    offsets: Vec<usize>,
    /// The successors without a fault.
    progress: Vec<u32>,
    /// For each state: whether a state with nothing left to do is known to be reachable without a
    /// fault.
    reaches_end: Vec<bool>,
}

/// Searches all states from the initial one.
pub(crate) fn search<S: State>(model: &mut S::Model) -> Result<Extent, Counterexample> {
    let root = S::first(model);
    let mut search = Search {
        numbers: HashMap::from_iter([(short_fingerprint(&root), 0)]),
        parents: vec![None],
        offsets: Vec::new(),
        progress: Vec::new(),
        reaches_end: Vec::new(),
    };
    let mut frontier = VecDeque::from([root]);
    let mut transitions = 0;
    let mut ends = 0;
    let mut actions = Vec::new();
    while let Some(state) = frontier.pop_front() {
        let here = search.offsets.len() as u32;
        search.offsets.push(search.progress.len());
        let depth = search.parents[here as usize].map_or(0, |(_, _, depth)| depth) + 1;
        actions.clear();
        state.actions(model, &mut actions);
        let mut stuck = true;
        for &action in &actions {
            let next = match state.step(action, model) {
                Ok(next) => next,
                Err(what) => {
                    let mut path = search.path(here);
                    path.push(action);
                    return Err(describe::<S>(model, &path, what));
                }
            };
            if next == state {
                continue;
            }
            transitions += 1;
            let known = search.parents.len() as u32;
            let number = *search
                .numbers
                .entry(short_fingerprint(&next))
                .or_insert(known);
            if number == known {
                search.parents.push(Some((here, action, depth)));
                frontier.push_back(next);
            }
            if S::is_progress(action) {
                stuck = false;
                search.progress.push(number);
            }
        }
        search.reaches_end.push(stuck);
        if stuck {
            ends += 1;
            if let Err(what) = state.check_end(model) {
                return Err(describe::<S>(model, &search.path(here), what));
            }
        }
    }
    search.offsets.push(search.progress.len());
    if let Some(lost) = search.without_end() {
        let path = search.path(lost);
        return Err(describe::<S>(model, &path, S::WITHOUT_END.to_owned()));
    }
    let last = search.parents.last().copied().flatten();
    Ok(Extent {
        states: search.parents.len(),
        transitions,
        ends,
        depth: last.map_or(0, |(_, _, depth)| depth),
    })
}

impl<A: Copy> Search<A> {
    fn path(&self, to: u32) -> Vec<A> {
        let parent = |at: &(u32, A, u16)| self.parents[at.0 as usize];
        let steps = std::iter::successors(self.parents[to as usize], parent);
        let mut path: Vec<A> = steps.map(|(_, action, _)| action).collect();
        path.reverse();
        path
    }

    /// Returns a state from which no state with nothing left to do can be reached without a fault.
    fn without_end(&mut self) -> Option<u32> {
        loop {
            let mut changed = false;
            for state in (0..self.reaches_end.len()).rev() {
                let next = &self.progress[self.offsets[state]..self.offsets[state + 1]];
                if !self.reaches_end[state]
                    && next.iter().any(|next| self.reaches_end[*next as usize])
                {
                    self.reaches_end[state] = true;
                    changed = true;
                }
            }
            if !changed {
                let lost = self.reaches_end.iter().position(|reaches| !reaches);
                return lost.map(|state| state as u32);
            }
        }
    }
}

/// Describes each step of the path.
fn describe<S: State>(model: &mut S::Model, path: &[S::Action], what: String) -> Counterexample {
    let mut state = S::first(model);
    let mut lines = Vec::new();
    for action in path {
        lines.push(state.describe(*action, model));
        match state.step(*action, model) {
            Ok(next) => state = next,
            Err(broken) => debug_assert_eq!(broken, what),
        }
    }
    Counterexample { what, path: lines }
}
