//! `walrelay replay`: sends events of the WAL again, through the relay's router.
//!
//! - [`range`]: selects the slot to read and the bounds of the range.
//! - [`note`]: the parameters and the progress of a replay, on disk for `--resume`.
//! - [`progress`]: shows and notes the progress.
//!
//! # Invariants
//! - A replay reads a temporary copy of a bookmark only: the bookmark and the relay's slot do not
//!   change.
//! - An event that cannot be routed never becomes a dead letter: the relay has made one of it
//!   already.

mod note;
mod progress;
mod range;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use walrelay_event_router::{Router, Selection, TopicChange};
use walrelay_failure::{Exit, Failure};
use walrelay_pgoutput::PgTimestamp;
use walrelay_postgres_source::{CopySource, Range, RangeSource, Reading, Wanted};
use walrelay_relay::{Counts, Outcome};
use walrelay_sink::{AnySinkFactory, any_factory};
use walrelay_sink_kind::SinkKind;

use crate::cli::ReplayArgs;
use crate::commands::assembly::pipelines::{
    CommandPipeline, RecordCounts, router_and_settings, run_until, without_dead_letters,
};
use crate::commands::assembly::server::Server;
use crate::commands::assembly::sink::configured_sink;
use crate::commands::assembly::{block_on, wanted};
use crate::commands::terminal::confirm::ask_to_continue;
use crate::commands::terminal::progress_line::ProgressLine;
use crate::commands::topics::place::REPLAY_HEADER;
use crate::commands::{CommandResult, EnvVars, log_warnings, print_notice};
use crate::config::PipelineConfig;
use crate::sinks::{Counting, NullSinkFactory, StdoutKind};
use note::{Note, NoteFile};
use progress::ReplayObserver;
use range::{check_retained, plan_replay};

/// Timeout of the question whether a topic has records.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The kind that every replay may be sent to.
const STDOUT: &str = StdoutKind::DESCRIPTION.name;

/// Runs `walrelay replay`.
pub(crate) fn replay(args: &ReplayArgs, env: EnvVars<'_>) -> CommandResult {
    let server = Server::load(&args.config, env)?;
    let config = &server.config;
    log_warnings(server.process.log, Some(&config.source.slot), env);
    let dir = state_dir(args, config);
    let (note, file) = if let Some(id) = &args.resume {
        let (note, file) = NoteFile::open(&dir, id, server.slot())?;
        block_on(Box::pin(check_retained(&note, &server)))??;
        (note, Some(file))
    } else {
        let note = block_on(Box::pin(plan_replay(args, &server)))??;
        confirm_replay(args, &note, config)?;
        let file = (!args.dry_run).then(|| NoteFile::create(&dir, &note));
        (note, file.transpose()?)
    };
    let replayed = if args.dry_run {
        replay_into(&note, &server, file, any_factory(NullSinkFactory))
    } else {
        let (factory, _) = sink_of(&note.sink, config)?.factory(None);
        replay_into(&note, &server, file, factory)
    };
    Ok(replayed?)
}

/// Returns the kind of the sink that records are sent to: that of `--sink`, or else the configured
/// one.
fn sink(args: &ReplayArgs, config: &PipelineConfig) -> Result<String, Failure> {
    let configured = config.sink.description().name;
    let sink = args.sink.as_deref().unwrap_or(configured);
    check_sink(sink, configured)?;
    check_topic(args, sink, config)?;
    Ok(sink.to_owned())
}

/// Checks that topics of the sink can have the name of `--to-topic`, or begin with `--topic-prefix`.
fn check_topic(args: &ReplayArgs, sink: &str, config: &PipelineConfig) -> Result<(), Failure> {
    let named = [&args.topic_prefix, &args.to_topic].into_iter().flatten();
    // Standard output takes any name.
    for name in named.filter(|_| sink != STDOUT) {
        if let Some(why) = config.sink.topic_problem(name) {
            let what = format!(
                "{} cannot have the topic {name:?}",
                config.sink.description().title
            );
            return Err(Failure::new("replay-topic", Exit::Usage, what)
                .caused_by(why)
                .remedy("name another with --to-topic or --topic-prefix"));
        }
    }
    Ok(())
}

/// Makes the sink of this kind: standard output, or the configured one.
fn sink_of(sink: &str, config: &PipelineConfig) -> Result<Box<dyn SinkKind>, Failure> {
    if sink == STDOUT {
        let delivery = &config.delivery;
        let records = u64::from(delivery.max_in_flight_records);
        return Ok(Box::new(StdoutKind::new(
            records,
            delivery.max_in_flight_bytes,
        )));
    }
    check_sink(sink, config.sink.description().name)?;
    configured_sink(config)
}

/// Checks that a replay can be sent to this kind of sink: its settings are in the configuration
/// only if it is the configured one, and standard output needs none.
fn check_sink(sink: &str, configured: &str) -> Result<(), Failure> {
    if sink == STDOUT || sink == configured {
        return Ok(());
    }
    let what = format!("the sink of the configuration is {configured}, not {sink}");
    Err(
        Failure::new("replay-sink", Exit::Config, what).remedy(format!(
            "set sink.kind to {sink}, or leave out --sink {sink}"
        )),
    )
}

/// Returns the directory of note files: `--state-dir`, that of the state file, or the working
/// directory.
fn state_dir(args: &ReplayArgs, config: &PipelineConfig) -> PathBuf {
    let state_file = config.source.state_file.as_deref();
    let beside = || state_file?.parent().map(PathBuf::from);
    let dir = args.state_dir.clone().or_else(beside).unwrap_or_default();
    if dir.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        dir
    }
}

/// Asks before records are sent to the live topics, or to a topic of `--to-topic` that has records:
/// the relay may have written them, so consumers may see events again.
fn confirm_replay(args: &ReplayArgs, note: &Note, config: &PipelineConfig) -> Result<(), Failure> {
    if args.dry_run || note.sink == STDOUT {
        return Ok(());
    }
    let into = match (&note.to_topic, &note.topic_prefix) {
        (Some(topic), _) if has_records(topic, config)? => {
            format!("topic {topic}, which has records")
        }
        (None, None) => "the live topics".to_owned(),
        _ => return Ok(()),
    };
    print_notice(&format!(
        "replaying from {} into {into}: consumers see events again, and old events of a key after new ones",
        note.from
    ));
    if args.yes {
        return Ok(());
    }
    let refused = Failure::new("replay-not-agreed", Exit::Usage, "nothing was replayed");
    ask_to_continue(refused.remedy(
        "send the records elsewhere with --topic-prefix or a new --to-topic, look with --dry-run, or \
         say --yes",
    ))
}

fn has_records(topic: &str, config: &PipelineConfig) -> Result<bool, Failure> {
    let sink = configured_sink(config)?;
    match sink.topics() {
        Some(topics) => Ok(topics.was_written_to(topic, REQUEST_TIMEOUT)?),
        None => Ok(false),
    }
}

/// Replays into the sinks of this factory. `file` is `None` for a dry run: nothing is sent.
fn replay_into(
    note: &Note,
    server: &Server,
    file: Option<NoteFile>,
    factory: AnySinkFactory,
) -> Result<(), Failure> {
    let sends = file.is_some();
    let (router, settings) = router_and_settings(&server.config, sends, without_dead_letters)?;
    let router = replay_router(router, note)?;
    let source = source(note, server);
    let reading = source.reading();
    let sent = Arc::new(RecordCounts::default());
    let line = ProgressLine::new();
    if line.is_shown() || sends {
        print_notice(&format!(
            "replay {}: from {} to {}, read from a copy of slot {}",
            note.id, note.from, note.end, note.slot
        ));
    }
    let mut observer =
        ReplayObserver::new(note, file, Arc::clone(&reading), Arc::clone(&sent), line);
    let factory = any_factory(Counting::new(factory, Arc::clone(&sent)));
    let mut pipeline = CommandPipeline::new(source, router, factory, &mut observer, settings);
    let begun = Instant::now();
    let result = run_until(&mut pipeline, reading.ended())?;
    let totals = Totals {
        id: &note.id,
        sent: &sent,
        elapsed: sent.last_acknowledged().unwrap_or(begun) - begun,
        counts: pipeline.counts(),
    };
    drop(pipeline);
    let word = if sends {
        "acknowledged"
    } else {
        "would be sent"
    };
    finish(result, &reading, observer, &totals, word)
}

/// Prints the totals, and removes or keeps the note file. `word` says what became of the records of
/// a complete replay.
fn finish(
    result: Result<Outcome, Failure>,
    reading: &Reading,
    observer: ReplayObserver,
    totals: &Totals<'_>,
    word: &str,
) -> Result<(), Failure> {
    match result {
        Ok(Outcome::Drained { .. } | Outcome::Unused) if reading.has_ended() => {
            observer.finished()?;
            totals.print(word);
            Ok(())
        }
        Ok(outcome) => {
            let acknowledged = match outcome {
                Outcome::Drained { confirmed } => Some(confirmed),
                Outcome::Incomplete { confirmed, .. } => confirmed,
                Outcome::Unused => None,
            };
            let resumable = observer.interrupted(acknowledged);
            totals.print("acknowledged, and the replay was interrupted,");
            Err(interrupted(totals.id, resumable))
        }
        Err(failure) => {
            if observer.interrupted(None) {
                totals.print("acknowledged before it failed,");
                print_notice(&format!(
                    "resume it: walrelay replay --resume {}",
                    totals.id
                ));
            }
            Err(failure)
        }
    }
}

/// The totals of a run.
struct Totals<'a> {
    id: &'a str,
    sent: &'a RecordCounts,
    elapsed: Duration,
    counts: Counts,
}

impl Totals<'_> {
    /// Prints the totals; `word` says what became of the records.
    fn print(&self, word: &str) {
        let acknowledged = self.sent.acknowledged();
        let seconds = self.elapsed.as_secs_f64();
        print_notice(&format!(
            "replay {}: {acknowledged} records {word} in {seconds:.1} s ({:.0} a second), of {} transactions; \
             {} events not selected, {} skipped",
            self.id,
            acknowledged as f64 / seconds.max(0.001),
            self.counts.transactions,
            self.counts.unselected,
            self.counts.skipped,
        ));
        for (topic, sent) in self.sent.topics() {
            print_notice(&format!("  {sent} to {topic}"));
        }
    }
}

fn interrupted(id: &str, resumable: bool) -> Failure {
    let failure = Failure::new(
        "replay-interrupted",
        Exit::Temporary,
        format!("replay {id} was interrupted"),
    );
    failure.remedy(if resumable {
        format!("go on with it: walrelay replay --resume {id}")
    } else {
        "begin the replay again: nothing of it is recorded".to_owned()
    })
}

/// Adds header, topics and selection of the replay to the relay's router.
fn replay_router(router: Router, note: &Note) -> Result<Router, Failure> {
    let selection = note.selection.as_deref().map(str::parse::<Selection>);
    let unusable = |error| note::unusable(&note.id).caused_by(error);
    let selection = selection.transpose().map_err(unusable)?;
    let to_topic = note.to_topic.clone().map(TopicChange::To);
    let prefix = note.topic_prefix.clone().map(TopicChange::Prefix);
    Ok(router
        .with_run_header(Some((REPLAY_HEADER.to_owned(), note.id.clone())))
        .with_topic_change(to_topic.or(prefix))
        .with_selection(selection))
}

fn source(note: &Note, server: &Server) -> RangeSource {
    let config = &server.config;
    let wanted = Wanted {
        slot: note.slot.clone(),
        ..wanted(config)
    };
    let timeout = config.source.wal_sender_timeout;
    // The range of a time begins at the time, wherever the slot stands before it.
    let must_hold_start = note.after.is_none();
    let info = server.info.clone();
    let (relay, start) = (server.slot(), note.resumes_at());
    let copies = CopySource::from_kept(info, wanted, relay, timeout, start, must_hold_start);
    let range = Range {
        end: note.end,
        after: note.after.map(PgTimestamp::new),
        before: note.before.map(PgTimestamp::new),
    };
    RangeSource::new(copies, range, note.rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};
    use crate::commands::assembly::sink::recording::Recording;

    #[test]
    fn names_of_topics_follow_the_rule_of_the_sink_that_is_used() {
        let kafka = crate::commands::test_config();
        let other = Recording::default().config();
        for (flags, config, expected) in [
            ("--to-topic ä", &kafka, Some("replay-topic")),
            ("--topic-prefix a/", &kafka, Some("replay-topic")),
            ("--to-topic a", &kafka, None),
            ("--to-topic ä --sink stdout", &kafka, None),
            ("--to-topic ä", &other, None),
        ] {
            let line = format!("replay --from a {flags}");
            let Command::Replay(args) = parse(&line).expect("arguments") else {
                panic!("{line}")
            };
            let found = sink(&args, config).err().map(|failure| failure.id);
            assert_eq!(found, expected, "{flags}");
        }
    }

    #[test]
    fn records_go_to_the_configured_sink_unless_standard_output_is_named() {
        let config = Recording::default().config();
        for (flags, expected) in [
            ("", Ok("recording")),
            ("--sink stdout", Ok("stdout")),
            (
                "--sink kafka",
                Err("the sink of the configuration is recording, not kafka"),
            ),
        ] {
            let line = format!("replay --from a {flags}");
            let Command::Replay(args) = parse(&line).expect("arguments") else {
                panic!("{line}")
            };
            let found = sink(&args, &config).map_err(|failure| failure.what);
            assert_eq!(
                found.as_deref().map_err(String::as_str),
                expected,
                "{flags}"
            );
            if let Ok(kind) = found {
                let made = sink_of(&kind, &config).expect("a sink");
                assert_eq!(made.name(), kind);
            }
        }
    }
}
