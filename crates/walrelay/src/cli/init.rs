//! Arguments of `walrelay init`.

use clap::Args;
use clap::builder::PossibleValuesParser;
use secrecy::SecretString;

use super::common::{ConfigArgs, Output, secret};
use crate::config::preset_names;

/// Arguments of `init`.
#[derive(Debug, Clone, Args)]
pub struct InitArgs {
    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// Print the SQL and connect to nothing.
    #[arg(long)]
    pub dry_run: bool,

    /// Create the outbox tables in the form of this preset, with its indexes. An existing table is left
    /// as it is. Without this option, missing tables are created for the preset `debezium` only.
    #[arg(long, value_name = "PRESET", conflicts_with = "consumer", value_parser = PossibleValuesParser::new(preset_names()))]
    pub preset: Option<String>,

    /// Print the SQL for the database of a consumer, and read no configuration: the table of
    /// processed events, and a function of time-ordered ids for services that write events.
    #[arg(long, conflicts_with_all = ["role", "admin_url"])]
    pub consumer: bool,

    /// Also create this role, for the relay to connect as: it may replicate and log in, and owns
    /// and reads nothing. Its password is left to you.
    #[arg(long, value_name = "NAME")]
    pub role: Option<String>,

    /// Connect by this URL of an administrator, and also create the role of `[source] url`, unless
    /// `--role` names another one. The relay itself goes on using its own URL. Put the password into
    /// ~/.pgpass: command lines are public.
    #[arg(long, value_name = "URL", value_parser = secret, conflicts_with = "dry_run")]
    pub admin_url: Option<SecretString>,

    /// For people, or for programs: an object with the SQL, or with what was created.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}
