//! The id and the remedy of each error, by which an operator finds and repairs it.

use walrelay_walsender::{quote_ident, quote_literal};

use super::SetupError;
use super::gap::{GO_ON, PUBLISH};
use crate::catalog::{CONFLICTING, Generated};
use crate::{columns_remedy, foreign_tables, script};

/// Returns what prevents that a slot is lost again for this reason: `invalidation_reason` of
/// `pg_replication_slots`, or our text for `conflicting`.
fn prevention(reason: &str) -> &'static str {
    match reason {
        "rows_removed" | CONFLICTING => {
            "set hot_standby_feedback = on on this standby, and let the standby stream from a slot of the \
             primary (primary_slot_name): otherwise the primary removes catalog rows that the slot needs. A \
             new slot on a standby waits until SELECT pg_log_standby_snapshot() runs on the primary"
        }
        "wal_level_insufficient" => {
            "keep wal_level = logical on the primary, or, from Postgres 19 on, a logical slot there"
        }
        "idle_timeout" => "raise idle_replication_slot_timeout, or keep a relay running",
        _ => "raise max_slot_wal_keep_size",
    }
}

impl SetupError {
    /// Returns the error's id: a short stable name, for documents and scripts.
    pub fn id(&self) -> &'static str {
        match self {
            Self::WalLevel { .. } => "wal-level",
            Self::StateVersion(_) => "state-version",
            Self::TableMissing { .. } => "table-missing",
            Self::TableKind(_) | Self::PartitionKind { .. } => "table-kind",
            Self::LargeObject { .. } => "column-large-object",
            Self::MarkMovesRows { .. } => "mark-sent-moves-rows",
            Self::ColumnsMissing { .. } => "column-missing",
            Self::AgeUnknown { .. } => "prune-column",
            Self::ColumnGenerated { .. } => "column-generated",
            Self::PublicationMissing(_) => "publication-missing",
            Self::PublicationNotYet { .. } => "publication-not-yet",
            Self::PublicationGone { .. } => "publication-gone",
            Self::PublicationWithoutInsert(_) => "publication-without-insert",
            Self::PublicationLacks { .. } => "publication-lacks-table",
            Self::PublicationChanged { .. } => "publication-changed",
            Self::PublicationForeign { .. } => "publication-foreign-table",
            Self::PublicationColumns { .. } => "publication-lacks-column",
            Self::Standby(_) => "standby",
            Self::SlotMissing { .. } => "slot-missing",
            Self::SlotLimit { .. } => "server-limit",
            Self::SlotPassedOver { .. } => "slot-passed-over",
            Self::NotSwitched(_) => "cutover-not-switched",
            Self::SlotGone { .. } => "slot-gone",
            Self::SlotPlugin { .. } => "slot-plugin",
            Self::SlotTwoPhase(_) => "slot-two-phase",
            Self::SlotDatabase { .. } => "slot-database",
            Self::SlotLost { .. } => "slot-lost",
            Self::FailoverTooOld(_) => "failover-too-old",
            Self::SnapshotRule { .. } => "snapshot-rule",
            Self::SnapshotOrder(_) => "snapshot-order",
        }
    }

    /// Returns the remedy for the error.
    pub fn remedy(&self) -> String {
        match self {
            Self::WalLevel { .. } => {
                "run ALTER SYSTEM SET wal_level = 'logical' and restart the server; managed \
                 services name it rds.logical_replication = 1 (Amazon RDS, Aurora), \
                 cloudsql.logical_decoding = on (Google Cloud SQL) or wal_level in the server \
                 parameters (Azure)"
                    .to_owned()
            }
            Self::StateVersion(_) => {
                "start the newer walrelay again. To go back for good, follow docs/operate/running.md, \"Upgrade and \
                 downgrade\""
                    .to_owned()
            }
            Self::TableMissing {
                near: Some(near), ..
            } => format!(
                "did you mean {near}? Correct [source] tables. If the table was renamed to this name, rows that the \
                 log has under the former name are sent as its own"
            ),
            Self::TableMissing { table, .. } => format!(
                "create {table} (walrelay init --dry-run prints the SQL), or correct [source] \
                 tables or the database in [source] url. If it was renamed, name it as it is named \
                 now: rows that the log has under the former name are sent as its own"
            ),
            Self::TableKind(_) => "name an ordinary or partitioned table that is not UNLOGGED in \
                                   [source] tables"
                .to_owned(),
            Self::PartitionKind { partitions, .. } => format!(
                "ALTER TABLE {} SET LOGGED. Rows that it has are not relayed by that: {PUBLISH}",
                partitions.first().map_or("", String::as_str)
            ),
            Self::LargeObject { table, column } => format!(
                "store the content in the row: ALTER TABLE {} ALTER COLUMN {} TYPE bytea USING lo_get({}), and have the \
                 application write bytea or text (Hibernate: without @Lob)",
                script::table(table),
                quote_ident(column),
                quote_ident(column)
            ),
            Self::MarkMovesRows { .. } => {
                "mark by a column that is in no partition key, such as a time of its own; or remove mark_sent and let \
                 [prune] delete sent rows"
                    .to_owned()
            }
            Self::ColumnsMissing {
                present,
                by_templates,
                ..
            } => columns_remedy(present, *by_templates),
            Self::AgeUnknown { table, .. } => format!(
                "name the column of a row's time as column in [prune], or add one: ALTER TABLE {} ADD COLUMN created_at \
                 timestamptz NOT NULL DEFAULT now(); rows that are there count as made then",
                script::table(table)
            ),
            Self::ColumnGenerated {
                table,
                column,
                generated,
                publication,
                published,
                major,
            } => {
                let ordinary = format!(
                    "ALTER TABLE {} ALTER COLUMN {} DROP EXPRESSION",
                    script::table(table),
                    quote_ident(column)
                );
                let publication = quote_ident(publication);
                match generated {
                    Generated::Virtual => {
                        "make the column STORED or an ordinary one, by DROP COLUMN and ADD COLUMN, \
                         or name another column in [router]"
                            .to_owned()
                    }
                    Generated::Stored if *major < 18 => format!(
                        "make it an ordinary column, which the writer fills: {ordinary}; or name another column \
                         in [router]. Postgres 18 and newer publish stored generated columns, with \
                         publish_generated_columns = stored"
                    ),
                    Generated::Stored if *published => format!(
                        "run ALTER PUBLICATION {publication} SET (publish_generated_columns = stored); a column \
                         list, if the publication has one, must name the column instead"
                    ),
                    Generated::Stored => {
                        "run the SQL of walrelay init --dry-run with publish_generated_columns = stored \
                         in the WITH of CREATE PUBLICATION"
                            .to_owned()
                    }
                }
            }
            Self::PublicationMissing(_) => "run walrelay init".to_owned(),
            Self::PublicationNotYet { slot, .. } => format!(
                "if the publication is there now, pass over the changes before it by walrelay \
                 slots advance {slot} --to now, start again, and {PUBLISH}. If it is not: \
                 docs/operate/troubleshooting.md, \"The publication is gone\""
            ),
            Self::PublicationGone { slot, .. } => format!(
                "if nothing was written to the outbox since the publication was dropped, create it \
                 again (walrelay init --dry-run prints the SQL) and start the relay, once with --accept-gap; otherwise drop the slot as well \
                 (SELECT pg_drop_replication_slot({})), run walrelay init, and publish the \
                 rows of the meantime by inserting them again",
                quote_literal(slot)
            ),
            Self::PublicationWithoutInsert(publication) => format!(
                "run ALTER PUBLICATION {} SET (publish = 'insert'); rows of the meantime are in no stream: if the next start \
                 ends with publication-changed, it names their range",
                quote_ident(publication)
            ),
            Self::PublicationLacks {
                publication,
                tables,
                gap,
            } => format!(
                "run ALTER PUBLICATION {} ADD TABLE {}; rows written before that are not carried{}. \
                 If the table is partitioned, SET (publish_via_partition_root = true)",
                quote_ident(publication),
                script::tables(tables),
                if gap.is_some() {
                    format!(": {PUBLISH}")
                } else {
                    String::new()
                }
            ),
            Self::PublicationChanged {
                publication,
                tables,
                ..
            } => format!(
                "if it carries all events, {GO_ON}. If not, correct it first (all rows: ALTER \
                 PUBLICATION {} SET TABLE {}), {GO_ON}, and {PUBLISH}: \
                 docs/operate/troubleshooting.md, \"The publication was changed\"",
                quote_ident(publication),
                script::tables(tables)
            ),
            Self::PublicationForeign {
                publication,
                tables,
                wanted,
                carries,
            } => foreign_tables::remedy(&quote_ident(publication), tables, wanted, *carries),
            Self::PublicationColumns {
                publication, table, ..
            } => format!(
                "run ALTER PUBLICATION {} SET TABLE {} without a column list, or with these columns. Then {GO_ON}: another \
                 list is another entry of the publication. If the relay ends with column-missing, a row of the meantime \
                 lacks the column for ever: the remedy of that error passes over it",
                quote_ident(publication),
                script::table(table)
            ),
            Self::Standby(_) => {
                "name all hosts in [source] url and add target_session_attrs=read-write, so that \
                 the primary is found"
                    .to_owned()
            }
            Self::SlotMissing { .. } => format!(
                "on the first day run walrelay init. If the slot was there before, find out who \
                 dropped it, {GO_ON}, and {PUBLISH}: docs/operate/troubleshooting.md, \"The slot is gone or was \
                 moved\""
            ),
            Self::SlotLimit { .. } => {
                "drop an unused slot (walrelay slots list), or raise max_replication_slots and restart the \
                 server: the relay goes on by itself"
                    .to_owned()
            }
            Self::SlotPassedOver { .. } => format!(
                "find out what moved the slot: pg_replication_slot_advance, another reader such as Debezium, a tool that \
                 recreates slots, or a walrelay that could not note its positions. Then {GO_ON} from where the slot is, \
                 and if nothing else relayed these events, send their rows with walrelay resend: docs/operate/troubleshooting.md, \
                 \"The slot is gone or was moved\""
            ),
            Self::NotSwitched(_) => format!(
                "make the slot by walrelay cutover switch, when the polling relay is to stop. If \
                 there is none, {GO_ON}: it sends the unmarked rows, and creates the slot"
            ),
            Self::SlotGone { .. } => format!(
                "find out who dropped it, {GO_ON} with a new one, and {PUBLISH}: \
                 docs/operate/troubleshooting.md, \"The slot is gone or was moved\""
            ),
            Self::SlotPlugin { .. } => {
                "give the relay a slot of its own: another name in [source] slot".to_owned()
            }
            Self::SlotTwoPhase(slot) => {
                // In one statement: without the copy the slot must not be dropped.
                let exchange = |from: &str, to: &str| {
                    let (from, to) = (quote_literal(from), quote_literal(to));
                    format!(
                        "SELECT pg_drop_replication_slot({from}) \
                         FROM pg_copy_logical_replication_slot({from}, {to});"
                    )
                };
                let other = "walrelay_without_two_phase";
                format!(
                    "a copy of a slot has the same position with two_phase off (and failover off). While \
                     no relay runs: {} {}",
                    exchange(slot, other),
                    exchange(other, slot)
                )
            }
            Self::SlotDatabase { found, .. } => format!(
                "connect to database {found} in [source] url, or give the relay a slot of its own"
            ),
            Self::SlotLost {
                catalog_xmin,
                reason,
                ..
            } => {
                let rows = catalog_xmin.map_or_else(String::new, |xmin| {
                    format!(" (none of them has an age(xmin) above age('{xmin}'::xid))")
                });
                format!(
                    "{GO_ON} with a new one in its place, and {PUBLISH}{rows}: docs/operate/troubleshooting.md, \
                     \"The slot is lost\". So that it does not happen again, {}",
                    prevention(reason)
                )
            }
            Self::SnapshotRule { .. } => {
                "write in [source] snapshot_where, in SQL, which rows no relay has \
                                      sent, or set snapshot = \"initial\" to send all"
                    .to_owned()
            }
            Self::SnapshotOrder(_) => {
                "name in [source] snapshot_order columns whose order is that of the commits of each key. If there \
                 are none, snapshot_unordered = true reads the rows in any order: for consumers to which the order \
                 of a key does not matter. A random UUID is no order, nor is a number that is added now"
                    .to_owned()
            }
            Self::FailoverTooOld(_) => {
                "remove failover from [source]; failover slots came with Postgres 17".to_owned()
            }
        }
    }
}
