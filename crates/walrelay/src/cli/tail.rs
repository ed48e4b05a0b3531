//! Arguments of `walrelay tail`.

use std::str::FromStr;

use clap::Args;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::common::ConfigArgs;

/// Arguments of `tail`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TailArgs {
    /// The topic.
    #[arg(value_name = "TOPIC")]
    pub topic: String,

    /// Where to begin: `beginning`, `end`, or a time, RFC 3339.
    #[arg(long, value_name = "PLACE", default_value = "beginning")]
    pub from: TailFrom,

    /// Only records with this key.
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,

    /// Wait for the topic and for further records, until Ctrl-C. Without it, end where the topic
    /// ended at the start.
    #[arg(short, long)]
    pub follow: bool,

    /// End after so many records.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,

    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// The first record that `tail` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailFrom {
    /// The oldest one that the topic has.
    Beginning,
    /// The next one that is written.
    End,
    /// The first one with this timestamp or a later one.
    Time(OffsetDateTime),
}

impl FromStr for TailFrom {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "beginning" => Ok(Self::Beginning),
            "end" => Ok(Self::End),
            _ => OffsetDateTime::parse(text, &Rfc3339)
                .map(Self::Time)
                .map_err(|_| "say beginning, end, or a time such as 2026-01-02T03:04:05Z"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    #[test]
    fn places_are_read() {
        let tail = parsed!(
            "tail orders --from 2026-01-02T03:04:05Z -fn 3",
            Command::Tail
        );
        let TailFrom::Time(time) = tail.from else {
            panic!("{:?}", tail.from);
        };
        assert_eq!(time.unix_timestamp(), 1_767_323_045);
        assert!(tail.follow && tail.limit == Some(3));
        let error = parse("tail orders --from yesterday").unwrap_err();
        assert!(error.to_string().contains("say beginning, end"), "{error}");
    }
}
