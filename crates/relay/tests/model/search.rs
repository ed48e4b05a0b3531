//! Searches all reachable states, breadth first: the first path to a broken promise is a shortest
//! one.
//!
//! States are identified by a hash, see [`short_fingerprint`].

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;

use crate::fingerprint::{FastBuildHasher, short_fingerprint};
use crate::system::{Action, Model, System};

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
    pub(crate) depth: usize,
}

struct Search {
    numbers: HashMap<u64, u32, FastBuildHasher>,
    /// For each state: the state and the action before it on a shortest path, and the length of
    /// that path.
    parents: Vec<(u32, Action, u16)>,
    /// For each state: the index in `progress` at which its successors begin.
    offsets: Vec<usize>,
    /// The successors without a fault.
    progress: Vec<u32>,
    /// For each state: whether a state with nothing left to do is known to be reachable without a
    /// fault.
    reaches_end: Vec<bool>,
}

/// Searches all states from the initial one.
pub(crate) fn search(model: &mut Model) -> Result<Extent, Counterexample> {
    let root = System::new(model);
    let mut search = Search {
        numbers: HashMap::from_iter([(short_fingerprint(&root), 0)]),
        parents: vec![(0, Action::Connect, 0)],
        offsets: Vec::new(),
        progress: Vec::new(),
        reaches_end: Vec::new(),
    };
    let mut frontier = VecDeque::from([root]);
    let mut transitions = 0;
    let mut ends = 0;
    let mut actions = Vec::new();
    while let Some(system) = frontier.pop_front() {
        let here = search.offsets.len() as u32;
        search.offsets.push(search.progress.len());
        let depth = search.parents[here as usize].2 + 1;
        actions.clear();
        system.actions(model, &mut actions);
        let mut stuck = true;
        for &action in &actions {
            let next = system
                .step(action, model)
                .and_then(|next| next.check(model).map(|()| next));
            let next = match next {
                Ok(next) => next,
                Err(what) => {
                    let mut path = search.path(here);
                    path.push(action);
                    return Err(describe(model, &path, what));
                }
            };
            if next == system {
                continue;
            }
            transitions += 1;
            let known = search.parents.len() as u32;
            let number = *search
                .numbers
                .entry(short_fingerprint(&next))
                .or_insert(known);
            if number == known {
                search.parents.push((here, action, depth));
                frontier.push_back(next);
            }
            if action.is_progress() {
                stuck = false;
                search.progress.push(number);
            }
        }
        search.reaches_end.push(stuck);
        if stuck {
            ends += 1;
            if let Err(what) = system.check_end(model) {
                return Err(describe(model, &search.path(here), what));
            }
        }
    }
    search.offsets.push(search.progress.len());
    if let Some(lost) = search.without_end() {
        let what = "once nothing goes wrong any more, no way leads to everything delivered";
        return Err(describe(model, &search.path(lost), what.to_owned()));
    }
    Ok(Extent {
        states: search.parents.len(),
        transitions,
        ends,
        depth: search.parents.last().map_or(0, |last| last.2.into()),
    })
}

impl Search {
    fn path(&self, to: u32) -> Vec<Action> {
        let mut path = Vec::new();
        let mut at = to;
        while at != 0 {
            let (parent, action, _) = self.parents[at as usize];
            path.push(action);
            at = parent;
        }
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
fn describe(model: &mut Model, path: &[Action], what: String) -> Counterexample {
    let mut system = System::new(model);
    let mut lines = Vec::new();
    for action in path {
        let mut line = system.describe(*action, model);
        match system.step(*action, model) {
            Ok(next) => {
                let _ = write!(line, "  [{}]", next.summary(model));
                system = next;
            }
            Err(broken) => debug_assert_eq!(broken, what),
        }
        lines.push(line);
    }
    Counterexample { what, path: lines }
}
