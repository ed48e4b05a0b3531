//! `walrelay replay`: events of the log are sent again, through the same router.
//!
//! - [`range`]: what is replayed, from which slot.
//! - [`note`]: what a replay is and how far it has come, on disk, for `--resume`.
//! - [`tally`]: what was sent, by topic, and how much was acknowledged. [`progress`]: how far it is.
//!
//! # Invariants
//! - Only a temporary copy of a bookmark is read: the bookmark and the relay's slot stay as they are.
//! - What a replay cannot route is never a dead letter: the relay made one of it already.

mod note;
mod progress;
mod range;
mod tally;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use walrelay_event_router::{Router, Selection, TopicChange};
use walrelay_kafka_sink::{KafkaSinkFactory, was_written_to};
use walrelay_lsn::Lsn;
use walrelay_relay::{Outcome, Pipeline, PoisonAction, Settings};
use walrelay_sink::SinkFactory;

use super::bench::NullSinkFactory;
use super::confirm::go_on;
use super::connect::{self, block_on, wanted};
use super::progress_line::ProgressLine;
use super::run::asked_to_stop_or;
use super::server::Server;
use super::slots::warn;
use super::{Ended, Env, log_warnings};
use crate::cli::{Exit, Failure, ReplayArgs, ReplaySink};
use crate::config::{Config, SinkConfig};
use crate::failures::{self, SinkFailure};
use crate::postgres::{CopySource, Range, RangeSource};
use crate::sinks::{Counting, StdoutSinkFactory};
use note::{Note, NoteFile};
use progress::Watch;
use range::{chosen, still_there};
pub(super) use tally::Tally;

/// The header that says which replay sent a record.
const HEADER: &str = "walrelay-replay";
/// How long the brokers may take to say whether a topic has records.
const BROKER_DEADLINE: Duration = Duration::from_secs(10);

/// `walrelay replay`.
pub(crate) fn replay(args: &ReplayArgs, env: Env<'_>) -> Ended {
    let server = Server::of(&args.config, env)?;
    let config = &server.config;
    log_warnings(config, Some(&config.source.slot), env);
    let dir = state_dir(args, config);
    let (note, file) = if let Some(id) = &args.resume {
        let (note, file) = NoteFile::open(&dir, id, server.slot())?;
        block_on(Box::pin(still_there(&note, &server)))??;
        (note, Some(file))
    } else {
        let note = block_on(Box::pin(chosen(args, &server)))??;
        agree(args, &note, config)?;
        let file = (!args.dry_run).then(|| NoteFile::create(&dir, &note));
        (note, file.transpose()?)
    };
    let run = Run {
        note: &note,
        server: &server,
        file,
    };
    let replayed = match (note.sink, &config.sink) {
        // What is only counted registers nothing.
        _ if args.dry_run => run.by(NullSinkFactory, false),
        (ReplaySink::Stdout, _) => run.by(StdoutSinkFactory::new(&config.delivery), true),
        (ReplaySink::Kafka, SinkConfig::Kafka(sink)) => {
            let kafka = connect::kafka(sink, &config.delivery)?;
            run.by(KafkaSinkFactory::new(kafka), true)
        }
        (ReplaySink::Kafka, SinkConfig::Stdout { .. }) => Err(no_kafka()),
    };
    Ok(replayed?)
}

/// Where the sink of a replay is not named: the configured one.
fn sink(args: &ReplayArgs, config: &Config) -> Result<ReplaySink, Failure> {
    match (args.sink, &config.sink) {
        (Some(ReplaySink::Stdout), _) | (None, SinkConfig::Stdout { .. }) => Ok(ReplaySink::Stdout),
        (_, SinkConfig::Kafka(_)) => Ok(ReplaySink::Kafka),
        (Some(ReplaySink::Kafka), SinkConfig::Stdout { .. }) => Err(no_kafka()),
    }
}

fn no_kafka() -> Failure {
    let what = "there is no Kafka in the configuration to replay into";
    Failure::new("replay-sink", Exit::Config, what)
        .remedy("set sink.kind to kafka, or leave out --sink kafka")
}

fn state_dir(args: &ReplayArgs, config: &Config) -> PathBuf {
    let beside = || {
        config
            .source
            .state_file
            .as_ref()?
            .parent()
            .map(PathBuf::from)
    };
    let dir = args.state_dir.clone().or_else(beside).unwrap_or_default();
    if dir.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        dir
    }
}

/// Asks before consumers see events again: in the live topics, and in a topic of `--to-topic` that has records, as
/// nothing tells whether the relay wrote them.
fn agree(args: &ReplayArgs, note: &Note, config: &Config) -> Result<(), Failure> {
    if args.dry_run || note.sink == ReplaySink::Stdout {
        return Ok(());
    }
    let into = match (&note.to_topic, &note.topic_prefix) {
        (Some(topic), _) if has_records(topic, config)? => {
            format!("topic {topic}, which has records")
        }
        (None, None) => "the live topics".to_owned(),
        _ => return Ok(()),
    };
    warn(&format!(
        "replaying from {} into {into}: consumers see events again, and old events of a key after new ones",
        note.from
    ));
    if args.yes {
        return Ok(());
    }
    go_on().map_err(|why| {
        let what = format!("nothing was replayed: {why}");
        Failure::new("replay-not-agreed", Exit::Usage, what).remedy(
            "send the records elsewhere with --topic-prefix or a new --to-topic, look with --dry-run, or \
             say --yes",
        )
    })
}

fn has_records(topic: &str, config: &Config) -> Result<bool, Failure> {
    let SinkConfig::Kafka(sink) = &config.sink else {
        return Err(no_kafka());
    };
    let kafka = connect::kafka(sink, &config.delivery)?;
    let written = was_written_to(&kafka, topic, BROKER_DEADLINE);
    written.map_err(|error| failures::kafka_client(&error))
}

/// One run of a replay.
struct Run<'a> {
    note: &'a Note,
    server: &'a Server,
    file: Option<NoteFile>,
}

impl Run<'_> {
    /// Replays into the sinks of this factory. `sends`: they keep what they take.
    fn by<F>(self, factory: F, sends: bool) -> Result<(), Failure>
    where
        F: SinkFactory,
        F::Error: SinkFailure,
    {
        let Self { note, server, file } = self;
        let (router, settings) = changed_router(note, server, sends)?;
        let source = source(note, server)?;
        let reading = source.reading();
        let tally = Arc::new(Tally::default());
        let line = ProgressLine::new();
        let said = line.is_shown() || sends;
        let watch = Watch::new(note, file, Arc::clone(&reading), Arc::clone(&tally), line);
        if said {
            warn(&format!(
                "replay {}: from {} to {}, read from a copy of slot {}",
                note.id, note.from, note.end, note.slot
            ));
        }
        let factory = Counting::new(factory, Arc::clone(&tally));
        let mut pipeline = Pipeline::new(source, router, factory, watch, settings);
        let begun = Instant::now();
        let result = block_on(async {
            let done = asked_to_stop_or(reading.ended())?;
            Ok::<_, Failure>(Box::pin(pipeline.run(done)).await)
        })??;
        let elapsed = tally.last_acknowledged().unwrap_or(begun) - begun;
        let counts = pipeline.counts();
        let totals = |word: &str| {
            let rate =
                tally.acknowledged() as f64 / elapsed.max(Duration::from_millis(1)).as_secs_f64();
            warn(&format!(
                "replay {}: {} records {word} in {:.1} s ({:.0} a second), of {} transactions; {} events not \
                 selected, {} skipped",
                note.id,
                tally.acknowledged(),
                elapsed.as_secs_f64(),
                rate,
                counts.transactions,
                counts.unselected,
                counts.skipped,
            ));
            for (topic, sent) in tally.topics() {
                warn(&format!("  {sent} to {topic}"));
            }
        };
        let watch = pipeline.into_environment();
        match result {
            Ok(Outcome::Drained { .. } | Outcome::Unused) if reading.has_ended() => {
                watch.finished()?;
                totals(if sends {
                    "acknowledged"
                } else {
                    "would be sent"
                });
                Ok(())
            }
            Ok(outcome) => {
                let acknowledged = match outcome {
                    Outcome::Drained { confirmed } => Some(confirmed),
                    Outcome::Incomplete { confirmed, .. } => confirmed,
                    Outcome::Unused => None,
                };
                let kept = watch.interrupted(acknowledged);
                totals("acknowledged, and the replay was interrupted,");
                Err(interrupted(note, kept))
            }
            Err(error) => {
                let kept = watch.interrupted(None);
                let failure = failures::pipeline(error);
                if kept {
                    totals("acknowledged before it failed,");
                    warn(&format!("resume it: walrelay replay --resume {}", note.id));
                }
                Err(failure)
            }
        }
    }
}

fn interrupted(note: &Note, kept: bool) -> Failure {
    let failure = Failure::new(
        "replay-interrupted",
        Exit::Temporary,
        format!("replay {} was interrupted", note.id),
    );
    failure.remedy(if kept {
        format!("go on with it: walrelay replay --resume {}", note.id)
    } else {
        "begin it again".to_owned()
    })
}

/// The relay's router with what the replay changes, and the relay's settings.
fn changed_router(
    note: &Note,
    server: &Server,
    sends: bool,
) -> Result<(Router, Settings), Failure> {
    let config = &server.config;
    let (router, messages) = connect::router(config)?;
    let selection: Option<Selection> = note
        .selection
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(|error: walrelay_event_router::SelectionError| {
            note::unusable(&note.id).caused_by(error)
        })?;
    let to_topic = note.to_topic.clone().map(TopicChange::To);
    let prefix = note.topic_prefix.clone().map(TopicChange::Prefix);
    let router = router
        .with_run_header(Some((HEADER.to_owned(), note.id.clone())))
        .with_topic_change(to_topic.or(prefix))
        .with_selection(selection);
    let mut looking = config.clone();
    if let Some(registry) = looking.registry.as_mut().filter(|_| !sends) {
        registry.register = false;
    }
    let schemas = connect::schemas(&looking, None)?;
    let settings = connect::settings(config, messages, None, schemas);
    Ok((router, without_dead_letters(settings)))
}

/// What cannot be routed is skipped where the relay makes a dead letter of it.
pub(super) fn without_dead_letters(mut settings: Settings) -> Settings {
    let poison = &mut settings.poison;
    for action in [
        &mut poison.unroutable,
        &mut poison.oversize,
        &mut poison.rejected,
        &mut poison.undecodable,
    ] {
        if *action == PoisonAction::DeadLetter {
            *action = PoisonAction::Skip;
        }
    }
    settings
}

fn source(note: &Note, server: &Server) -> Result<RangeSource, Failure> {
    let config = &server.config;
    let lsn = |text: &str| text.parse::<Lsn>().map_err(|_| note::unusable(&note.id));
    let start = lsn(note.acknowledged.as_deref().unwrap_or(&note.start))?;
    let wanted = crate::postgres::Wanted {
        slot: note.slot.clone(),
        ..wanted(config)
    };
    let timeout = config.source.wal_sender_timeout;
    let copies = CopySource::of_kept(server.info.clone(), wanted, timeout, start);
    let range = Range {
        end: lsn(&note.end)?,
        after: note.after.map(walrelay_pgoutput::PgTimestamp::new),
        before: note.before.map(walrelay_pgoutput::PgTimestamp::new),
    };
    Ok(RangeSource::new(copies, range, note.rate))
}
