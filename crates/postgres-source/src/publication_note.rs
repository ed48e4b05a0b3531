//! The note of what the publication lets through of the outbox tables' rows: the log does not show that a
//! publication was changed, only the catalogs do.
//!
//! The note is a sequence next to that of the position (see [`noted`](crate::position_note)). It holds the number of
//! what is [`Carried`], or, with a minus sign, the position from which on the publication left rows out, until a start
//! accepts that.

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;
use tracing::warn;
use walrelay_lsn::Lsn;
use walrelay_relay::{Chain, TableName};
use walrelay_walsender::{Error, Session};

use crate::carried::{Carried, RowVersion};
use crate::catalog::{Facts, PublicationFacts, TableFacts, Wanted};
use crate::error::{Gap, PublicationSetupError, SetupError};
use crate::position_note::{self, Access, CarriedNote, Noted};

/// The time that a note may take: the server ends a stream of which it hears nothing.
pub(crate) const NOTE_LIMIT: Duration = Duration::from_secs(3);
/// Settings of a session that may write the note. A commit waits for no standby, which may be this relay.
pub(crate) const SETTINGS: [(&str, &str); 1] = [("synchronous_commit", "local")];

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
    /// Makes the look of these facts, while this walsender reads the slot; `None` without a publication.
    pub(crate) fn new(facts: &Facts, reader: i64) -> Option<Self> {
        let carried = Carried::new(facts)?;
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
            if leaves_out(&self.carried, wanted, facts) {
                return position_note::set_left_out(session, &wanted.slot, self.at).await;
            }
            let Some(now) = Carried::new(facts) else {
                return Ok(());
            };
            if now.version != self.carried.version {
                position_note::set_altered(session, &wanted.slot, false, now.version.0).await?;
            }
            let (before, now) = (self.carried.number(), now.number());
            if now != before {
                position_note::replace_carried(session, &wanted.slot, before, now).await?;
            }
            Ok(())
        };
        warn_unless_noted(wanted, noted).await;
    }

    /// Checks that the publication is as it was, and remembers these facts then.
    pub(crate) fn renew(&mut self, wanted: &Wanted, facts: &Facts) -> Result<(), SetupError> {
        self.check(wanted, facts)?;
        if let Some(now) = Carried::new(facts) {
            self.carried = now;
        }
        self.at = facts.server.wal_end.unwrap_or(self.at);
        Ok(())
    }

    /// Checks that the publication is as it was.
    pub(crate) fn check(&self, wanted: &Wanted, facts: &Facts) -> Result<(), SetupError> {
        match (&facts.publication, Carried::new(facts)) {
            (Some(publication), Some(now)) if now.leaves_out_since(&self.carried) => {
                Err(changed(wanted, facts, publication, self.at))
            }
            _ => Ok(()),
        }
    }
}

/// Waits for a note of a change. The relay goes on without it, or stops by the facts.
async fn warn_unless_noted(wanted: &Wanted, noted: impl Future<Output = Result<(), Error>>) {
    let reason = match timeout(NOTE_LIMIT, noted).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => Chain(&error).to_string(),
        Err(_) => "no answer".to_owned(),
    };
    warn!(
        slot = wanted.slot,
        reason,
        "it cannot be noted that the publication was changed: the next start may not name the range"
    );
}

/// Returns true if these facts, of a later moment, show that rows are or were left out.
fn leaves_out(before: &Carried, wanted: &Wanted, facts: &Facts) -> bool {
    let (Some(publication), Some(now)) = (&facts.publication, Carried::new(facts)) else {
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
    !publication.insert || is_left_out || now.leaves_out_since(before)
}

/// Checks that the publication carries what is noted of it, on a cluster with this system identifier.
///
/// # Errors
/// [`PublicationSetupError::Changed`] with the range whose rows may be left out.
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
    let from = match noted.carried_in(system) {
        Some(CarriedNote::LeftOut { from }) => from.min(confirmed),
        Some(CarriedNote::Carried(number))
            if is_undone_since_noted(publication, &wanted.tables, noted, system)
                || number != former_number(wanted, publication)
                    && Carried::new(facts)
                        .is_some_and(|now| now.leaves_out_since_noted(number)) =>
        {
            confirmed
        }
        _ => return Ok(()),
    };
    Err(changed(wanted, facts, publication, from))
}

/// Returns true if the publication's row was changed and changed back since it was noted. No row of an outbox that
/// consists of messages can be left out.
fn is_undone_since_noted(
    publication: &PublicationFacts,
    tables: &[TableName],
    noted: &Noted,
    system: &str,
) -> bool {
    let before = noted.altered_in(system).map(RowVersion);
    !tables.is_empty()
        && before.is_some_and(|before| RowVersion::new(publication).is_undone_since(before))
}

/// Notes what a start finds before it looks whether it can use the publication: inserts that are not published, or a
/// change of the publication's row that leaves nothing out and may be undone before the next start.
pub(crate) async fn note_found(
    session: &mut Session,
    wanted: &Wanted,
    facts: &Facts,
    noted: &Noted,
    system: &str,
) {
    let (Some(publication), Some(slot)) = (&facts.publication, &facts.slot) else {
        return;
    };
    // Another relay looks for itself, and nothing is known of a first start.
    let is_known = matches!(noted.carried_in(system), Some(CarriedNote::Carried(_)));
    if !is_known || slot.active_pid.is_some() || facts.server.in_recovery {
        return;
    }
    let now = RowVersion::new(publication);
    let before = noted.altered_in(system).map(RowVersion);
    let is_explained = before.is_some_and(|before| before != now && !now.is_undone_since(before));
    warn_unless_noted(wanted, async {
        if !publication.insert {
            let from = slot.confirmed.unwrap_or(Lsn::ZERO);
            position_note::set_left_out(session, &wanted.slot, from).await?;
        } else if is_explained {
            position_note::set_altered(session, &wanted.slot, false, now.0).await?;
        }
        Ok(())
    })
    .await;
}

/// Returns the number that former versions noted: of the outbox tables' row filters only.
fn former_number(wanted: &Wanted, publication: &PublicationFacts) -> i64 {
    let filtered = publication.filtered();
    let filtered = filtered.filter(|(table, _)| wanted.tables.contains(table));
    let mut filters: Vec<&str> = filtered.map(|(_, filter)| filter).collect();
    filters.sort_unstable();
    position_note::number_of(&filters.join("\n"))
}

fn changed(
    wanted: &Wanted,
    facts: &Facts,
    publication: &PublicationFacts,
    from: Lsn,
) -> SetupError {
    let filters = publication.filtered();
    let filters: Vec<String> = filters
        .filter(|(table, _)| wanted.tables.contains(table))
        .map(|(table, filter)| format!("only the rows of {table} for which {filter}"))
        .collect();
    SetupError::Publication(PublicationSetupError::Changed {
        publication: wanted.publication.clone(),
        tables: wanted.tables.clone(),
        now: if filters.is_empty() {
            "all rows".to_owned()
        } else {
            filters.join(", ")
        },
        gap: Gap {
            from: Some(from),
            to: facts.server.wal_end,
        },
    })
}

/// Notes the contents of the publication. Returns whether this role may.
pub(crate) async fn note(
    session: &mut Session,
    wanted: &Wanted,
    noted: &Noted,
    carried: &Carried,
) -> Result<bool, Error> {
    if noted.access == Access::None {
        return Ok(false);
    }
    let (slot, create) = (&wanted.slot, wanted.create);
    let is_noted = position_note::set_carried(session, slot, create, carried.number()).await?;
    Ok(position_note::set_altered(session, slot, create, carried.version.0).await? && is_noted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::PublicationEntry;
    use crate::setup::tests::{facts, wanted};

    #[test]
    fn what_leaves_rows_out_is_a_change_and_another_table_is_none() {
        let (wanted, facts) = (wanted(), facts());
        let carried = Carried::new(&facts).unwrap();
        let changed = |change: &dyn Fn(&mut PublicationFacts)| {
            let mut facts = facts.clone();
            change(facts.publication.as_mut().unwrap());
            leaves_out(&carried, &wanted, &facts)
        };
        assert!(!changed(&|_| {}));
        assert!(changed(&|of| of.oid += 1));
        assert!(changed(&|of| of.entries[0].oid += 1));
        assert!(changed(&|of| of.insert = false));
        assert!(changed(&|of| of.tables.clear()));
        // Another table of the same name was never taken out.
        assert!(!changed(&|of| of.entries[0].table += 1));
        assert!(!changed(&|of| {
            let mut other = of.tables[0].clone();
            other.table.name = "other".into();
            of.tables.push(other);
            of.entries.insert(0, PublicationEntry { table: 1, oid: 2 });
        }));
        let mut gone = facts.clone();
        gone.publication = None;
        assert!(leaves_out(&carried, &wanted, &gone));
        // Renamed: another table is published, and the wanted one is not there.
        let mut renamed = facts.clone();
        renamed.tables[0].1 = None;
        renamed.publication.as_mut().unwrap().tables[0].table.name = "events".into();
        assert!(!leaves_out(&carried, &wanted, &renamed));
        // Partitioned: carried under the names of its partitions, or taken out.
        let mut partitioned = facts.clone();
        partitioned.tables[0].1.as_mut().unwrap().kind = "p".into();
        let mut parts = partitioned.clone();
        parts.publication.as_mut().unwrap().tables[0].table.name = "part".into();
        assert!(!leaves_out(&carried, &wanted, &parts));
        partitioned.publication.as_mut().unwrap().tables.clear();
        assert!(leaves_out(&carried, &wanted, &partitioned));
    }

    #[test]
    fn filters_have_the_number_that_former_versions_noted() {
        let (wanted, facts) = (wanted(), facts());
        let mut publication = facts.publication.unwrap();
        assert_eq!(
            former_number(&wanted, &publication),
            8_203_414_616_412_130_826
        );
        publication.tables[0].row_filter = Some("b".into());
        let number = former_number(&wanted, &publication);
        assert_eq!(number, position_note::number_of("b"));
        assert_eq!(
            CarriedNote::from_value(number),
            CarriedNote::Carried(number)
        );
    }
}
