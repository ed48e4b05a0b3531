//! Arguments of `walrelay dlq`.

use clap::{Args, Subcommand};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use walrelay_sink::{EventPosition, Poison, dlq_headers};

use super::common::{ConfigArgs, Output};

/// Subcommands of `dlq`.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum DlqCommand {
    /// List open dead letters, oldest first. No values of rows but the event's id.
    #[command(after_help = "Examples:
  walrelay dlq list
  walrelay dlq list --class unroutable --class undecodable
  walrelay dlq list --since 2026-01-02T00:00:00Z --output json
  walrelay dlq list --resolved --all-slots --limit 50")]
    List(ListArgs),

    /// Print one dead letter with its headers, and its value where asked for.
    #[command(after_help = "Examples:
  walrelay dlq show 0/16B3748 0
  walrelay dlq show 0/16B3748 0 --value > event.json
  walrelay dlq show 0/16B3748 0 --output json --value")]
    Show(ShowArgs),

    /// Send dead letters where they were bound for, and close them.
    ///
    /// One after the other in the order of the log. Behind a dead letter that is refused, no other
    /// of its key is sent. Dead letters that were parked behind the selected ones follow them. Asks
    /// first.
    #[command(after_help = "Examples:
  walrelay dlq redrive --all --dry-run
  walrelay dlq redrive --class rejected --topic orders.events --yes
  walrelay dlq redrive --id '0/16B3748 0' --topic-override orders.events")]
    Redrive(RedriveArgs),

    /// Close dead letters without sending them: their events are given up. Asks first.
    #[command(after_help = "Examples:
  walrelay dlq drop --class oversize --dry-run
  walrelay dlq drop --id '0/16B3748 0' --yes")]
    Drop(DropArgs),
}

/// The topic of dead letters and the slots whose dead letters are meant.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct DlqTopicArgs {
    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// The topic of dead letters, instead of the configured one.
    #[arg(long, value_name = "TOPIC")]
    pub dead_letter_topic: Option<String>,

    /// Dead letters of this replication slot, instead of the configured one.
    #[arg(long, value_name = "SLOT", conflicts_with = "all_slots")]
    pub slot: Option<String>,

    /// Dead letters of all slots.
    #[arg(long)]
    pub all_slots: bool,
}

/// Filters over dead letters. A dead letter must match every kind of filter that is given, and any
/// value of that kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Filters")]
pub struct FilterArgs {
    /// Why they are dead letters.
    #[arg(long, value_name = "CLASS", value_parser = classes())]
    pub class: Vec<String>,

    /// The topic they were bound for.
    #[arg(long, value_name = "TOPIC")]
    pub topic: Vec<String>,

    /// The table, as schema.table.
    #[arg(long, value_name = "TABLE")]
    pub table: Vec<String>,

    /// The key.
    #[arg(long, value_name = "KEY")]
    pub key: Vec<String>,

    /// The event's id.
    #[arg(long, value_name = "ID")]
    pub event_id: Vec<String>,

    /// One dead letter, as LSN and row.
    #[arg(long, value_name = "LSN ROW")]
    pub id: Vec<EventPosition>,

    /// Committed then or later, RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub since: Option<OffsetDateTime>,

    /// Committed before, RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub until: Option<OffsetDateTime>,

    /// No more dead letters than this, the oldest.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

/// Arguments of `dlq list`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ListArgs {
    /// The topic of dead letters and the slots.
    #[command(flatten)]
    pub dlq: DlqTopicArgs,

    /// Also dead letters that were redriven or dropped.
    #[arg(long)]
    pub resolved: bool,

    /// Show keys too.
    #[arg(long)]
    pub keys: bool,

    /// For people, or for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,

    /// Filters over the dead letters.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// Arguments of `dlq show`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ShowArgs {
    /// The dead letter, as `list` names it: LSN and row.
    #[arg(value_name = "LSN ROW", num_args = 1..=2, required = true)]
    pub id: Vec<String>,

    /// The topic of dead letters and the slots.
    #[command(flatten)]
    pub dlq: DlqTopicArgs,

    /// Nothing but the value's bytes; with `--output json`, the value too.
    #[arg(long)]
    pub value: bool,

    /// For people, or for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `dlq redrive` and `dlq drop`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct CloseArgs {
    /// The topic of dead letters and the slots.
    #[command(flatten)]
    pub dlq: DlqTopicArgs,

    /// All open dead letters.
    #[arg(long)]
    pub all: bool,

    /// Show what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,

    /// Do not ask.
    #[arg(long)]
    pub yes: bool,

    /// For people, or for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,

    /// Filters over the dead letters.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// Arguments of `dlq redrive`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct RedriveArgs {
    /// Send to this topic, instead of the dead letters' own.
    #[arg(long, value_name = "TOPIC")]
    pub topic_override: Option<String>,

    /// Also dead letters in front of which there is an open one of their key that is not selected:
    /// the order of the key is lost.
    #[arg(long)]
    pub out_of_order: bool,

    /// Leave dead letters that are parked behind the selected ones.
    #[arg(long)]
    pub without_parked: bool,

    /// The dead letters to close.
    #[command(flatten)]
    pub close: CloseArgs,
}

/// Arguments of `dlq drop`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct DropArgs {
    /// The dead letters to close.
    #[command(flatten)]
    pub close: CloseArgs,
}

impl FilterArgs {
    /// Returns true if no filter but `--limit` is given.
    pub fn is_empty(&self) -> bool {
        *self
            == Self {
                limit: self.limit,
                ..Self::default()
            }
    }
}

impl ShowArgs {
    /// Parses the position of the dead letter; `None` if the arguments have another form.
    pub fn position(&self) -> Option<EventPosition> {
        self.id.join(" ").parse().ok()
    }
}

fn classes() -> Vec<&'static str> {
    let poison = Poison::ALL.iter().map(|poison| poison.name());
    poison.chain([dlq_headers::PARKED]).collect()
}

fn time(text: &str) -> Result<OffsetDateTime, String> {
    OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|_| "a time has the form 2026-01-02T03:04:05Z or 2026-01-02T03:04:05+01:00".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    #[test]
    fn filters_are_read() {
        let line = "dlq list --class rejected --class parked --id \"1/A 2\" \
                    --since 2026-01-02T03:04:05+01:00 --limit 3 --set source.slot=x";
        let list = parsed!(line, Command::Dlq, DlqCommand::List);
        assert_eq!(list.filter.class, ["rejected", "parked"]);
        assert_eq!(
            list.filter.id,
            [EventPosition::in_first_epoch(0x1_0000_000A, 2)]
        );
        let since = list.filter.since.map(OffsetDateTime::unix_timestamp);
        assert_eq!(since, Some(1_767_319_445));
        assert_eq!(list.filter.limit, Some(3));
        assert_eq!(list.dlq.config.set, ["source.slot=x"]);
        assert!(!list.filter.is_empty());
    }

    #[test]
    fn a_limit_alone_selects_everything() {
        let redrive = parsed!("dlq redrive --limit 3", Command::Dlq, DlqCommand::Redrive);
        assert!(redrive.close.filter.is_empty());
    }

    #[test]
    fn a_dead_letter_is_named_by_one_or_two_words() {
        for line in ["dlq show \"0/1 2\"", "dlq show 0/1 2 --value"] {
            let show = parsed!(line, Command::Dlq, DlqCommand::Show);
            assert_eq!(show.position(), Some(EventPosition::in_first_epoch(1, 2)));
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (line, about) in [
            ("list --class wrong", "unroutable"),
            ("list --id 16", "LSN and row"),
            ("list --since yesterday", "2026-01-02T03:04:05Z"),
            ("list --slot a --all-slots", "--all-slots"),
            ("list --limit 0", "1.."),
            ("show", "LSN ROW"),
        ] {
            let error = parse(&format!("dlq {line}")).unwrap_err().to_string();
            assert!(error.contains(about), "{error}");
        }
    }
}
