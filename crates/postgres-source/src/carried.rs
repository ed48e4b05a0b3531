//! What a publication carries of the outbox tables, as a number that can be noted.

use std::collections::BTreeSet;

use crate::catalog::{Facts, PublicationEntry, PublicationFacts};
use crate::position_note::number_of;

/// The entries, at most, of which any may have been noted. The more there are, the likelier is it that some of them have
/// a noted number by chance: with these one in eight million.
const MOST: usize = 40;

/// A change of a publication's row, such as of the operations that it publishes, as a number: the upper 32 bits are
/// `xmin`, the lower 31 tell what the row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowVersion(pub(crate) i64);

impl RowVersion {
    const ROW: i64 = 0x7fff_ffff;

    pub(crate) fn new(publication: &PublicationFacts) -> Self {
        let row = number_of(&publication.row) & Self::ROW;
        Self(i64::from(publication.version) << 31 | row)
    }

    /// Returns true if the row was changed since then, and is as it was: the change was undone, and what it left out
    /// is not known. A change that is still there explains itself.
    pub(crate) fn is_undone_since(self, before: Self) -> bool {
        self != before && (self.0 ^ before.0) & Self::ROW == 0
    }
}

/// The entries of a publication that carry the outbox tables. All is known by its OID: a change makes another one, also
/// if it is undone.
#[derive(Debug, Clone)]
pub(crate) struct Carried {
    /// `pg_publication.oid`.
    publication: u32,
    pub(crate) version: RowVersion,
    /// `pg_class.oid` of the outbox tables.
    outboxes: Vec<u32>,
    /// Those of outbox tables first.
    entries: Vec<PublicationEntry>,
}

impl Carried {
    /// Returns what a publication carries; `None` if there is no publication.
    pub(crate) fn new(facts: &Facts) -> Option<Self> {
        let publication = facts.publication.as_ref()?;
        let outboxes = facts.tables.iter();
        let outboxes = outboxes.filter_map(|(_, found)| Some(found.as_ref()?.oid));
        let outboxes: Vec<u32> = outboxes.collect();
        let mut entries = publication.entries.clone();
        entries.sort_by_key(|entry| !outboxes.contains(&entry.table));
        Some(Self {
            publication: publication.oid,
            version: RowVersion::new(publication),
            outboxes,
            entries,
        })
    }

    /// Returns the entries that carry a table, its own before others.
    fn carriers(&self, table: u32) -> impl Iterator<Item = &PublicationEntry> {
        let entries = self.entries.iter();
        entries.filter(move |entry| entry.table == table)
    }

    /// Returns the number that is noted of it: of one entry for each outbox table. The numbers of entries are combined
    /// by XOR, so that it can be told of which ones it is.
    pub(crate) fn number(&self) -> i64 {
        let noted = self.outboxes.iter();
        let noted = noted.filter_map(|table| Some(self.carriers(*table).next()?.oid));
        let noted: BTreeSet<u32> = noted.collect();
        noted
            .into_iter()
            .fold(self.own_number(), |sum, entry| sum ^ number(entry))
    }

    fn own_number(&self) -> i64 {
        number_of(&format!("publication {}", self.publication))
    }

    /// Returns the entries of which this number was noted; `None` if one of them is gone.
    fn noted(&self, noted: i64) -> Option<Vec<u32>> {
        let reduced = |basis: &[(i64, u64)], start: (i64, u64)| {
            let reduce = |(sum, used): (i64, u64), &(other, with): &(i64, u64)| {
                if sum ^ other < sum {
                    (sum ^ other, used ^ with)
                } else {
                    (sum, used)
                }
            };
            basis.iter().fold(start, reduce)
        };
        let mut known: Vec<u32> = Vec::new();
        for entry in &self.entries {
            if known.len() < MOST && !known.contains(&entry.oid) {
                known.push(entry.oid);
            }
        }
        // Each has a highest bit that none after it has.
        let mut basis: Vec<(i64, u64)> = Vec::new();
        for (index, entry) in known.iter().enumerate() {
            basis.push(reduced(&basis, (number(*entry), 1 << index)));
        }
        let (rest, used) = reduced(&basis, (noted ^ self.own_number(), 0));
        let known = known.into_iter().enumerate();
        let noted = known.filter(|(index, _)| used & (1 << index) != 0);
        (rest == 0).then(|| noted.map(|(_, entry)| entry).collect())
    }

    /// Returns true if rows may have been left out since then of a table that was and is carried.
    pub(crate) fn leaves_out_since(&self, before: &Self) -> bool {
        let was = |entry: &PublicationEntry| before.entries.iter().any(|of| of.oid == entry.oid);
        let is_other =
            |table: &u32| self.carriers(*table).next().is_some() && !self.carriers(*table).any(was);
        self.publication != before.publication
            || !self.outboxes.is_empty() && self.version.is_undone_since(before.version)
            || before.outboxes.iter().any(is_other)
    }

    /// Returns true if rows may have been left out since this number was noted.
    pub(crate) fn leaves_out_since_noted(&self, number: i64) -> bool {
        if number == self.number() {
            return false;
        }
        let Some(before) = self.noted(number) else {
            return true;
        };
        // A table that took the place of another one may have been published later.
        let carries = |table: u32, entry: u32| self.carriers(table).any(|of| of.oid == entry);
        let is_left = |entry: &u32| !self.outboxes.iter().any(|table| carries(*table, *entry));
        let is_new = |table: &u32| {
            self.carriers(*table).next().is_some()
                && !before.iter().any(|entry| carries(*table, *entry))
        };
        before.iter().any(is_left) && self.outboxes.iter().any(is_new)
    }
}

/// Returns the number of an entry.
fn number(entry: u32) -> i64 {
    number_of(&format!("entry {entry}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn entry(table: u32, oid: u32) -> PublicationEntry {
        PublicationEntry { table, oid }
    }

    fn carried(outboxes: &[u32], entries: &[PublicationEntry]) -> Carried {
        let mut entries = entries.to_vec();
        entries.sort_by_key(|entry| !outboxes.contains(&entry.table));
        Carried {
            publication: 7,
            version: RowVersion(1 << 40),
            outboxes: outboxes.to_vec(),
            entries,
        }
    }

    /// Asserts whether rows may have been left out between two times, while a relay runs and while none does.
    #[track_caller]
    fn leaves_out(before: &Carried, now: &Carried, under_a_relay: bool, without: bool) {
        assert_eq!(now.leaves_out_since(before), under_a_relay);
        assert_eq!(now.leaves_out_since_noted(before.number()), without);
    }

    #[test]
    fn another_publication_or_entry_leaves_rows_out() {
        let one = carried(&[1], &[entry(1, 11)]);
        leaves_out(&one, &one, false, false);
        leaves_out(&one, &carried(&[1], &[entry(1, 12)]), true, true);
        let recreated = Carried {
            publication: 8,
            ..one.clone()
        };
        leaves_out(&one, &recreated, true, true);
        // A running relay stops by the tables that are published.
        leaves_out(&one, &carried(&[1], &[]), false, true);
    }

    #[test]
    fn a_change_of_the_row_that_is_undone_leaves_rows_out_and_one_that_lasts_explains_itself() {
        let facts = crate::setup::tests::facts();
        let before = facts.publication.unwrap();
        let version = RowVersion::new(&before);
        let undone = |version_now: u32, row: &str| {
            let now = PublicationFacts {
                version: version_now,
                row: row.into(),
                ..before.clone()
            };
            RowVersion::new(&now).is_undone_since(version)
        };
        assert!(!undone(before.version, &before.row));
        assert!(undone(before.version + 1, &before.row));
        assert!(undone(u32::MAX, &before.row));
        assert!(!undone(before.version + 1, "{}"));
        let last = PublicationFacts {
            version: u32::MAX,
            ..before.clone()
        };
        assert!(RowVersion::new(&last).0 > 0);
    }

    #[test]
    fn tables_that_are_added_to_the_outboxes_or_taken_from_them_leave_none_out() {
        let all = [entry(1, 11), entry(2, 12), entry(3, 13)];
        let sets: [&[u32]; 6] = [&[1], &[2], &[1, 3], &[2, 3], &[1, 2, 3], &[3, 2, 1]];
        for before in sets {
            for now in sets {
                let is_subset =
                    |one: &[u32], other: &[u32]| one.iter().all(|of| other.contains(of));
                let exchanged = !is_subset(before, now) && !is_subset(now, before);
                let (before, now) = (carried(before, &all), carried(now, &all));
                leaves_out(&before, &now, false, exchanged);
            }
        }
        // Tables that are taken out of the publication, and others that are added to it.
        let before = carried(&[1, 2], &all);
        let later = [entry(2, 12), entry(4, 5), entry(1, 11)];
        leaves_out(&before, &carried(&[1, 2, 4], &later), false, false);
        leaves_out(&before, &carried(&[1], &later[2..]), false, true);
        let again = [entry(2, 14), entry(1, 11)];
        leaves_out(&before, &carried(&[1, 2], &again), true, true);
    }

    #[test]
    fn a_table_may_get_an_entry_of_its_own_before_its_schema_is_taken_out() {
        let by_schema = carried(&[1], &[entry(1, 21)]);
        let by_both = carried(&[1], &[entry(1, 11), entry(1, 21)]);
        let own = carried(&[1], &[entry(1, 11)]);
        leaves_out(&by_schema, &by_both, false, false);
        leaves_out(&by_both, &own, false, false);
        leaves_out(&own, &by_both, false, false);
        // Two tables of one schema.
        let two = carried(&[1, 2], &[entry(1, 21), entry(2, 21)]);
        leaves_out(&by_schema, &two, false, false);
        leaves_out(&two, &by_schema, false, false);
        // Nothing shows that both were there at a time.
        leaves_out(&by_schema, &own, true, true);
        leaves_out(&by_schema, &carried(&[1], &[entry(1, 22)]), true, true);
    }

    #[test]
    fn all_tables_of_a_large_publication_are_known_together() {
        let tables: Vec<u32> = (1..200).collect();
        let entries: Vec<_> = tables
            .iter()
            .map(|table| entry(*table, table + 1_000))
            .collect();
        let all = carried(&tables, &entries);
        leaves_out(&all, &all, false, false);
        let (_, others) = tables.split_at(1);
        // One start stops.
        leaves_out(&carried(others, &entries), &all, false, true);
        let (few, _) = tables.split_at(9);
        leaves_out(
            &carried(few, &entries),
            &carried(&few[2..], &entries),
            false,
            false,
        );
    }
}
