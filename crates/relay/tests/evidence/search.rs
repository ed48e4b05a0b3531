//! Searches all reachable states, breadth first: the first path to a broken promise is a shortest
//! one. States are identified by a hash, see [`short_fingerprint`].

use std::collections::{HashMap, VecDeque};

use crate::fingerprint::{FastBuildHasher, short_fingerprint};
use crate::system::{Action, Model, System};

/// A path to a broken promise.
pub(crate) struct Counterexample {
    /// The broken promise.
    pub(crate) what: String,
    pub(crate) path: Vec<Action>,
}

impl std::fmt::Display for Counterexample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, action) in self.path.iter().enumerate() {
            writeln!(f, "{:4}. {action:?}", number + 1)?;
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

#[derive(Default)]
struct Search {
    numbers: HashMap<u64, u32, FastBuildHasher>,
    /// For each state but the first: the state and the action before it on a shortest path, and the
    /// length of that path.
    parents: Vec<Option<(u32, Action, u16)>>,
    /// The steps without a fault, as pairs of states.
    progress: Vec<(u32, u32)>,
    /// For each state: a state with nothing left to do can be reached without a fault.
    reaches_end: Vec<bool>,
}

/// Searches all states from the initial one.
pub(crate) fn search(model: &mut Model) -> Result<Extent, Counterexample> {
    let root = System::new(model);
    let mut search = Search {
        numbers: HashMap::from_iter([(short_fingerprint(&root), 0)]),
        parents: vec![None],
        ..Search::default()
    };
    let mut frontier = VecDeque::from([root]);
    let (mut transitions, mut ends) = (0, 0);
    let mut actions = Vec::new();
    while let Some(system) = frontier.pop_front() {
        let here = search.reaches_end.len() as u32;
        let depth = search.parents[here as usize].map_or(0, |(_, _, depth)| depth) + 1;
        actions.clear();
        system.actions(model, &mut actions);
        let mut is_end = true;
        for &action in &actions {
            let next = match system.step(action, model) {
                Ok(next) => next,
                Err(what) => {
                    let mut path = search.path(here);
                    path.push(action);
                    return Err(Counterexample { what, path });
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
                search.parents.push(Some((here, action, depth)));
                frontier.push_back(next);
            }
            if action.is_progress() {
                is_end = false;
                search.progress.push((here, number));
            }
        }
        search.reaches_end.push(is_end);
        if is_end {
            ends += 1;
            if let Err(what) = system.check_end(model) {
                let path = search.path(here);
                return Err(Counterexample { what, path });
            }
        }
    }
    if let Some(lost) = search.without_end() {
        return Err(Counterexample {
            what: "E3: without further faults, no way leads to an end".to_owned(),
            path: search.path(lost),
        });
    }
    Ok(Extent {
        states: search.parents.len(),
        transitions,
        ends,
        depth: search
            .parents
            .last()
            .and_then(|last| *last)
            .map_or(0, |(_, _, depth)| depth),
    })
}

impl Search {
    fn path(&self, to: u32) -> Vec<Action> {
        let parent = |at: &(u32, Action, u16)| self.parents[at.0 as usize];
        let steps = std::iter::successors(self.parents[to as usize], parent);
        let mut path: Vec<Action> = steps.map(|(_, action, _)| action).collect();
        path.reverse();
        path
    }

    /// Returns a state from which no end can be reached without a fault.
    fn without_end(&mut self) -> Option<u32> {
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for (from, to) in self.progress.iter().rev() {
                if self.reaches_end[*to as usize] && !self.reaches_end[*from as usize] {
                    self.reaches_end[*from as usize] = true;
                    changed = true;
                }
            }
        }
        let lost = self.reaches_end.iter().position(|reaches| !reaches);
        lost.map(|state| state as u32)
    }
}
