//! Transactions: the first records of the queue, and what the server answers to them.

use std::collections::BTreeSet;

use tracing::warn;
use walrelay_sink::{DeliveryError, Disposition, Obstacle, Poison, QueuedRecord};
use walrelay_sink_client::Failure;

use super::entry::{NewId, Newest, is_same, is_stored, newest, put_xadd};
use super::plan::{self, Head};
use super::streams::Streams;
use super::{Settings, Shared};
use crate::client::Connection;
use crate::client::error::{ProtocolError, RedisError};
use crate::client::refusal::{Refusal, code, is_forbidden_id, meaning};
use crate::client::resp::{Reply, put_command};
use crate::section::Ids;

/// The most records of a transaction.
const BATCH_RECORDS: usize = 500;
/// The bytes from which on a transaction gets no further record.
const BATCH_BYTES: u64 = 1 << 20;
/// The most streams whose ends are asked for at once: each reply has the first and the last entry.
const ASKED_AT_ONCE: usize = 16;
/// The most bytes of a buffer that is kept.
const KEPT_BYTES: usize = 4 << 20;

/// The reason why no further transaction can be written now.
pub(super) enum Stop {
    /// The connection ended, or its server cannot be used.
    Connection(RedisError),
    /// The server takes no writes for a while.
    Pause(Obstacle),
    /// A record was refused. It is reported; the sink ends, and gives up the others.
    Broken(Failure),
}

impl From<RedisError> for Stop {
    fn from(error: RedisError) -> Self {
        Self::Connection(error)
    }
}

/// A transaction that the server has answered.
struct Written {
    heads: Vec<Head>,
    /// The ids that were sent; `None`: the entry was there, or was sent before.
    ids: Vec<Option<NewId>>,
    outcomes: Vec<Outcome>,
}

/// The end of a record in a transaction.
enum Outcome {
    /// Its entry is there.
    Stored,
    /// The command was refused with this text.
    Refused(Vec<u8>),
}

/// Writes the records of a sink.
pub(super) struct Batches<'s> {
    shared: &'s Shared,
    streams: Streams,
    out: Vec<u8>,
    /// The last transaction, if too few replicas had it. It is stored, so it is not sent again on this
    /// connection.
    unconfirmed: Option<Written>,
}

impl<'s> Batches<'s> {
    pub(super) fn new(shared: &'s Shared) -> Self {
        Self {
            shared,
            streams: Streams::default(),
            out: Vec::new(),
            unconfirmed: None,
        }
    }

    /// Notes that the connection is a new one.
    pub(super) fn forget(&mut self) {
        self.streams.forget_newest();
        self.unconfirmed = None;
    }

    /// Writes the first records of the queue, which is not empty, and reports those that are stored.
    /// Must not be called again on this connection if it is cancelled.
    pub(super) async fn write(&mut self, connection: &mut Connection) -> Result<(), Stop> {
        let written = if let Some(written) = self.unconfirmed.take() {
            self.confirm(connection, written).await
        } else {
            self.streams.bound();
            let heads = self.heads();
            self.write_all(connection, heads).await
        };
        if self.out.capacity() > KEPT_BYTES {
            self.out = Vec::new();
        }
        if written.is_err() {
            self.streams.forget_newest();
        }
        written
    }

    async fn write_all(
        &mut self,
        connection: &mut Connection,
        heads: Vec<Head>,
    ) -> Result<(), Stop> {
        let ids = match self.shared.settings.ids {
            Ids::Server => vec![Some(NewId::Clock); heads.len()],
            Ids::Position => self.ids(connection, &heads).await?,
        };
        let (outcomes, wait) = self.execute(connection, &ids).await?;
        let written = Written {
            heads,
            ids,
            outcomes,
        };
        match wait {
            Some(reply) => self.confirmed(connection, written, &reply),
            None => self.finish(connection, written),
        }
    }

    /// Asks once more who has the last transaction.
    async fn confirm(&mut self, connection: &mut Connection, written: Written) -> Result<(), Stop> {
        let Settings { wait, reply, .. } = *self.shared.settings;
        self.out.clear();
        // The connection has written it, or a message.
        let expected = wait.put(&mut self.out, true);
        let limit = reply + wait.timeout;
        let mut replies = connection.call(&self.out, expected, limit).await?;
        let Some(reply) = replies.pop() else {
            return Err(wrong(connection));
        };
        self.confirmed(connection, written, &reply)
    }

    /// Finishes a transaction if enough replicas have it; else keeps it.
    fn confirmed(
        &mut self,
        connection: &Connection,
        written: Written,
        reply: &Reply,
    ) -> Result<(), Stop> {
        if let Reply::Error(text) = reply {
            return Err(self.refused(connection, 0, text));
        }
        let missing = self.shared.settings.wait.missing(reply);
        match missing.map_err(|error| connection.protocol(error))? {
            None => self.finish(connection, written),
            Some(obstacle) => {
                self.unconfirmed = Some(written);
                Err(Stop::Pause(obstacle))
            }
        }
    }

    /// Returns the records of the next transaction.
    fn heads(&mut self) -> Vec<Head> {
        let state = self.shared.state();
        let mut bytes = 0;
        let mut heads: Vec<Head> = Vec::new();
        // Positions rise, but where the core sends a transaction again.
        let mut highest = None;
        for queued in state.records.iter().take(BATCH_RECORDS) {
            bytes += queued.weight;
            let head = queued.record.with(|record| {
                let (stream, id) = (self.streams.number(record.topic), record.position.into());
                let earlier = (highest >= Some(id))
                    .then(|| plan::same_position(&heads, stream, id))
                    .flatten();
                let earlier = earlier.and_then(|at| state.records.get(at));
                Head {
                    stream,
                    id,
                    again: earlier
                        .is_some_and(|it| it.record.with(|earlier| is_same(earlier, record))),
                }
            });
            highest = highest.max(Some(head.id));
            heads.push(head);
            if bytes >= BATCH_BYTES {
                break;
            }
        }
        heads
    }

    /// Finds the id of each record; `None`: its entry is there, or is written for an earlier record.
    async fn ids(
        &mut self,
        connection: &mut Connection,
        heads: &[Head],
    ) -> Result<Vec<Option<NewId>>, Stop> {
        self.ask_newest(connection, heads).await?;
        let asked = plan::to_look_up(heads, &self.streams);
        let there = self.look_up(connection, heads, asked).await?;
        let ids = plan::ids(heads, &there, &mut self.streams);
        for (head, id) in heads.iter().zip(&ids) {
            let stream = &mut self.streams[head.stream];
            if matches!(id, Some(NewId::Behind(_))) && !stream.logged {
                stream.logged = true;
                warn!(
                    stream = &*stream.name,
                    "the stream has a later entry and not that of an event: it was deleted, or \
                     another one writes there; the event is appended"
                );
            }
        }
        Ok(ids)
    }

    /// Asks for the newest ids that are not known.
    async fn ask_newest(
        &mut self,
        connection: &mut Connection,
        heads: &[Head],
    ) -> Result<(), Stop> {
        let mut first_of = std::collections::BTreeMap::new();
        for (at, head) in heads.iter().enumerate() {
            if self.streams[head.stream].newest.is_none() {
                first_of.entry(head.stream).or_insert(at);
            }
        }
        let all: Vec<(usize, usize)> = first_of.into_iter().collect();
        for some in all.chunks(ASKED_AT_ONCE) {
            self.out.clear();
            for (stream, _) in some {
                let name = &*self.streams[*stream].name;
                put_command(&mut self.out, &["XINFO", "STREAM", name]);
            }
            let limit = self.shared.settings.reply;
            let replies = connection.call(&self.out, some.len(), limit).await?;
            for ((stream, at), reply) in some.iter().zip(replies) {
                let newest = match &reply {
                    Reply::Error(text) if text.starts_with(b"ERR no such key") => Newest::default(),
                    Reply::Error(text) => return Err(self.refused(connection, *at, text)),
                    reply => newest(reply).map_err(|error| connection.protocol(error))?,
                };
                let stream = &mut self.streams[*stream];
                if let Some(id) = stream.found(newest.id) {
                    warn!(
                        stream = &*stream.name,
                        id = id.to_string(),
                        newest = newest.id.to_string(),
                        "the stream ends before an entry that was delivered: Redis has lost entries, or \
                         the stream was deleted"
                    );
                }
                // By this relay, or by one that ended before it had written the last of them.
                stream.repeats |= newest.is_repeat;
            }
        }
        Ok(())
    }

    /// Returns which of the `asked` records have an entry.
    async fn look_up(
        &mut self,
        connection: &mut Connection,
        heads: &[Head],
        asked: Vec<usize>,
    ) -> Result<BTreeSet<usize>, Stop> {
        if asked.is_empty() {
            return Ok(BTreeSet::new());
        }
        self.out.clear();
        for at in &asked {
            let Head { stream, id, .. } = heads[*at];
            let (name, id) = (&*self.streams[stream].name, id.to_string());
            put_command(&mut self.out, &["XRANGE", name, &id, &id]);
        }
        // A replica answers XRANGE too, and may lack what its master has, or have what is about to be
        // dropped. An entry without an allowed id changes nothing, and shows whether writes are taken.
        let first = &*self.streams[heads[asked[0]].stream].name;
        put_command(&mut self.out, &["XADD", first, "0-0", "field", "value"]);
        let limit = self.shared.settings.reply;
        let mut replies = connection.call(&self.out, asked.len() + 1, limit).await?;
        let probe = replies.pop();
        let first = asked[0];
        let mut there = BTreeSet::new();
        for (at, reply) in asked.into_iter().zip(replies) {
            if let Reply::Error(text) = &reply {
                return Err(self.refused(connection, at, text));
            }
            let state = self.shared.state();
            let queued = state.records.get(at);
            let stored = queued.map(|it| it.record.with(|record| is_stored(&reply, record)));
            drop(state);
            match stored {
                Some(Ok(true)) => drop(there.insert(at)),
                Some(Err(error)) => return Err(connection.protocol(error).into()),
                _ => {}
            }
        }
        match probe {
            _ if there.is_empty() => Ok(there),
            Some(Reply::Error(text)) if is_forbidden_id(&text) => Ok(there),
            Some(Reply::Error(text)) => Err(self.refused(connection, first, &text)),
            _ => Err(wrong(connection)),
        }
    }

    /// Writes the records that have an id, as one transaction. Returns what became of each record, and
    /// the reply that says who has them, if that is wanted.
    async fn execute(
        &mut self,
        connection: &mut Connection,
        ids: &[Option<NewId>],
    ) -> Result<(Vec<Outcome>, Option<Reply>), Stop> {
        let mut outcomes: Vec<Outcome> = ids.iter().map(|_| Outcome::Stored).collect();
        let written = ids.iter().enumerate();
        let written = written.filter_map(|(at, id)| Some((at, (*id)?)));
        let written: Vec<(usize, NewId)> = written.collect();
        let Settings { wait, reply, .. } = *self.shared.settings;
        if written.is_empty() && !wait.is_wanted() {
            return Ok((outcomes, None));
        }
        let alone = written.len() < 2;
        self.out.clear();
        if !alone {
            put_command(&mut self.out, &["MULTI"]);
        }
        {
            let state = self.shared.state();
            for (at, id) in &written {
                if let Some(queued) = state.records.get(*at) {
                    let out = &mut self.out;
                    queued.record.with(|record| put_xadd(out, record, *id));
                }
            }
        }
        if !alone {
            put_command(&mut self.out, &["EXEC"]);
        }
        let mut expected = written.len() + if alone { 0 } else { 2 };
        let mut limit = reply;
        // If all writes are refused, the connection has written nothing for those that were found.
        let all_written = written.len() == ids.len();
        if wait.is_wanted() {
            expected += wait.put(&mut self.out, all_written);
            limit += wait.timeout;
        }
        let mut replies = connection.call(&self.out, expected, limit).await?;
        let waited = if wait.is_wanted() {
            replies.pop()
        } else {
            None
        };
        let published = if wait.is_wanted() && !all_written {
            replies.pop()
        } else {
            None
        };
        let results = if alone {
            replies
        } else {
            self.executed(connection, &written, replies)?
        };
        for ((at, _), result) in written.into_iter().zip(results) {
            match result {
                Reply::String(Some(_)) => {}
                Reply::Error(text) => outcomes[at] = Outcome::Refused(text),
                _ => return Err(wrong(connection)),
            }
        }
        if let Some(Reply::Error(text)) = published {
            return Err(self.refused(connection, 0, &text));
        }
        Ok((outcomes, waited))
    }

    /// Returns the replies to the commands of a transaction, if it was executed.
    fn executed(
        &mut self,
        connection: &Connection,
        written: &[(usize, NewId)],
        mut replies: Vec<Reply>,
    ) -> Result<Vec<Reply>, Stop> {
        let executed = replies.pop();
        // Before the replies to the commands there is that to MULTI.
        for (reply, number) in replies.iter().zip(0_usize..) {
            let (at, _) = written[number.saturating_sub(1)];
            match reply {
                Reply::Status(_) => {}
                Reply::Error(text) => return Err(self.refused(connection, at, text)),
                _ => return Err(wrong(connection)),
            }
        }
        match executed {
            Some(Reply::Array(Some(results))) if results.len() == written.len() => Ok(results),
            Some(Reply::Error(text)) => Err(self.refused(connection, written[0].0, &text)),
            _ => Err(wrong(connection)),
        }
    }

    /// Takes the records out that are stored, and reports them.
    fn finish(&mut self, connection: &Connection, written: Written) -> Result<(), Stop> {
        let Written {
            heads,
            ids,
            outcomes,
        } = written;
        // The streams of which a record is to be written again: so are all behind it, lest the
        // earlier one becomes the last of its key.
        let mut again = BTreeSet::new();
        let mut refused: Option<(usize, Vec<u8>)> = None;
        let mut kept = Vec::new();
        let mut stored = Vec::new();
        {
            let mut state = self.shared.state();
            let count = heads.len().min(state.records.len());
            let batch: Vec<QueuedRecord> = state.records.drain(..count).collect();
            let planned = heads.into_iter().zip(ids);
            for ((queued, (head, id)), outcome) in batch.into_iter().zip(planned).zip(outcomes) {
                match outcome {
                    Outcome::Stored if !again.contains(&head.stream) => {
                        self.streams[head.stream].stored(id);
                        stored.push(queued);
                    }
                    Outcome::Stored => kept.push(queued),
                    Outcome::Refused(text) => {
                        let is_behind = meaning(&text) == Refusal::Behind;
                        if is_behind {
                            // Another client has written meanwhile.
                            self.streams[head.stream].newest = None;
                        } else if refused.is_none() {
                            refused = Some((kept.len(), text));
                        }
                        again.insert(head.stream);
                        kept.push(queued);
                    }
                }
            }
            for queued in kept.into_iter().rev() {
                state.records.push_front(queued);
            }
        }
        let none = stored.is_empty();
        for queued in stored {
            self.shared.report(&queued, Ok(()));
        }
        match refused {
            Some((at, text)) => Err(self.refused(connection, at, &text)),
            // A client that writes all the time must not make this one do the same.
            None if none => Err(Stop::Pause(Obstacle {
                what: "another client writes to the streams of the next events".to_owned(),
                disposition: Disposition::Retryable,
                remedy: Some("see that each stream has one relay, and no other writer"),
            })),
            None => Ok(()),
        }
    }

    /// Decides what a refusal means. `at`: the index of the record in the queue.
    fn refused(&mut self, connection: &Connection, at: usize, text: &[u8]) -> Stop {
        let refusal = meaning(text);
        let (why, poison) = match refusal {
            Refusal::Wait(what, remedy) => {
                return Stop::Pause(Obstacle {
                    what: what.to_owned(),
                    disposition: Disposition::Retryable,
                    remedy: Some(remedy),
                });
            }
            Refusal::Reconnect(_) | Refusal::Behind | Refusal::Aborted => {
                return connection.not_ready(text, refusal).into();
            }
            Refusal::Denied => (
                "the user has not the right to the stream or a command",
                None,
            ),
            Refusal::Configuration(why) => (why, None),
            Refusal::Oversize => (
                "the event is larger than an entry can be",
                Some(Poison::Oversize),
            ),
        };
        let removed = self.shared.state().records.remove(at);
        if let Some(queued) = removed {
            let error = DeliveryError {
                topic: queued.record.with(|record| record.topic.into()),
                reason: format!("{why} ({})", code(text)),
                disposition: match poison {
                    Some(_) => Disposition::Fatal,
                    None => Disposition::Configuration,
                },
                poison,
            };
            let class = poison.map_or("refused", Poison::name);
            self.shared.report(&queued, Err((class, error)));
        }
        Stop::Broken(Failure {
            class: "given up",
            reason: "given up with another record, which was refused".to_owned(),
            disposition: Disposition::Retryable,
        })
    }
}

fn wrong(connection: &Connection) -> Stop {
    let error = ProtocolError("something else than the answer to its commands");
    connection.protocol(error).into()
}
