use std::fmt;

/// The schema in which relays keep their state. A publication of all tables carries its tables.
pub const STATE_SCHEMA: &str = "walrelay_state";

/// The tables of that schema. Another one there may be an outbox that was moved into it.
const STATE_TABLES: [&str; 9] = [
    "account",
    "accounts",
    "bookmark",
    "dead",
    "epoch",
    "last_error",
    "move",
    "run",
    "unmarked",
];

/// A table by schema and name, spelled as in the catalog.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    /// The table's schema.
    pub schema: String,
    /// The table's name.
    pub name: String,
}

impl TableName {
    /// Creates the table of this schema and name.
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            schema: schema.into(),
            name: name.into(),
        }
    }

    /// Returns true if it is a table in which relays keep their state.
    pub fn is_state(&self) -> bool {
        self.schema == STATE_SCHEMA && STATE_TABLES.contains(&&*self.name)
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}
