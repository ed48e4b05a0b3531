//! The policy of sent rows: decides only from numbers which rows count as sent.
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
    /// Rows that became dead letters of other slots, which their relays have not settled.
    pub unsettled: i64,
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
    /// The rows may be those of the accounts: an exact comparison decides.
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
            rows_differ: differs.is_some(),
            ..Difference::default()
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

    /// Returns the verdict of the counts.
    pub(crate) fn estimate(&self) -> Estimate {
        self.estimate
    }
}

/// The rows of a bucket by one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SlotRows {
    /// Rows of the table that the slot carries. Diverted are those of a dead letter that the own relay's
    /// store of dead letters has, open or resolved. The stores of other relays are not read.
    pub(crate) present: BucketSum,
    /// Rows of the slot's account.
    pub(crate) accounted: BucketSum,
    /// The slot's relay has found the dead letters of all accounted rows resolved.
    pub(crate) is_settled: bool,
}

impl SlotRows {
    fn has_unsettled(&self) -> bool {
        !self.is_settled && self.accounted.diverted != RowSum::default()
    }
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

/// The rows of a bucket that a slot accounts as dead letters, which are all resolved. No other rows were
/// compared, so none must be settled with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResolvedRows {
    /// The number of the slot, the own one first.
    pub(crate) slot: usize,
    /// The number of the bucket.
    pub(crate) bucket: i64,
    /// The sums that were compared.
    pub(crate) sum: RowSum,
}

/// The proof that rows were sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proof {
    /// The first and the last bucket of these rows. `None`: no account has them.
    buckets: Option<(i64, i64)>,
    resolved: Vec<ResolvedRows>,
}

impl Proof {
    /// Returns the first and the last bucket of the rows; `None` if no account has them.
    pub(crate) fn buckets(&self) -> Option<(i64, i64)> {
        self.buckets
    }

    /// Returns the rows that are still accounted as dead letters, and count as sent from now on.
    pub(crate) fn resolved(&self) -> &[ResolvedRows] {
        &self.resolved
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
        /// The proof for the rows without a dead letter. `None`: other slots have rows of dead letters.
        others: Option<Proof>,
    },
    /// All rows stay until the relays of other slots have settled their dead letters.
    Unsettled {
        /// The rows of the own slot that are to be marked as settled.
        resolved: Vec<ResolvedRows>,
        /// The reason.
        reason: R,
    },
    /// All rows stay.
    Stays(R),
}

impl BucketRows {
    /// Decides about the rows of the bucket.
    pub(crate) fn verdict(&self) -> Verdict<Difference> {
        let difference = self.difference();
        if difference.rows_differ || difference.lost_dead_letters > 0 {
            return Verdict::Stays(difference);
        }
        let buckets = Some((self.number, self.number));
        if self.open > 0 {
            // Resolved dead letters of the bucket wait for the open ones: they are accounted together.
            let is_of_own = self.diverted().all(|rows| rows.slot == 0);
            let others = is_of_own.then(|| Proof {
                buckets,
                resolved: Vec::new(),
            });
            return Verdict::OpenDeadLetters {
                rows: self.open,
                others,
            };
        }
        if difference.unsettled > 0 {
            return Verdict::Unsettled {
                resolved: self.newly_resolved().collect(),
                reason: difference,
            };
        }
        Verdict::Sent(Proof {
            buckets,
            resolved: self.diverted().collect(),
        })
    }

    /// Returns the numbers of rows of the own slot, and in what they differ.
    fn difference(&self) -> Difference {
        let own = self.slots.first().copied().unwrap_or_default();
        let (known, diverted) = (own.present.diverted, own.accounted.diverted);
        // Rows that are settled stay so, also if the store does not have their dead letters any more.
        let is_known = own.is_settled || known == diverted;
        let lost = if own.is_settled {
            0
        } else {
            (diverted.rows - known.rows).max(0)
        };
        let differs = |slot: &SlotRows| total(slot.present) != total(slot.accounted);
        let others = self.slots.iter().skip(1);
        let unsettled = others.filter(|slot| slot.has_unsettled());
        Difference {
            bucket: self.number,
            present: total(own.present).rows,
            accounted: total(own.accounted).rows,
            lost_dead_letters: lost,
            unsettled: unsettled.map(|slot| slot.accounted.diverted.rows).sum(),
            rows_differ: self.slots.iter().any(differs) || !is_known && lost == 0,
        }
    }

    /// Returns the rows that each slot accounts as dead letters.
    fn diverted(&self) -> impl Iterator<Item = ResolvedRows> {
        let slots = self.slots.iter().enumerate();
        let rows = slots.map(|(slot, rows)| ResolvedRows {
            slot,
            bucket: self.number,
            sum: rows.accounted.diverted,
        });
        rows.filter(|rows| rows.sum != RowSum::default())
    }

    /// Returns the rows that the own slot accounts as dead letters, if it has not settled them.
    fn newly_resolved(&self) -> impl Iterator<Item = ResolvedRows> {
        let own = self.slots.first();
        let is_unsettled = own.is_some_and(SlotRows::has_unsettled);
        let rows = self.diverted();
        rows.filter(move |rows| rows.slot == 0 && is_unsettled)
    }
}

/// The rows of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartitionRows {
    /// The relay marks sent rows.
    Marked {
        /// Rows without a mark.
        unmarked: u64,
        /// Marked rows with the stored key of an open dead letter.
        open: u64,
    },
    /// The relay accounts sent rows.
    Accounted {
        /// All rows.
        rows: u64,
        /// Rows without a finite time, which are in no bucket.
        timeless: u64,
        /// Rows that the publication of no slot has.
        uncarried: u64,
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
    /// This number of rows is in the publication of no slot.
    Uncarried(u64),
    /// This number of rows was counted, and not compared.
    Uncompared(u64),
    /// Rows are not those that are accounted.
    Differs(Vec<Difference>),
}

impl PartitionRows {
    /// Decides about the whole partition. Only with [`Verdict::Sent`] may it be dropped.
    pub(crate) fn verdict(&self) -> Verdict<Reason> {
        let none = Proof {
            buckets: None,
            resolved: Vec::new(),
        };
        let (buckets, open) = match self {
            Self::Marked {
                unmarked: 0,
                open: 0,
            } => return Verdict::Sent(none),
            Self::Marked { unmarked: 0, open } => {
                return Verdict::OpenDeadLetters {
                    rows: *open,
                    others: None,
                };
            }
            Self::Marked { unmarked, .. } => return Verdict::Stays(Reason::Unmarked(*unmarked)),
            Self::Accounted {
                rows,
                timeless: 0,
                uncarried: 0,
                buckets,
                open,
            } => {
                // Buckets may have rows of other partitions, but they must have all of this one.
                let compared = buckets.iter().flat_map(|bucket| &bucket.slots);
                let compared = compared.map(|slot| total(slot.present).rows).sum::<i64>();
                let missing = rows.saturating_sub(u64::try_from(compared).unwrap_or(0));
                if missing > 0 {
                    return Verdict::Stays(Reason::Uncompared(missing));
                }
                (buckets, *open)
            }
            Self::Accounted {
                timeless: 0,
                uncarried,
                ..
            } => return Verdict::Stays(Reason::Uncarried(*uncarried)),
            Self::Accounted { timeless, .. } => return Verdict::Stays(Reason::Timeless(*timeless)),
        };
        let (mut differ, mut unsettled, mut resolved) = (Vec::new(), Vec::new(), Vec::new());
        for bucket in buckets {
            match bucket.verdict() {
                Verdict::Stays(difference) => differ.push(difference),
                Verdict::Unsettled {
                    resolved: rows,
                    reason,
                } => {
                    resolved.extend(rows);
                    unsettled.push(reason);
                }
                Verdict::Sent(_) | Verdict::OpenDeadLetters { .. } => {}
            }
        }
        if !differ.is_empty() {
            return Verdict::Stays(Reason::Differs(differ));
        }
        // A bucket at an end may be shared with the next partition, whose dead letters would be settled.
        let open = buckets
            .iter()
            .map(|bucket| bucket.open)
            .sum::<u64>()
            .max(open);
        if open > 0 {
            return Verdict::OpenDeadLetters {
                rows: open,
                others: None,
            };
        }
        if !unsettled.is_empty() {
            let reason = Reason::Differs(unsettled);
            return Verdict::Unsettled { resolved, reason };
        }
        let ends = buckets.first().zip(buckets.last());
        Verdict::Sent(Proof {
            buckets: ends.map(|(first, last)| (first.number, last.number)),
            resolved: buckets.iter().flat_map(BucketRows::diverted).collect(),
        })
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
