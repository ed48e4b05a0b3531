use walrelay_lsn::Lsn;
use walrelay_relay::TableName;

use crate::postgres::catalog::{Facts, PublicationFacts, TableFacts, Wanted};
use crate::postgres::error::{Gap, SetupError};

/// When the database is inspected. The moment decides what a slot that is missing or lost means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// `walrelay init`: what is missing is to be created.
    Init,
    /// A process prints the events of a copy of the slot. Only a temporary slot may be created.
    Print,
    /// A process starts.
    Start {
        /// The last position known to be relayed before.
        known: Option<Lsn>,
        /// A gap is to be accepted.
        accept_gap: bool,
    },
    /// A process has streamed from the slot already.
    Relayed {
        /// The position that it has relayed.
        upto: Lsn,
    },
}

impl Moment {
    /// The last position known to be relayed.
    pub(crate) fn known(self) -> Option<Lsn> {
        match self {
            Moment::Init | Moment::Print => None,
            Moment::Start { known, .. } => known,
            Moment::Relayed { upto } => Some(upto),
        }
    }
}

/// Something to create, in the order of a [`Plan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// The publication, insert-only, for the wanted tables. Before the slot: what the slot decodes
    /// must be published from its first position on.
    CreatePublication,
    /// The slot.
    CreateSlot,
    /// The rows that are there are read, and the slot is made when all of them are acknowledged.
    Snapshot,
    /// The slot is lost: drops it and creates it anew.
    RecreateSlot,
}

/// What to do before streaming.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// To create.
    pub(crate) actions: Vec<Action>,
    /// Findings that stop nothing.
    pub(crate) notes: Vec<String>,
    /// The accepted range that is not relayed.
    pub(crate) gap: Option<Gap>,
}

/// Compares what is wanted with what is there.
///
/// The publication marks a database in which a relay was set up. A slot that is missing there was dropped or
/// never created. The catalogs do not tell which, so the slot is not created silently.
pub(crate) fn plan(wanted: &Wanted, facts: &Facts, moment: Moment) -> Result<Plan, SetupError> {
    wal_level(facts)?;
    failover_known(wanted, facts)?;
    for (name, table) in &facts.tables {
        self::table(wanted, name, table.as_ref())?;
    }
    let mut plan = Plan::default();
    // The publication first, see `Action`.
    publication(wanted, facts, moment, &mut plan)?;
    slot(wanted, facts, moment, &mut plan)?;
    Ok(plan)
}

pub(crate) fn wal_level(facts: &Facts) -> Result<(), SetupError> {
    if facts.server.wal_level == "logical" {
        Ok(())
    } else {
        Err(SetupError::WalLevel(facts.server.wal_level.clone()))
    }
}

/// Failover slots need a server that knows them.
pub(crate) fn failover_known(wanted: &Wanted, facts: &Facts) -> Result<(), SetupError> {
    if wanted.failover && facts.server.major < 17 {
        return Err(SetupError::FailoverTooOld(facts.server.major));
    }
    Ok(())
}

/// One wanted table: it exists, can be published, and has the columns that the router reads.
pub(crate) fn table(
    wanted: &Wanted,
    name: &TableName,
    found: Option<&TableFacts>,
) -> Result<(), SetupError> {
    let Some(table) = found else {
        return Err(SetupError::TableMissing(name.clone()));
    };
    if !matches!(table.kind.as_str(), "r" | "p") || !table.permanent {
        return Err(SetupError::TableKind(name.clone()));
    }
    let missing = columns_missing(wanted, &table.columns);
    if missing.is_empty() {
        return Ok(());
    }
    Err(SetupError::ColumnsMissing {
        table: name.clone(),
        missing,
        present: table.columns.clone(),
        by_templates: wanted.by_templates,
    })
}

/// The columns that the router reads and `present` lacks.
fn columns_missing(wanted: &Wanted, present: &[String]) -> Vec<String> {
    let columns = wanted.columns.iter();
    let missing = columns.filter(|column| !present.contains(column));
    missing.cloned().collect()
}

fn no_slot(
    wanted: &Wanted,
    facts: &Facts,
    moment: Moment,
    plan: &mut Plan,
) -> Result<(), SetupError> {
    let slot = wanted.slot.clone();
    // The slot is on the primary, which is not found yet.
    if facts.server.in_recovery {
        return Err(SetupError::Standby(slot));
    }
    let gap = |from| Gap {
        from,
        to: facts.server.wal_end,
    };
    let set_up = facts.publication.is_some();
    // A slot that is missing beside its publication may have been dropped. A snapshot that was interrupted looks
    // the same. To read all rows again is right for both, if some that were relayed and deleted are left out.
    let snapshot = wanted.snapshot.is_some() && moment.known().is_none();
    match moment {
        Moment::Start { .. } if snapshot => {
            if set_up {
                plan.notes.push(format!(
                    "publication {} is there and slot {slot} is not: if no snapshot was interrupted, the slot was \
                     dropped, and what was relayed from it is relayed again",
                    wanted.publication
                ));
            }
            plan.actions.push(Action::Snapshot);
            return Ok(());
        }
        Moment::Init if wanted.snapshot.is_some() => {
            plan.notes.push(format!(
                "slot {slot} is not created here: walrelay run creates it, after the snapshot"
            ));
            return Ok(());
        }
        Moment::Relayed { upto } => {
            let gap = gap(Some(upto));
            return Err(SetupError::SlotGone { slot, gap });
        }
        Moment::Init if set_up => plan.notes.push(format!(
            "publication {} was there already: if there was a slot before, what was committed since \
             it was dropped is not relayed",
            wanted.publication
        )),
        Moment::Start { known, accept_gap } if known.is_some() || set_up => {
            let gap = gap(known);
            if !accept_gap {
                let gap = Some(gap);
                return Err(SetupError::SlotMissing { slot, gap });
            }
            plan.gap = Some(gap);
        }
        Moment::Start { .. } if !wanted.create => {
            return Err(SetupError::SlotMissing { slot, gap: None });
        }
        Moment::Init | Moment::Print | Moment::Start { .. } => {}
    }
    plan.actions.push(Action::CreateSlot);
    Ok(())
}

/// Compares the slot with what is wanted; adds to the plan what has to be created, and notes.
pub(crate) fn slot(
    wanted: &Wanted,
    facts: &Facts,
    moment: Moment,
    plan: &mut Plan,
) -> Result<(), SetupError> {
    let name = &wanted.slot;
    let Some(slot) = &facts.slot else {
        return no_slot(wanted, facts, moment, plan);
    };
    let plugin = slot.plugin.as_deref().unwrap_or("none");
    if slot.kind != "logical" || plugin != "pgoutput" {
        return Err(SetupError::SlotPlugin {
            slot: name.clone(),
            kind: slot.kind.clone(),
            plugin: plugin.to_owned(),
        });
    }
    let database = slot.database.as_deref().unwrap_or_default();
    if database != facts.server.database {
        return Err(SetupError::SlotDatabase {
            slot: name.clone(),
            found: database.to_owned(),
            connected: facts.server.database.clone(),
        });
    }
    if let Some(reason) = slot.lost() {
        let gap = Gap {
            // The relayed position may be ahead of the slot's.
            from: moment.known().max(slot.confirmed),
            to: facts.server.wal_end,
        };
        if !matches!(moment, Moment::Start { accept_gap, .. } if accept_gap) {
            return Err(SetupError::SlotLost {
                slot: name.clone(),
                reason,
                gap,
                catalog_xmin: slot.catalog_xmin,
            });
        }
        plan.gap = Some(gap);
        plan.actions.push(Action::RecreateSlot);
        return Ok(());
    }
    if wanted.failover && slot.failover == Some(false) {
        plan.notes.push(format!(
            "slot {name} is no failover slot, though [source] failover is set: no standby keeps a \
             copy of it"
        ));
    }
    // To a relay that starts, the server reports a busy slot itself.
    if moment == Moment::Init
        && let Some(pid) = slot.active_pid
    {
        plan.notes
            .push(format!("slot {name} is being read by server process {pid}"));
    }
    Ok(())
}

fn publication(
    wanted: &Wanted,
    facts: &Facts,
    moment: Moment,
    plan: &mut Plan,
) -> Result<(), SetupError> {
    let Some(publication) = &facts.publication else {
        return no_publication(wanted, facts, moment, plan);
    };
    carries_inserts(wanted, publication)?;
    carries_tables(wanted, publication)?;
    carries_columns(wanted, publication)?;
    for (table, filter) in publication.filtered() {
        plan.notes.push(format!(
            "publication {} carries only the rows of {table} for which {filter}",
            wanted.publication
        ));
    }
    Ok(())
}

/// What a missing publication means.
pub(crate) fn no_publication(
    wanted: &Wanted,
    facts: &Facts,
    moment: Moment,
    plan: &mut Plan,
) -> Result<(), SetupError> {
    let name = &wanted.publication;
    // Postgres decodes with the catalogs of the time of each change: rows committed while there
    // was no publication are not carried, whatever is created now.
    if facts.slot.is_some() {
        return Err(SetupError::PublicationGone {
            publication: name.clone(),
            slot: wanted.slot.clone(),
        });
    }
    if !wanted.create || moment == Moment::Print {
        return Err(SetupError::PublicationMissing(name.clone()));
    }
    plan.actions.push(Action::CreatePublication);
    Ok(())
}

/// The publication carries inserts.
pub(crate) fn carries_inserts(
    wanted: &Wanted,
    publication: &PublicationFacts,
) -> Result<(), SetupError> {
    if publication.insert {
        return Ok(());
    }
    let name = wanted.publication.clone();
    Err(SetupError::PublicationWithoutInsert(name))
}

/// The publication carries the wanted tables and no others.
pub(crate) fn carries_tables(
    wanted: &Wanted,
    publication: &PublicationFacts,
) -> Result<(), SetupError> {
    let name = &wanted.publication;
    let published = |table: &TableName| publication.tables.iter().find(|p| p.table == *table);
    let missing: Vec<TableName> = wanted
        .tables
        .iter()
        .filter(|table| published(table).is_none())
        .cloned()
        .collect();
    if !missing.is_empty() {
        return Err(SetupError::PublicationLacks {
            publication: name.clone(),
            tables: missing,
        });
    }
    let foreign: Vec<TableName> = publication
        .tables
        .iter()
        .map(|published| published.table.clone())
        .filter(|table| !wanted.tables.contains(table))
        .collect();
    if !foreign.is_empty() {
        return Err(SetupError::PublicationForeign {
            publication: name.clone(),
            tables: foreign,
        });
    }
    Ok(())
}

/// The column lists of the publication have the columns that the router reads.
pub(crate) fn carries_columns(
    wanted: &Wanted,
    publication: &PublicationFacts,
) -> Result<(), SetupError> {
    for published in &publication.tables {
        let Some(columns) = &published.columns else {
            continue;
        };
        let missing = columns_missing(wanted, columns);
        if !missing.is_empty() {
            return Err(SetupError::PublicationColumns {
                publication: wanted.publication.clone(),
                table: published.table.clone(),
                missing,
            });
        }
    }
    Ok(())
}
