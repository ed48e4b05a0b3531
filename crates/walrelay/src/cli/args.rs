//! The command line of `walrelay`: its commands, with their help.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use walrelay_failure::Exit;

use super::alerts::AlertsArgs;
use super::bench::BenchArgs;
use super::bookmark::BookmarkCommand;
use super::check::CheckArgs;
use super::cutover::CutoverCommand;
use super::demo::DemoArgs;
use super::dlq::DlqCommand;
use super::hints;
use super::import_debezium::ImportArgs;
use super::init::InitArgs;
use super::moves::MoveCommand;
use super::new::NewArgs;
use super::prune::PruneArgs;
use super::replay::ReplayArgs;
use super::resend::ResendArgs;
use super::route::RouteArgs;
use super::run::RunArgs;
use super::slots::SlotsCommand;
use super::status::StatusArgs;
use super::stuck::StuckArgs;
use super::tail::TailArgs;
use super::verify_topic::VerifyTopicArgs;
use super::whereabouts::WhereArgs;

/// Moves committed rows of a Postgres outbox to Kafka or another sink, through logical replication.
#[derive(Debug, Parser)]
#[command(
    name = "walrelay",
    version = env!("WALRELAY_VERSION"),
    arg_required_else_help = true,
    subcommand_required = true,
    after_help = after_help()
)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `walrelay`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Relay until asked to stop.
    ///
    /// Creates slot and publication when both are absent. SIGTERM or Ctrl-C drains: reading ends,
    /// what was sent is awaited and confirmed. A second signal stops at once.
    #[command(after_help = "Examples:
  walrelay run
  walrelay run --config /etc/walrelay.toml
  walrelay run --set sink.kind=stdout --set log.level=debug
  walrelay run --set 'source.tables=[\"app.outbox\", \"app.audit\"]'
  walrelay run --accept-gap        once, after an error that named the gap")]
    Run(RunArgs),

    /// Write a first configuration: finds the outbox tables of a database, and the preset for them.
    ///
    /// Changes nothing in the database. Asks at a terminal for what no option says.
    #[command(after_help = "Examples:
  walrelay new
  walrelay new --database postgres://postgres@db:5432/app --brokers broker:9092
  walrelay new --sink http --servers https://hooks.example.com/{topic}
  walrelay new --table app.events --column key=order_id --column payload=body")]
    New(NewArgs),

    /// Prepare a database: outbox table, publication, slot, and a role where asked for.
    ///
    /// What exists already is left as it is.
    #[command(after_help = "Examples:
  walrelay init --dry-run          print the SQL, to be run by whoever may
  walrelay init --config app.toml  do it
  walrelay init --admin-url postgres://postgres@db:5432/app
  walrelay init --preset outbox_events --dry-run
  walrelay init --consumer | psql consumer_database")]
    Init(InitArgs),

    /// The doctor: check the configuration, Postgres, the sink and the schema registry.
    ///
    /// Prints a line for each thing, with pass, warn or FAIL, and what mends it. Changes nothing; a
    /// relay may be running. The exit code is 0 if nothing fails, else that of the first failure.
    #[command(after_help = "Examples:
  walrelay check
  walrelay check --offline         the file alone, as in a build pipeline
  walrelay check --output json | jq '.checks[] | select(.verdict != \"pass\")'

All items: docs/operate/check.md")]
    Check(CheckArgs),

    /// Show the state of a running relay, or of its slot if the relay does not answer.
    ///
    /// Asks the endpoint of `[http]` on this machine. Without one, or if no relay answers there,
    /// Postgres is asked about the slot.
    #[command(after_help = "Examples:
  walrelay status
  walrelay status --watch
  walrelay status --output json | jq .relay.source.lag_seconds")]
    Status(StatusArgs),

    /// List replication slots, create, drop or advance one.
    ///
    /// Connects to the database of `[source] url` and to nothing else.
    #[command(after_help = "Examples:
  walrelay slots list
  walrelay slots create
  walrelay slots drop walrelay_old
  walrelay slots advance walrelay --to now --dry-run")]
    #[command(subcommand)]
    Slots(Box<SlotsCommand>),

    /// Keep positions that can be replayed from: create, list, advance or drop a bookmark.
    ///
    /// A bookmark is a replication slot without a reader. It costs the log that Postgres keeps for
    /// it.
    #[command(after_help = "Examples:
  walrelay bookmark create before_release
  walrelay bookmark list
  walrelay bookmark drop before_release")]
    #[command(subcommand)]
    Bookmark(Box<BookmarkCommand>),

    /// Send events again, from a bookmark, a position or a time on.
    ///
    /// Reads a temporary copy of a bookmark through the router of the configuration. The bookmark
    /// stays where it is, and the relay goes on. Each record has a header walrelay-replay with the
    /// id of the replay. Replaying into the live topics, or into another topic that has records,
    /// asks first: consumers see old events after new ones of the same key.
    #[command(after_help = "Examples:
  walrelay replay --from before_release --topic-prefix again. --dry-run
  walrelay replay --from before_release --topic-prefix again.
  walrelay replay --from 2026-01-02T03:00:00Z --to 2026-01-02T04:00:00Z --to-topic repaired
  walrelay replay --from 0/16B3748 --where \"type = 'OrderPlaced' and key = 'order-42'\" --sink stdout
  walrelay replay --from rolling --rate 500 --yes
  walrelay replay --resume 1f3a5b7c")]
    Replay(Box<ReplayArgs>),

    /// Show what a row or a message would become: topic, key, value, headers. Connects to nothing.
    ///
    /// The record is printed with its values, for that is what is asked for. A row that cannot be
    /// routed ends with exit code 65, its class and what `[poison]` would do with it.
    #[command(after_help = "Examples:
  walrelay route --row row.json
  walrelay route --row row.json --type id=bigint --type payload=jsonb
  walrelay route --row - --output json < row.json
  walrelay route --message batch.json

A row is a JSON object of columns and values:
  {\"id\": 17, \"type\": \"order.placed\", \"payload\": {\"total\": 7}, \"$types\": {\"id\": \"bigint\"}}")]
    Route(RouteArgs),

    /// Print the records of a topic of the sink, an object a line, as the sink `stdout` prints them.
    ///
    /// Keys and values are printed, for that is what is asked for. The sink must have topics that
    /// can be read.
    #[command(after_help = "Examples:
  walrelay tail outbox.event.Order
  walrelay tail outbox.event.Order --follow --from end --key 42
  walrelay tail outbox.event.Order --follow -n 1 | jq .value
  walrelay tail outbox.event.Order --from 2026-01-02T03:00:00Z")]
    Tail(TailArgs),

    /// Read topics and report repeated, lost and disordered events.
    ///
    /// Reads to the ends that the topics have at the start. Reports repeated ids and their distance,
    /// first deliveries out of the order of their key, keys that end on an older event than their
    /// newest, keys in two partitions, with `--against-table` rows whose event is missing, and how
    /// long records took from the commit to the topic. The order is that of the configured
    /// `position_header`, without one that of the first deliveries. Prints ids and offsets, no
    /// keys or values. Ends with exit code 1 if something is wrong.
    #[command(after_help = "Examples:
  walrelay verify-topic outbox.event.Order
  walrelay verify-topic outbox.event.Order outbox.event.Invoice --since 24h --against-table
  walrelay verify-topic outbox.event.Order --since 2026-01-02T03:00:00Z --allow-repeats
  walrelay verify-topic orders.events --id value:event_id --output json")]
    VerifyTopic(Box<VerifyTopicArgs>),

    /// Show the relay at work, against a Postgres and a broker of its own.
    ///
    /// Nothing is left running, nothing is left on disk.
    #[command(after_help = "Examples:
  walrelay demo
  walrelay demo --sink http
  walrelay demo --drill
  walrelay demo --seconds 10 --rate 500")]
    Demo(DemoArgs),

    /// Measure the relay with this configuration's database and sink.
    ///
    /// Writes rows into a table of its own, in a schema made for it, and drains them into nothing
    /// and into a topic of its own; then measures how long single rows take. Reads through
    /// temporary slots, touches no other table, topic or slot, and removes what it made, also at
    /// Ctrl-C. The role needs CREATE on the database. Says what it will write and asks first.
    #[command(after_help = "Examples:
  walrelay bench
  walrelay bench --rows 1000000 --rate 1000 --rate 5000 --seconds 30
  walrelay bench --yes --json figures.json > figures.md
  walrelay bench --only sink --set 'sink.kafka.\"compression.type\"=zstd'
  walrelay bench --copy-of walrelay --rows 50000")]
    Bench(Box<BenchArgs>),

    /// Send rows that are in the outbox tables again, each record marked by the header
    /// walrelay-resend.
    ///
    /// The slot stays as it is, and the relay may be running. Consumers see these events again, and
    /// old events of a key after new ones: asks first. A row that was deleted cannot be sent again.
    #[command(after_help = "Examples:
  walrelay resend --id 018f5a3e-7c1d-7b1a-9c55-0123456789ab
  walrelay resend --where \"created_at >= '2026-03-01' AND aggregatetype = 'order'\" --dry-run
  walrelay resend --where 'dispatched_at IS NULL' --yes")]
    Resend(Box<ResendArgs>),

    /// Say where an event is: in the table, behind the slot, at the sink, delivered, a dead letter.
    ///
    /// Looks at the row, at the log after the slot's position, at the relay's endpoint, at the dead
    /// letters, and at the topic of the sink, and prints what each of them shows. Only evidence counts:
    /// without any, the answer is `no-evidence`. Changes nothing; a relay may be running. The exit code
    /// is 0 if the event is somewhere, and 1 if there is no evidence of it.
    #[command(after_help = "Examples:
  walrelay where 019aa1c2-7d3e-7b1a-9c55-0123456789ab
  walrelay where 4711 --since 24h
  walrelay where 4711 --topic orders.events --id value:event_id
  walrelay where 4711 --output json | jq -r .answer")]
    Where(Box<WhereArgs>),

    /// List rows of the outbox tables for which there is no evidence that they were sent, and why.
    ///
    /// A watchdog: it finds rows that the stream never carried, which no lag shows. The evidence is the
    /// mark of `mark_sent`, or the account of sent rows that `[prune]` keeps. Without them only rows behind
    /// the slot, dead letters, and rows that the publication leaves out are found. Changes nothing; a relay
    /// may be running. The exit code is 1 if there are such rows.
    #[command(after_help = "Examples:
  walrelay stuck
  walrelay stuck --older-than 15m --since 24h
  walrelay stuck --output json | jq -r '.rows[] | [.id, .why] | @tsv'")]
    Stuck(StuckArgs),

    /// Delete rows of the outbox tables that are confirmed and old enough.
    ///
    /// A row that is not confirmed stays, whatever its age. The relay must run, as the rows are
    /// deleted when it has confirmed a position behind them. In batches, with pauses; locked rows
    /// are passed over. Of a table that is partitioned by time, whole partitions are dropped and
    /// the next ones created. Asks first.
    #[command(after_help = "Examples:
  walrelay prune --keep 7d --dry-run
  walrelay prune --keep 7d
  walrelay prune --keep 24h --set prune.batch=1000 --yes
  walrelay prune --keep 24h --set prune.partition=24h --yes")]
    Prune(Box<PruneArgs>),

    /// Move from a polling relay to walrelay in steps that you can inspect, and back.
    #[command(after_help = "Examples:
  walrelay cutover plan
  walrelay cutover shadow --for 10m
  walrelay cutover switch --stop-poller 'systemctl stop poller'
  walrelay cutover verify
  walrelay cutover rollback --stop-relay 'systemctl stop walrelay'")]
    #[command(subcommand)]
    Cutover(Box<CutoverCommand>),

    /// Move the outbox to another server, or through an upgrade of Postgres, without a loss and in order.
    #[command(after_help = "Examples:
  walrelay move plan
  walrelay move drain --yes
  walrelay move switch -c new.toml --yes
  walrelay move verify -c new.toml
  walrelay move abort")]
    #[command(subcommand)]
    Move(Box<MoveCommand>),

    /// Look at dead letters, send them again, or close them.
    ///
    /// A dead letter is an event that could not be delivered and that `[poison]` did not let stop
    /// the relay. Needs the topic of dead letters only; the relay may be running.
    #[command(after_help = "Examples:
  walrelay dlq list
  walrelay dlq show 0/16B3748 0
  walrelay dlq redrive --class rejected --dry-run
  walrelay dlq drop --id '0/16B3748 0' --yes")]
    #[command(subcommand)]
    Dlq(Box<DlqCommand>),

    /// Convert a Debezium configuration: Kafka Connect's JSON, or Debezium Server's
    /// application.properties.
    ///
    /// The configuration goes to standard output, a report to standard error: for each setting,
    /// what it became, why it has no effect here, or that it is not supported. No password is in
    /// either of them.
    #[command(after_help = "Examples:
  walrelay import-debezium connector.json > walrelay.toml
  walrelay import-debezium http://connect:8083/connectors/outbox -o walrelay.toml
  walrelay import-debezium connector.json --worker connect-distributed.properties
  walrelay import-debezium conf/application.properties --report report.txt -o walrelay.toml
  curl -s http://connect:8083/connectors/outbox | walrelay import-debezium -")]
    ImportDebezium(Box<ImportArgs>),

    /// Print the rules of the alerts for Prometheus, with the thresholds of the configuration.
    ///
    /// With `[slo] commit_to_ack`, also the rules that fire when the budget is used up too fast.
    #[command(after_help = "Examples:
  walrelay alerts > /etc/prometheus/walrelay-alerts.yml
  walrelay alerts --set slo.commit_to_ack=2s --set slo.target=99.9")]
    Alerts(AlertsArgs),

    /// Print the JSON Schema of the configuration file.
    ///
    /// An editor with a plugin for TOML completes and checks walrelay.toml by it. The file that
    /// walrelay new writes names it.
    #[command(after_help = "Examples:
  walrelay schema > walrelay.schema.json")]
    Schema,

    /// Print completions for a shell.
    #[command(after_help = "Examples:
  walrelay completions bash > /etc/bash_completion.d/walrelay
  walrelay completions zsh > \"${fpath[1]}/_walrelay\"")]
    Completions {
        /// Which shell.
        shell: Shell,
    },

    /// Write the manual pages, one for each command, into a folder.
    #[command(after_help = "Examples:
  walrelay man /usr/local/share/man/man1")]
    Man {
        /// The folder, which must exist.
        folder: PathBuf,
    },
}

/// Returns the list of exit codes at the end of `--help`.
fn exit_codes() -> String {
    let lines = Exit::ALL.map(|exit| format!("\n  {:>2}  {}", exit.code(), exit.meaning()));
    format!("Exit codes:{}", lines.concat())
}

fn after_help() -> String {
    format!(
        "Examples:
  walrelay demo                    see it work, nothing needed
  walrelay new                     write a first walrelay.toml
  walrelay init --dry-run          the SQL that prepares a database
  walrelay check                   is everything ready?
  walrelay run                     relay, with walrelay.toml
  walrelay status                  how is it?

{}

Keys of the configuration file: docs/reference/configuration.md",
        exit_codes()
    )
}

impl Cli {
    /// Parses the command line; the first argument is the program's name.
    ///
    /// # Errors
    /// Returns the exit code after printing the help, the version or the error.
    pub fn from_args<T: Into<OsString>>(args: impl IntoIterator<Item = T>) -> Result<Self, Exit> {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        Self::try_parse_from(&args).map_err(|mut error| {
            hints::add(&mut error, args.get(1).and_then(|first| first.to_str()));
            // Writing fails if the stream is closed.
            let _ = error.print();
            exit_of(&error)
        })
    }
}

fn exit_of(error: &clap::Error) -> Exit {
    // `use_stderr` is false for `--help` and `--version`.
    if error.use_stderr() {
        Exit::Usage
    } else {
        Exit::Ok
    }
}

/// Returns the completion script for `shell`.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "walrelay", &mut script);
    script
}

/// Writes the manual pages into a folder that exists.
pub fn man(folder: &Path) -> io::Result<()> {
    clap_mangen::generate_to(Cli::command(), folder)
}

#[cfg(test)]
mod tests {
    use walrelay_relay::TableName;

    use super::*;
    use crate::cli::{Output, parse};

    #[test]
    fn clap_finds_nothing_wrong_with_the_definition() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_and_their_defaults() {
        let run = parsed!("run", Command::Run);
        assert_eq!(run.config.config, PathBuf::from("walrelay.toml"));
        assert!(!run.accept_gap && run.pass_over.is_empty());
        let run = parsed!("run --pass-over a.b --pass-over c.*", Command::Run);
        let named = [TableName::new("a", "b"), TableName::new("c", "*")];
        assert_eq!(run.pass_over, named);
        let run = parsed!("run --accept-gap -c a.toml", Command::Run);
        assert!(run.accept_gap);
        let line = "init -c a.toml --dry-run --role r --set source.slot=x --set a=b=c";
        let init = parsed!(line, Command::Init);
        assert_eq!(init.config.config, PathBuf::from("a.toml"));
        assert_eq!(init.config.set, ["source.slot=x", "a=b=c"]);
        assert!(init.dry_run);
        assert_eq!(init.role.as_deref(), Some("r"));
        let line = "route --row - --type a=numeric(10,2) --type b=text[] --output json";
        let route = parsed!(line, Command::Route);
        assert_eq!(route.row, Some(PathBuf::from("-")));
        let types = [("a", "numeric(10,2)"), ("b", "text[]")];
        assert_eq!(
            route.types,
            types.map(|(column, name)| (column.to_owned(), name.to_owned()))
        );
        let route = parsed!("route --message a.json", Command::Route);
        assert_eq!(route.message, Some(PathBuf::from("a.json")));
        let check = parsed!("check --offline --output json", Command::Check);
        assert!(check.offline);
        assert_eq!(check.output, Output::Json);
        let demo = parsed!("demo --seconds 10 --rate 500", Command::Demo);
        assert_eq!(
            (demo.seconds, demo.rate, demo.rollbacks),
            (Some(10), 500, 10)
        );
    }

    #[test]
    fn a_wrong_command_line_is_usage_and_help_is_not() {
        for line in [
            "",
            "rnu",
            "run --confg x",
            "run --set novalue",
            "run --set =x",
            "route",
            "route --row x --type payload",
            "route --row x --type =jsonb",
            "route --row x --message y",
            "route --message y --type a=jsonb",
            "demo --rate 0",
            "demo --seconds -1",
            "completions",
            "completions cmd",
        ] {
            assert_eq!(exit_of(&parse(line).unwrap_err()), Exit::Usage, "{line:?}");
        }
        for line in ["--help", "--version", "run --help", "help check"] {
            assert_eq!(exit_of(&parse(line).unwrap_err()), Exit::Ok, "{line:?}");
        }
        assert!(parse("chekc").unwrap_err().to_string().contains("'check'"));
    }

    #[test]
    fn help_lists_exit_codes_and_each_command_has_examples() {
        let mut command = Cli::command();
        let help = command.render_long_help().to_string();
        for exit in Exit::ALL {
            assert!(help.contains(exit.meaning()), "{help}");
        }
        for sub in command
            .get_subcommands_mut()
            .filter(|sub| sub.get_name() != "help")
        {
            let help = sub.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{help}");
        }
    }

    #[test]
    fn completions_know_the_commands() {
        for shell in [
            Shell::Bash,
            Shell::Zsh,
            Shell::Fish,
            Shell::PowerShell,
            Shell::Elvish,
        ] {
            let script = String::from_utf8(completions(shell)).unwrap();
            assert!(
                script.contains("check") && script.contains("offline"),
                "{shell}"
            );
        }
    }
}
