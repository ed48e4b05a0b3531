//! Publishes to a stream that only the relay writes to: each message names the one that it follows.

mod batch;
mod repeats;
mod search;
mod worker;

use std::sync::Arc;

use walrelay_sink::{Disposition, EventPosition, Obstacle, Record, RecordKind, lock};
use walrelay_sink_client::{BatchQueue, Failure};

use super::Settings;
use super::sequences::Acknowledged;
use crate::client::error::NatsError;
use crate::client::exchange::{Exchange, ExchangeError};
use crate::client::message::is_dead_letter;

pub(super) use worker::carry;

/// The most records of a batch.
const BATCH_RECORDS: usize = 500;

/// The state that a sink shares with its thread. Records are in the order of the log.
pub(super) type Shared = walrelay_sink_client::Shared<BatchQueue, Arc<Settings>>;

/// The reason why no further messages can be published now.
enum Stop {
    /// The connection ended.
    Connection(NatsError),
    /// The stream accepts nothing for a while.
    Pause(Obstacle),
    /// Nothing can be published. The sink ends.
    Broken(Failure),
}

impl From<ExchangeError> for Stop {
    fn from(error: ExchangeError) -> Self {
        let what = match error {
            ExchangeError::Connection(error) => return Self::Connection(error),
            ExchangeError::ApiDenied => {
                "with exclusive_stream the user must publish to $JS.API.STREAM.NAMES, \
                 $JS.API.STREAM.INFO.* and $JS.API.STREAM.MSG.GET.*"
            }
            ExchangeError::SubjectDenied => "the user may not publish to the subject of an event",
        };
        Self::Broken(Failure {
            class: "denied",
            reason: what.to_owned(),
            disposition: Disposition::Configuration,
        })
    }
}

/// The messages of a sink, of which each follows the one before.
///
/// # Fencing
/// The first message of a batch expects the number that this sink knows as the stream's last one, and
/// each other one also expects the id of the message before. So the stream refuses all of them if
/// another client has written meanwhile. The sink then reads what was written, and sends only what is
/// not there.
struct Chain<'s> {
    shared: &'s Shared,
    stream: String,
    source: Option<String>,
    /// The number of the last message of the stream of which this sink knows whether it is one of its
    /// events; `None`: it has not asked yet.
    last: Option<u64>,
    /// The number of the last message when the sink started. Later ones are of this sink, or of a
    /// relay that may have taken over.
    since: Option<u64>,
    /// The stream has refused a message that follows `last`.
    is_refused: bool,
    /// The messages behind the first of these numbers, up to the second, are of another client, and
    /// are not read yet.
    unread: Option<(u64, u64)>,
    /// The highest position of an event of the source that the stream has, as far as is known.
    top: Option<EventPosition>,
    /// Records up to this sequence number were looked for in the stream.
    looked_for: Option<u64>,
    /// The number of the highest message in which a record was found on the way back.
    found_at: Option<u64>,
    /// Events up to this position are repeated, whether they exist or not: an earlier one of them was
    /// not found, and must not come behind later ones of its key.
    repeat_to: Option<EventPosition>,
    /// The records that follow were stored from this number of the stream on, as far as is known.
    next_repeat: Option<u64>,
    /// The rows of a snapshot that was interrupted were looked for.
    has_resumed: bool,
    /// The most records of the next batch. If the stream has a record, it refuses those that are sent
    /// behind it. So the next batch is small, and the ones after it grow.
    batch_limit: usize,
    /// The number of refusals without a message that was stored.
    refusals: u32,
    logged: bool,
    /// The events that the stream has acknowledged to this sink.
    acknowledged: Option<Acknowledged>,
}

impl<'s> Chain<'s> {
    fn new(shared: &'s Shared, stream: String, source: Option<String>) -> Self {
        Self {
            shared,
            stream,
            source,
            last: None,
            since: None,
            is_refused: false,
            unread: None,
            top: None,
            looked_for: None,
            found_at: None,
            repeat_to: None,
            next_repeat: None,
            has_resumed: false,
            batch_limit: BATCH_RECORDS,
            refusals: 0,
            logged: false,
            acknowledged: None,
        }
    }

    /// Publishes the first records of the queue, or finds that the stream has some of them. At first asks
    /// for the stream's last number, which bounds what this sink takes for its own. Must not be called again on this connection if it is cancelled.
    async fn advance(&mut self, exchange: &mut Exchange) -> Result<(), Stop> {
        if self.last.is_none() || self.is_refused {
            self.ask_last(exchange).await?;
        }
        if self.look_for(exchange).await? || self.pass_over(exchange).await? {
            return Ok(());
        }
        self.publish(exchange).await
    }

    /// Accepts a former sink's notes on the stream.
    fn take_end(&mut self) {
        let end = || self.shared.stats.ends.stream(&self.stream);
        if self.acknowledged.is_none() {
            self.acknowledged = Acknowledged::from_end(&lock(&end()));
        }
    }

    /// Keeps the notes on the stream for the next sink.
    fn keep_end(&self) {
        if let (Some(acknowledged), Some(last)) = (self.acknowledged, self.last) {
            let end = self.shared.stats.ends.stream(&self.stream);
            *lock(&end) = acknowledged.end(last);
        }
    }

    /// Returns true if the sink knows a last number of the stream.
    fn has_asked(&self) -> bool {
        self.last.is_some()
    }

    /// Returns the number of records at the head of the queue whose positions rise, up to the size of
    /// a batch, and to a dead letter, which is alone. A transaction that was cut off is sent again from
    /// its first event, which must be looked for when all records before it are stored.
    fn rising(&self) -> usize {
        let state = self.shared.state();
        if self.source.is_none() {
            return state.records.waiting().len().min(BATCH_RECORDS);
        }
        let mut highest = None;
        let heads = state.records.waiting().iter().take(BATCH_RECORDS);
        let heads = heads.enumerate();
        let rising = heads.take_while(|(at, queued)| {
            let (position, is_dead_letter) = queued
                .record
                .with(|record| (Some(record.position), is_dead_letter(record)));
            let is_higher = position > highest;
            highest = position;
            is_higher && (*at == 0 || !is_dead_letter)
        });
        rising.count()
    }

    /// Reports these records as delivered.
    fn delivered(&mut self, seqs: &[u64]) {
        for seq in seqs {
            let Some(queued) = self.shared.state().records.take(*seq) else {
                continue;
            };
            let refusals = &self.shared.settings.refusals;
            if !refusals.is_unused() {
                let record = &queued.record;
                record.with(|record| refusals.forget(record.topic.as_bytes()));
            }
            let known = self.acknowledged;
            // Dead letters belong into another stream.
            self.acknowledged = queued.record.with(|record: &Record<'_>| match record.kind {
                RecordKind::Event => Some(Acknowledged::with(known, record)),
                _ => known,
            });
            self.shared.report(&queued, Ok(()));
        }
        if !seqs.is_empty() {
            self.refusals = 0;
            self.keep_end();
        }
    }
}
