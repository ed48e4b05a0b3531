//! Arguments of `walrelay bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::common::ConfigArgs;

/// Arguments of `bench`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct BenchArgs {
    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// Rows of the backlog that is drained.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000)
    )]
    pub rows: u64,

    /// About how large a row's payload is, in bytes of JSON.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 300,
        value_parser = clap::value_parser!(u32).range(100..=1_000_000)
    )]
    pub bytes: u32,

    /// Rows a second for the latency, each in a transaction of its own; may be repeated.
    #[arg(
        long = "rate",
        value_name = "R",
        num_args = 1..,
        default_values_t = [100, 1_000],
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub rates: Vec<u32>,

    /// How long each rate is kept up.
    #[arg(
        long,
        value_name = "S",
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=3_600)
    )]
    pub seconds: u32,

    /// Measure this part only; may be repeated.
    #[arg(long, value_enum, value_name = "PART")]
    pub only: Vec<BenchPart>,

    /// Also write the figures to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Do not ask before writing.
    #[arg(long)]
    pub yes: bool,

    /// Only read the first --rows events that wait in this slot, by a temporary copy of it, and
    /// throw them away. Nothing is written, and the slot stays where it is.
    #[arg(long, value_name = "SLOT", conflicts_with_all = ["only", "yes", "bytes", "rates", "seconds"])]
    pub copy_of: Option<String>,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchPart {
    /// Draining the backlog into nothing: what Postgres, the network and the relay's core can do.
    Null,
    /// Draining it into the configured sink.
    #[value(alias = "kafka")]
    Sink,
    /// From a commit to the sink's acknowledgement and to a consumer.
    Latency,
}
