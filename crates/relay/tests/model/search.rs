//! Every state that can be reached, breadth first: the first path to a broken promise is a shortest
//! one.
//!
//! States are told apart by a hash, see [`short_fingerprint`].

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;

use crate::fingerprint::{Quick, short_fingerprint};
use crate::world::{Action, Model, World};

/// How a promise is broken.
pub(crate) struct Counterexample {
    /// Which promise, and how.
    pub(crate) what: String,
    /// What happened, one line for each step.
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

/// What a search went through.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    /// Of states in which nothing is left to do.
    pub(crate) ends: usize,
    /// Steps on the longest of the shortest paths.
    pub(crate) depth: usize,
}

struct Search {
    numbers: HashMap<u64, u32, Quick>,
    /// How each state was reached first, and in how many steps.
    parents: Vec<(u32, Action, u16)>,
    /// For each state, where in `progress` its successors begin.
    offsets: Vec<usize>,
    /// The states that follow when nothing goes wrong.
    progress: Vec<u32>,
    good: Vec<bool>,
}

/// Searches everything from the beginning on.
pub(crate) fn search(model: &mut Model) -> Result<Extent, Counterexample> {
    let root = World::new(model);
    let mut search = Search {
        numbers: HashMap::from_iter([(short_fingerprint(&root), 0)]),
        parents: vec![(0, Action::Connect, 0)],
        offsets: Vec::new(),
        progress: Vec::new(),
        good: Vec::new(),
    };
    let mut frontier = VecDeque::from([root]);
    let mut transitions = 0;
    let mut ends = 0;
    let mut actions = Vec::new();
    while let Some(world) = frontier.pop_front() {
        let here = search.offsets.len() as u32;
        search.offsets.push(search.progress.len());
        let depth = search.parents[here as usize].2 + 1;
        actions.clear();
        world.actions(model, &mut actions);
        let mut stuck = true;
        for &action in &actions {
            let next = world
                .step(action, model)
                .and_then(|next| next.check(model).map(|()| next));
            let next = match next {
                Ok(next) => next,
                Err(what) => {
                    let mut path = search.path(here);
                    path.push(action);
                    return Err(tell(model, &path, what));
                }
            };
            if next == world {
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
        search.good.push(stuck);
        if stuck {
            ends += 1;
            if let Err(what) = world.is_whole(model) {
                return Err(tell(model, &search.path(here), what));
            }
        }
    }
    search.offsets.push(search.progress.len());
    if let Some(lost) = search.without_end() {
        let what = "once nothing goes wrong any more, no way leads to everything delivered";
        return Err(tell(model, &search.path(lost), what.to_owned()));
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

    /// A state from which no steps without a fault lead to one where nothing is left to do.
    fn without_end(&mut self) -> Option<u32> {
        loop {
            let mut changed = false;
            for state in (0..self.good.len()).rev() {
                let next = &self.progress[self.offsets[state]..self.offsets[state + 1]];
                if !self.good[state] && next.iter().any(|next| self.good[*next as usize]) {
                    self.good[state] = true;
                    changed = true;
                }
            }
            if !changed {
                return self.good.iter().position(|good| !good).map(|at| at as u32);
            }
        }
    }
}

fn tell(model: &mut Model, path: &[Action], what: String) -> Counterexample {
    let mut world = World::new(model);
    let mut lines = Vec::new();
    for action in path {
        let mut line = world.tell(*action, model);
        match world.step(*action, model) {
            Ok(next) => {
                let _ = write!(line, "  [{}]", next.summary(model));
                world = next;
            }
            Err(broken) => debug_assert_eq!(broken, what),
        }
        lines.push(line);
    }
    Counterexample { what, path: lines }
}
