//! Arguments of `walrelay new`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use secrecy::SecretString;
use walrelay_postgres_source::table_name;
use walrelay_relay::TableName;

use super::common::secret;
use crate::config::{DEFAULT_KIND, preset_names, sink_names};

/// Arguments of `new`.
#[derive(Debug, Clone, Args)]
pub struct NewArgs {
    /// The URL by which you reach the database. It is used once, to find the outbox tables. Its
    /// password is not written: the file takes that of the relay's role from `RELAY_PASSWORD`. Yours
    /// is read from `PGPASSWORD` or ~/.pgpass, or asked for at a terminal: command lines are public.
    #[arg(long, value_name = "URL", value_parser = secret)]
    pub database: Option<SecretString>,

    /// The kind of sink that records go to.
    #[arg(long, value_name = "KIND", default_value = DEFAULT_KIND, value_parser = PossibleValuesParser::new(sink_names()))]
    pub sink: String,

    /// The servers of the sink: brokers as in `broker-1:9092,broker-2:9092`, a host with its port, or a URL.
    #[arg(long, visible_alias = "brokers", value_name = "SERVERS")]
    pub servers: Option<String>,

    /// The preset of the outbox table. Without a table of this form, the file names the one that
    /// `walrelay init --preset` makes. Unset: the best one for the tables of the database.
    #[arg(long, value_name = "PRESET", conflicts_with = "table", value_parser = PossibleValuesParser::new(preset_names()))]
    pub preset: Option<String>,

    /// Your outbox table, such as app.events. Unset: a table with the columns of a preset. Other
    /// columns are recognised by usual names, such as `event_id`, or asked for at a terminal.
    #[arg(long, value_name = "TABLE", value_parser = table_name::parse)]
    pub table: Option<TableName>,

    /// A column of the table, such as key=order_id; may be repeated. A part is `id`, `topic` (the
    /// name of the topic), `aggregate` (a part of the topic's name), `key`, `payload` or `type`.
    #[arg(long = "column", value_name = "PART=COLUMN", requires = "table")]
    pub columns: Vec<PartColumn>,

    /// The role by which the relay will connect. `walrelay init --dry-run` prints the SQL that
    /// makes it.
    #[arg(long, value_name = "NAME", default_value = "walrelay")]
    pub role: String,

    /// Where the configuration goes. An existing file is left alone.
    #[arg(short, long, value_name = "FILE", default_value = "walrelay.toml")]
    pub output_file: PathBuf,
}

/// A part of an event, named as in a message of `outbox.emit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EventPart {
    /// The id of the event.
    Id,
    /// The topic's name as it is.
    Topic,
    /// The text from which the route makes a topic.
    Aggregate,
    /// The key of the record.
    Key,
    /// The value of the record.
    Payload,
    /// The kind of event.
    Type,
}

/// The column that a part of the event comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartColumn {
    /// The part.
    pub part: EventPart,
    /// The name of the column.
    pub column: String,
}

impl FromStr for PartColumn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (part, column) = text.split_once('=').unwrap_or((text, ""));
        let part = EventPart::from_str(part, false).ok();
        match part.filter(|_| !column.is_empty()) {
            Some(part) => Ok(Self {
                part,
                column: column.to_owned(),
            }),
            None => Err(format!(
                "it has the form PART=COLUMN, and a part is {}",
                EventPart::value_variants()
                    .iter()
                    .filter_map(EventPart::to_possible_value)
                    .map(|value| value.get_name().to_owned())
                    .collect::<Vec<_>>()
                    .join(", ")
            )),
        }
    }
}
