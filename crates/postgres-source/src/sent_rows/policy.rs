//! The policy of sent rows: decides from numbers alone which rows count as sent.
//!
//! The rows of a bucket count as sent if the table has, for each slot, exactly the rows that its relay
//! accounted: the same number, and the same sums of hashes. Whatever a slot did not carry, and whatever
//! else changed the table, makes these differ, so no cause needs a rule of its own here.
//!
//! Only this file makes a [`Proof`], and rows are deleted only with one.

use walrelay_relay::{BucketSum, RowSum};

#[cfg(test)]
mod tests;

/// A bucket whose rows are not those that are accounted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Difference {
    /// The number of the bucket.
    pub bucket: i64,
    /// Rows of the table.
    pub present: i64,
    /// Rows of the account.
    pub accounted: i64,
    /// Rows that became dead letters of the own slot, and whose dead letters the store does not have.
    pub lost_dead_letters: i64,
    /// The rows differ also if no row counts as a dead letter.
    pub rows_differ: bool,
}

/// The numbers of a bucket's rows by one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Rows of the table that the slot carries.
    pub(crate) present: i64,
    /// Rows of the slot's account.
    pub(crate) accounted: i64,
}

/// The rows of a bucket, counted and not compared yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The counts of the first slot that differs, or else of the own slot.
    pub(crate) counts: Difference,
    estimate: Estimate,
}

/// The decision about a bucket's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Estimate {
    /// The table has no row left.
    Gone,
    /// The rows stay.
    Differs(Difference),
    /// The rows may be those of the accounts: an exact comparison tells.
    MayBeSent,
}

impl Candidate {
    /// Reads the counts of each slot, the own one first. `None`: there are no rows to decide about.
    pub(crate) fn new(bucket: i64, slots: &[Counts]) -> Option<Self> {
        let differs = slots.iter().find(|one| one.present != one.accounted);
        let Counts { present, accounted } = *differs.or(slots.first())?;
        let counts = Difference {
            bucket,
            present,
            accounted,
            lost_dead_letters: 0,
            rows_differ: differs.is_some(),
        };
        // Filters differ, so one slot may carry none of the rows that are left.
        let estimate = if slots.iter().all(|slot| slot.present == 0) {
            Estimate::Gone
        } else if differs.is_none() {
            Estimate::MayBeSent
        } else {
            Estimate::Differs(counts)
        };
        let is_any = present > 0 || accounted != 0;
        is_any.then_some(Self { counts, estimate })
    }

    /// Returns what the counts tell.
    pub(crate) fn estimate(&self) -> Estimate {
        self.estimate
    }
}

/// The rows of a bucket by one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SlotRows {
    /// Rows of the table that the slot carries. Diverted are those of a dead letter that the relay's
    /// store of dead letters has, open or resolved.
    pub(crate) present: BucketSum,
    /// Rows of the slot's account.
    pub(crate) accounted: BucketSum,
}

/// The rows of a bucket, under one snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BucketRows {
    /// The number of the bucket.
    pub(crate) number: i64,
    /// The rows by each slot, the own one first.
    pub(crate) slots: Vec<SlotRows>,
    /// Rows of the table with an open dead letter of the own slot.
    pub(crate) open: u64,
}

/// The proof that rows were sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proof {
    /// The first and the last bucket of these rows. `None`: no account has them.
    buckets: Option<(i64, i64)>,
    /// The buckets whose dead letters are all resolved, and still accounted as dead letters, with the
    /// sums that were compared.
    settles: Vec<(i64, RowSum)>,
}

impl Proof {
    /// Returns the first and the last bucket of the rows; `None` if no account has them.
    pub(crate) fn buckets(&self) -> Option<(i64, i64)> {
        self.buckets
    }

    /// Returns the buckets whose rows of resolved dead letters are to be accounted as sent, with the sums
    /// of these rows. No other rows of a bucket were compared, so none must be settled with them.
    pub(crate) fn settles(&self) -> &[(i64, RowSum)] {
        &self.settles
    }
}

/// The decision about rows. `R`: the reason why they stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict<R> {
    /// All rows count as sent.
    Sent(Proof),
    /// Rows of dead letters stay, because some of these are open. The other rows count as sent.
    OpenDeadLetters {
        /// The number of rows with an open dead letter.
        rows: u64,
        /// The proof for the rows without a dead letter.
        others: Proof,
    },
    /// All rows stay.
    Stays(R),
}

impl BucketRows {
    /// Decides about the rows of the bucket.
    pub(crate) fn verdict(&self) -> Verdict<Difference> {
        if self.slots.iter().any(|slot| slot.present != slot.accounted) {
            return Verdict::Stays(self.difference());
        }
        let buckets = Some((self.number, self.number));
        if self.open > 0 {
            // Resolved dead letters of the bucket wait for the open ones: they are accounted together.
            return Verdict::OpenDeadLetters {
                rows: self.open,
                others: Proof {
                    buckets,
                    settles: Vec::new(),
                },
            };
        }
        Verdict::Sent(Proof {
            buckets,
            settles: self.diverted().into_iter().collect(),
        })
    }

    /// Returns the numbers of rows of the own slot, and in what they differ.
    fn difference(&self) -> Difference {
        let own = self.slots.first().copied().unwrap_or_default();
        let (present, accounted) = (total(own.present), total(own.accounted));
        let lost = own.accounted.diverted.rows - own.present.diverted.rows;
        let mut others = self.slots.iter().skip(1);
        Difference {
            bucket: self.number,
            present: present.rows,
            accounted: accounted.rows,
            lost_dead_letters: lost.max(0),
            rows_differ: lost <= 0
                || present != accounted
                || others.any(|slot| slot.present != slot.accounted),
        }
    }

    /// Returns the bucket with its rows that are accounted as dead letters of the own slot, if it has any.
    fn diverted(&self) -> Option<(i64, RowSum)> {
        let diverted = self.slots.first()?.accounted.diverted;
        (diverted != RowSum::default()).then_some((self.number, diverted))
    }
}

/// The rows of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartitionRows {
    /// The relay marks sent rows.
    Marked {
        /// Rows without a mark.
        unmarked: u64,
    },
    /// The relay accounts sent rows.
    Accounted {
        /// Rows without a finite time, which are in no bucket.
        timeless: u64,
        /// The buckets of which the partition has rows, in ascending order.
        buckets: Vec<BucketRows>,
        /// Rows of the partition with an open dead letter, in a bucket or not.
        open: u64,
    },
}

/// The reason why a partition stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    /// This number of rows is not marked.
    Unmarked(u64),
    /// This number of rows has no finite time.
    Timeless(u64),
    /// Rows are not those that are accounted.
    Differs(Vec<Difference>),
}

impl PartitionRows {
    /// Decides about the whole partition. Only with [`Verdict::Sent`] may it be dropped.
    pub(crate) fn verdict(&self) -> Verdict<Reason> {
        let none = Proof {
            buckets: None,
            settles: Vec::new(),
        };
        let (buckets, open) = match self {
            Self::Marked { unmarked: 0 } => return Verdict::Sent(none),
            Self::Marked { unmarked } => return Verdict::Stays(Reason::Unmarked(*unmarked)),
            Self::Accounted {
                timeless: 0,
                buckets,
                open,
            } => (buckets, *open),
            Self::Accounted { timeless, .. } => return Verdict::Stays(Reason::Timeless(*timeless)),
        };
        let differ = buckets.iter().filter_map(|bucket| match bucket.verdict() {
            Verdict::Stays(difference) => Some(difference),
            _ => None,
        });
        let differ: Vec<Difference> = differ.collect();
        if !differ.is_empty() {
            return Verdict::Stays(Reason::Differs(differ));
        }
        // A bucket at an end may be shared with the next partition, whose dead letters would be settled.
        let open = buckets
            .iter()
            .map(|bucket| bucket.open)
            .sum::<u64>()
            .max(open);
        let ends = buckets.first().zip(buckets.last());
        let proof = Proof {
            buckets: ends.map(|(first, last)| (first.number, last.number)),
            settles: buckets.iter().filter_map(BucketRows::diverted).collect(),
        };
        if open > 0 {
            return Verdict::OpenDeadLetters {
                rows: open,
                others: Proof {
                    settles: Vec::new(),
                    ..proof
                },
            };
        }
        Verdict::Sent(proof)
    }
}

/// Returns the sums of all rows, sent or diverted.
fn total(sum: BucketSum) -> RowSum {
    let BucketSum { sent, diverted } = sum;
    RowSum {
        rows: sent.rows + diverted.rows,
        high: sent.high + diverted.high,
        low: sent.low + diverted.low,
    }
}
