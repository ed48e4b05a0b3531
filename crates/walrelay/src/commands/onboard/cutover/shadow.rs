//! `walrelay cutover shadow`: publishes beside the polling relay, and compares the records of both.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::sleep;
use walrelay_event_router::TopicChange;
use walrelay_failure::{Exit, Failure};
use walrelay_observe::micros_now;
use walrelay_postgres_source::CopySource;
use walrelay_relay::{Outcome, Progress};
use walrelay_sink::any_factory;
use walrelay_sink_kind::topics::{ReadRecord, SinkTopics};
use walrelay_walsender::quote_ident;

use super::compare::{Comparison, Difference, Event};
use super::{HEADER, INTERVAL, marking, topics_of};
use crate::cli::{Output, ShadowCutoverArgs};
use crate::commands::assembly::pipelines::{
    CommandPipeline, OnProgress, RecordCounts, router_and_settings, run_until, without_dead_letters,
};
use crate::commands::assembly::server::Server;
use crate::commands::assembly::sink::any_sink;
use crate::commands::assembly::{block_on, id_column, run_id, wanted};
use crate::commands::terminal::progress_line::ProgressLine;
use crate::commands::topics::place::header;
use crate::commands::topics::reading::TopicReader;
use crate::commands::{print_as, print_notice};
use crate::sinks::Counting;

/// Records that the polling relay publishes within this time after the slot may be of rows from
/// before it.
const MARGIN: Duration = Duration::from_secs(2);
/// Differences of one kind that are printed; further ones are counted.
const PRINTED: u64 = 20;

pub(super) fn shadow(args: &ShadowCutoverArgs, server: &Server) -> Result<(), Failure> {
    let config = &server.config;
    let sink = any_sink(config)?;
    let topics = topics_of(&*sink)?;
    let id = run_id();
    let what = format!(
        "walrelay reads a temporary slot and publishes to topics that begin with {:?}, alongside the polling relay.\n\
         Consumers of the live topics see nothing of it. The database decodes its log once more meanwhile.\n",
        args.topic_prefix
    );
    if args.change.dry_run {
        let object = json!({ "topic_prefix": args.topic_prefix });
        return print_as(args.output, &what, &object);
    }
    print_notice(&what);
    let (router, settings) = router_and_settings(config, true, without_dead_letters)?;
    let router = router
        .with_run_header(Some((HEADER.to_owned(), id.clone())))
        .with_topic_change(Some(TopicChange::Prefix(args.topic_prefix.clone())));
    let source = CopySource::from_configured(
        server.info.clone(),
        wanted(config),
        config.source.wal_sender_timeout,
    );
    let sent = Arc::new(RecordCounts::default());
    let shared = Shared {
        id,
        sent: Arc::clone(&sent),
        walsender: source.walsender(),
        comparing: AtomicBool::new(false),
        stopped: AtomicBool::new(false),
        failed: AtomicBool::new(false),
    };
    let factory = any_factory(Counting::new(sink.factory(None).0, sent));
    let mut observer = OnProgress(|_: &Progress| {});
    let mut pipeline = CommandPipeline::new(source, router, factory, &mut observer, settings);
    let (result, compared) = thread::scope(|scope| {
        let comparer = scope.spawn(|| {
            let compared = compare(args, server, topics, &shared);
            shared.failed.store(compared.is_err(), SeqCst);
            compared
        });
        let result = run_until(&mut pipeline, shared.compared_for(args.duration));
        shared.stopped.store(true, SeqCst);
        (result, comparer.join())
    });
    let compared = compared.unwrap_or_else(|_| {
        Err(Failure::new(
            "cutover-comparer",
            Exit::Internal,
            "the comparison panicked",
        )
        .remedy("this is a bug of the comparison: please report it with the lines above. Nothing was switched"))
    })?;
    match result?? {
        Outcome::Drained { .. } | Outcome::Unused => report(&compared, args.output),
        Outcome::Incomplete { reason, .. } => {
            let what = "not all shadow records were acknowledged";
            Err(Failure::new("cutover-interrupted", Exit::Temporary, what)
                .caused_by(reason)
                .remedy("run walrelay cutover shadow again: it reads a temporary slot"))
        }
    }
}

/// The state that the comparison and the pipeline share.
struct Shared {
    /// The id of this run, in the header of each shadow record.
    id: String,
    sent: Arc<RecordCounts>,
    /// Process id of the walsender: not 0 once the slot exists.
    walsender: Arc<AtomicI32>,
    /// Both sides have an event, or should have.
    comparing: AtomicBool,
    /// The pipeline has ended: everything that it read is acknowledged.
    stopped: AtomicBool,
    /// The comparison has failed.
    failed: AtomicBool,
}

impl Shared {
    /// Resolves once `comparing` has been set for `duration`, or the comparison has failed.
    async fn compared_for(&self, duration: Option<Duration>) {
        let mut compared = Duration::ZERO;
        while duration.is_none_or(|limit| compared < limit) && !self.failed.load(SeqCst) {
            sleep(INTERVAL).await;
            if self.comparing.load(SeqCst) {
                compared += INTERVAL;
            }
        }
    }
}

/// Prints the totals. Fails if something differed, or nothing was compared.
pub(super) fn report(comparison: &Comparison, output: Output) -> Result<(), Failure> {
    let mut text = format!(
        "{} events on both sides, {} repeated records\n",
        comparison.pairs, comparison.repeats
    );
    for (kind, count) in &comparison.counts {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{count} times: {kind}");
    }
    let object = json!({
        "pairs": comparison.pairs,
        "repeats": comparison.repeats,
        "differences": comparison.counts,
    });
    print_as(output, &text, &object)?;
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
        "the differences are printed above. Correct the route (walrelay route shows a record), or \
         see that no other client writes to these topics",
    ))
}

/// Takes the differences that were found, and prints them one by one: for people only the first of
/// each kind.
pub(super) fn print_differences(
    comparison: &mut Comparison,
    output: Output,
) -> Result<(), Failure> {
    for difference in std::mem::take(&mut comparison.found) {
        let Difference {
            id, topic, kind, ..
        } = &difference;
        let text = match difference.number.cmp(&(PRINTED + 1)) {
            Ordering::Less => format!("event {id} of topic {topic}: {kind}\n"),
            Ordering::Equal => format!("more of this are counted only: {kind}\n"),
            Ordering::Greater => String::new(),
        };
        print_as(output, &text, &difference)?;
    }
    Ok(())
}

/// Reads the wall clock in milliseconds since 1970, as timestamps of records.
pub(super) fn now_ms() -> i64 {
    micros_now() / 1000
}

/// Compares the topics of both relays until the pipeline has ended, and then until the polling
/// relay has caught up or `--patience` is over.
fn compare(
    args: &ShadowCutoverArgs,
    server: &Server,
    topics: &dyn SinkTopics,
    shared: &Shared,
) -> Result<Comparison, Failure> {
    let topics = TopicReader::new(topics, now_ms(), args.id.clone())?;
    let comparison = Comparison::new(args.patience);
    while shared.walsender.load(SeqCst) == 0 {
        if shared.stopped.load(SeqCst) {
            return Ok(comparison);
        }
        thread::sleep(INTERVAL);
    }
    let comparer = Comparer {
        args,
        shared,
        topics,
        comparison,
        not_ours: block_on(Box::pin(backlog(server)))??,
        missing_topics: BTreeSet::new(),
        begun: Instant::now(),
        from_ms: now_ms() + MARGIN.as_millis() as i64,
        ended: None,
        line: ProgressLine::new(),
    };
    comparer.run()
}

/// Compares the records of both relays while the pipeline runs.
struct Comparer<'a> {
    args: &'a ShadowCutoverArgs,
    shared: &'a Shared,
    topics: TopicReader,
    comparison: Comparison,
    /// Ids of events that the polling relay publishes and walrelay need not: those of rows from
    /// before the slot, and those published after the pipeline has ended.
    not_ours: HashSet<String>,
    /// Live topics whose absence was reported.
    missing_topics: BTreeSet<String>,
    begun: Instant,
    /// Records of the polling relay with earlier timestamps may be of rows from before the slot.
    from_ms: i64,
    /// When the end of the pipeline was noticed.
    ended: Option<Instant>,
    line: ProgressLine,
}

impl Comparer<'_> {
    fn run(mut self) -> Result<Comparison, Failure> {
        let mut checked: Option<Instant> = None;
        loop {
            if checked.is_none_or(|at| at.elapsed() > INTERVAL) {
                checked = Some(Instant::now());
                self.check()?;
            }
            if self.is_complete() {
                return Ok(self.comparison);
            }
            if let Some(record) = self.topics.next(Duration::from_millis(50))? {
                self.add(&record)?;
            }
        }
    }

    /// Follows new topics, reports events without a pair, and shows the progress.
    fn check(&mut self) -> Result<(), Failure> {
        for (topic, _) in self.shared.sent.topics() {
            self.topics.follow(&topic)?;
            let live = topic
                .strip_prefix(&self.args.topic_prefix)
                .unwrap_or(&topic);
            if !self.topics.follow(live)? && self.missing_topics.insert(live.to_owned()) {
                print_notice(&format!(
                    "topic {live} does not exist: the polling relay has not published to it"
                ));
            }
        }
        let is_expected = |id: &str| self.ended.is_none() && !self.not_ours.contains(id);
        self.comparison.expire(Instant::now(), is_expected);
        print_differences(&mut self.comparison, self.args.output)?;
        // `--for` counts from the first pair on, so that new topics and a polling relay that is
        // behind do not shorten it.
        if self.comparison.pairs > 0 || self.begun.elapsed() > self.args.patience {
            self.shared.comparing.store(true, SeqCst);
        }
        self.line.draw(|| {
            format!(
                "{} events on both sides, {} on one side yet",
                self.comparison.pairs,
                self.comparison.unpaired()
            )
        });
        if self.ended.is_none() && self.shared.stopped.load(SeqCst) {
            self.ended = Some(Instant::now());
        }
        Ok(())
    }

    /// Returns true if the pipeline has ended and no pair is expected any more: the polling relay
    /// may be behind.
    fn is_complete(&self) -> bool {
        self.ended.is_some_and(|at| {
            self.comparison.ours_unpaired() == 0 || at.elapsed() > self.args.patience + INTERVAL
        })
    }

    /// Adds a record to its side of the comparison.
    fn add(&mut self, record: &ReadRecord) -> Result<(), Failure> {
        let topic = &record.topic;
        let now = Instant::now();
        if let Some(live) = topic.strip_prefix(&self.args.topic_prefix) {
            if header(record, HEADER) != Some(self.shared.id.as_bytes()) {
                return Ok(());
            }
            let count = |topic| self.topics.partitions(topic).map(<[_]>::len);
            let same_count = count(live) == count(topic);
            let partition = same_count.then_some(record.partition);
            if let Some(id) = self.topics.event_id(record) {
                let event = Event::new(id, live, partition, record);
                self.comparison.add_ours(event, now);
            }
        } else if let Some(id) = self.topics.event_id(record) {
            let event = Event::new(id, topic, Some(record.partition), record);
            let is_early = record.timestamp_ms.is_none_or(|at| at < self.from_ms);
            if self.ended.is_some() || is_early {
                self.not_ours.insert(event.id.clone());
            }
            self.comparison.add_theirs(event, now);
        }
        print_differences(&mut self.comparison, self.args.output)
    }
}

/// Ids of the rows that the polling relay has not sent: walrelay does not publish them.
async fn backlog(server: &Server) -> Result<HashSet<String>, Failure> {
    let Some(column) = id_column(&server.config) else {
        return Ok(HashSet::new());
    };
    let mut session = server.connect().await?;
    let ids = marking(&server.config)
        .unmarked_ids(&mut session, &quote_ident(column))
        .await;
    session.close().await;
    Ok(ids?)
}
