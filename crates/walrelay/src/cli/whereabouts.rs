//! Arguments of `walrelay where`.

use std::time::Duration;

use clap::Args;

use super::common::{ConfigArgs, Output, ParentArgs, RecordPlace};
use super::verify_topic::VerifySince;

/// Arguments of `where`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct WhereArgs {
    /// The event's id.
    #[arg(value_name = "ID")]
    pub event: String,

    /// Look for the record in this topic or stream, too; may be repeated. Without it, in the topic that
    /// the row, or the log, is routed to.
    #[arg(long, value_name = "TOPIC")]
    pub topic: Vec<String>,

    /// Read topics and dead letters from this time on, RFC 3339, or from so long ago. Without it, from
    /// the row's time, or else from the oldest record.
    #[arg(long, value_name = "TIME")]
    pub since: Option<VerifySince>,

    /// Where records have the event's id: `header:NAME` or `value:MEMBER`. Without it, the header id,
    /// event_id or x-outbox-event-id.
    #[arg(long, value_name = "PLACE")]
    pub id: Option<RecordPlace>,

    /// Read the log, and the topics, for so long each, at most.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        value_parser = walrelay_settings::parse_duration
    )]
    pub timeout: Duration,

    /// For people, or for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,

    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// Whether the command ends with its parent.
    #[command(flatten)]
    pub parent: ParentArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    #[test]
    fn an_id_and_topics_are_read() {
        let args = parsed!("where 17 --topic a --topic b --since 24h", Command::Where);
        assert_eq!((&*args.event, args.timeout.as_secs()), ("17", 30));
        assert_eq!(args.topic, ["a", "b"]);
        assert_eq!(
            args.since,
            Some(VerifySince::Ago(Duration::from_secs(86_400)))
        );
        assert!(parse("where").is_err());
        assert!(parse("where 1 --timeout soon").is_err());
    }
}
