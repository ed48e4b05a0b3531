//! [`GeneratedColumn`]: the router reads a generated column, which the server does not send.

use std::fmt;

use walrelay_relay::TableName;
use walrelay_walsender::quote_ident;

use crate::catalog::Generated;
use crate::script;

/// A generated column that the router reads, and that the server does not send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedColumn {
    /// The table.
    pub table: TableName,
    /// The column.
    pub column: String,
    /// The way in which the column is generated.
    pub generated: Generated,
    /// Name of the publication.
    pub publication: String,
    /// The publication exists.
    pub published: bool,
    /// Major version of the server.
    pub major: u32,
}

impl GeneratedColumn {
    /// Returns the remedy for the error.
    pub(super) fn remedy(&self) -> String {
        let Self {
            table,
            column,
            generated,
            publication,
            published,
            major,
        } = self;
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
}

impl fmt::Display for GeneratedColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            table,
            column,
            publication,
            major,
            ..
        } = self;
        let kind = match self.generated {
            Generated::Stored => "STORED",
            Generated::Virtual => "VIRTUAL",
        };
        write!(
            f,
            "column {column} of table {table} is generated ({kind}), and "
        )?;
        match self.generated {
            Generated::Virtual => f.write_str("Postgres publishes no virtual column"),
            Generated::Stored if *major < 18 => {
                write!(f, "Postgres {major} publishes no generated column")
            }
            Generated::Stored if self.published => {
                write!(f, "publication {publication} does not carry it")
            }
            Generated::Stored => write!(
                f,
                "publication {publication} would not carry it as the relay creates it"
            ),
        }
    }
}
