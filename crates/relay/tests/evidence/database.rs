//! The table and the accounts, as values, and the two steps by which rows are pruned: as the SQL of
//! `walrelay-postgres-source` (`sent_rows`, `prune/accounted.rs`).

use std::ops::{AddAssign, SubAssign};

use walrelay_relay::RowSum;

use crate::mistake::Mistake;
use crate::system::{Model, System};

/// The content of a row: its event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Event {
    /// Keys 0 and 1 have the first bucket, 2 and 3 the second.
    pub(crate) key: u8,
    /// A payload other than 0 does not pass the row filter.
    pub(crate) payload: u8,
    /// The age, in microseconds after the beginning of the bucket.
    pub(crate) age: u8,
}

impl Event {
    pub(crate) const ALL: usize = 16;

    pub(crate) fn index(self) -> usize {
        usize::from(self.key * 4 + self.payload * 2 + self.age)
    }

    pub(crate) fn at(index: usize) -> Self {
        let index = index as u8;
        Self {
            key: index / 4,
            payload: index / 2 % 2,
            age: index % 2,
        }
    }

    pub(crate) fn bucket(self) -> usize {
        usize::from(self.key / 2)
    }

    /// Returns the values of the row's columns.
    pub(crate) fn values(self) -> [String; 6] {
        let (bucket, age) = (self.bucket(), self.age);
        [
            self.key.to_string(),
            "Order".to_owned(),
            self.key.to_string(),
            "T".to_owned(),
            self.payload.to_string(),
            format!("2026-11-28 10:{bucket}0:00.00000{age}+00"),
        ]
    }
}

/// A bit of [`Row::refused_by`].
pub(crate) const IN_PLACE: u8 = 1 << 7;

/// An inserted row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) event: Event,
    /// Bits of the relays whose destinations refuse the event: when its record is offered, or with
    /// [`IN_PLACE`] when it is in flight.
    pub(crate) refused_by: u8,
}

impl From<Event> for Row {
    fn from(event: Event) -> Self {
        let refused_by = 0;
        Self { event, refused_by }
    }
}

/// A version of a row in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Version {
    /// No other version has it (`ctid`, while a snapshot sees the version).
    pub(crate) place: u8,
    pub(crate) event: Event,
    pub(crate) mark: Mark,
}

/// The mark of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Mark {
    None,
    /// Its event became a dead letter (`mark_dead`).
    Dead,
    Sent,
}

/// A number of rows and the sums of both halves of their hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Numbers {
    pub(crate) rows: i64,
    high: i128,
    low: i128,
}

impl From<RowSum> for Numbers {
    fn from(RowSum { rows, high, low }: RowSum) -> Self {
        Self { rows, high, low }
    }
}

impl AddAssign for Numbers {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.high += other.high;
        self.low += other.low;
    }
}

impl SubAssign for Numbers {
    fn sub_assign(&mut self, other: Self) {
        self.rows -= other.rows;
        self.high -= other.high;
        self.low -= other.low;
    }
}

/// The rows of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct BucketNumbers {
    pub(crate) sent: Numbers,
    pub(crate) diverted: Numbers,
    /// The relay has found the dead letters of all these rows resolved.
    pub(crate) is_settled: bool,
}

impl BucketNumbers {
    fn total(self) -> Numbers {
        let mut total = self.sent;
        total += self.diverted;
        total
    }

    fn has_diverted(&self) -> bool {
        self.diverted != Numbers::default()
    }
}

/// The rows of both buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Sums(pub(crate) [BucketNumbers; 2]);

impl Sums {
    /// Returns the sum of all rows.
    pub(crate) fn total(&self) -> Numbers {
        let mut total = Numbers::default();
        for bucket in self.0 {
            total += bucket.total();
        }
        total
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        for (to, from) in self.0.iter_mut().zip(other.0) {
            to.sent += from.sent;
            to.diverted += from.diverted;
            to.is_settled &= !from.has_diverted();
        }
    }
}

/// What a pruning process has read: rows and accounts of one snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Snapshot {
    /// The relay that prunes.
    own: u8,
    rows: Vec<Version>,
    accounts: Vec<Sums>,
    /// For each relay: its publication has a row filter.
    filters: Vec<bool>,
    /// Buckets of which the own account has rows and the table has none.
    empty: [bool; 2],
}

impl Snapshot {
    pub(crate) fn take(system: &System, own: u8) -> Self {
        let accounts: Vec<Sums> = system.relays.iter().map(|relay| relay.sums).collect();
        let is_empty = |bucket: usize| {
            let account = accounts[usize::from(own)].0[bucket];
            let present = system.rows.iter().any(|row| row.event.bucket() == bucket);
            !present && account != BucketNumbers::default()
        };
        Self {
            own,
            rows: system.rows.clone(),
            filters: system
                .relays
                .iter()
                .map(|relay| relay.is_filtered)
                .collect(),
            empty: [is_empty(0), is_empty(1)],
            accounts,
        }
    }

    pub(crate) fn rows(&self) -> &[Version] {
        &self.rows
    }

    pub(crate) fn rows_mut(&mut self) -> &mut [Version] {
        &mut self.rows
    }

    fn carries(&self, relay: usize, event: Event) -> bool {
        !self.filters[relay] || event.payload == 0
    }
}

impl System {
    /// Compares each bucket under the snapshot, and deletes the rows of those that agree by their
    /// places. Dead letters are read after the snapshot was taken. Returns an error if a row is deleted
    /// whose event was never sent.
    pub(crate) fn prune(&mut self, mut seen: Snapshot, model: &Model) -> Result<(), String> {
        if model.has(Mistake::TwoSnapshots) {
            seen.rows.clone_from(&self.rows);
        }
        for bucket in 0..2 {
            self.prune_bucket(bucket, &seen, model)?;
        }
        for bucket in 0..2 {
            if seen.empty[bucket] {
                self.relays[usize::from(seen.own)].sums.0[bucket] = BucketNumbers::default();
            }
        }
        Ok(())
    }

    fn prune_bucket(
        &mut self,
        bucket: usize,
        seen: &Snapshot,
        model: &Model,
    ) -> Result<(), String> {
        let own = usize::from(seen.own);
        let letters = self.relays[own].letters;
        let accounts: Vec<BucketNumbers> =
            seen.accounts.iter().map(|sums| sums.0[bucket]).collect();
        let account = accounts[own];
        let has_diverted = account.has_diverted();
        let is_known = |event: Event| has_diverted && letters.is_known(event);
        let rows = seen.rows.iter().filter(|row| row.event.bucket() == bucket);
        let rows: Vec<Version> = rows.copied().collect();
        let sum = |relay: usize, counts: &dyn Fn(Event) -> bool| {
            let mut sum = Numbers::default();
            for row in &rows {
                if seen.carries(relay, row.event) && counts(row.event) {
                    sum += model.numbers(row.event);
                }
            }
            sum
        };
        let agrees = |relay: usize| sum(relay, &|_| true) == accounts[relay].total();
        let do_others_agree =
            model.has(Mistake::AskOneAccount) || (0..self.relays.len()).all(agrees);
        let is_diverted = account.is_settled || sum(own, &is_known) == account.diverted;
        if !agrees(own) || !is_diverted || !do_others_agree {
            return Ok(());
        }
        let is_open = has_diverted && rows.iter().any(|row| letters.is_open(row.event));
        let diverted = (0..self.relays.len()).filter(|relay| accounts[*relay].has_diverted());
        let diverted: Vec<usize> = diverted.collect();
        let is_of_other = |relay: &&usize| **relay != own && !model.has(Mistake::AskOneAccount);
        let mut others = diverted.iter().filter(is_of_other);
        if is_open {
            if others.next().is_some() {
                return Ok(());
            }
        } else {
            let is_unsettled = |relay: &usize| !accounts[*relay].is_settled;
            let marks = others.any(is_unsettled) && !model.has(Mistake::MergeUnsettled);
            let changed = if marks { &[own][..] } else { &diverted };
            let is_same = |relay: &usize| {
                self.relays[*relay].sums.0[bucket].diverted == accounts[*relay].diverted
            };
            if !changed.iter().all(is_same) && !model.has(Mistake::SettleAll) {
                // Rows that the snapshot does not see became dead letters, or another process has settled them.
                return Ok(());
            }
            for relay in changed {
                let account = &mut self.relays[*relay].sums.0[bucket];
                if marks {
                    account.is_settled = has_diverted;
                } else {
                    account.sent = account.total();
                    account.diverted = Numbers::default();
                    account.is_settled = false;
                }
            }
            if marks {
                return Ok(());
            }
        }
        for version in rows {
            let is_kept = is_open && is_known(version.event);
            if is_kept || !seen.carries(own, version.event) {
                continue;
            }
            let found = self.rows.iter().position(|row| {
                let is_of_key = row.event.key == version.event.key;
                row.place == version.place || is_of_key && model.has(Mistake::DeleteByKey)
            });
            if let Some(found) = found {
                let gone = self.rows.remove(found).event;
                self.take_out(gone, seen, model)?;
            }
        }
        Ok(())
    }

    /// Takes a deleted row out of the accounts.
    fn take_out(&mut self, gone: Event, seen: &Snapshot, model: &Model) -> Result<(), String> {
        for relay in (0..self.relays.len()).filter(|relay| seen.carries(*relay, gone)) {
            // The event of a dead letter that another relay writes once more was sent before, or may go.
            let is_evident = if relay == usize::from(seen.own) {
                self.is_evident(relay, gone)
            } else {
                self.was_evident(relay, gone)
            };
            if !is_evident {
                return Err(format!("E1: {gone:?} is deleted, and was never sent"));
            }
            self.relays[relay].sums.0[gone.bucket()].sent -= model.numbers(gone);
        }
        Ok(())
    }

    /// Deletes the rows that are marked as sent, and have no open dead letter.
    pub(crate) fn prune_marked(&mut self) -> Result<(), String> {
        let letters = self.relays[0].letters;
        let is_deleted = |row: &Version| row.mark == Mark::Sent && !letters.is_open(row.event);
        for row in self.rows.iter().filter(|row| is_deleted(row)) {
            if !self.is_evident(0, row.event) {
                return Err(format!(
                    "E1: {:?} is deleted, and was never sent",
                    row.event
                ));
            }
        }
        self.rows.retain(|row| !is_deleted(row));
        Ok(())
    }
}
