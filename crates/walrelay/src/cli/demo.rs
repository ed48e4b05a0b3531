//! Arguments of `walrelay demo`.

use clap::{Args, ValueEnum};

/// The destination of `demo`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum DemoSink {
    /// The embedded Kafka broker.
    #[default]
    Kafka,
    /// An HTTP receiver.
    #[cfg(feature = "http")]
    Http,
    /// A throwaway RabbitMQ.
    #[cfg(feature = "rabbitmq")]
    Rabbitmq,
}

/// Arguments of `demo`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct DemoArgs {
    /// End after so many seconds; without it, at Ctrl-C.
    #[arg(
        long,
        value_name = "N",
        env = "DEMO_SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    pub seconds: Option<u64>,

    /// Where the events go: a broker or a receiver inside this process, or a RabbitMQ server that
    /// runs as long as the demonstration.
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    pub sink: DemoSink,

    /// Go through faults: the broker stops, the walsender is killed, an event cannot be delivered.
    /// Shows at each what `walrelay status` and the metrics say, and ends by itself.
    #[arg(long)]
    pub drill: bool,

    /// Wait for Enter after each step of the drill, so that one can look at the page.
    #[arg(long, requires = "drill")]
    pub pause: bool,

    /// Orders written per second.
    #[arg(
        long,
        value_name = "N",
        env = "DEMO_RATE",
        default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub rate: u32,

    /// How many of a hundred transactions roll back.
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = 10,
        value_parser = clap::value_parser!(u8).range(0..=99)
    )]
    pub rollbacks: u8,
}
