//! `walrelay cutover verify`: each row of the outbox is looked for in Kafka.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walrelay_kafka_sink::TailedRecord;
use walrelay_relay::{Outcome, Pipeline};
use walrelay_sink::Record;

use super::super::bench::NullSinkFactory;
use super::super::connect::{self, block_on, selection, wanted};
use super::super::replay::without_dead_letters;
use super::super::run::asked_to_stop_or;
use super::super::server::{Server, failure};
use super::super::slots::warn;
use super::compare::{Comparison, Event, IdPlace, Kind};
use super::reading::{Topics, id_place};
use super::shadow::{Watch, millis, print, verdict};
use super::{kafka_of, marking};
use crate::cli::{Exit, Failure, VerifyCutoverArgs};
use crate::failures;
use crate::postgres::{
    ConfirmedError, ResendSource, Selection, SnapshotPlan, SnapshotProgress, recent_rows,
};
use crate::sinks::{Count, Counting};
use crate::sync::lock;

/// Clocks of hosts differ, and a record is published after its row's time.
const MARGIN: Duration = Duration::from_secs(60);

pub(super) fn verify(args: &VerifyCutoverArgs, server: &Server) -> Result<(), Failure> {
    let config = &server.config;
    let kafka = connect::kafka(kafka_of(config)?, &config.delivery)?;
    let from = millis() - (args.since + MARGIN).as_millis() as i64;
    let mut topics = Topics::new(&kafka, from, id_place(args.id.as_ref()))?;
    let expected = Arc::new(Expected {
        ids: id_place(args.id.as_ref()),
        comparison: Mutex::new(Comparison::new(Duration::ZERO)),
        topics: Mutex::default(),
    });
    expect(args, server, &expected)?;
    let mut printed = BTreeMap::new();
    let names = std::mem::take(&mut *lock(&expected.topics));
    for topic in &names {
        if !topics.follow(topic)? {
            warn(&format!("topic {topic} does not exist"));
        }
    }
    let mut comparison = lock(&expected.comparison);
    let mut found = Vec::new();
    topics.read_to_ends(|topics, record| {
        let topic = record.topic.clone();
        if let Some(event) = topics.event(record, &topic, None) {
            found.extend(comparison.theirs(event, Instant::now()));
        }
    })?;
    found.extend(comparison.expire(Instant::now(), |_| false));
    // Without a configured order, rows may come in another order than their commits.
    if config.source.snapshot_order.is_empty() {
        found.retain(|difference| difference.kind != Kind::Order);
        comparison.counts.remove(&Kind::Order);
    }
    print(&found, &mut printed)?;
    verdict(&comparison)
}

/// What walrelay makes of the rows.
#[derive(Debug)]
struct Expected {
    ids: IdPlace,
    comparison: Mutex<Comparison>,
    topics: Mutex<BTreeSet<String>>,
}

impl Count for Expected {
    fn sent(&self, record: &Record<'_>) {
        let headers = record.headers.iter();
        let copy = TailedRecord {
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
        if let Some(id) = self.ids.of(&copy) {
            let event = Event::of(id, record.topic, None, &copy);
            let mut comparison = lock(&self.comparison);
            // Nothing is there yet that it could differ from.
            let _ = comparison.ours(event, Instant::now());
        }
    }

    fn delivered(&self) {}
}

/// Reads the rows of a moment, after the slot has confirmed all of them.
fn expect(
    args: &VerifyCutoverArgs,
    server: &Server,
    expected: &Arc<Expected>,
) -> Result<(), Failure> {
    let config = &server.config;
    let progress = Arc::new(SnapshotProgress::default());
    let (router, messages) = connect::router(config)?;
    let mut looking = config.clone();
    if let Some(registry) = looking.registry.as_mut() {
        registry.register = false;
    }
    let schemas = connect::schemas(&looking, None)?;
    let settings = without_dead_letters(connect::settings(config, messages, None, schemas));
    let source = block_on(Box::pin(async {
        let mut session = server.connect().await?;
        let filter = match &args.r#where {
            Some(condition) => condition.clone(),
            None => recent_rows(&mut session, &config.source.tables, args.since)
                .await
                .map_err(failure)?
                .ok_or_else(no_time)?,
        };
        let wanted = wanted(config);
        let mut source = ResendSource::new(SnapshotPlan {
            info: server.info.clone(),
            publication: wanted.publication,
            tables: wanted.tables,
            selection: Selection {
                unsent: false,
                filter: Some(filter),
                ..selection(config)
            },
            progress: Arc::clone(&progress),
        });
        // Makes the snapshot.
        let rows = source.count().await.map_err(failure)?;
        warn(&format!("comparing {rows} rows of the outbox with Kafka"));
        let confirmed = marking(config).wait_confirmed(&mut session).await;
        session.close().await;
        confirmed.map_err(not_confirmed)?;
        Ok::<_, Failure>(source)
    }))??;
    let factory = Counting::new(NullSinkFactory, Arc::clone(expected));
    let mut pipeline = Pipeline::new(source, router, factory, Watch, settings);
    let result = block_on(async {
        let done = asked_to_stop_or(async { progress.acknowledged().await })?;
        Ok::<_, Failure>(Box::pin(pipeline.run(done)).await)
    })??;
    match result.map_err(failures::pipeline)? {
        Outcome::Drained { .. } | Outcome::Unused if progress.is_acknowledged() => Ok(()),
        _ => Err(Failure::new(
            "cutover-interrupted",
            Exit::Temporary,
            "the comparison was interrupted",
        )
        .remedy("begin it again")),
    }
}

fn no_time() -> Failure {
    let what = "no column of the outbox tells a row's time";
    Failure::new("cutover-time", Exit::Usage, what).remedy("say --where with a condition in SQL")
}

fn not_confirmed(error: ConfirmedError) -> Failure {
    match error {
        ConfirmedError::Sql(error) => failure(error),
        error @ ConfirmedError::NotConfirmed { .. } => {
            Failure::new("cutover-not-confirmed", Exit::Temporary, error.to_string())
                .remedy("see that walrelay run runs and keeps up: walrelay status")
        }
    }
}
