//! Arguments of `walrelay verify-topic`.

use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::common::{ConfigArgs, Output, RecordPlace};

/// Arguments of `verify-topic`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct VerifyTopicArgs {
    /// The topics.
    #[arg(value_name = "TOPIC", required = true)]
    pub topics: Vec<String>,

    /// Only records with this timestamp or a later one: a time, RFC 3339, or how long ago.
    #[arg(long, value_name = "TIME")]
    pub since: Option<VerifySince>,

    /// Also look for the event of each row that the outbox tables still have. The relay must be
    /// running.
    #[arg(long)]
    pub against_table: bool,

    /// With `--against-table`: a condition in SQL on the rows, instead of their time.
    #[arg(long, value_name = "SQL", requires = "against_table")]
    pub r#where: Option<String>,

    /// Where records have the event's id: `header:NAME` or `value:MEMBER`. Without it, the header id,
    /// event_id or x-outbox-event-id.
    #[arg(long, value_name = "PLACE")]
    pub id: Option<RecordPlace>,

    /// Where records have the time of their commit, RFC 3339 or milliseconds since 1970.
    #[arg(long, value_name = "PLACE", default_value = "header:ce_time")]
    pub commit_time: RecordPlace,

    /// Repeated records alone are nothing wrong: delivery is at least once.
    #[arg(long)]
    pub allow_repeats: bool,

    /// Keep at least so many of the last ids, and of the last keys, in memory.
    #[arg(long, value_name = "N", default_value = "1835008")]
    pub remember: NonZeroUsize,

    /// For people, or for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,

    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// The timestamp of the first record that `verify-topic` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifySince {
    /// This time.
    Time(OffsetDateTime),
    /// So long before now.
    Ago(Duration),
}

impl FromStr for VerifySince {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let time = OffsetDateTime::parse(text, &Rfc3339).map(Self::Time);
        time.or_else(|_| walrelay_settings::parse_duration(text).map(Self::Ago))
            .map_err(|_| "say a time such as 2026-01-02T03:04:05Z, or how long ago, such as 24h")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    #[test]
    fn times_and_topics_are_read() {
        let args = parsed!("verify-topic a b --since 24h", Command::VerifyTopic);
        assert_eq!(args.topics, ["a", "b"]);
        let day = Duration::from_secs(86_400);
        assert_eq!(args.since, Some(VerifySince::Ago(day)));
        let ce_time = RecordPlace::Header("ce_time".to_owned());
        assert_eq!(args.commit_time, ce_time);
        let line = "verify-topic a --since 2026-01-02T03:04:05Z --against-table --where true";
        let args = parsed!(line, Command::VerifyTopic);
        let Some(VerifySince::Time(time)) = args.since else {
            panic!("{:?}", args.since);
        };
        assert_eq!(time.unix_timestamp(), 1_767_323_045);
        for (wrong, words) in [
            ("", "TOPIC"),
            ("a --since yesterday", "how long ago"),
            ("a --where true", "--against-table"),
            ("a --remember 0", "--remember"),
        ] {
            let error = parse(&format!("verify-topic {wrong}")).unwrap_err();
            assert!(error.to_string().contains(words), "{wrong}: {error}");
        }
    }
}
