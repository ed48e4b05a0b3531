//! Setup of publication and slot: plans what has to be created before a stream, and creates it.

mod apply;
mod plan;
#[cfg(test)]
pub(crate) mod tests;
mod waited;

pub(super) use apply::{Prepared, Setup, UNDO_DEADLINE, Unfinished, unlock_setup};
pub use apply::{lock_setup, unmark, wait_for_lock};
pub use plan::{
    Action, Moment, Plan, carries_columns, carries_inserts, carries_tables, failover_known,
    no_publication, plan, sends_columns, slot as slot_fits, slots_needed,
    state_version as state_version_known, table as table_fits, tells_age, wal_level,
};
pub use waited::{ON_STANDBY, SlotWait};
