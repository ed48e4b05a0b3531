//! Plans the setup: compares the wanted objects with the catalogs, and lists the actions that are missing.

mod moment;
mod publication;
mod server;
mod slot;
mod table;

pub use moment::Moment;
use publication::publication;
pub use publication::{carries_columns, carries_inserts, carries_tables, no_publication};
pub use server::{failover_known, state_version, wal_level};
use slot::slots_free;
pub use slot::{slot, slots_needed};
pub use table::{sends_columns, table, tells_age};

use crate::catalog::{Facts, Wanted};
use crate::error::{Gap, SetupError};

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
    for (name, found) in &facts.tables {
        table(wanted, name, found.as_ref(), &facts.others)?;
        sends_columns(wanted, facts, name)?;
        if matches!(moment, Moment::Init | Moment::Start { .. }) {
            tells_age(wanted, name, found.as_ref())?;
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
