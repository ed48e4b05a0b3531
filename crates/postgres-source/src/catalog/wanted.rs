//! [`Wanted`]: the objects and columns that the configuration wants in the database.

use walrelay_event_router::ColumnNames;
use walrelay_relay::{AccountColumns, TableName};

/// The rows that a snapshot reads, and their order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// Only rows that no relay has sent, by a column of the table. A `filter` replaces it.
    pub unsent: bool,
    /// The columns that the relay sets when it marks a row: no other one shows that a row is sent. `None`: it
    /// marks none.
    pub marked: Option<Vec<String>>,
    /// An SQL condition.
    pub filter: Option<String>,
    /// Columns to order by; empty: an identity column, or the column of the event's time, or else a
    /// primary key of integers.
    pub order: Vec<String>,
    /// Tables without an order are read all the same. Otherwise they are an error.
    pub unordered: bool,
    /// The column of the event's time, if the route names one.
    pub time: Option<String>,
}

/// A polling relay that sends rows while there is no slot, as far as the configuration shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poller {
    /// None is known.
    Unknown,
    /// Rows are marked as sent for one, so one may be running.
    MayRun,
    /// `cutover switch` has stopped it.
    Stopped,
}

/// The account that a relay keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountSettings {
    /// The columns of the account.
    pub columns: AccountColumns,
    /// The user says that rows from before the slot may be deleted.
    pub before_slot: bool,
    /// The store of the relay's dead letters; `None` if it writes none.
    pub dead_letters: Option<String>,
}

/// The setup of the database that the configuration requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the slot.
    pub slot: String,
    /// Name of the publication.
    pub publication: String,
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// Other tables that the publication may carry. The name `*` stands for all of a schema.
    pub pass_over: Vec<TableName>,
    /// Columns that the router reads of each table.
    pub columns: Vec<String>,
    /// Those of them whose content is the event's: none may refer to a large object.
    pub content: Vec<String>,
    /// Other names of these columns.
    pub column_names: ColumnNames,
    /// The columns are named by templates, not by Debezium's options.
    pub by_templates: bool,
    /// The prefix of logical messages that are events.
    pub messages: Option<String>,
    /// Missing objects may be created.
    pub create: bool,
    /// Standbys must keep a copy of the slot (Postgres 17 and newer).
    pub failover: bool,
    /// The rows that are relayed before the slot is created.
    pub snapshot: Option<Selection>,
    /// The SQL assignments that mark a row as sent; rows that cannot be marked at once are stored.
    pub marks: Option<String>,
    /// The assignments that mark rows of dead letters, if they are marked.
    pub dead_marks: Option<String>,
    /// The polling relay that may send rows while there is no slot.
    pub poller: Poller,
    /// Bytes of WAL that the server keeps for a bookmark that a command has kept, at most.
    pub kept_wal: u64,
    /// The account of sent rows; `None`: no rows are deleted by it.
    pub account: Option<AccountSettings>,
    /// Names of columns that show a row's age: each table must have one of them. Empty: nothing
    /// deletes old rows.
    pub age: Vec<String>,
}

impl Wanted {
    /// Returns the store to which dead letters of accounted rows are written.
    pub(crate) fn dead_letters(&self) -> Option<&str> {
        self.account.as_ref()?.dead_letters.as_deref()
    }

    /// Returns the name that a column of the router has among these.
    pub fn found<'p>(&self, column: &str, present: &'p [String]) -> Option<&'p String> {
        let mut names = self.column_names.names_of(column);
        names.find_map(|name| present.iter().find(|present| *present == name))
    }

    /// Returns all names of the columns that the router reads.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns
            .iter()
            .flat_map(|column| self.column_names.names_of(column))
    }
}
