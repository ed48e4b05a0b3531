use std::fmt;
use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_relay::{LogError, SourceError, TableName};
use walrelay_sink::Disposition;
use walrelay_walsender::quote_ident;

use super::catalog::SlotReader;
use super::state_file::StateFileError;

/// Something about the database is not as the relay needs it. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Logical decoding is off.
    #[error(
        "the server runs with wal_level = {found}; reading an outbox from the log needs logical"
    )]
    WalLevel {
        /// The setting.
        found: String,
    },
    /// A configured table does not exist.
    #[error("table {table} does not exist in the database")]
    TableMissing {
        /// Its name.
        table: TableName,
    },
    /// A configured table is a view, a foreign table, or unlogged.
    #[error("{table} is not a table whose changes are written to the log")]
    TableKind {
        /// Its name.
        table: TableName,
    },
    /// A table lacks columns that the router reads.
    #[error("table {table} has no column {}", missing.join(", "))]
    ColumnsMissing {
        /// Its name.
        table: TableName,
        /// What is missing.
        missing: Vec<String>,
        /// What is there.
        present: Vec<String>,
        /// Whether templates name the columns, and not Debezium's options.
        by_templates: bool,
    },
    /// There is no publication and none may be created.
    #[error("publication {publication} does not exist")]
    PublicationMissing {
        /// Its name.
        publication: String,
    },
    /// There is a slot but no publication: rows committed meanwhile would be passed over.
    #[error("publication {publication} does not exist, though slot {slot} does")]
    PublicationGone {
        /// The publication.
        publication: String,
        /// The slot.
        slot: String,
    },
    /// The publication does not carry INSERTs.
    #[error("publication {publication} does not publish inserts")]
    PublicationWithoutInsert {
        /// Its name.
        publication: String,
    },
    /// The publication lacks a configured table.
    #[error("publication {publication} does not carry table {}", list(tables))]
    PublicationLacks {
        /// Its name.
        publication: String,
        /// The tables.
        tables: Vec<TableName>,
    },
    /// The publication carries tables that the configuration does not name.
    #[error(
        "publication {publication} carries {}, which [source] tables does not name",
        list(tables)
    )]
    PublicationForeign {
        /// Its name.
        publication: String,
        /// The tables.
        tables: Vec<TableName>,
    },
    /// The publication's column list leaves out a column that the router reads.
    #[error("publication {publication} leaves out column {} of table {table}", missing.join(", "))]
    PublicationColumns {
        /// Its name.
        publication: String,
        /// The table.
        table: TableName,
        /// What is missing.
        missing: Vec<String>,
    },
    /// The server is a standby and the slot is not there: the primary has it.
    #[error("the server is a standby, and replication slot {slot} is not on it")]
    Standby {
        /// Its name.
        slot: String,
    },
    /// There is no slot, and none may be created silently.
    #[error("replication slot {slot} does not exist{}", missing(gap.as_ref()))]
    SlotMissing {
        /// Its name.
        slot: String,
        /// What is not relayed if it was dropped; `None` where no relay was set up before.
        gap: Option<Gap>,
    },
    /// The slot this process was reading is gone, and with it the log it retained.
    #[error(
        "replication slot {slot}, which was being relayed, does not exist any more: what was \
         committed {gap} is not relayed"
    )]
    SlotGone {
        /// Its name.
        slot: String,
        /// What is not relayed for it.
        gap: Gap,
    },
    /// The slot is of another kind.
    #[error(
        "replication slot {slot} is {kind} with plugin {plugin}; it must be logical with pgoutput"
    )]
    SlotPlugin {
        /// Its name.
        slot: String,
        /// `logical` or `physical`.
        kind: String,
        /// Its plugin.
        plugin: String,
    },
    /// The slot belongs to another database of the server.
    #[error("replication slot {slot} decodes database {found}, not {connected}")]
    SlotDatabase {
        /// Its name.
        slot: String,
        /// Its database.
        found: String,
        /// The one connected to.
        connected: String,
    },
    /// The server has invalidated the slot, as a rule because it removed log that the slot needs.
    #[error(
        "replication slot {slot} is lost ({reason}): what was committed {gap} cannot be relayed \
         from it"
    )]
    SlotLost {
        /// Its name.
        slot: String,
        /// In Postgres' words.
        reason: String,
        /// What cannot be relayed.
        gap: Gap,
        /// No row of the gap has an `xmin` before this.
        catalog_xmin: Option<u32>,
    },
    /// A failover slot is wanted, and the server does not know them.
    #[error("[source] failover needs Postgres 17 or newer; the server is Postgres {major}")]
    FailoverTooOld {
        /// The server's major version.
        major: u32,
    },
}

/// A range of the log that is not relayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Up to here it was relayed, as far as it is known.
    pub from: Option<Lsn>,
    /// Where the server's log ended when the gap was found, or where a new slot begins.
    pub to: Option<Lsn>,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            Some(from) => write!(f, "from {from} "),
            None => f.write_str("from the slot's last position, which nobody knows, "),
        }?;
        match self.to {
            Some(to) => write!(f, "to {to}"),
            None => f.write_str("on"),
        }
    }
}

fn missing(gap: Option<&Gap>) -> String {
    gap.map_or_else(String::new, |gap| {
        format!(
            ", though a relay was set up here: if it was dropped, what was committed {gap} is not \
             relayed"
        )
    })
}

pub(crate) const GO_ON: &str = "run walrelay run --accept-gap once to go on";
pub(crate) const PUBLISH: &str = "publish the rows of the gap by inserting them anew";

fn list(tables: &[TableName]) -> String {
    tables
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl SetupError {
    /// A short stable name, for documents and scripts.
    pub fn id(&self) -> &'static str {
        match self {
            SetupError::WalLevel { .. } => "wal-level",
            SetupError::TableMissing { .. } => "table-missing",
            SetupError::TableKind { .. } => "table-kind",
            SetupError::ColumnsMissing { .. } => "column-missing",
            SetupError::PublicationMissing { .. } => "publication-missing",
            SetupError::PublicationGone { .. } => "publication-gone",
            SetupError::PublicationWithoutInsert { .. } => "publication-without-insert",
            SetupError::PublicationLacks { .. } => "publication-lacks-table",
            SetupError::PublicationForeign { .. } => "publication-foreign-table",
            SetupError::PublicationColumns { .. } => "publication-lacks-column",
            SetupError::Standby { .. } => "standby",
            SetupError::SlotMissing { .. } => "slot-missing",
            SetupError::SlotGone { .. } => "slot-gone",
            SetupError::SlotPlugin { .. } => "slot-plugin",
            SetupError::SlotDatabase { .. } => "slot-database",
            SetupError::SlotLost { .. } => "slot-lost",
            SetupError::FailoverTooOld { .. } => "failover-too-old",
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            SetupError::WalLevel { .. } => {
                "run ALTER SYSTEM SET wal_level = 'logical' and restart \
                the server; managed services name it rds.logical_replication = 1 (Amazon RDS, \
                Aurora), cloudsql.logical_decoding = on (Google Cloud SQL) or wal_level in the \
                server parameters (Azure)"
                    .to_owned()
            }
            SetupError::TableMissing { table } => format!(
                "create {table} (walrelay init --dry-run prints the SQL), or correct [source] \
                 tables or the database in [source] url"
            ),
            SetupError::TableKind { .. } => "name an ordinary or partitioned table that is not \
                UNLOGGED in [source] tables"
                .to_owned(),
            SetupError::ColumnsMissing {
                present,
                by_templates,
                ..
            } => super::columns_remedy(present, *by_templates),
            SetupError::PublicationMissing { .. } => "run walrelay init".to_owned(),
            SetupError::SlotMissing { .. } => format!(
                "on the first day run walrelay init. If the slot was there before, find out who \
                 dropped it, {GO_ON}, and {PUBLISH}: docs/OPERATIONS.md, \"The slot is gone or was \
                 moved\""
            ),
            SetupError::PublicationGone { slot, .. } => format!(
                "if nothing was written to the outbox since the publication was dropped, create it \
                 again with walrelay init and start the relay; otherwise drop the slot as well \
                 (SELECT pg_drop_replication_slot('{slot}')), run walrelay init, and publish the \
                 rows of the meantime by inserting them anew"
            ),
            SetupError::PublicationWithoutInsert { publication } => format!(
                "run ALTER PUBLICATION {} SET (publish = 'insert')",
                quote_ident(publication)
            ),
            SetupError::PublicationLacks {
                publication,
                tables,
            } => format!(
                "run ALTER PUBLICATION {} ADD TABLE {}; rows written before that are not carried. \
                 If the table is partitioned, SET (publish_via_partition_root = true)",
                quote_ident(publication),
                tables
                    .iter()
                    .map(super::script::table)
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            SetupError::PublicationForeign { publication, .. } => format!(
                "add them to [source] tables if they are outbox tables, or give the relay a \
                 publication of its own; for partitions of an outbox run ALTER PUBLICATION {} SET \
                 (publish_via_partition_root = true)",
                quote_ident(publication)
            ),
            SetupError::PublicationColumns {
                publication, table, ..
            } => format!(
                "run ALTER PUBLICATION {} SET TABLE {} without a column list, or with these columns",
                quote_ident(publication),
                super::script::table(table)
            ),
            SetupError::Standby { .. } => "name all hosts in [source] url and add \
                target_session_attrs=read-write, so that the primary is found"
                .to_owned(),
            SetupError::SlotGone { .. } => format!(
                "find out who dropped it, {GO_ON} with a new one, and {PUBLISH}: \
                 docs/OPERATIONS.md, \"The slot is gone or was moved\""
            ),
            SetupError::SlotPlugin { .. } => {
                "give the relay a slot of its own: another name in [source] slot".to_owned()
            }
            SetupError::SlotDatabase { found, .. } => format!(
                "connect to database {found} in [source] url, or give the relay a slot of its own"
            ),
            SetupError::SlotLost { catalog_xmin, .. } => format!(
                "{GO_ON} with a new one in its place, and {PUBLISH}{}: docs/OPERATIONS.md, \"The \
                 slot is lost\". So that it does not happen again, raise max_slot_wal_keep_size",
                catalog_xmin.map_or_else(String::new, |xmin| format!(
                    " (none of them has an age(xmin) above age('{xmin}'::xid))"
                ))
            ),
            SetupError::FailoverTooOld { .. } => {
                "remove failover from [source]; failover slots came with Postgres 17".to_owned()
            }
        }
    }

    fn disposition(&self) -> Disposition {
        match self {
            SetupError::Standby { .. } => Disposition::Retryable,
            SetupError::SlotGone { .. } | SetupError::SlotLost { .. } => Disposition::Fatal,
            _ => Disposition::Configuration,
        }
    }
}

/// Why a stream could not be opened, or why it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// The connection, or the server's answer on it.
    #[error(transparent)]
    Wal(#[from] walrelay_walsender::Error),
    /// The database is not as it must be.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Position and slot do not go together: what is noted in the state file says so.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The state file cannot be used.
    #[error(transparent)]
    StateFile(#[from] StateFileError),
    /// The server has no more log for the slot, though its catalogs do not say so.
    #[error("the log that slot {slot} needs is gone: what was committed {gap} cannot be relayed")]
    WalGone {
        /// The slot.
        slot: String,
        /// What cannot be relayed.
        gap: Gap,
        /// The server's words.
        #[source]
        source: walrelay_walsender::Error,
    },
    /// The server may be about to end the stream to take the slot's WAL away, and a walsender whose
    /// client does not read cannot end. Until it has, the server's checkpoints wait.
    #[error(
        "slot {slot} keeps more WAL than the server allows, and nothing is read: giving the \
         connection back, so that the server can do as it must"
    )]
    MakeWay {
        /// The slot.
        slot: String,
    },
    /// The server took a command and did not answer.
    #[error("Postgres did not answer within {after:?}: {doing}")]
    NoAnswer {
        /// What was asked.
        doing: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The two connections of the relay do not see the same slot in use.
    #[error(
        "the control connection does not see the stream of slot {slot}: the two reached different servers"
    )]
    TwoServers {
        /// The slot.
        slot: String,
    },
    /// Another process reads the slot; the server lets in one at a time.
    #[error("slot {slot} is being read by server process {}", words(reader.as_ref()))]
    SlotBusy {
        /// The slot.
        slot: String,
        /// Who reads it, if it was still there to be seen.
        reader: Option<SlotReader>,
        /// It is the walsender of a connection that this process has lost.
        own: bool,
        /// The server's words, where it was asked for the slot.
        #[source]
        source: Option<walrelay_walsender::Error>,
    },
}

fn words(reader: Option<&SlotReader>) -> String {
    match reader {
        None => "?".to_owned(),
        Some(SlotReader {
            pid,
            application_name: None,
        }) => pid.to_string(),
        Some(SlotReader {
            pid,
            application_name: Some(name),
        }) => format!("{pid} ({name})"),
    }
}

impl SourceError for PostgresError {
    fn is_slot_taken(&self) -> bool {
        matches!(
            self,
            PostgresError::SlotBusy {
                reader: Some(_),
                own: false,
                ..
            }
        )
    }

    fn is_slot_busy(&self) -> bool {
        matches!(self, PostgresError::SlotBusy { .. })
    }

    fn disposition(&self) -> Disposition {
        match self {
            PostgresError::Wal(error) => error.disposition(),
            PostgresError::Setup(error) => error.disposition(),
            PostgresError::StateFile(error) => error.disposition(),
            PostgresError::Log(_) | PostgresError::WalGone { .. } => Disposition::Fatal,
            PostgresError::SlotBusy { .. }
            | PostgresError::MakeWay { .. }
            | PostgresError::NoAnswer { .. }
            | PostgresError::TwoServers { .. } => Disposition::Retryable,
        }
    }
}
