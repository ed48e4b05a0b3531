//! Reads streams back, for `tail` and `verify-topic`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::{Exit, Failure, ToFailure as _};
use walrelay_sink_kind::topics::{
    FollowedPartition, InTurns, ReadRecord, ReadableTopics, StreamParts, TopicReader,
};

use crate::client::Login;
use crate::client::blocking::BlockingClient;
use crate::client::error::{ProtocolError, RedisError};
use crate::client::resp::Reply;
use crate::failures::{no_times, stream_failure};
use crate::section::Ids;
use crate::sink::{EntryId, ReadEntry, extent, read_entries};

/// The number of entries that is read at first: each may be as large as an event.
const FIRST_COUNT: usize = 16;
/// The most entries that are read at once.
const MAX_COUNT: usize = 1_000;
/// The bytes of events that are read at once, if their sizes are those of the ones before.
const TARGET_BYTES: usize = 256 << 10;

/// The streams of a server.
#[derive(Debug, Clone)]
pub(crate) struct RedisTopics {
    pub(crate) login: Arc<Login>,
    pub(crate) ids: Ids,
    /// The longest wait for a reply.
    pub(crate) patience: Duration,
}

impl ReadableTopics for RedisTopics {
    fn reader(&self) -> Result<Box<dyn TopicReader>, Failure> {
        let client = BlockingClient::new(Arc::clone(&self.login), self.patience);
        let client = client.map_err(|error| error.to_failure())?;
        Ok(Box::new(InTurns::new(Streams {
            client,
            ids: self.ids,
            followed: Vec::new(),
        })))
    }

    fn has_event_ids(&self) -> bool {
        true
    }
}

/// A stream that is read.
struct Stream {
    name: String,
    /// The id of the last entry that was read.
    last: EntryId,
    /// The offset of the next entry.
    next: i64,
    /// The newest id that the stream had when reading started.
    newest: EntryId,
    /// The offset behind the entries that the stream had then.
    end: i64,
    /// The number of entries that is read next.
    count: usize,
}

/// The streams that are read.
///
/// # Offsets
/// Ids have 128 bits, so an offset is the number of an entry among all that the stream has ever had, or,
/// if entries between others were deleted, one that is lower by their number. If reading starts at a
/// time, the entries before it count as one.
struct Streams {
    client: BlockingClient,
    ids: Ids,
    followed: Vec<Stream>,
}

impl Streams {
    fn start(&mut self, name: &str, from_ms: i64) -> Result<Option<FollowedPartition>, Failure> {
        let failure = |error: RedisError| stream_failure(name, &error);
        let info = vec!["XINFO", "STREAM", name];
        let replies = self.client.read(name, &[info]).map_err(failure)?;
        let extent = match replies.first() {
            Some(Reply::Error(text)) if text.starts_with(b"ERR no such key") => return Ok(None),
            Some(Reply::Error(text)) => return Err(failure(self.client.refused(text))),
            Some(reply) => extent(reply),
            None => Err(ProtocolError("no reply")),
        };
        let extent = extent.map_err(|error| failure(self.client.protocol(error)))?;
        let end = extent.deleted.saturating_add(extent.length);
        let (last, start) = match from_ms {
            ..=0 => (EntryId::default(), extent.deleted),
            i64::MAX => (extent.newest, end),
            from_ms => {
                let first = self.entries(name, "-", 1).map_err(failure)?;
                if self.ids == Ids::Position || first.iter().any(has_position_as_id) {
                    return Err(no_times(name));
                }
                let before = EntryId {
                    first: from_ms.unsigned_abs() - 1,
                    second: u64::MAX,
                };
                let skips = first.iter().any(|entry| entry.id <= before);
                if before >= extent.newest {
                    (before, end)
                } else {
                    (before, extent.deleted + i64::from(skips))
                }
            }
        };
        let start = start.min(end);
        self.followed.push(Stream {
            name: name.to_owned(),
            last,
            next: start,
            newest: extent.newest,
            end,
            count: FIRST_COUNT,
        });
        Ok(Some(FollowedPartition {
            partition: 0,
            start,
            end,
        }))
    }

    fn entries(
        &mut self,
        stream: &str,
        begin: &str,
        count: usize,
    ) -> Result<Vec<ReadEntry>, RedisError> {
        let count = count.to_string();
        let range = vec!["XRANGE", stream, begin, "+", "COUNT", &count];
        let reply = self.client.read_one(stream, range)?;
        read_entries(&reply).map_err(|error| self.client.protocol(error))
    }

    /// Checks that the stream still has the entry that was read last, or has had it.
    fn see_same(&mut self, name: &str, last: EntryId) -> Result<(), Failure> {
        let failure = |error: RedisError| stream_failure(name, &error);
        let replies = self.client.read(name, &[vec!["XINFO", "STREAM", name]]);
        let newest = match replies.map_err(failure)?.first() {
            Some(Reply::Error(text)) if text.starts_with(b"ERR no such key") => None,
            Some(Reply::Error(text)) => return Err(failure(self.client.refused(text))),
            Some(reply) => extent(reply).ok().map(|extent| extent.newest),
            None => None,
        };
        if newest >= Some(last) {
            return Ok(());
        }
        let what = format!("the stream {name} was deleted or recreated while it was read");
        let failure = Failure::new("redis-stream", Exit::Config, what);
        Err(failure
            .remedy("see who deletes or trims the stream of Redis, and run the command again"))
    }
}

/// Returns true if fewer entries were read than the stream had at the start.
fn stream_is_short(stream: Option<&Stream>) -> bool {
    stream.is_some_and(|stream| stream.next < stream.end)
}

fn has_position_as_id(entry: &ReadEntry) -> bool {
    entry.position.map(EntryId::from) == Some(entry.id)
}

fn record(ids: Ids, stream: &str, offset: i64, entry: ReadEntry) -> ReadRecord {
    let is_time = ids == Ids::Server && !has_position_as_id(&entry);
    ReadRecord {
        topic: stream.to_owned(),
        partition: 0,
        offset,
        entry_id: Some(entry.id.to_string()),
        timestamp_ms: entry.timestamp_ms,
        written_ms: i64::try_from(entry.id.first).ok().filter(|_| is_time),
        event_id: entry.event_id,
        event_position: entry.position,
        key: entry.key,
        value: entry.value,
        headers: entry.headers,
    }
}

impl StreamParts for Streams {
    fn follow(
        &mut self,
        topic: &str,
        from_ms: i64,
        timeout: Duration,
    ) -> Result<Option<FollowedPartition>, Failure> {
        self.client.patience = timeout;
        self.start(topic, from_ms)
    }

    fn count(&self) -> usize {
        self.followed.len()
    }

    fn read(&mut self, number: usize, read: &mut VecDeque<ReadRecord>) -> Result<(), Failure> {
        let Some(stream) = self.followed.get(number) else {
            return Ok(());
        };
        let (name, last, count) = (stream.name.clone(), stream.last, stream.count);
        let failure = |error: RedisError| stream_failure(&name, &error);
        let entries = self.entries(&name, &format!("({last}"), count);
        if entries.is_err()
            && let Some(stream) = self.followed.get_mut(number)
        {
            // The entries may have become larger.
            stream.count = (count / 4).max(1);
        }
        let entries = entries.map_err(failure)?;
        if entries.is_empty() && stream_is_short(self.followed.get(number)) {
            self.see_same(&name, last)?;
        }
        let ids = self.ids;
        let Some(stream) = self.followed.get_mut(number) else {
            return Ok(());
        };
        let Some(newest) = entries.last().map(|entry| entry.id) else {
            // Entries were deleted meanwhile.
            stream.next = stream.next.max(stream.end);
            return Ok(());
        };
        stream.last = newest;
        let count_read = entries.len();
        let mut bytes = 0;
        for entry in entries {
            bytes += entry.size();
            // Fewer were counted than are there, if some were deleted or lie before the time.
            if entry.id == stream.newest {
                stream.next = stream.next.max(stream.end - 1);
            } else if entry.id > stream.newest {
                stream.next = stream.next.max(stream.end);
            }
            read.push_back(record(ids, &name, stream.next, entry));
            stream.next += 1;
        }
        let fitting = TARGET_BYTES * count_read / bytes.max(1);
        stream.count = fitting.clamp(1, MAX_COUNT.min(count * 4));
        Ok(())
    }

    fn next_offset(&self, topic: &str) -> Option<i64> {
        let stream = self.followed.iter().find(|stream| stream.name == topic)?;
        Some(stream.next)
    }
}
