//! What the publication lets through of the outbox tables' rows, and the note of it: the log does not
//! show that a publication was changed, only the catalogs do.
//!
//! The note is a sequence next to that of the position (see [`noted`](crate::position_note)). It holds a number
//! of the publication, its entries of outbox tables and their row filters, or, with a minus sign, the position from
//! which on the publication left rows out, until a start accepts that.

use std::time::Duration;

use tokio::time::timeout;
use tracing::warn;
use walrelay_lsn::Lsn;
use walrelay_relay::{Chain, TableName};
use walrelay_walsender::{Error, Session};

use crate::catalog::{Facts, PublicationFacts, PublishedTable, TableFacts, Wanted};
use crate::error::{Gap, SetupError};
use crate::position_note::{self, Access, CarriedNote, Noted};

/// The time that a note may take: the server ends a stream of which it hears nothing.
pub(crate) const NOTE_LIMIT: Duration = Duration::from_secs(3);
/// Settings of a session that may write the note. A commit waits for no standby, which may be this relay.
pub(crate) const SETTINGS: [(&str, &str); 1] = [("synchronous_commit", "local")];

/// The rows that a publication carries of the outbox tables.
#[derive(Debug, Clone)]
pub(crate) struct Carried {
    /// `pg_publication.oid`: it tells whether the publication was dropped and recreated.
    publication: u32,
    /// The outbox tables with a row filter, as SQL shows it.
    filters: Vec<(String, String)>,
    /// The entries that carry outbox tables, from the oldest on. Another entry of the same table tells that it was
    /// taken out or had another filter meanwhile, though all is as before.
    entries: Vec<Entry>,
}

/// An entry of a publication, for one table. The order is that in which entries were made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// `pg_publication_rel.oid`.
    oid: u32,
    /// `pg_class.oid` of the table.
    table: u32,
    /// The row filter.
    filter: Option<String>,
}

impl Entry {
    /// Returns the entry of a table, if it has its own.
    fn from_published(published: &PublishedTable) -> Option<Self> {
        let (table, oid) = published.entry?;
        let filter = published.row_filter.clone();
        Some(Self { oid, table, filter })
    }
}

impl Carried {
    /// Returns what a publication carries; `None` if a filter is not known, because its table is locked.
    pub(crate) fn new(wanted: &Wanted, publication: &PublicationFacts) -> Option<Self> {
        let filtered = publication.filtered();
        let mut filters: Vec<_> = filtered
            .filter(|(table, _)| wanted.tables.contains(table))
            .map(|(table, filter)| (table.to_string(), filter.to_owned()))
            .collect();
        if !publication.shows_filters() {
            return None;
        }
        filters.sort_unstable();
        let tables = publication.tables.iter();
        let mut entries: Vec<_> = tables
            .filter(|of| wanted.tables.contains(&of.table))
            .filter_map(Entry::from_published)
            .collect();
        entries.sort_unstable();
        Some(Self {
            publication: publication.oid,
            filters,
            entries,
        })
    }

    /// Returns true if the publication, or the entry of a table, is another one than at that time.
    fn is_remade(&self, before: &Self) -> bool {
        let is_other = |entry: &Entry| {
            let mut known = before.entries.iter();
            known.any(|known| known.table == entry.table && known.oid != entry.oid)
        };
        self.publication != before.publication || self.entries.iter().any(is_other)
    }

    /// Returns the number that is noted of it, at least 1. A table that is renamed keeps it.
    fn number(&self) -> i64 {
        self.number_of(&self.entries)
    }

    fn number_of(&self, entries: &[Entry]) -> i64 {
        let entries = entries.iter().map(|entry| {
            let Entry { oid, table, filter } = entry;
            let filter = filter.as_deref().unwrap_or_default();
            format!("\ntable {table} by {oid} {filter}")
        });
        let entries: String = entries.collect();
        position_note::number_of(&format!("publication {}{entries}", self.publication))
    }

    /// Returns true if this number was noted of the same publication, whose entries are all still the same. Entries
    /// that were added later are no change of the others.
    fn continues(&self, number: i64) -> bool {
        // Former versions noted the filters only.
        number == self.filters_number()
            || (0..=self.entries.len()).any(|known| {
                let (known, _) = self.entries.split_at(known);
                number == self.number_of(known)
            })
    }

    /// Returns the number that former versions noted: of the filters only.
    fn filters_number(&self) -> i64 {
        let mut filters: Vec<&str> = self
            .filters
            .iter()
            .map(|(_, filter)| filter.as_str())
            .collect();
        filters.sort_unstable();
        position_note::number_of(&filters.join("\n"))
    }

    /// Returns true if these facts, of a later moment, show that rows are or were left out.
    fn has_changed(&self, wanted: &Wanted, facts: &Facts) -> bool {
        let Some(publication) = &facts.publication else {
            return true;
        };
        // A table that is gone may have another name now. Rows of a partitioned one may be carried under the names
        // of its partitions.
        // Both need another table that is published.
        let has_others = publication
            .tables
            .iter()
            .any(|of| !wanted.tables.contains(&of.table));
        let is_carried = |table: &TableName| publication.tables.iter().any(|of| of.table == *table);
        let is_ordinary = |facts: &TableFacts| facts.kind == "r";
        let is_left_out = facts.tables.iter().any(|(table, facts)| {
            !is_carried(table) && (facts.as_ref().is_some_and(is_ordinary) || !has_others)
        });
        let is_there = facts.tables.iter().all(|(_, facts)| facts.is_some());
        let now = Self::new(wanted, publication);
        !publication.insert
            || is_left_out
            || now.is_some_and(|now| now.is_remade(self) || is_there && now.filters != self.filters)
    }

    fn describe(&self) -> String {
        let filters = self.filters.iter();
        let filters: Vec<String> = filters
            .map(|(table, filter)| format!("only the rows of {table} for which {filter}"))
            .collect();
        if filters.is_empty() {
            "all rows".to_owned()
        } else {
            filters.join(", ")
        }
    }
}

/// The last look at which the publication was as it should be.
#[derive(Debug, Clone)]
pub(crate) struct LastLook {
    /// What it carried.
    pub(crate) carried: Carried,
    /// The end of the server's WAL at that time.
    pub(crate) at: Lsn,
    /// The walsender of this process then.
    pub(crate) reader: i64,
}

impl LastLook {
    /// Makes the look of these facts, while this walsender reads the slot; `None` if a filter is not known.
    pub(crate) fn new(wanted: &Wanted, facts: &Facts, reader: i64) -> Option<Self> {
        let carried = Carried::new(wanted, facts.publication.as_ref()?)?;
        let confirmed = || facts.slot.as_ref()?.confirmed;
        let at = facts.server.wal_end.or_else(confirmed)?;
        Some(Self {
            carried,
            at,
            reader,
        })
    }

    /// Notes that rows were left out since then, if these facts show it, or notes changes that leave no rows out. A
    /// note that cannot be written delays nothing: the relay stops by the facts.
    pub(crate) async fn note_change(&self, session: &mut Session, wanted: &Wanted, facts: &Facts) {
        // Another process that reads the slot has compared for itself, and noted what is accepted.
        let reader = facts.slot.as_ref().and_then(|slot| slot.active_pid);
        let is_ours = reader.is_none_or(|pid| pid == self.reader);
        if !is_ours {
            return;
        }
        let noted = async {
            if self.carried.has_changed(wanted, facts) {
                return position_note::set_left_out(session, &wanted.slot, self.at).await;
            }
            let publication = facts.publication.as_ref();
            let now = publication.and_then(|of| Carried::new(wanted, of));
            let before = self.carried.number();
            match now.map(|now| now.number()) {
                Some(now) if now != before => {
                    position_note::replace_carried(session, &wanted.slot, before, now).await
                }
                _ => Ok(()),
            }
        };
        let reason = match timeout(NOTE_LIMIT, noted).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => Chain(&error).to_string(),
            Err(_) => "no answer".to_owned(),
        };
        warn!(
            slot = wanted.slot,
            from = %self.at,
            reason,
            "it cannot be noted that the publication was changed: the next start may not name the range"
        );
    }

    /// Checks that the publication is as it was, and remembers these facts then.
    pub(crate) fn renew(&mut self, wanted: &Wanted, facts: &Facts) -> Result<(), SetupError> {
        self.check(wanted, facts)?;
        let publication = facts.publication.as_ref();
        if let Some(now) = publication.and_then(|of| Carried::new(wanted, of)) {
            self.carried = now;
        }
        self.at = facts.server.wal_end.unwrap_or(self.at);
        Ok(())
    }

    /// Checks that the publication is as it was.
    pub(crate) fn check(&self, wanted: &Wanted, facts: &Facts) -> Result<(), SetupError> {
        let Some(publication) = &facts.publication else {
            return Ok(());
        };
        match Carried::new(wanted, publication) {
            Some(now) if now.is_remade(&self.carried) || now.filters != self.carried.filters => {
                Err(changed(wanted, facts, Some(&now), self.at))
            }
            _ => Ok(()),
        }
    }
}

/// Checks that the publication carries what is noted of it, on a cluster with this system identifier.
///
/// # Errors
/// [`SetupError::PublicationChanged`] with the range whose rows may be left out.
pub fn check_noted(
    wanted: &Wanted,
    facts: &Facts,
    noted: &Noted,
    system: &str,
) -> Result<(), SetupError> {
    // Without the slot there is nothing to continue, and another cluster has its own history.
    let (Some(publication), Some(slot)) = (&facts.publication, &facts.slot) else {
        return Ok(());
    };
    let confirmed = slot.confirmed.unwrap_or(Lsn::ZERO);
    let now = Carried::new(wanted, publication);
    match (noted.carried_in(system), now) {
        (Some(CarriedNote::LeftOut { from }), now) => {
            Err(changed(wanted, facts, now.as_ref(), from.min(confirmed)))
        }
        (Some(CarriedNote::Carried(number)), Some(now)) if !now.continues(number) => {
            Err(changed(wanted, facts, Some(&now), confirmed))
        }
        _ => Ok(()),
    }
}

/// Makes the error. `now`: `None` if it is not known.
fn changed(wanted: &Wanted, facts: &Facts, now: Option<&Carried>, from: Lsn) -> SetupError {
    SetupError::PublicationChanged {
        publication: wanted.publication.clone(),
        tables: wanted.tables.clone(),
        now: now.map_or_else(
            || "rows by a filter that is not shown while the table is locked".to_owned(),
            Carried::describe,
        ),
        gap: Gap {
            from: Some(from),
            to: facts.server.wal_end,
        },
    }
}

/// Notes what the publication carries. Returns whether this role may.
pub(crate) async fn note(
    session: &mut Session,
    wanted: &Wanted,
    noted: &Noted,
    carried: &Carried,
) -> Result<bool, Error> {
    if noted.access == Access::None {
        return Ok(false);
    }
    position_note::set_carried(session, &wanted.slot, wanted.create, carried.number()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::tests::{facts, wanted};

    #[test]
    fn a_filter_or_another_publication_is_a_change_and_another_table_is_none() {
        let (wanted, facts) = (wanted(), facts());
        let publication = facts.publication.clone().unwrap();
        let carried = Carried::new(&wanted, &publication).unwrap();
        let changed = |change: &dyn Fn(&mut PublicationFacts)| {
            let mut facts = facts.clone();
            change(facts.publication.as_mut().unwrap());
            carried.has_changed(&wanted, &facts)
        };
        assert!(!changed(&|_| {}));
        assert!(changed(
            &|of| of.tables[0].row_filter = Some("(a > 1)".into())
        ));
        assert!(changed(&|of| of.oid += 1));
        // Taken out and put back: the entry is another one. Another table of the same name was never taken out.
        let entry = |table, entry| {
            changed(&move |of: &mut PublicationFacts| of.tables[0].entry = Some((table, entry)))
        };
        assert!(entry(16_384, 16_402));
        assert!(!entry(16_500, 16_402));
        assert!(changed(&|of| of.insert = false));
        assert!(changed(&|of| of.tables.clear()));
        let hidden = crate::catalog::HIDDEN_FILTER.to_owned();
        assert!(!changed(
            &|of| of.tables[0].row_filter = Some(hidden.clone())
        ));
        assert!(!changed(&|of| {
            let mut other = of.tables[0].clone();
            other.table.name = "other".into();
            other.row_filter = Some("(a > 1)".into());
            of.tables.push(other);
        }));
        let mut gone = facts.clone();
        gone.publication = None;
        assert!(carried.has_changed(&wanted, &gone));
        // Renamed: another table is published, and the wanted one is not there.
        let mut renamed = facts.clone();
        renamed.tables[0].1 = None;
        renamed.publication.as_mut().unwrap().tables[0].table.name = "events".into();
        assert!(!carried.has_changed(&wanted, &renamed));
        // Partitioned: carried under the names of its partitions, or taken out.
        let mut partitioned = facts.clone();
        partitioned.tables[0].1.as_mut().unwrap().kind = "p".into();
        let mut parts = partitioned.clone();
        parts.publication.as_mut().unwrap().tables[0].table.name = "part".into();
        assert!(!carried.has_changed(&wanted, &parts));
        partitioned.publication.as_mut().unwrap().tables.clear();
        assert!(carried.has_changed(&wanted, &partitioned));
    }

    #[test]
    fn the_note_is_of_the_publication_its_entries_and_their_filters() {
        let (wanted, facts) = (wanted(), facts());
        let publication = facts.publication.unwrap();
        let number = Carried::new(&wanted, &publication).unwrap().number();
        let continues = |change: &dyn Fn(&mut PublicationFacts)| {
            let mut publication = publication.clone();
            change(&mut publication);
            let now = Carried::new(&wanted, &publication).unwrap();
            // What a former version noted.
            assert!(now.continues(now.filters_number()));
            assert!(now.continues(now.number()));
            now.continues(number)
        };
        assert!(continues(&|_| {}));
        assert!(!continues(&|of| of.oid += 1));
        let entry = |table, entry| {
            continues(&move |of: &mut PublicationFacts| of.tables[0].entry = Some((table, entry)))
        };
        assert!(!entry(16_384, 16_402));
        // Another table of the same name: nothing shows since when it is published.
        assert!(!entry(16_500, 16_402));
        assert!(!continues(&|of| of.tables.clear()));
        assert!(!continues(
            &|of| of.tables[0].row_filter = Some("(a > 1)".into())
        ));
    }

    #[test]
    fn an_outbox_that_is_added_is_no_change_of_the_others() {
        let (mut wanted, facts) = (wanted(), facts());
        let mut publication = facts.publication.unwrap();
        let number = Carried::new(&wanted, &publication).unwrap().number();
        let mut added = publication.tables[0].clone();
        // Before the first one by its name.
        added.table.name = "added".into();
        added.entry = Some((16_500, 16_501));
        added.row_filter = Some("(a > 1)".into());
        wanted.tables.insert(0, added.table.clone());
        publication.tables.insert(0, added);
        let now = Carried::new(&wanted, &publication).unwrap();
        assert!(now.continues(number));
        publication.tables[1].entry = Some((16_384, 16_502));
        let again = Carried::new(&wanted, &publication).unwrap();
        assert!(!again.continues(number) && !again.continues(now.number()));
    }

    #[test]
    fn filters_have_the_number_that_former_versions_noted() {
        let (wanted, facts) = (wanted(), facts());
        let carried = Carried::new(&wanted, facts.publication.as_ref().unwrap()).unwrap();
        let number = carried.filters_number();
        assert_eq!(
            CarriedNote::from_value(number),
            CarriedNote::Carried(number)
        );
        let other = Carried {
            filters: vec![("a".into(), "b".into())],
            ..carried
        };
        assert_ne!(other.filters_number(), number);
        let renamed = Carried {
            filters: vec![("c".into(), "b".into())],
            ..other.clone()
        };
        assert_eq!(renamed.filters_number(), other.filters_number());
    }
}
