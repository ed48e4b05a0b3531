use std::sync::Arc;

use walrelay_event_router::PlanError;
use walrelay_lsn::{Lsn, RelationId, RelationMap};

use super::error::CoreError;
use crate::interface::table::TableName;
use crate::poison::{PoisonAction, PoisonPolicy};

#[derive(Debug)]
enum Table {
    /// One of the configured tables; the router has its plan.
    Outbox(TableName),
    /// One of the configured tables that cannot be routed, where the policy allows for that.
    Unroutable(TableName, Arc<PlanError>),
    /// A table that the configuration does not name.
    Foreign(TableName),
}

/// The tables that the server has announced on this connection.
#[derive(Debug)]
pub(super) struct Tables {
    configured: Arc<[TableName]>,
    announced: RelationMap<Table>,
}

impl Tables {
    pub(super) fn new(configured: Arc<[TableName]>) -> Self {
        Self {
            configured,
            announced: RelationMap::new(),
        }
    }

    /// Relations are announced anew on each connection.
    pub(super) fn clear(&mut self) {
        self.announced.clear();
    }

    pub(super) fn is_configured(&self, table: &TableName) -> bool {
        self.configured.contains(table)
    }

    pub(super) fn is_announced(&self, id: RelationId) -> bool {
        self.announced.contains(id)
    }

    pub(super) fn add_foreign(&mut self, id: RelationId, table: TableName) {
        self.announced.insert(id, Table::Foreign(table));
    }

    /// Adds an outbox with what the router made of it.
    pub(super) fn add_outbox(
        &mut self,
        id: RelationId,
        table: TableName,
        plan: Result<(), PlanError>,
        policy: &PoisonPolicy,
    ) -> Result<(), CoreError> {
        let entry = match plan {
            Ok(()) => Table::Outbox(table),
            Err(error) if policy.action(error.poison()) == PoisonAction::Halt => {
                let source = Box::new(error);
                return Err(CoreError::Plan { table, source });
            }
            Err(error) => Table::Unroutable(table, Arc::new(error)),
        };
        self.announced.insert(id, entry);
        Ok(())
    }

    /// The table of an event, and why it cannot be routed if it cannot.
    #[inline]
    pub(super) fn of_event(
        &self,
        id: RelationId,
        lsn: Lsn,
    ) -> Result<(&TableName, Option<&Arc<PlanError>>), CoreError> {
        match self.announced.get(id) {
            Some(Table::Outbox(table)) => Ok((table, None)),
            Some(Table::Unroutable(table, cause)) => Ok((table, Some(cause))),
            Some(Table::Foreign(table)) => Err(CoreError::ForeignTable {
                table: table.clone(),
            }),
            None => Err(CoreError::Sequence {
                what: "a row of an unannounced table",
                lsn,
            }),
        }
    }

    /// The outbox of this number, if it is one.
    pub(super) fn outbox(&self, id: RelationId) -> Option<&TableName> {
        match self.announced.get(id)? {
            Table::Outbox(table) | Table::Unroutable(table, _) => Some(table),
            Table::Foreign(_) => None,
        }
    }
}
