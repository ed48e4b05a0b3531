//! Arguments of `walrelay new`.

use std::path::PathBuf;

use clap::Args;
use secrecy::SecretString;

use super::common::secret;

/// Arguments of `new`.
#[derive(Debug, Clone, Args)]
pub struct NewArgs {
    /// The URL by which you reach the database. It is used once, to find the outbox tables. Its
    /// password is not written: the file takes that of the relay's role from `RELAY_PASSWORD`. Put
    /// yours into ~/.pgpass: command lines are public.
    #[arg(long, value_name = "URL", value_parser = secret)]
    pub database: Option<SecretString>,

    /// The brokers, as in `broker-1:9092,broker-2:9092`.
    #[arg(long, value_name = "HOST:PORT,…")]
    pub brokers: Option<String>,

    /// The role by which the relay will connect. `walrelay init --dry-run` prints the SQL that
    /// makes it.
    #[arg(long, value_name = "NAME", default_value = "walrelay")]
    pub role: String,

    /// Where the configuration goes. An existing file is left alone.
    #[arg(short, long, value_name = "FILE", default_value = "walrelay.toml")]
    pub output_file: PathBuf,
}
