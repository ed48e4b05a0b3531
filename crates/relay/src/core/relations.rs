//! Which rows of a table are events: what a Relation message announces, and where a table is whose
//! name in the WAL is not configured.

use walrelay_event_router::PlanError;
use walrelay_lsn::{Lsn, RelationId};
use walrelay_pgoutput::{Message, Relation, decode};

use super::tables::EventTable;
use super::{Core, CoreError, Placement, Step};
use crate::interface::source::TablePlace;
use crate::table::TableName;

impl Core {
    /// Processes a Relation message, whose body is `announcement`.
    pub(super) fn relation(
        &mut self,
        relation: &Relation<'_>,
        announcement: &[u8],
    ) -> Result<(), CoreError> {
        let table = TableName::new(relation.namespace, relation.name);
        self.tables.announced(&table);
        if !self.tables.is_configured(&table) {
            // The catalogs need not tell what becomes of its rows: the table may be gone since.
            if table.is_state() {
                self.tables.add_state(relation.id);
                return Ok(());
            }
            self.tables.add_unresolved(relation.id, table, announcement);
            return Ok(());
        }
        self.outbox(relation, table)
    }

    /// Plans the rows of a relation as those of an outbox table.
    fn outbox(&mut self, relation: &Relation<'_>, table: TableName) -> Result<(), CoreError> {
        let plan = self.router.relation(relation);
        self.tracked_rows.announce(relation, &table);
        let policy = self.diversions.decisions.policy();
        self.tables.add_outbox(relation.id, table, plan, policy)
    }

    /// Returns the table that the last frame waits for.
    pub fn unresolved(&self) -> Option<RelationId> {
        self.tables.awaited
    }

    /// Takes the place of an announced table whose name in the WAL is not configured. Returns what
    /// becomes of its rows; `None` if the table's place is known, or the table was not announced.
    ///
    /// A table that has the columns which the router reads may have been an outbox, such as a
    /// partition that was detached since, or a table that was renamed when another took its name.
    /// A table that is gone may have been one, too. Neither is passed over unless the configuration
    /// [says so](Self::passing_over).
    ///
    /// # Errors
    /// If the rows may be events and are not routed, or the outbox table cannot be routed.
    pub fn place(
        &mut self,
        id: RelationId,
        place: TablePlace,
    ) -> Result<Option<Placement>, CoreError> {
        let Some((table, announcement)) = self.tables.unresolved(id) else {
            return Ok(None);
        };
        let lsn = self.received;
        let message = decode(&announcement).map_err(|source| CoreError::Decode { lsn, source })?;
        let Message::Relation(relation) = message else {
            return Ok(None);
        };
        if let TablePlace::Outbox(outbox) = place {
            let relation = relation.renamed(&outbox.schema, &outbox.name);
            self.outbox(&relation, outbox.clone())?;
            return Ok(Some(Placement::Outbox(outbox)));
        }
        if !self.tables.is_passed_over(&table) {
            let gone = place == TablePlace::Gone;
            if let TablePlace::Above(partition) = place {
                return Err(CoreError::AboveOutbox { table, partition });
            }
            let plan = self.router.relation(&relation);
            if gone || !matches!(plan, Err(PlanError::MissingColumn { .. })) {
                return Err(CoreError::UnknownTable { table, gone });
            }
        }
        self.tables.add_passed_over(id, table.clone());
        Ok(Some(Placement::PassedOver(table)))
    }

    /// Takes the rows that were passed over since the last call, by table.
    pub fn take_passed_over(&mut self) -> Vec<(TableName, u64)> {
        std::mem::take(&mut self.tables.passed_over)
    }

    /// Counts an update of an outbox row; it is no event. Returns an error if updates of outbox rows
    /// stop the relay. In an ignored transaction there is no error, because there was none when the
    /// transaction was enqueued.
    pub(super) fn update<'r, 'a>(
        &mut self,
        relation: RelationId,
        lsn: Lsn,
    ) -> Result<Step<'r, 'a>, CoreError> {
        let open = self.transactions.open.as_ref();
        let stops = open.filter(|open| self.stops_at_updates && open.ignored.is_none());
        match (self.tables.table_of(relation, lsn), stops) {
            (Ok(EventTable::PassedOver), _) => return Ok(Step::Consumed),
            (Ok(EventTable::Unresolved), Some(_)) => {
                self.tables.awaited = Some(relation);
                return Ok(Step::AwaitsPlace);
            }
            (Ok(EventTable::Outbox(table, _)), Some(open)) => {
                return Err(CoreError::Update {
                    table: TableName::clone(table),
                    xid: open.begin.xid,
                    commit: open.begin.final_lsn,
                });
            }
            _ => self.counts.updates += 1,
        }
        Ok(Step::Consumed)
    }
}
