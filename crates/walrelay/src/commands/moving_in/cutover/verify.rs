//! `walrelay cutover verify`: compares the rows of the outbox with the records in the topics.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walrelay_postgres_source::{ConfirmedError, SnapshotProgress, age_columns, recent_rows};
use walrelay_relay::{Outcome, Pipeline, Progress, TableName};
use walrelay_sink::topics::ReadRecord;
use walrelay_sink::{Record, lock};

use super::compare::{Comparison, DifferenceKind, Event, event_id};
use super::reading::TopicReader;
use super::shadow::{now_ms, print_differences, report};
use super::{marking, no_slot, topics_of};
use crate::cli::{CutoverId, Exit, Failure, VerifyCutoverArgs};
use crate::commands::assembly::pipelines::{
    OnProgress, router_and_settings, run_until, selected_rows, without_dead_letters,
};
use crate::commands::assembly::server::Server;
use crate::commands::assembly::sink::any_sink;
use crate::commands::assembly::{self, block_on};
use crate::commands::print_notice;
use crate::sinks::{Count, Counting, NullSinkFactory};

/// Records are read from this long before `--since` on, as the clocks of hosts may differ. A record
/// is published after its row's time.
const MARGIN: Duration = Duration::from_secs(60);

pub(super) fn verify(args: &VerifyCutoverArgs, server: &Server) -> Result<(), Failure> {
    let config = &server.config;
    let sink = any_sink(config)?;
    let sink_topics = topics_of(&*sink)?;
    let from = now_ms() - (args.since + MARGIN).as_millis() as i64;
    let mut topics = TopicReader::new(sink_topics, from, args.id.clone())?;
    let expected = Arc::new(Expected {
        id_place: args.id.clone(),
        comparison: Mutex::new(Comparison::new(Duration::ZERO)),
        topics: Mutex::default(),
    });
    read_rows(args, server, &expected)?;
    for topic in &*lock(&expected.topics) {
        if !topics.follow(topic)? {
            print_notice(&format!("topic {topic} does not exist"));
        }
    }
    let mut comparison = lock(&expected.comparison);
    topics.read_to_ends(|topics, record| {
        if let Some(event) = topics.event(record, &record.topic, None) {
            comparison.add_theirs(event, Instant::now());
        }
    })?;
    comparison.expire(Instant::now(), |_| false);
    // Without a configured order, the snapshot may read rows in another order than that of their
    // commits.
    if config.source.snapshot_order.is_empty() {
        let found = &mut comparison.found;
        found.retain(|difference| difference.kind != DifferenceKind::Order);
        comparison.counts.remove(&DifferenceKind::Order);
    }
    print_differences(&mut comparison, args.output)?;
    report(&comparison, args.output)
}

/// The records that walrelay makes of the rows, as events of a comparison.
#[derive(Debug)]
struct Expected {
    /// `--id`.
    id_place: Option<CutoverId>,
    comparison: Mutex<Comparison>,
    topics: Mutex<BTreeSet<String>>,
}

impl Count for Expected {
    fn sent(&self, record: &Record<'_>) {
        let headers = record.headers.iter();
        let copy = ReadRecord {
            topic: record.topic.to_owned(),
            partition: 0,
            offset: 0,
            timestamp_ms: None,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: headers
                .map(|header| (header.name.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect(),
        };
        let mut topics = lock(&self.topics);
        if !topics.contains(record.topic) {
            topics.insert(record.topic.to_owned());
        }
        if let Some(id) = event_id(self.id_place.as_ref(), &copy) {
            let event = Event::new(id, record.topic, None, &copy);
            lock(&self.comparison).add_ours(event, Instant::now());
        }
    }

    fn delivered(&self) {}
}

/// Routes the rows of a snapshot, once the slot has confirmed all of them.
fn read_rows(
    args: &VerifyCutoverArgs,
    server: &Server,
    expected: &Arc<Expected>,
) -> Result<(), Failure> {
    let config = &server.config;
    let progress = Arc::new(SnapshotProgress::default());
    let (router, settings) = router_and_settings(config, false, without_dead_letters)?;
    let source = block_on(Box::pin(async {
        let mut session = server.connect().await?;
        if server.find_slot(&mut session).await?.is_none() {
            return Err(no_slot(server.slot()));
        }
        let filter = match &args.r#where {
            Some(condition) => condition.clone(),
            None => recent_rows(&mut session, &config.source.tables, args.since)
                .await?
                .ok_or_else(|| no_time(&config.source.tables))?,
        };
        let mut source = selected_rows(server, filter, &progress);
        // Counting also exports the snapshot.
        let rows = source.count().await?;
        print_notice(&format!("comparing {rows} rows of the outbox with Kafka"));
        let confirmed = marking(config).wait_confirmed(&mut session).await;
        session.close().await;
        confirmed.map_err(not_confirmed)?;
        Ok::<_, Failure>(source)
    }))??;
    let factory = Counting::new(NullSinkFactory, Arc::clone(expected));
    let environment = OnProgress(|_: &Progress| {});
    let mut pipeline = Pipeline::new(source, router, factory, environment, settings);
    match run_until(&mut pipeline, progress.acknowledged())?? {
        Outcome::Drained { .. } | Outcome::Unused if progress.is_acknowledged() => Ok(()),
        _ => {
            let what = "the comparison was interrupted";
            Err(Failure::new("cutover-interrupted", Exit::Temporary, what).remedy("begin it again"))
        }
    }
}

fn no_time(tables: &[TableName]) -> Failure {
    let columns = age_columns(None).join(" or ");
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    let what = format!(
        "--since needs a column {columns}, the same in each table, and {} lacks it",
        names.join(", ")
    );
    Failure::new("cutover-time", Exit::Usage, what).remedy(
        "select rows by another column with --where, such as --where \"sent_at >= now() - interval '1 hour'\", or all \
         of them with --where true",
    )
}

fn not_confirmed(error: ConfirmedError) -> Failure {
    match error {
        ConfirmedError::Sql(error) => error.into(),
        ConfirmedError::NotCarried(why) => assembly::not_carried(why),
        error @ (ConfirmedError::NotConfirmed { .. }
        | ConfirmedError::InVain(_)
        | ConfirmedError::DeadLetters(_)) => {
            Failure::new("cutover-not-confirmed", Exit::Temporary, error.to_string())
                .remedy("see that walrelay run runs and keeps up: walrelay status")
        }
    }
}
