//! `walrelay cutover shadow`: publishes beside the polling relay, and compares.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use walrelay_event_router::TopicChange;
use walrelay_kafka_sink::{KafkaConfig, KafkaSinkFactory, TailedRecord};
use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::{Environment, Outcome, Pipeline, Progress};
use walrelay_walsender::quote_ident;

use super::super::connect::{self, block_on, id_column, run_id, wanted};
use super::super::progress_line::ProgressLine;
use super::super::replay::{Tally, without_dead_letters};
use super::super::run::asked_to_stop_or;
use super::super::server::{Server, failure};
use super::super::slots::warn;
use super::compare::{Comparison, Difference, Kind};
use super::reading::{Topics, id_place};
use super::{HEADER, INTERVAL, kafka_of, marking, say};
use crate::cli::{Exit, Failure, ShadowCutoverArgs};
use crate::failures;
use crate::postgres::CopySource;
use crate::sinks::Counting;
use crate::telemetry::wall_clock;

/// Records that the polling relay published this long after the beginning may be of rows from before it.
const MARGIN: Duration = Duration::from_secs(2);
/// Differences of one kind that are printed one by one.
const PRINTED: u64 = 20;

pub(super) fn shadow(args: &ShadowCutoverArgs, server: &Server) -> Result<(), Failure> {
    let config = &server.config;
    let kafka = connect::kafka(kafka_of(config)?, &config.delivery)?;
    let id = run_id();
    let what = format!(
        "walrelay reads a temporary slot and publishes to topics that begin with {:?}, beside the polling relay.\n\
         Consumers of the live topics see nothing of it. The database decodes its log once more meanwhile.\n",
        args.topic_prefix
    );
    if args.change.dry_run {
        return say(&what);
    }
    warn(&what);
    let (router, messages) = connect::router(config)?;
    let router = router
        .with_run_header(Some((HEADER.to_owned(), id.clone())))
        .with_topic_change(Some(TopicChange::Prefix(args.topic_prefix.clone())));
    let schemas = connect::schemas(config, None)?;
    let settings = without_dead_letters(connect::settings(config, messages, None, schemas));
    let source = CopySource::of_configured(
        server.info.clone(),
        wanted(config),
        config.source.wal_sender_timeout,
    );
    let tally = Arc::new(Tally::default());
    let shared = Arc::new(Shared {
        id,
        prefix: args.topic_prefix.clone(),
        tally: Arc::clone(&tally),
        walsender: source.walsender(),
        comparing: AtomicBool::new(false),
        stopped: AtomicBool::new(false),
        failed: AtomicBool::new(false),
    });
    let factory = Counting::new(KafkaSinkFactory::new(kafka.clone()), tally);
    let mut pipeline = Pipeline::new(source, router, factory, Watch, settings);
    let comparing = Arc::clone(&shared);
    let (result, compared) = thread::scope(|scope| {
        let comparer = scope.spawn(move || {
            let compared = compare(args, server, &kafka, &comparing);
            comparing.failed.store(compared.is_err(), Ordering::SeqCst);
            compared
        });
        let result = block_on(async {
            let end = async {
                let mut compared = Duration::ZERO;
                while args.duration.is_none_or(|limit| compared < limit)
                    && !shared.failed.load(Ordering::SeqCst)
                {
                    sleep(INTERVAL).await;
                    if shared.comparing.load(Ordering::SeqCst) {
                        compared += INTERVAL;
                    }
                }
            };
            Ok::<_, Failure>(Box::pin(pipeline.run(asked_to_stop_or(end)?)).await)
        });
        shared.stopped.store(true, Ordering::SeqCst);
        (result, comparer.join())
    });
    let compared = compared.unwrap_or_else(|_| {
        Err(Failure::new(
            "cutover-comparer",
            Exit::Internal,
            "the comparison panicked",
        ))
    })?;
    match result??.map_err(failures::pipeline)? {
        Outcome::Drained { .. } | Outcome::Unused => {}
        Outcome::Incomplete { reason, .. } => {
            let what = "not all shadow records were acknowledged";
            return Err(Failure::new("cutover-interrupted", Exit::Temporary, what)
                .caused_by(reason)
                .remedy("begin it again"));
        }
    }
    verdict(&compared)
}

/// What the comparison and the pipeline know of each other.
struct Shared {
    id: String,
    prefix: String,
    tally: Arc<Tally>,
    /// Not 0 since the slot is there.
    walsender: Arc<AtomicI32>,
    /// Both sides have an event, or should have.
    comparing: AtomicBool,
    /// The pipeline has ended: everything that it read is acknowledged.
    stopped: AtomicBool,
    failed: AtomicBool,
}

/// Totals, and a failure if something differed.
pub(super) fn verdict(comparison: &Comparison) -> Result<(), Failure> {
    let mut text = format!(
        "{} events on both sides, {} repeated records\n",
        comparison.pairs, comparison.repeats
    );
    for (kind, count) in &comparison.counts {
        // A String takes everything.
        let _ = writeln!(text, "{count} times: {kind}");
    }
    say(&text)?;
    if comparison.pairs == 0 && comparison.counts.is_empty() {
        let what = "no event was compared";
        return Err(Failure::new("cutover-nothing", Exit::Data, what).remedy(
            "look while events are written, for longer, or say --id where the events' ids are",
        ));
    }
    if comparison.is_equal() {
        return Ok(());
    }
    let what = "walrelay's records and those in the topics differ";
    Err(Failure::new("cutover-differs", Exit::Data, what).remedy(
        "the differences are printed above. Correct the route (walrelay route shows a record), or see that nobody else \
         writes to these topics",
    ))
}

/// Prints differences, the first of each kind one by one.
pub(super) fn print(
    found: &[Difference],
    printed: &mut BTreeMap<Kind, u64>,
) -> Result<(), Failure> {
    for difference in found {
        let count = printed.entry(difference.kind).or_default();
        *count += 1;
        if *count <= PRINTED {
            say(&format!(
                "event {} of topic {}: {}\n",
                difference.id, difference.topic, difference.kind
            ))?;
        } else if *count == PRINTED + 1 {
            say(&format!(
                "more of this are counted only: {}\n",
                difference.kind
            ))?;
        }
    }
    Ok(())
}

/// Milliseconds since 1970.
pub(super) fn millis() -> i64 {
    wall_clock().unix_micros().unwrap_or_default() / 1000
}

/// Reads both relays' topics until the pipeline has ended, and what is due then.
fn compare(
    args: &ShadowCutoverArgs,
    server: &Server,
    kafka: &KafkaConfig,
    shared: &Shared,
) -> Result<Comparison, Failure> {
    let mut topics = Topics::new(kafka, millis(), id_place(args.id.as_ref()))?;
    let mut comparison = Comparison::new(args.patience);
    let mut printed = BTreeMap::new();
    while shared.walsender.load(Ordering::Relaxed) == 0 {
        if shared.stopped.load(Ordering::SeqCst) {
            return Ok(comparison);
        }
        thread::sleep(INTERVAL);
    }
    // Rows from before the slot that the polling relay publishes later are not walrelay's.
    let mut passed_over = block_on(Box::pin(backlog(server)))??;
    let begun = Instant::now();
    let from = millis() + MARGIN.as_millis() as i64;
    let mut line = ProgressLine::new();
    let mut missing = BTreeSet::new();
    let mut looked: Option<Instant> = None;
    let mut ended: Option<Instant> = None;
    loop {
        if looked.is_none_or(|at| at.elapsed() > INTERVAL) {
            looked = Some(Instant::now());
            for (topic, _) in shared.tally.topics() {
                topics.follow(&topic)?;
                let live = topic.strip_prefix(&*shared.prefix).unwrap_or(&topic);
                if !topics.follow(live)? && missing.insert(live.to_owned()) {
                    warn(&format!(
                        "topic {live} does not exist: the polling relay has not published to it"
                    ));
                }
            }
            let judged = |id: &str| ended.is_none() && !passed_over.contains(id);
            let found = comparison.expire(Instant::now(), judged);
            print(&found, &mut printed)?;
            // New topics, and a polling relay that is behind, take none of the time to compare.
            if comparison.pairs > 0 || begun.elapsed() > args.patience {
                shared.comparing.store(true, Ordering::SeqCst);
            }
            line.draw(|| {
                format!(
                    "{} events on both sides, {} on one side yet",
                    comparison.pairs,
                    comparison.waiting()
                )
            });
            if ended.is_none() && shared.stopped.load(Ordering::SeqCst) {
                ended = Some(Instant::now());
            }
        }
        // The other relay may be behind.
        if ended.is_some_and(|at| {
            comparison.ours_waiting() == 0 || at.elapsed() > args.patience + INTERVAL
        }) {
            return Ok(comparison);
        }
        let Some(record) = topics.next(Duration::from_millis(50))? else {
            continue;
        };
        let now = Instant::now();
        let found = if let Some(live) = record.topic.strip_prefix(&*shared.prefix) {
            if !is_of(&record, &shared.id) {
                continue;
            }
            let live = live.to_owned();
            let same = topics.partitions(&live) == topics.partitions(&record.topic);
            let partition = same.then_some(record.partition);
            let event = topics.event(&record, &live, partition);
            event.map(|event| comparison.ours(event, now))
        } else {
            let topic = record.topic.clone();
            let event = topics.event(&record, &topic, Some(record.partition));
            event.map(|event| {
                if ended.is_some() || record.timestamp_ms.is_none_or(|at| at < from) {
                    passed_over.insert(event.id.clone());
                }
                comparison.theirs(event, now)
            })
        };
        print(&found.unwrap_or_default(), &mut printed)?;
    }
}

/// Whether a record is one of this run's.
fn is_of(record: &TailedRecord, id: &str) -> bool {
    let found = record.headers.iter().find(|(name, _)| name == HEADER);
    found.is_some_and(|(_, value)| value.as_deref() == Some(id.as_bytes()))
}

/// Ids of the events that are not sent.
async fn backlog(server: &Server) -> Result<HashSet<String>, Failure> {
    let Some(column) = id_column(&server.config) else {
        return Ok(HashSet::new());
    };
    let mut session = server.connect().await?;
    let ids = marking(&server.config)
        .unmarked_ids(&mut session, &quote_ident(column))
        .await;
    session.close().await;
    ids.map_err(failure)
}

/// The environment of the pipeline.
#[derive(Debug)]
pub(super) struct Watch;

impl Environment for Watch {
    fn wall_clock(&self) -> PgTimestamp {
        wall_clock()
    }

    fn progress(&mut self, _: &Progress) {}
}
