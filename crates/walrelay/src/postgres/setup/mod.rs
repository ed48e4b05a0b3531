//! Setup of publication and slot: plans what has to be created before a stream, and creates it.

mod apply;
mod plan;
#[cfg(test)]
mod tests;

pub(crate) use apply::lock_setup;
pub(super) use apply::{Prepared, prepare, unlock_setup};
pub(crate) use plan::{
    Action, Moment, Plan, carries_columns, carries_inserts, carries_tables, failover_known,
    no_publication, plan, slot as slot_fits, table as table_fits, wal_level,
};
