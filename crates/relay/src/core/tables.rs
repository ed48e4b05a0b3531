//! The tables that the server has announced: outboxes, tables that are passed over, and tables whose
//! place in the catalogs is not known yet.

use std::sync::Arc;

use walrelay_event_router::PlanError;
use walrelay_lsn::{Lsn, RelationId, RelationMap};

use super::error::CoreError;
use crate::poison::{PoisonAction, PoisonPolicy};
use crate::table::TableName;

#[derive(Debug)]
enum Table {
    /// An outbox. With an error if it cannot be routed: then the router has no plan for it, and the
    /// poison policy applies to its rows.
    Outbox(Arc<TableName>, Option<Arc<PlanError>>),
    /// A table whose name in the WAL is not configured, with its Relation message. Its first row
    /// asks for its place: with `publish_via_partition_root`, partitions are announced and have no
    /// rows.
    Unresolved(TableName, Box<[u8]>),
    /// A table that is no outbox.
    PassedOver(TableName),
    /// A table in which relays keep their state.
    State,
}

/// The table of an event.
pub(super) enum EventTable<'t> {
    /// An outbox, and the error if it cannot be routed.
    Outbox(&'t Arc<TableName>, Option<&'t Arc<PlanError>>),
    /// A table whose place must be known first.
    Unresolved,
    /// A table that is no outbox.
    PassedOver,
}

/// The tables that the server has announced on this connection.
#[derive(Debug)]
pub(super) struct Tables {
    configured: Arc<[TableName]>,
    /// Tables that are passed over though they may be outboxes.
    pass_over: Arc<[TableName]>,
    announced: RelationMap<Table>,
    /// Names of the announced tables in the WAL, in order; and whether no row followed the last one.
    names: Vec<TableName>,
    pub(super) last_is_next: bool,
    /// The table whose place the frame at the front waits for.
    pub(super) awaited: Option<RelationId>,
    /// Rows that were passed over and not reported yet, by table.
    pub(super) passed_over: Vec<(TableName, u64)>,
}

impl Tables {
    pub(super) fn new(configured: Arc<[TableName]>) -> Self {
        Self {
            configured,
            pass_over: Arc::new([]),
            announced: RelationMap::new(),
            names: Vec::new(),
            last_is_next: false,
            awaited: None,
            passed_over: Vec::new(),
        }
    }

    pub(super) fn pass_over(&mut self, tables: Arc<[TableName]>) {
        self.pass_over = tables;
    }

    /// Forgets the announced tables: the server announces them again on each connection.
    pub(super) fn clear(&mut self) {
        self.announced.clear();
        self.names.clear();
        self.last_is_next = false;
        self.awaited = None;
    }

    /// Notes that the server announced a table by this name.
    pub(super) fn announced(&mut self, table: &TableName) {
        self.names.retain(|name| name != table);
        self.names.push(table.clone());
        self.last_is_next = true;
    }

    /// Returns the tables one of which the next row is of, if it is a row that is published: the
    /// server announces a table right before its first row on a connection.
    pub(super) fn next_row_tables(&self) -> Vec<TableName> {
        match self.names.last() {
            Some(last) if self.last_is_next => vec![last.clone()],
            _ => self.names.clone(),
        }
    }

    pub(super) fn is_configured(&self, table: &TableName) -> bool {
        self.configured.contains(table)
    }

    /// Returns true if the configuration says that rows of this table are no events.
    pub(super) fn is_passed_over(&self, table: &TableName) -> bool {
        self.pass_over.contains(table)
    }

    pub(super) fn is_announced(&self, id: RelationId) -> bool {
        self.announced.contains(id)
    }

    /// Adds a table whose name is not configured.
    pub(super) fn add_unresolved(&mut self, id: RelationId, table: TableName, announcement: &[u8]) {
        self.announced
            .insert(id, Table::Unresolved(table, announcement.into()));
    }

    /// Returns the name and the Relation message of a table whose place is not known.
    pub(super) fn unresolved(&self, id: RelationId) -> Option<(TableName, Box<[u8]>)> {
        match self.announced.get(id)? {
            Table::Unresolved(table, announcement) => Some((table.clone(), announcement.clone())),
            Table::Outbox(..) | Table::PassedOver(_) | Table::State => None,
        }
    }

    /// Adds a table in which relays keep their state. Its rows are passed over and not counted.
    pub(super) fn add_state(&mut self, id: RelationId) {
        self.announced.insert(id, Table::State);
    }

    pub(super) fn add_passed_over(&mut self, id: RelationId, table: TableName) {
        self.announced.insert(id, Table::PassedOver(table));
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
        let table = Arc::new(table);
        self.announced.insert(id, Table::Outbox(table, unroutable));
        Ok(())
    }

    /// Returns the table of an event.
    #[inline]
    pub(super) fn table_of(&self, id: RelationId, lsn: Lsn) -> Result<EventTable<'_>, CoreError> {
        match self.announced.get(id) {
            Some(Table::Outbox(table, unroutable)) => {
                Ok(EventTable::Outbox(table, unroutable.as_ref()))
            }
            Some(Table::Unresolved(..)) => Ok(EventTable::Unresolved),
            Some(Table::PassedOver(_) | Table::State) => Ok(EventTable::PassedOver),
            None => Err(CoreError::Sequence {
                what: "a row of an unannounced table",
                lsn,
            }),
        }
    }

    /// Returns the name of an outbox table.
    pub(super) fn outbox_name(&self, id: RelationId) -> Option<Arc<TableName>> {
        match self.announced.get(id)? {
            Table::Outbox(table, _) => Some(Arc::clone(table)),
            Table::Unresolved(..) | Table::PassedOver(_) | Table::State => None,
        }
    }

    /// Counts a row that is passed over.
    pub(super) fn count_passed_over(&mut self, id: RelationId) {
        let Some(Table::PassedOver(table)) = self.announced.get(id) else {
            return;
        };
        let mut counted = self.passed_over.iter_mut();
        match counted.find(|(of, _)| of == table) {
            Some((_, rows)) => *rows += 1,
            None => self.passed_over.push((table.clone(), 1)),
        }
    }
}
