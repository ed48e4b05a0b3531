//! Arguments of `walrelay import-debezium`.

use std::path::PathBuf;

use clap::Args;

use super::common::Output;

/// Arguments of `import-debezium`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ImportArgs {
    /// What to read: a file, the URL of a connector in Kafka Connect's REST interface, or `-` for
    /// standard input.
    #[arg(value_name = "FILE|URL|-")]
    pub input: String,

    /// The properties of the Kafka Connect worker: brokers, converters and the producer's
    /// properties that the connector leaves to it.
    #[arg(long, value_name = "FILE")]
    pub worker: Option<PathBuf>,

    /// An outbox table, where `table.include.list` does not name them; may be repeated.
    #[arg(long, value_name = "SCHEMA.TABLE")]
    pub table: Vec<String>,

    /// Where the configuration goes, instead of standard output. An existing file is left alone.
    #[arg(short, long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,

    /// Replace the file.
    #[arg(long, requires = "output_file")]
    pub force: bool,

    /// Where the report goes, instead of standard error.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// The report for people, or for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,

    /// Write passwords into the configuration; otherwise it takes them from the environment.
    #[arg(long)]
    pub with_secrets: bool,

    /// Write the configuration although something that is not supported would make records others.
    #[arg(long)]
    pub partial: bool,
}
