use walrelay_lsn::Lsn;
use walrelay_relay::{STATE_SCHEMA, TableName};
use walrelay_settings::nearest;

use crate::assigned::assigned_columns;
use crate::catalog::{
    ColumnFacts, Facts, LogicalDecoding, Poller, PublicationFacts, TableFacts, Wanted,
};
use crate::error::{Gap, SetupError};
use crate::foreign_tables::Carries;
use crate::script::EmitFunction;
use crate::state_version::VERSION;

/// `oid`: the number of a large object (`pg_type.dat`). Large objects are not replicated: "Logical
/// Replication", "Restrictions" in the documentation of Postgres.
const LARGE_OBJECT: u32 = 26;

/// The moment of an inspection of the database. It decides what a missing or lost slot means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// `walrelay init`: missing objects are to be created.
    Init,
    /// A process prints the events of a copy of the slot. Only a temporary slot may be created.
    Print,
    /// A relay starts.
    Start {
        /// The last position known to be relayed by an earlier process, from the state file.
        known: Option<Lsn>,
        /// The position that a relay has noted of the slot in this database.
        noted: Option<Lsn>,
        /// A gap is accepted (`--accept-gap`).
        accept_gap: bool,
    },
    /// The process has already streamed from the slot.
    Relayed {
        /// The position up to which it has relayed.
        upto: Lsn,
    },
}

impl Moment {
    /// Returns the last position known to be relayed.
    pub fn known(self) -> Option<Lsn> {
        match self {
            Moment::Init | Moment::Print => None,
            Moment::Start { known, .. } => known,
            Moment::Relayed { upto } => Some(upto),
        }
    }

    /// Returns the last position that a relay is known to have confirmed to the slot at most.
    fn confirmed(self) -> Option<Lsn> {
        match self {
            Moment::Start { known, noted, .. } => known.or(noted),
            moment => moment.known(),
        }
    }

    /// Returns whether a gap is accepted.
    fn accepts_gap(self) -> bool {
        matches!(self, Moment::Start { accept_gap, .. } if accept_gap)
    }
}

/// An object to create. A [`Plan`] lists actions in the order of their execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Create the publication, insert-only, for the wanted tables. Comes before the slot, because
    /// the publication must exist at the slot's first position.
    CreatePublication,
    /// Create the slot.
    CreateSlot,
    /// Read the existing rows, and create the slot when all of them are acknowledged.
    Snapshot,
    /// Drop the lost slot.
    DropSlot,
    /// Make the slot a failover slot. A process that was killed after it copied a slot has left one
    /// that is none, because a copy of a slot never is.
    EnableFailover,
    /// Remove the mark of the publication that says that the slot is not made yet. A process that was
    /// killed after it made the slot has left it.
    FinishSetup,
}

/// The actions before streaming, with findings and the accepted gap.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The changes to make, in order.
    pub actions: Vec<Action>,
    /// Findings to log as warnings.
    pub notes: Vec<String>,
    /// The accepted gap.
    pub gap: Option<Gap>,
}

/// Compares the wanted setup with the facts.
///
/// The publication, or a noted position, marks a database in which a relay was set up. If one of them
/// exists without the slot, the slot was dropped or never created. The catalogs do not show which, so the
/// slot is not created silently. walrelay marks a publication that it creates until the slot is made: with
/// the mark the slot was never created, and the setup goes on.
pub fn plan(wanted: &Wanted, facts: &Facts, moment: Moment) -> Result<Plan, SetupError> {
    wal_level(facts)?;
    state_version(facts)?;
    failover_known(wanted, facts)?;
    for (name, table) in &facts.tables {
        self::table(wanted, name, table.as_ref(), &facts.others)?;
        sends_columns(wanted, facts, name)?;
        if matches!(moment, Moment::Init | Moment::Start { .. }) {
            tells_age(wanted, name, table.as_ref())?;
        }
    }
    let mut plan = Plan::default();
    let tables = facts.tables.iter();
    plan.notes
        .extend(tables.filter_map(|(name, table)| table.as_ref()?.foreign_warning(name)));
    // The publication comes first, see `Action`.
    publication(wanted, facts, moment, &mut plan)?;
    slot(wanted, facts, moment, &mut plan)?;
    slots_free(wanted, facts, &plan)?;
    Ok(plan)
}

/// Returns the number of slots that must be free for the relay's slot: a snapshot has one of its own,
/// of which the relay's is a copy.
pub fn slots_needed(wanted: &Wanted) -> i64 {
    1 + i64::from(wanted.snapshot.is_some())
}

/// Checks that the server has room for the slots that a plan creates, before anything is created or sent.
fn slots_free(wanted: &Wanted, facts: &Facts, plan: &Plan) -> Result<(), SetupError> {
    let has = |action| plan.actions.contains(&action);
    let needed = match (has(Action::Snapshot), has(Action::CreateSlot)) {
        (true, _) => slots_needed(wanted),
        (false, true) => 1,
        (false, false) => return Ok(()),
    };
    let dropped = i64::from(has(Action::DropSlot));
    match facts.server.free_slots {
        Some(free) if free + dropped < needed => Err(SetupError::SlotLimit {
            slot: wanted.slot.clone(),
            free,
            needed,
        }),
        _ => Ok(()),
    }
}

/// Checks that the server writes what logical decoding needs, or will as soon as a slot exists, and returns
/// which of these.
///
/// On a standby it may be the primary that lacks a slot. The checks of the slot name that more precisely: the
/// server is a standby, or its slot is lost.
pub fn wal_level(facts: &Facts) -> Result<LogicalDecoding, SetupError> {
    let server = &facts.server;
    server
        .logical_decoding()
        .ok_or_else(|| SetupError::WalLevel {
            level: server.wal_level.clone(),
            replica_suffices: server.effective_wal_level.is_some(),
        })
}

/// Checks that no newer walrelay has written data that this one cannot read.
pub fn state_version(facts: &Facts) -> Result<(), SetupError> {
    let found = facts.server.state_version;
    if found > VERSION {
        return Err(SetupError::StateVersion(found));
    }
    Ok(())
}

/// Checks that the server supports failover slots, if one is wanted.
pub fn failover_known(wanted: &Wanted, facts: &Facts) -> Result<(), SetupError> {
    if wanted.failover && facts.server.major < 17 {
        return Err(SetupError::FailoverTooOld(facts.server.major));
    }
    Ok(())
}

/// Checks that a wanted table exists, can be published, and has the columns that the router reads.
/// `others`: the tables that it may mean if it does not exist.
pub fn table(
    wanted: &Wanted,
    name: &TableName,
    found: Option<&TableFacts>,
    others: &[TableName],
) -> Result<(), SetupError> {
    let Some(table) = found else {
        let names: Vec<String> = others.iter().map(ToString::to_string).collect();
        let near = nearest(&name.to_string(), names.iter().map(String::as_str));
        let near = others
            .iter()
            .find(|other| Some(&*other.to_string()) == near);
        return Err(SetupError::TableMissing {
            table: name.clone(),
            near: near.cloned(),
        });
    };
    if !matches!(table.kind.as_str(), "r" | "p") || !table.permanent {
        return Err(SetupError::TableKind(name.clone()));
    }
    if !table.unlogged.is_empty() {
        return Err(SetupError::PartitionKind {
            table: name.clone(),
            partitions: table.unlogged.clone(),
        });
    }
    let columns = table.columns.iter();
    let present: Vec<String> = columns.map(|column| column.name.clone()).collect();
    let missing = columns_missing(wanted, &present);
    if !missing.is_empty() {
        return Err(SetupError::ColumnsMissing {
            table: name.clone(),
            missing,
            present,
            by_templates: wanted.by_templates,
        });
    }
    let is_content = |column: &&ColumnFacts| {
        let content = wanted.content.iter();
        let mut names = content.flat_map(|content| wanted.column_names.names_of(content));
        names.any(|name| name == column.name)
    };
    let mut content = table.columns.iter().filter(is_content);
    if let Some(column) = content.find(|column| column.base_oid == LARGE_OBJECT) {
        return Err(SetupError::LargeObject {
            table: name.clone(),
            column: column.name.clone(),
        });
    }
    let sets = wanted.marks.iter().chain(&wanted.dead_marks);
    let mut set = sets.flat_map(|set| assigned_columns(set));
    if let Some(column) = set.find(|column| table.partition_key.contains(column)) {
        return Err(SetupError::MarkMovesRows {
            table: name.clone(),
            column,
        });
    }
    Ok(())
}

/// Checks that a table has a column that shows a row's age, if old rows are to be deleted.
pub fn tells_age(
    wanted: &Wanted,
    name: &TableName,
    found: Option<&TableFacts>,
) -> Result<(), SetupError> {
    let Some(table) = found.filter(|_| !wanted.age.is_empty()) else {
        return Ok(());
    };
    let mut columns = table.columns.iter();
    if columns.any(|column| wanted.age.contains(&column.name)) {
        return Ok(());
    }
    Err(SetupError::AgeUnknown {
        table: name.clone(),
        wanted: wanted.age.clone(),
    })
}

/// Checks that the server sends the generated columns of a table that the router reads.
///
/// Source: the documentation of `publish_generated_columns` in CREATE PUBLICATION. Postgres 18 and
/// newer publish stored generated columns; no version publishes virtual ones.
pub fn sends_columns(wanted: &Wanted, facts: &Facts, name: &TableName) -> Result<(), SetupError> {
    let mut tables = facts.tables.iter();
    let Some((_, Some(table))) = tables.find(|(of, _)| of == name) else {
        return Ok(());
    };
    let publication = facts.publication.as_ref();
    let published = publication.and_then(|publication| {
        let mut tables = publication.tables.iter();
        tables
            .find(|published| published.table == *name)?
            .columns
            .as_ref()
    });
    let listed = |column: &str| {
        facts.server.major >= 18
            && published.is_some_and(|columns| columns.iter().any(|listed| listed == column))
    };
    let read = table
        .columns
        .iter()
        .filter(|of| wanted.names().any(|name| name == of.name));
    for column in read {
        let Some(generated) = column.generated.filter(|_| !listed(&column.name)) else {
            continue;
        };
        return Err(SetupError::ColumnGenerated {
            table: name.clone(),
            column: column.name.clone(),
            generated,
            publication: wanted.publication.clone(),
            published: publication.is_some(),
            major: facts.server.major,
        });
    }
    Ok(())
}

/// Returns the columns that the router reads and that are not in `present`, under any of their
/// names.
fn columns_missing(wanted: &Wanted, present: &[String]) -> Vec<String> {
    let columns = wanted.columns.iter();
    let missing = columns.filter(|column| wanted.found(column, present).is_none());
    missing.cloned().collect()
}

/// Plans for a missing slot.
fn missing_slot(
    wanted: &Wanted,
    facts: &Facts,
    moment: Moment,
    plan: &mut Plan,
) -> Result<(), SetupError> {
    let slot = wanted.slot.clone();
    // The slot is on the primary. This is a standby.
    if facts.server.in_recovery {
        return Err(SetupError::Standby(slot));
    }
    let gap = |from| Gap {
        from,
        to: facts.server.wal_end,
    };
    let set_up = facts.publication.as_ref().is_some_and(|of| !of.unfinished);
    // A publication without its slot means that the slot was dropped, or that a snapshot was
    // interrupted. Reading all rows again is right for both: it repeats rows, and leaves out only
    // rows that were deleted. Before `cutover switch` the publication is there without a slot as well.
    // Over a gap, a snapshot has the rows of the gap that are there.
    let accepted = moment.accepts_gap();
    let snapshot = wanted.snapshot.is_some() && (accepted || moment.known().is_none());
    match moment {
        // After `cutover rollback`, or before the switch, a polling relay sends the rows.
        Moment::Start { .. }
            if snapshot && wanted.poller == Poller::MayRun && set_up && !accepted =>
        {
            return Err(SetupError::NotSwitched(slot));
        }
        Moment::Start { known, .. } if snapshot => {
            if known.is_some() || (set_up && accepted) {
                plan.gap = Some(gap(moment.confirmed()));
            } else if set_up && wanted.poller != Poller::Stopped {
                plan.notes.push(format!(
                    "publication {} is there and slot {slot} is not: if no snapshot was \
                     interrupted, the slot was dropped, and events relayed from it are relayed \
                     again",
                    wanted.publication
                ));
            }
            plan.actions.push(Action::Snapshot);
            return Ok(());
        }
        Moment::Init if wanted.snapshot.is_some() => {
            let command = if wanted.poller == Poller::MayRun {
                "walrelay cutover switch"
            } else {
                "walrelay run"
            };
            plan.notes.push(format!(
                "slot {slot} is not created here: {command} creates it, after the snapshot"
            ));
            return Ok(());
        }
        Moment::Relayed { upto } => {
            let gap = gap(Some(upto));
            return Err(SetupError::SlotGone { slot, gap });
        }
        Moment::Init if set_up => plan.notes.push(format!(
            "publication {} was there already: if there was a slot before, changes committed since \
             it was dropped are not relayed",
            wanted.publication
        )),
        Moment::Start { accept_gap, .. } if moment.confirmed().is_some() || set_up => {
            let gap = gap(moment.confirmed());
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

/// Checks the slot. Adds actions and notes to the plan.
pub fn slot(
    wanted: &Wanted,
    facts: &Facts,
    moment: Moment,
    plan: &mut Plan,
) -> Result<(), SetupError> {
    let name = &wanted.slot;
    let Some(slot) = &facts.slot else {
        return missing_slot(wanted, facts, moment, plan);
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
    // Before 15, pgoutput ignores two_phase. A copy, which is printed, has it off.
    if slot.two_phase && facts.server.major >= 15 && moment != Moment::Print {
        return Err(SetupError::SlotTwoPhase(name.clone()));
    }
    if let Some(reason) = slot.lost() {
        let gap = Gap {
            // The relayed position may be ahead of the slot's confirmed one.
            from: moment.known().max(slot.confirmed),
            to: facts.server.wal_end,
        };
        if !moment.accepts_gap() {
            return Err(SetupError::SlotLost {
                slot: name.clone(),
                reason,
                gap,
                catalog_xmin: slot.catalog_xmin,
            });
        }
        plan.gap = Some(gap);
        plan.actions.push(Action::DropSlot);
        // A snapshot that is interrupted is begun again on the primary only.
        plan.actions.push(match wanted.snapshot {
            Some(_) if !facts.server.in_recovery => Action::Snapshot,
            _ => Action::CreateSlot,
        });
        return Ok(());
    }
    let is_marked = facts.publication.as_ref().is_some_and(|of| of.unfinished);
    if is_marked && moment != Moment::Print && !facts.server.in_recovery {
        plan.actions.push(Action::FinishSetup);
    }
    let lacks_failover = wanted.failover && slot.failover == Some(false);
    let starts = matches!(moment, Moment::Start { .. });
    if lacks_failover
        && starts
        && wanted.create
        && !facts.server.in_recovery
        && slot.active_pid.is_none()
    {
        plan.actions.push(Action::EnableFailover);
    } else if lacks_failover {
        plan.notes.push(format!(
            "slot {name} is no failover slot, though [source] failover is set: no standby keeps a \
             copy of it"
        ));
    }
    // A starting relay learns of a busy slot from START_REPLICATION.
    if moment == Moment::Init
        && let Some(pid) = slot.active_pid
    {
        plan.notes
            .push(format!("slot {name} is being read by server process {pid}"));
    }
    Ok(())
}

/// Checks the publication. Adds actions and notes to the plan.
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
    carries_tables(wanted, publication).map_err(|error| uncarried_since(error, facts, moment))?;
    carries_columns(wanted, facts, publication)?;
    for table in others(wanted, publication).filter(|table| passes_over(wanted, table)) {
        plan.notes.push(format!(
            "publication {} carries table {table}, whose rows are passed over as [source] pass_over says",
            wanted.publication
        ));
    }
    for (table, filter) in publication.filtered() {
        plan.notes.push(format!(
            "publication {} carries only the rows of {table} for which {filter}{}",
            wanted.publication,
            if publication.update {
                ", and updates: an UPDATE that makes a row fit is sent as an event"
            } else {
                ""
            }
        ));
    }
    Ok(())
}

/// Plans for a missing publication.
pub fn no_publication(
    wanted: &Wanted,
    facts: &Facts,
    moment: Moment,
    plan: &mut Plan,
) -> Result<(), SetupError> {
    let name = &wanted.publication;
    // Postgres decodes each change with the catalogs of its time. Rows committed while there was no
    // publication are not carried, even if it is created now.
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

/// Checks that the publication carries inserts.
pub fn carries_inserts(wanted: &Wanted, publication: &PublicationFacts) -> Result<(), SetupError> {
    if publication.insert {
        return Ok(());
    }
    let name = wanted.publication.clone();
    Err(SetupError::PublicationWithoutInsert(name))
}

/// Returns the tables that the publication carries besides the wanted ones and walrelay's own.
fn others<'p>(
    wanted: &'p Wanted,
    publication: &'p PublicationFacts,
) -> impl Iterator<Item = &'p TableName> {
    let carried = publication.tables.iter().map(|published| &published.table);
    let is_own = |table: &TableName| table.schema == STATE_SCHEMA || *table == EmitFunction::gate();
    carried.filter(move |table| !wanted.tables.contains(table) && !is_own(table))
}

/// Returns whether the publication may carry a table that is not wanted.
fn passes_over(wanted: &Wanted, table: &TableName) -> bool {
    let mut named = wanted.pass_over.iter();
    named.any(|of| of.schema == table.schema && (of.name == table.name || of.name == "*"))
}

/// Checks that the publication carries the wanted tables, and others only if they are passed over.
pub fn carries_tables(wanted: &Wanted, publication: &PublicationFacts) -> Result<(), SetupError> {
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
            gap: None,
        });
    }
    let foreign: Vec<TableName> = others(wanted, publication)
        .filter(|table| !passes_over(wanted, table))
        .cloned()
        .collect();
    if !foreign.is_empty() {
        return Err(SetupError::PublicationForeign {
            publication: name.clone(),
            tables: foreign,
            wanted: wanted.tables.clone(),
            carries: match publication {
                PublicationFacts {
                    all_tables: true, ..
                } => Carries::AllTables,
                PublicationFacts { schemas: true, .. } => Carries::Schemas,
                _ => Carries::Tables,
            },
        });
    }
    Ok(())
}

/// Adds to the error of a publication that lacks tables the range whose rows are not relayed.
fn uncarried_since(mut error: SetupError, facts: &Facts, moment: Moment) -> SetupError {
    if let SetupError::PublicationLacks { tables, gap, .. } = &mut error
        && let Some(slot) = &facts.slot
    {
        // The publication may carry the rows of a partitioned table under the names of its partitions.
        let ordinary = |table: &TableName| {
            let mut found = facts.tables.iter();
            found.any(|(name, facts)| {
                name == table && facts.as_ref().is_some_and(|facts| facts.kind == "r")
            })
        };
        *gap = tables.iter().all(ordinary).then(|| Gap {
            from: moment.known().max(slot.confirmed),
            to: facts.server.wal_end,
        });
    }
    error
}

/// Checks that the publication's column lists have the columns that the router reads, except
/// generated ones, which [`sends_columns`] checks.
pub fn carries_columns(
    wanted: &Wanted,
    facts: &Facts,
    publication: &PublicationFacts,
) -> Result<(), SetupError> {
    for published in &publication.tables {
        let Some(columns) = &published.columns else {
            continue;
        };
        if !wanted.tables.contains(&published.table) {
            continue;
        }
        let mut missing = columns_missing(wanted, columns);
        missing.retain(|column| !is_generated(wanted, facts, &published.table, column));
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

fn is_generated(wanted: &Wanted, facts: &Facts, table: &TableName, column: &str) -> bool {
    let mut tables = facts.tables.iter();
    let found = tables.find(|(name, _)| name == table);
    let Some((_, Some(table))) = found else {
        return false;
    };
    let mut columns = table.columns.iter();
    columns.any(|found| {
        let mut names = wanted.column_names.names_of(column);
        found.generated.is_some() && names.any(|name| found.name == name)
    })
}
