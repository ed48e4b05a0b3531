//! What the slot carries of a table: the rows whose INSERTs it decodes and the relay sends.
//!
//! That a row's commit is confirmed says that it was sent only if the slot carried the row. This is
//! read under the snapshot of the transaction that marks or deletes: the slots must be of this
//! database, the own one must decode by `pgoutput`, and each part of the table (the table itself,
//! or each of its partitions that has rows) must be published under the table's name.
//!
//! A catalog row has another `xmin`, or another OID, after every change. [`record`] has them from
//! the slot's beginning on, so that a change of the publication is found, also if it was changed
//! back (docs/adr/0034-a-changed-row-was-carried.md).
//!
//! A relay notes each position before it confirms it ([`noted`]), so a slot that is beyond the noted
//! one has passed over rows that no relay sent.

pub mod noted;
pub mod record;

use std::cell::RefCell;
use std::collections::BTreeSet;

use tracing::warn;
use walrelay_lsn::Lsn;
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_literal};

use self::record::Doubt;
use super::catalog::row::{is_true, parsed, text};
use super::catalog::{Wanted, slot, slots};
use super::script;

/// The plugin of the relay's slots.
const PLUGIN: &str = "pgoutput";
const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// A condition for rows that were written by the transaction that attached their partition. It may
/// have written them before, into the partition alone. As text: rows of `xid` are not comparable.
pub(super) const BEFORE_ATTACH: &str = "pg_catalog.concat_ws(' ', tableoid, xmin) IN \
    (SELECT pg_catalog.concat_ws(' ', i.inhrelid, i.xmin) FROM pg_catalog.pg_inherits i)";

/// The reason why a table's rows are neither marked nor deleted, although they are confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotCarried {
    /// No slot of this name decodes this database.
    #[error("slot {0} is no slot of this database")]
    Slot(String),
    /// The slot is not decoded by `pgoutput`.
    #[error("slot {slot} is decoded by {plugin:?}, which knows no publication")]
    Plugin {
        /// Name of the slot.
        slot: String,
        /// The plugin.
        plugin: String,
    },
    /// The table is missing.
    #[error("table {0} does not exist")]
    Table(TableName),
    /// The publication carries no row of any table.
    #[error("publication {0} does not exist, or does not publish INSERT")]
    Publication(String),
    /// The publication carries no row of a part of the table, or under another name.
    #[error("publication {publication} does not publish {part} as {table}")]
    Unpublished {
        /// Name of the publication.
        publication: String,
        /// The part of the table: itself, a partition or a child.
        part: String,
        /// The table.
        table: TableName,
    },
    /// A row filter of a partitioned table, or of a table above it.
    #[error("publication {publication} leaves out rows of {table} by a row filter")]
    Filter {
        /// Name of the publication.
        publication: String,
        /// The table.
        table: TableName,
    },
    /// The record has a [`Doubt`].
    #[error("rows of {table} may not be sent: {doubt}")]
    Doubtful {
        /// The table, as it is recorded.
        table: String,
        /// Name of the slot.
        slot: String,
        /// What the record says.
        doubt: Doubt,
    },
    /// The slot is beyond the position that is noted of it.
    #[error(
        "slot {slot} has confirmed {confirmed}, and its relay has noted {noted} at most: it was moved, or made anew, \
         by something else, or the relay cannot note positions"
    )]
    Moved {
        /// Name of the slot.
        slot: String,
        /// Its position.
        confirmed: Lsn,
        /// The noted position.
        noted: Lsn,
    },
    /// No position of the slot is noted.
    #[error("no position of slot {0} is noted in walrelay_state, or this role may not read it")]
    Unnoted(String),
    /// The record's table is missing.
    #[error("table walrelay_state.carried does not exist, or the relay's role may not write it")]
    Unrecorded,
}

/// The slots and the publication by which rows are carried, and what was seen of them.
#[derive(Debug)]
pub struct Carrier {
    /// The relay's own slot first, then others that must have confirmed a row, too.
    pub slots: Vec<String>,
    /// Name of the publication.
    pub publication: String,
    /// The record's table may be created.
    create: bool,
    /// Rows from before the record may be changed: walrelay is about to make the slot, or the user
    /// says so.
    known_beginning: bool,
    /// Parts that were reported as left out.
    reported: RefCell<BTreeSet<u32>>,
}

/// A table of which the slot carries every part but those that are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carried {
    /// `ONLY "schema"."table"`, or without ONLY if it is partitioned: children by INHERITS are
    /// published under their own names.
    pub from: String,
    partitioned: bool,
    /// The row filter of a table that is not partitioned: the slot carries the rows for which it is
    /// true. Relays that share a table have filters of their own.
    filter: Option<String>,
    /// Parts whose rows may be older than their place in the table: they were made, and attached
    /// later. Postgres publishes no row for an ATTACH.
    attached: Vec<AttachedPart>,
}

/// A part of a table that was attached by a later transaction than the one that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AttachedPart {
    /// The name as the server prints it.
    name: String,
    oid: u32,
    /// The OID of the table's partition that is this part, or that it belongs to.
    partition: u32,
}

impl Carried {
    /// Returns true if this partition of the table, by its OID, or a part of it is left out.
    pub(super) fn leaves_out(&self, partition: u32) -> bool {
        self.attached.iter().any(|part| part.partition == partition)
    }

    /// Writes ` AND …`: a condition for the rows that are carried; empty if all are.
    pub fn condition(&self) -> String {
        let mut conditions = Vec::new();
        conditions.extend(self.filter.as_ref().map(|filter| format!("({filter})")));
        if !self.attached.is_empty() {
            let parts = self.attached.iter().map(|part| part.oid.to_string());
            let parts: Vec<String> = parts.collect();
            conditions.push(format!("tableoid NOT IN ({})", parts.join(", ")));
        }
        if self.partitioned {
            conditions.push(format!("{BEFORE_ATTACH} IS NOT TRUE"));
        }
        let conditions = conditions.iter().map(|one| format!(" AND {one}"));
        conditions.collect()
    }
}

/// The reason why nothing is known of what is carried.
#[derive(Debug, thiserror::Error)]
pub enum CarriedError {
    /// A statement failed.
    #[error("the statement failed")]
    Sql(#[from] Error),
    /// Rows are not carried.
    #[error(transparent)]
    Not(#[from] NotCarried),
}

impl Carrier {
    /// Creates the carrier of these slots. `known_beginning`: rows from before the record may be
    /// changed.
    pub fn new(
        slots: Vec<String>,
        publication: String,
        create: bool,
        known_beginning: bool,
    ) -> Self {
        Self {
            slots,
            publication,
            create,
            known_beginning,
            reported: RefCell::default(),
        }
    }

    /// Begins the record of a slot that is about to be made: forgets what was recorded of an earlier
    /// one of its name, and records what the publication carries of the tables.
    pub async fn begin(session: &mut Session, wanted: &Wanted) -> Result<(), Error> {
        record::forget(session, &wanted.slot).await?;
        let slots = vec![wanted.slot.clone()];
        let carrier = Self::new(slots, wanted.publication.clone(), wanted.create, true);
        for table in wanted.tables.iter().filter(|_| wanted.record) {
            match carrier.find_carried(session, table).await {
                // It is recorded as well.
                Ok(_) | Err(CarriedError::Not(_)) => {}
                Err(CarriedError::Sql(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Notes the position of a slot that was just made, if there is a sequence that this role may
    /// change. Otherwise the relay notes the position when it reads the slot first.
    pub async fn made(session: &mut Session, name: &str) -> Result<(), Error> {
        let found = slot(session, name).await?;
        match found.and_then(|slot| slot.confirmed) {
            Some(position) if noted::may(session, name, "UPDATE").await? => {
                noted::raise(session, name, position).await
            }
            _ => Ok(()),
        }
    }

    /// Queries what the slot carries of a table, under the snapshot of the open transaction. Warns
    /// once of each part that is left out.
    ///
    /// # Errors
    /// Also if it does not carry all of it, or what it carries is not what the record says.
    pub async fn carried(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<Carried, CarriedError> {
        let confirmed = self.check_slots(session).await?;
        let carried = self.find_carried(session, table).await?;
        self.check_noted(session, &confirmed).await?;
        Ok(carried)
    }

    /// Checks that the relay noted what its slot has confirmed: every commit up to there was sent. To be
    /// called again after a wait: where no relay ran, the slot may have been moved meanwhile, and a relay
    /// that was started has noted its position.
    ///
    /// # Errors
    /// Also a serialization failure, if the record was changed after the snapshot of the transaction.
    pub(super) async fn check_position(&self, session: &mut Session) -> Result<(), CarriedError> {
        let confirmed = self.check_slots(session).await?;
        self.check_noted(session, &confirmed).await?;
        Ok(record::hold(session, &self.slots).await?)
    }

    /// Checks the positions of the slots against the noted ones. A slot that is not the relay's own may
    /// have no note; its relay has recorded a move, or a gap, that it has found.
    async fn check_noted(
        &self,
        session: &mut Session,
        confirmed: &[Lsn],
    ) -> Result<(), CarriedError> {
        for (number, (slot, confirmed)) in self.slots.iter().zip(confirmed).enumerate() {
            match noted::read(session, slot).await? {
                None if number == 0 => return Err(NotCarried::Unnoted(slot.clone()).into()),
                Some(noted) if noted < *confirmed => {
                    return Err(NotCarried::Moved {
                        slot: slot.clone(),
                        confirmed: *confirmed,
                        noted,
                    }
                    .into());
                }
                _ => {}
            }
            if number > 0
                && let Some((table, doubt)) = record::passed_over(session, slot).await?
            {
                return Err(NotCarried::Doubtful {
                    table,
                    slot: slot.clone(),
                    doubt,
                }
                .into());
            }
        }
        Ok(())
    }

    async fn find_carried(
        &self,
        session: &mut Session,
        table: &TableName,
    ) -> Result<Carried, CarriedError> {
        let publication = || self.publication.clone();
        let major = session.server_version().major;
        let found = session
            .query(&table_sql(major, table, &self.publication))
            .await?;
        let found = found.first();
        let found = found.ok_or_else(|| NotCarried::Table(table.clone()))?;
        let inserts = is_true(&found, "inserts");
        let partitioned = is_true(&found, "partitioned");
        let filter = found.get("filter").filter(|_| !partitioned);
        let mut attached = Vec::new();
        let mut states = vec![(0, text(&found, "state"))];
        let mut obstacle = None;
        let parts = parts_sql(major, table, &self.publication);
        for row in session.query(&parts).await?.iter() {
            let (oid, name) = (parsed(&row, "oid").unwrap_or(0), text(&row, "part"));
            if is_true(&row, "filtered") && filter.is_none() {
                obstacle = Some(NotCarried::Filter {
                    publication: publication(),
                    table: table.clone(),
                });
            }
            if !is_true(&row, "published") {
                obstacle = Some(NotCarried::Unpublished {
                    publication: publication(),
                    part: name.clone(),
                    table: table.clone(),
                });
            }
            if is_true(&row, "late") {
                attached.push(AttachedPart {
                    name,
                    oid,
                    partition: parsed(&row, "partition").unwrap_or(oid),
                });
            } else {
                states.push((oid, text(&row, "state")));
            }
        }
        // First of all, so that a state is recorded in which rows are left out.
        let doubt = self.compare(session, table, &states).await?;
        if !inserts {
            return Err(NotCarried::Publication(publication()).into());
        }
        if let Some(obstacle) = obstacle {
            return Err(obstacle.into());
        }
        if let Some(doubt) = doubt {
            return Err(NotCarried::Doubtful {
                table: table.to_string(),
                slot: self.slot().to_owned(),
                doubt,
            }
            .into());
        }
        self.report(&attached);
        let only = if partitioned { "" } else { "ONLY " };
        Ok(Carried {
            from: format!("{only}{}", script::table(table)),
            partitioned,
            filter: filter.map(str::to_owned),
            attached,
        })
    }

    /// Compares the states with the record, and records those that are new.
    async fn compare(
        &self,
        session: &mut Session,
        table: &TableName,
        states: &[(u32, String)],
    ) -> Result<Option<Doubt>, CarriedError> {
        if !record::exists(session).await? {
            if !self.create {
                return Err(NotCarried::Unrecorded.into());
            }
            if let Err(error) = record::create(session).await {
                return Err(match error.sqlstate() {
                    Some(INSUFFICIENT_PRIVILEGE) => NotCarried::Unrecorded.into(),
                    _ => error.into(),
                });
            }
        }
        let known = self.known_beginning;
        Ok(record::compare(session, self.slot(), table, states, known).await?)
    }

    /// Returns the relay's own slot.
    fn slot(&self) -> &str {
        self.slots.first().map_or("", String::as_str)
    }

    /// Warns once of each part that is left out.
    fn report(&self, attached: &[AttachedPart]) {
        for part in attached {
            if self.reported.borrow_mut().insert(part.oid) {
                warn!(
                    partition = part.name,
                    "rows of this partition are neither marked nor deleted: it was made before it was attached, so the \
                     log need not have them as rows of the table"
                );
            }
        }
    }

    /// Checks that the slots are of this database: the position that a slot of another one has
    /// confirmed says nothing here. Returns their positions. To be called before the noted ones are
    /// read: a slot may go on meanwhile.
    async fn check_slots(&self, session: &mut Session) -> Result<Vec<Lsn>, CarriedError> {
        let sql = "SELECT pg_catalog.current_database() AS database";
        let rows = session.query(sql).await?;
        let database = rows.first().map(|row| text(&row, "database"));
        let found = slots(session).await?;
        let mut confirmed = Vec::new();
        for (number, name) in self.slots.iter().enumerate() {
            let slot = found.iter().find(|slot| slot.name == *name);
            let slot = slot.filter(|slot| slot.database == database);
            let slot = slot.ok_or_else(|| NotCarried::Slot(name.clone()))?;
            let plugin = slot.plugin.as_deref().unwrap_or_default();
            if number == 0 && plugin != PLUGIN {
                return Err(NotCarried::Plugin {
                    slot: name.clone(),
                    plugin: plugin.to_owned(),
                }
                .into());
            }
            // A logical slot has a position. Without one nothing counts as noted.
            confirmed.push(slot.confirmed.unwrap_or(Lsn::MAX));
        }
        Ok(confirmed)
    }
}

/// Writes a query of one row, if the table exists: whether it is partitioned, whether the
/// publication publishes INSERT, its row filter for the table, and the `state` of the table and
/// what the publication lists above it.
fn table_sql(major: u32, table: &TableName, publication: &str) -> String {
    format!(
        "WITH up AS (SELECT c.oid, c.relnamespace FROM pg_catalog.pg_class c WHERE c.oid = {oid} \
          UNION SELECT c.oid, c.relnamespace FROM pg_catalog.pg_partition_ancestors({oid}) a \
          JOIN pg_catalog.pg_class c ON c.oid = a.relid), \
         listed AS (SELECT r.oid, r.xmin, r.prpubid AS publication FROM up \
          JOIN pg_catalog.pg_publication_rel r ON r.prrelid = up.oid \
          UNION SELECT s.oid, s.xmin, s.pnpubid FROM up JOIN ({schemas}) s ON s.pnnspid = up.relnamespace) \
         SELECT c.relkind = 'p' AS partitioned, coalesce(p.pubinsert, false) AS inserts, {filter} AS filter, \
         pg_catalog.concat_ws(' ', c.oid, p.oid, p.xmin, (SELECT pg_catalog.string_agg(\
          pg_catalog.concat_ws(' ', l.oid, l.xmin), ', ' ORDER BY l.oid) FROM listed l WHERE l.publication = p.oid)) \
         AS state FROM pg_catalog.pg_class c \
         LEFT JOIN pg_catalog.pg_publication p ON p.pubname = {publication} \
         WHERE c.oid = {oid} AND c.relkind IN ('r', 'p')",
        oid = format_args!(
            "pg_catalog.to_regclass({})",
            quote_literal(&script::table(table))
        ),
        publication = quote_literal(publication),
        schemas = published_schemas(major),
        // Row filters came with Postgres 15.
        filter = if major >= 15 {
            "(SELECT pg_catalog.pg_get_expr(r.prqual, r.prrelid) FROM pg_catalog.pg_publication_rel r \
             WHERE r.prpubid = p.oid AND r.prrelid = c.oid)"
        } else {
            "NULL"
        },
    )
}

/// Returns SQL for the rows of `pg_publication_namespace`, which came with Postgres 15.
fn published_schemas(major: u32) -> &'static str {
    if major >= 15 {
        "SELECT oid, xmin, pnpubid, pnnspid FROM pg_catalog.pg_publication_namespace"
    } else {
        "SELECT NULL::oid AS oid, NULL::xid AS xmin, NULL::oid AS pnpubid, NULL::oid AS pnnspid WHERE false"
    }
}

/// Writes a query of a row for each part of the table: the table itself, or its partitions that
/// have rows.
///
/// Source: `get_rel_sync_entry` in `pgoutput.c`, and the documentation of CREATE PUBLICATION: a
/// partition is published if it, or a table above it, or the schema of one of these is; its changes
/// are announced under the name of the topmost of these if `publish_via_partition_root`, else under
/// its own. A row filter of any of them counts. Rows of unlogged and foreign tables are not in the
/// WAL.
///
/// `late`: a part below the table, or a table between them, was made by another transaction than its
/// place. `pg_attribute` rows of system columns are never updated, so their `xmin` is that of the
/// CREATE. `partition`: the partition of the table that the part is, or belongs to.
fn parts_sql(major: u32, table: &TableName, publication: &str) -> String {
    format!(
        "WITH RECURSIVE publication AS (SELECT oid, puballtables, pubviaroot FROM pg_catalog.pg_publication \
          WHERE pubname = {publication}), \
         root AS (SELECT {table}::pg_catalog.regclass::oid AS root), \
         tables AS (SELECT r.oid, r.xmin, r.prrelid, to_jsonb(r)->>'prqual' AS filter \
          FROM pg_catalog.pg_publication_rel r JOIN publication ON r.prpubid = publication.oid), \
         schemas AS (SELECT s.oid, s.xmin, s.pnnspid FROM ({schemas}) s JOIN publication ON s.pnpubid = publication.oid), \
         down AS (SELECT root AS oid FROM root UNION ALL SELECT i.inhrelid \
          FROM down JOIN pg_catalog.pg_class c ON c.oid = down.oid AND c.relkind = 'p' \
          JOIN pg_catalog.pg_inherits i ON i.inhparent = down.oid), \
         up AS (SELECT c.oid AS part, c.oid AS member, 0 AS level, c.oid <> root AS below, false AS late, \
           NULL::xid AS link \
          FROM root CROSS JOIN down JOIN pg_catalog.pg_class c ON c.oid = down.oid AND c.relkind <> 'p' \
          UNION ALL SELECT up.part, i.inhparent, up.level + 1, up.below AND i.inhparent <> root, \
           up.below AND i.xmin <> (SELECT a.xmin FROM pg_catalog.pg_attribute a \
            WHERE a.attrelid = up.member AND a.attname = 'tableoid'), i.xmin \
          FROM root CROSS JOIN up JOIN pg_catalog.pg_class c ON c.oid = up.member AND c.relispartition \
          JOIN pg_catalog.pg_inherits i ON i.inhrelid = up.member), \
         members AS (SELECT up.*, tables.filter, \
           puballtables OR tables.oid IS NOT NULL OR schemas.oid IS NOT NULL AS published, \
           pg_catalog.concat_ws(' ', c.oid, up.link, tables.oid, tables.xmin, schemas.oid, schemas.xmin) AS state \
          FROM up CROSS JOIN publication JOIN pg_catalog.pg_class c ON c.oid = up.member \
          LEFT JOIN tables ON tables.prrelid = up.member LEFT JOIN schemas ON schemas.pnnspid = c.relnamespace), \
         parts AS (SELECT part, pg_catalog.string_agg(state, ', ' ORDER BY level) AS state, \
          pg_catalog.bool_or(filter IS NOT NULL) AS filtered, pg_catalog.bool_or(late) AS late, \
          (pg_catalog.array_agg(member ORDER BY level DESC) FILTER (WHERE below))[1] AS partition, \
          (pg_catalog.array_agg(member ORDER BY level DESC) FILTER (WHERE published))[1] AS topmost \
          FROM members GROUP BY part) \
         SELECT part::int8 AS oid, part::pg_catalog.regclass::text AS part, state, filtered, late, \
         partition::int8 AS partition, c.relkind = 'r' AND c.relpersistence = 'p' AND topmost IS NOT NULL \
          AND CASE WHEN pubviaroot THEN topmost ELSE part END = root AS published \
         FROM root CROSS JOIN publication CROSS JOIN parts JOIN pg_catalog.pg_class c ON c.oid = part",
        publication = quote_literal(publication),
        schemas = published_schemas(major),
        table = quote_literal(&script::table(table)),
    )
}
