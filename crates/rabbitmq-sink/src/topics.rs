//! Reads streams back, for `tail` and `verify-topic`. A topic is the name of a queue of the type stream.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::{Failure, ToFailure as _};
use walrelay_sink_client::Apart;
use walrelay_sink_kind::topics::{
    FollowedPartition, InTurns, ReadRecord, ReadableTopics, SentTo, StreamParts, TopicReader,
};

use crate::RabbitmqError;
use crate::client::Login;
use crate::client::read_back::Delivered;
use crate::client::stream::{StartOffset, StreamConsumer, StreamError};
use crate::failures::{Change, bindings_failure, changed, stream_failure};
use crate::management::{Management, Reached, Routes};

/// The bytes of messages that are read at once.
const TARGET_BYTES: usize = 1 << 20;

/// The streams of a server.
#[derive(Debug, Clone)]
pub(crate) struct RabbitmqTopics {
    pub(crate) login: Arc<Login>,
    pub(crate) management: Option<Management>,
}

impl ReadableTopics for RabbitmqTopics {
    fn reader(&self) -> Result<Box<dyn TopicReader>, Failure> {
        let runtime = Apart::new();
        let runtime = runtime.map_err(|error| RabbitmqError::from(error).to_failure())?;
        // A server that waits for a slow reader must not take it for a dead one.
        let login = Login {
            heartbeat: Duration::ZERO,
            ..(*self.login).clone()
        };
        Ok(Box::new(InTurns::new(Streams {
            login: Arc::new(login),
            runtime,
            management: self.management.clone(),
            reached: BTreeMap::new(),
            followed: Vec::new(),
        })))
    }

    fn has_event_ids(&self) -> bool {
        true
    }
}

/// A message that the stream has, and that is looked for when reading starts again.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    offset: i64,
    /// `None`: it was not read yet.
    fingerprint: Option<u64>,
}

/// A stream that is read. Its offsets are those of the server.
struct Followed {
    name: String,
    /// `None`: reading starts again.
    consumer: Option<StreamConsumer>,
    /// The message that was read last, or the first one. `None`: there was none.
    anchor: Option<Anchor>,
    /// The offset of the next message.
    next: i64,
    /// The offset behind the last message that the stream had at the start.
    end: i64,
    patience: Duration,
}

/// The streams that are read.
struct Streams {
    login: Arc<Login>,
    runtime: Apart,
    management: Option<Management>,
    /// The queues that addresses reach. `None`: there is no such exchange.
    reached: BTreeMap<SentTo, Option<Reached>>,
    followed: Vec<Followed>,
}

/// The reason why reading ended.
enum Problem {
    Stream(StreamError),
    Changed(Change),
}

impl<E: Into<StreamError>> From<E> for Problem {
    fn from(error: E) -> Self {
        Self::Stream(error.into())
    }
}

impl Problem {
    fn to_failure(&self, stream: &str) -> Failure {
        match self {
            Self::Stream(error) => stream_failure(stream, error),
            Self::Changed(change) => changed(stream, *change),
        }
    }
}

/// Starts to read a stream, and finds its end. `None`: there is no such queue.
async fn follow(
    login: &Arc<Login>,
    name: &str,
    from_ms: i64,
    patience: Duration,
) -> Result<Option<(Followed, i64)>, StreamError> {
    let open = async |place| StreamConsumer::open(login, name, place, None, patience).await;
    let mut first = match open(StartOffset::First).await {
        Err(StreamError::Missing(_)) => return Ok(None),
        opened => opened?,
    };
    if first.first().is_none() {
        first.watch().await?;
    }
    let start = first.first().map(|message| message.record.offset);
    let Some(first_offset) = start else {
        return Ok(Some((followed(name, first, None, 0, patience), 0)));
    };
    let mut last = open(StartOffset::LastChunk).await?;
    // The last chunk may not be committed yet.
    last.wait().await?;
    let mut end = first_offset;
    while !last.is_at_end() {
        let read = last.read(TARGET_BYTES).await?;
        end = read
            .back()
            .map_or(end, |message| message.record.offset.saturating_add(1));
    }
    last.close().await;
    if from_ms <= 0 {
        let followed = followed(name, first, Some(first_offset), end, patience);
        return Ok(Some((followed, first_offset)));
    }
    first.close().await;
    if from_ms == i64::MAX {
        let consumer = open(StartOffset::Offset(end)).await?;
        return Ok(Some((followed(name, consumer, None, end, patience), end)));
    }
    let since = StartOffset::Since(from_ms.unsigned_abs() / 1000);
    let known = Some(end.saturating_sub(1));
    let consumer = StreamConsumer::open(login, name, since, known, patience).await?;
    let first = consumer.first().map(|message| message.record.offset);
    let start = first.filter(|offset| *offset < end);
    let followed = followed(name, consumer, start, end, patience);
    Ok(Some((followed, start.unwrap_or(end))))
}

/// Makes a stream that is followed. `start`: the offset of the first message, if one is there before `end`.
fn followed(
    name: &str,
    consumer: StreamConsumer,
    start: Option<i64>,
    end: i64,
    patience: Duration,
) -> Followed {
    Followed {
        name: name.to_owned(),
        consumer: Some(consumer),
        anchor: start.map(|offset| Anchor {
            offset,
            fingerprint: None,
        }),
        next: start.unwrap_or(end),
        end,
        patience,
    }
}

impl Followed {
    /// Reads the next messages. Returns none at the end.
    async fn read(&mut self, login: &Arc<Login>) -> Result<Vec<ReadRecord>, Problem> {
        let was_open = self.consumer.is_some();
        let read = self.read_once(login).await?;
        if !read.is_empty() || self.next >= self.end || !was_open {
            return Ok(read);
        }
        // The server sends no more, and the end is not reached: its reader may have lost its place.
        self.consumer = None;
        self.read_once(login).await
    }

    async fn read_once(&mut self, login: &Arc<Login>) -> Result<Vec<ReadRecord>, Problem> {
        let before = (self.next, self.anchor);
        let read = self.read_some(login).await;
        if read.is_err() {
            // What was taken is lost with the consumer, and read again.
            (self.next, self.anchor) = before;
        }
        read
    }

    async fn read_some(&mut self, login: &Arc<Login>) -> Result<Vec<ReadRecord>, Problem> {
        let mut consumer = match self.consumer.take() {
            Some(consumer) => consumer,
            None => self.open_again(login, self.anchor, self.next).await?,
        };
        let (mut anchor, next) = (self.anchor, self.next);
        let mut has_gap = false;
        let mut records = Vec::new();
        while records.is_empty() {
            let read = consumer.read(TARGET_BYTES).await?;
            for message in read {
                if message.record.offset < self.next {
                    continue;
                }
                has_gap |= message.record.offset > self.next && self.anchor.is_some();
                records.push(self.take(message));
                anchor = anchor.or(self.anchor);
            }
            if consumer.is_at_end() {
                break;
            }
        }
        if has_gap {
            // Either they hold nothing for consumers, or the stream has dropped messages: not if it still
            // has the one before the first gap.
            self.open_again(login, anchor, next).await?.close().await;
        }
        self.consumer = Some(consumer);
        Ok(records)
    }

    fn take(&mut self, message: Delivered) -> ReadRecord {
        self.anchor = Some(Anchor {
            offset: message.record.offset,
            fingerprint: Some(message.fingerprint),
        });
        self.next = message.record.offset.saturating_add(1);
        message.record
    }

    /// Starts to read at a message that was read, which shows that none was dropped behind it. `next`: the
    /// offset behind it.
    async fn open_again(
        &self,
        login: &Arc<Login>,
        anchor: Option<Anchor>,
        next: i64,
    ) -> Result<StreamConsumer, Problem> {
        let place = StartOffset::Offset(anchor.map_or(next, |anchor| anchor.offset));
        let opened = StreamConsumer::open(login, &self.name, place, None, self.patience).await;
        let consumer = opened.map_err(|error| match error {
            StreamError::Missing(_) | StreamError::NoStream(_) => Problem::Changed(Change::Deleted),
            error => error.into(),
        })?;
        let (Some(anchor), Some(found)) = (anchor, consumer.first()) else {
            return match anchor {
                None => Ok(consumer),
                Some(_) => Err(StreamError::Silent(self.name.clone()).into()),
            };
        };
        let fingerprint = anchor.fingerprint.unwrap_or(found.fingerprint);
        if found.record.offset != anchor.offset {
            return Err(Problem::Changed(Change::Dropped {
                next,
                first: found.record.offset,
            }));
        }
        if found.fingerprint != fingerprint {
            return Err(Problem::Changed(Change::Deleted));
        }
        Ok(consumer)
    }
}

impl Streams {
    /// Returns the queues that an address reaches.
    fn reach(&mut self, stream: &str, sent_to: &SentTo) -> Result<Option<&Reached>, Failure> {
        if !self.reached.contains_key(sent_to) {
            let Some(management) = &self.management else {
                return Err(bindings_failure(
                    stream,
                    sent_to,
                    "management_url is not set",
                ));
            };
            let look = || {
                let interface = management.open()?;
                Routes::new(&interface).reached(&sent_to.topic, &sent_to.routing_key)
            };
            let reached = look().map_err(|error| {
                let why = format!(
                    "the management interface {}",
                    walrelay_failure::Chain(&error)
                );
                bindings_failure(stream, sent_to, &why)
            })?;
            self.reached.insert(sent_to.clone(), reached);
        }
        Ok(self.reached.get(sent_to).and_then(Option::as_ref))
    }
}

impl StreamParts for Streams {
    fn follow(
        &mut self,
        topic: &str,
        from_ms: i64,
        timeout: Duration,
    ) -> Result<Option<FollowedPartition>, Failure> {
        let login = &self.login;
        let action = async || follow(login, topic, from_ms, timeout).await;
        let found = self.runtime.run(action);
        let found = found.map_err(|error| RabbitmqError::from(error).to_failure())?;
        let found = found.map_err(|error| stream_failure(topic, &error))?;
        Ok(found.map(|(followed, start)| {
            let end = followed.end;
            self.followed.push(followed);
            FollowedPartition {
                partition: 0,
                start,
                end,
            }
        }))
    }

    fn count(&self) -> usize {
        self.followed.len()
    }

    fn read(&mut self, number: usize, read: &mut VecDeque<ReadRecord>) -> Result<(), Failure> {
        let Some(followed) = self.followed.get_mut(number) else {
            return Ok(());
        };
        let name = followed.name.clone();
        let login = &self.login;
        let records = self.runtime.run(async || followed.read(login).await);
        let records = records.map_err(|error| RabbitmqError::from(error).to_failure())?;
        read.extend(records.map_err(|problem| problem.to_failure(&name))?);
        Ok(())
    }

    fn next_offset(&self, topic: &str) -> Option<i64> {
        let followed = self.followed.iter().find(|of| of.name == topic)?;
        Some(followed.next)
    }

    fn holds(&mut self, topic: &str, sent_to: &SentTo) -> Result<bool, Failure> {
        // The default exchange has every queue by its name.
        if sent_to.topic.is_empty() {
            return Ok(sent_to.routing_key == topic);
        }
        let unknown = match self.reach(topic, sent_to)? {
            Some(reached) if !reached.is_open => return Ok(reached.queues.contains(topic)),
            Some(_) => "the exchange routes by something else than its bindings' keys",
            None => "the management interface knows no such exchange",
        };
        Err(bindings_failure(topic, sent_to, unknown))
    }
}
