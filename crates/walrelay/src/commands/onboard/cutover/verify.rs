//! `walrelay cutover verify`: compares the rows of the outbox with the records in the topics.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walrelay_failure::Failure;
use walrelay_sink::{Record, lock};

use super::compare::{Comparison, DifferenceKind, Event};
use super::shadow::{now_ms, print_differences, report};
use super::{no_slot, topics_of};
use crate::cli::{RecordPlace, VerifyCutoverArgs};
use crate::commands::assembly::block_on;
use crate::commands::assembly::server::Server;
use crate::commands::assembly::sink::any_sink;
use crate::commands::print_notice;
use crate::commands::topics::place::event_id;
use crate::commands::topics::reading::TopicReader;
use crate::commands::topics::rows::{Rows, copy_of, route_rows};
use crate::sinks::Count;

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
    block_on(require_slot(server))??;
    let rows = match &args.r#where {
        Some(condition) => Rows::Where(condition.clone()),
        None => Rows::Since(args.since),
    };
    route_rows(server, rows, &expected)?;
    for topic in &*lock(&expected.topics) {
        if !topics.follow(topic)? {
            print_notice(&format!("topic {topic} does not exist"));
        }
    }
    let mut comparison = lock(&expected.comparison);
    topics.read_to_ends(|topics, record| {
        if let Some(id) = topics.event_id(record) {
            let event = Event::new(id, &record.topic, None, record);
            comparison.add_theirs(event, Instant::now());
        }
    })?;
    comparison.expire(Instant::now(), |_| false);
    // Without a configured order, the snapshot may read rows in another order than that of their
    // commits.
    if config.source.snapshot_order.is_empty() {
        let differences = &mut comparison.found;
        differences.retain(|difference| difference.kind != DifferenceKind::Order);
        comparison.counts.remove(&DifferenceKind::Order);
    }
    print_differences(&mut comparison, args.output)?;
    report(&comparison, args.output)
}

/// The records that walrelay makes of the rows, as events of a comparison.
#[derive(Debug)]
struct Expected {
    /// `--id`.
    id_place: Option<RecordPlace>,
    comparison: Mutex<Comparison>,
    topics: Mutex<BTreeSet<String>>,
}

impl Count for Expected {
    fn sent(&self, record: &Record<'_>) {
        let copy = copy_of(record);
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

async fn require_slot(server: &Server) -> Result<(), Failure> {
    let mut session = server.connect().await?;
    let slot = server.find_slot(&mut session).await?;
    session.close().await;
    slot.map(drop).ok_or_else(|| no_slot(server))
}
