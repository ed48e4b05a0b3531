//! Arguments of `walrelay replay`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use walrelay_event_router::Selection;
use walrelay_lsn::Lsn;

use super::common::ConfigArgs;
use crate::config::sink_names;

/// Arguments of `replay`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ReplayArgs {
    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// Where to begin: a bookmark, a position such as 0/16B3748, or a time such as
    /// 2026-01-02T03:04:05Z.
    #[arg(
        long,
        value_name = "BOOKMARK|LSN|TIME",
        required_unless_present = "resume"
    )]
    pub from: Option<ReplayFrom>,

    /// Where to end: at a position or a time; without it, at the end of the log as of now.
    #[arg(long, value_name = "LSN|TIME")]
    pub to: Option<ReplayTo>,

    /// Put this text before the name of each topic.
    #[arg(long, value_name = "PREFIX", value_parser = NonEmptyStringValueParser::new(), conflicts_with = "to_topic")]
    pub topic_prefix: Option<String>,

    /// Send all records to this topic. Asks first if records were written to it before.
    #[arg(long, value_name = "TOPIC", value_parser = NonEmptyStringValueParser::new())]
    pub to_topic: Option<String>,

    /// Replay these events alone: type, key, topic or id equal to texts, joined by `and`.
    #[arg(long = "where", value_name = "CONDITIONS", value_parser = selection)]
    pub selection: Option<String>,

    /// Replay at most so many events a second.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Option<u32>,

    /// Read and route everything, send nothing, and show the totals.
    #[arg(long)]
    pub dry_run: bool,

    /// Where records go: to standard output, one JSON object a line, instead of to the configured
    /// sink. The kind of the configured sink may be named, too.
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(sink_names()))]
    pub sink: Option<String>,

    /// Go on with an interrupted replay.
    #[arg(
        long,
        value_name = "ID",
        value_parser = id,
        conflicts_with_all = ["from", "to", "topic_prefix", "to_topic", "selection", "rate", "dry_run", "sink"]
    )]
    pub resume: Option<String>,

    /// Where the progress of the replay is noted for --resume; without it, beside `[source]
    /// state_file`, or in the working directory.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
}

/// The beginning of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayFrom {
    /// The position of this bookmark.
    Bookmark(String),
    /// This position.
    Lsn(Lsn),
    /// The first transaction that was committed at this time or later.
    Time(OffsetDateTime),
}

/// The end of a replay, exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayTo {
    /// Before the first transaction that was committed at this position or later.
    Lsn(Lsn),
    /// Before the first transaction that was committed at this time or later.
    Time(OffsetDateTime),
}

impl FromStr for ReplayFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.parse() {
            Ok(ReplayTo::Lsn(lsn)) => Self::Lsn(lsn),
            Ok(ReplayTo::Time(time)) => Self::Time(time),
            Err(error) if text.contains(['/', ':', ' ']) => return Err(error),
            Err(_) => Self::Bookmark(text.to_owned()),
        })
    }
}

impl fmt::Display for ReplayFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bookmark(name) => write!(f, "bookmark {name}"),
            Self::Lsn(lsn) => write!(f, "{lsn}"),
            Self::Time(time) => write!(f, "{}", time.format(&Rfc3339).unwrap_or_default()),
        }
    }
}

impl FromStr for ReplayTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(lsn) = text.parse() {
            return Ok(Self::Lsn(lsn));
        }
        let time = OffsetDateTime::parse(text, &Rfc3339);
        time.map(Self::Time).map_err(|_| {
            "a position has the form 0/16B3748, a time 2026-01-02T03:04:05Z".to_owned()
        })
    }
}

fn selection(text: &str) -> Result<String, String> {
    let parsed: Result<Selection, _> = text.parse();
    parsed
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}

fn id(text: &str) -> Result<String, String> {
    if text.len() == 8 && text.chars().all(|c| c.is_ascii_hexdigit()) {
        return Ok(text.to_ascii_lowercase());
    }
    Err("the id of a replay has eight hexadecimal digits, as the replay printed it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    #[test]
    fn a_beginning_is_a_bookmark_a_position_or_a_time() {
        let from = |text: &str| {
            let args = parsed!(&format!("replay --from {text}"), Command::Replay);
            args.from.unwrap()
        };
        assert_eq!(from("may"), ReplayFrom::Bookmark("may".to_owned()));
        assert_eq!(from("0/A"), ReplayFrom::Lsn(Lsn::new(10)));
        let ReplayFrom::Time(time) = from("2026-01-02T03:04:05+01:00") else {
            panic!("no time")
        };
        assert_eq!(time.unix_timestamp(), 1_767_319_445);
    }

    #[test]
    fn conflicting_arguments_are_refused() {
        for (line, about) in [
            ("", "--from"),
            ("--from 0/x", "0/16B3748"),
            ("--from a --to b", "0/16B3748"),
            ("--from a --topic-prefix p. --to-topic t", "--to-topic"),
            ("--from a --where \"payload = 'x'\"", "begins with type"),
            ("--from a --rate 0", "--rate"),
            ("--resume ../../x", "eight"),
            ("--resume 0123abcd --to 0/1", "--to"),
        ] {
            let error = parse(&format!("replay {line}")).unwrap_err().to_string();
            assert!(error.contains(about), "{line}: {error}");
        }
        let args = parsed!("replay --resume 0123ABCD --yes", Command::Replay);
        assert_eq!(args.resume.as_deref(), Some("0123abcd"));
    }
}
