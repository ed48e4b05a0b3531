//! [`SentAccount`]: the sums of acknowledged transactions, until they are written into the database.

use std::collections::HashMap;
use std::sync::Mutex;

use walrelay_lsn::Lsn;
use walrelay_sink::lock;

use super::sums::{AccountColumns, Bucket, BucketSum, Counted};

/// The sums of acknowledged transactions that are not written yet.
#[derive(Debug)]
pub struct SentAccount {
    pub(super) columns: AccountColumns,
    /// The events of the InSink transactions may be dead letters, which nothing tells any more.
    pub(super) writes_dead_letters: bool,
    pub(super) state: Mutex<Acknowledged>,
}

#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    /// Rows of this stream are counted.
    pub(super) counts: bool,
    /// Changes when what was counted is forgotten.
    pub(super) generation: u64,
    /// The position up to which sums were taken.
    from: Lsn,
    /// The position up to which all is counted.
    pub(super) upto: Lsn,
    pub(super) sums: HashMap<Bucket, BucketSum>,
    /// Sums that were taken. They may be written already, if the answer was lost.
    taken: Option<Counted>,
}

impl Acknowledged {
    fn forget(&mut self, through: Lsn, counts: bool) {
        *self = Self {
            counts,
            generation: self.generation + 1,
            from: through,
            upto: through,
            ..Self::default()
        };
    }
}

impl SentAccount {
    /// Creates an account that counts nothing before a stream begins. `writes_dead_letters`: events
    /// may become dead letters.
    pub fn new(columns: AccountColumns, writes_dead_letters: bool) -> Self {
        Self {
            columns,
            writes_dead_letters,
            state: Mutex::default(),
        }
    }

    /// Begins a stream. `through`: the position up to which the database has counted; `None`: rows of this
    /// stream are not counted. Sums that continue this position are kept.
    pub fn begin(&self, through: Option<Lsn>) {
        let mut state = lock(&self.state);
        let Some(through) = through else {
            state.forget(Lsn::ZERO, false);
            return;
        };
        if state
            .taken
            .as_ref()
            .is_some_and(|taken| taken.to == through)
        {
            state.taken = None;
        }
        let expected = state.taken.as_ref().map_or(state.from, |taken| taken.from);
        if !state.counts || expected != through {
            state.forget(through, true);
        }
    }

    /// Begins a snapshot, whose rows are the only ones to be counted until the stream begins.
    pub fn begin_snapshot(&self) {
        lock(&self.state).forget(Lsn::ZERO, true);
    }

    /// Returns sums to be written, if there are any: the same ones until they are
    /// [written](Self::written).
    pub fn take(&self) -> Option<Counted> {
        let mut state = lock(&self.state);
        if state.taken.is_none() && !state.sums.is_empty() {
            let (from, to) = (state.from, state.upto);
            let sums = std::mem::take(&mut state.sums);
            state.from = to;
            state.taken = Some(Counted { from, to, sums });
        }
        state.taken.clone()
    }

    /// Notes that the taken sums are written.
    pub fn written(&self) {
        lock(&self.state).taken = None;
    }
}
