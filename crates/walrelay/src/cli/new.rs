//! Arguments of `walrelay new`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use secrecy::SecretString;

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
    #[arg(long, value_name = "PRESET", value_parser = PossibleValuesParser::new(preset_names()))]
    pub preset: Option<String>,

    /// The role by which the relay will connect. `walrelay init --dry-run` prints the SQL that
    /// makes it.
    #[arg(long, value_name = "NAME", default_value = "walrelay")]
    pub role: String,

    /// Where the configuration goes. An existing file is left alone.
    #[arg(short, long, value_name = "FILE", default_value = "walrelay.toml")]
    pub output_file: PathBuf,
}
