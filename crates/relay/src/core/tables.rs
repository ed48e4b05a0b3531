use std::sync::Arc;

use walrelay_event_router::PlanError;
use walrelay_lsn::{Lsn, RelationId, RelationMap};

use super::error::CoreError;
use crate::poison::{PoisonAction, PoisonPolicy};
use crate::table::TableName;

#[derive(Debug)]
enum Table {
    /// A configured table. With an error if it cannot be routed: then the router has no plan for
    /// it, and the poison policy applies to its rows.
    Outbox(TableName, Option<Arc<PlanError>>),
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

    /// Forgets the announced tables: the server announces them again on each connection.
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

    /// Adds an outbox table. `plan`: whether the router could plan it. Returns an error if it could
    /// not and the policy is to halt.
    pub(super) fn add_outbox(
        &mut self,
        id: RelationId,
        table: TableName,
        plan: Result<(), PlanError>,
        policy: &PoisonPolicy,
    ) -> Result<(), CoreError> {
        let unroutable = match plan {
            Ok(()) => None,
            Err(error) if policy.action(error.poison()) == PoisonAction::Halt => {
                let source = Box::new(error);
                return Err(CoreError::Plan { table, source });
            }
            Err(error) => Some(Arc::new(error)),
        };
        self.announced.insert(id, Table::Outbox(table, unroutable));
        Ok(())
    }

    /// The table of an event, and the error if the table cannot be routed.
    #[inline]
    pub(super) fn of_event(
        &self,
        id: RelationId,
        lsn: Lsn,
    ) -> Result<(&TableName, Option<&Arc<PlanError>>), CoreError> {
        match self.announced.get(id) {
            Some(Table::Outbox(table, unroutable)) => Ok((table, unroutable.as_ref())),
            Some(Table::Foreign(table)) => Err(CoreError::ForeignTable {
                table: table.clone(),
            }),
            None => Err(CoreError::Sequence {
                what: "a row of an unannounced table",
                lsn,
            }),
        }
    }

    /// The name of the table if it is an outbox.
    pub(super) fn outbox(&self, id: RelationId) -> Option<&TableName> {
        match self.announced.get(id)? {
            Table::Outbox(table, _) => Some(table),
            Table::Foreign(_) => None,
        }
    }
}
