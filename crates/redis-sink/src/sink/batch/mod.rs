//! Rounds: the first records of the queue are written, and reported. `held`: what the servers have.
//! `refusal`: what they refuse. `results`: the outcome of each record.

mod held;
mod refusal;
mod results;

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use tracing::warn;
use walrelay_sink::{Obstacle, Record};
use walrelay_sink_client::Failure;

use super::entry::{EntryId, NewId, is_same, put_xadd};
use super::plan::{self, Head};
use super::round::{Beside, Round, WRONG};
use super::streams::Streams;
use super::wait::MESSAGE;
use super::{Settings, Shared};
use crate::client::error::RedisError;
use crate::client::link::Link;
use crate::client::protocol;
use crate::client::refusal::is_forbidden_id;
use crate::client::resp::Reply;
use crate::section::Ids;

/// The most records of a round, which without a cluster is one transaction.
const BATCH_RECORDS: usize = 500;
/// The bytes from which on a round gets no further record.
const BATCH_BYTES: u64 = 1 << 20;

/// The reason why no further transaction can be written now.
pub(super) enum Stop {
    /// The connection ended, or its server cannot be used.
    Connection(RedisError),
    /// The server accepts no writes for a while.
    Pause(Obstacle),
    /// Records are out of the queue, or held back. Begin with the others.
    Again,
    /// Nothing can be written until something is changed. The sink ends.
    Broken(Failure),
}

impl From<RedisError> for Stop {
    fn from(error: RedisError) -> Self {
        Self::Connection(error)
    }
}

/// Writes the records of a sink.
pub(super) struct Batches<'s> {
    shared: &'s Shared,
    streams: Streams,
    /// The last round, if too few replicas had it. It is stored, so it is not sent again on these
    /// connections.
    unconfirmed: Option<Round>,
    /// The ids with which waiting records were sent, by sequence number. The server may have them or not.
    tried: HashMap<u64, EntryId>,
    /// The user has not the right to ask what a stream has. Only ids of positions need it.
    may_not_look: bool,
}

impl<'s> Batches<'s> {
    pub(super) fn new(shared: &'s Shared) -> Self {
        Self {
            shared,
            streams: Streams::new(&shared.stats),
            unconfirmed: None,
            tried: HashMap::new(),
            may_not_look: false,
        }
    }

    /// Returns when there may be records to write that were held back at `began`, when the last look began.
    /// That time may have passed since.
    pub(super) fn next_due(&self, began: Instant) -> Option<Instant> {
        self.streams.next_due(began)
    }

    /// Notes that the connections are new ones.
    pub(super) fn forget(&mut self) {
        self.streams.reconnected();
        self.unconfirmed = None;
        self.may_not_look = false;
    }

    /// Writes the first records of the queue, and reports those that are stored. Returns false if there is
    /// none that may be written now. Must not be called again on this link if it is cancelled.
    pub(super) async fn write(&mut self, link: &mut Link) -> Result<bool, Stop> {
        let written = match self.unconfirmed.take() {
            Some(round) => self.confirm(link, round).await.map(|()| true),
            None => self.write_all(link).await,
        };
        if !matches!(written, Ok(_) | Err(Stop::Again)) {
            self.streams.forget_newest();
        }
        written
    }

    async fn write_all(&mut self, link: &mut Link) -> Result<bool, Stop> {
        self.streams.bound();
        let heads = self.heads(link)?;
        if heads.is_empty() {
            return Ok(false);
        }
        let mut opened = None;
        for server in heads.iter().map(|head| self.server(head)) {
            if opened != Some(server) {
                link.open(server).await?;
                opened = Some(server);
            }
        }
        self.ask_newest(link, &heads).await?;
        let (ids, found) = match self.shared.settings.ids {
            Ids::Server => (vec![Some(NewId::Clock); heads.len()], BTreeMap::new()),
            Ids::Position => self.ids(link, &heads).await?,
        };
        let place = |head: &Head| self.streams[head.stream].place;
        let places: Vec<_> = heads.iter().map(place).collect();
        self.execute(link, Round::new(heads, ids, &places), &found)
            .await?;
        Ok(true)
    }

    /// Asks once more who has the last round.
    async fn confirm(&mut self, link: &mut Link, round: Round) -> Result<(), Stop> {
        let Settings { wait, reply, .. } = *self.shared.settings;
        // `WAIT` has no key, so only the probe shows that the slot has another master by now.
        let first_of = round.parts.iter();
        let first_of = first_of.filter_map(|part| Some((part.server, part.first()?)));
        self.put_probes(link, &round.heads, &first_of.collect());
        for part in &round.parts {
            // The connection has written it, or something else.
            wait.put(link.out(part.server));
            link.expect(part.server, 1);
        }
        let answers = link.call(reply + wait.timeout).await;
        let read = |(server, replies): (usize, Result<Vec<Reply>, _>)| {
            let waited = replies.and_then(|mut replies| match (replies.pop(), replies.pop()) {
                (waited, Some(Reply::Error(text))) if is_forbidden_id(&text) => Ok(waited),
                (_, Some(Reply::Error(text))) => Ok(Some(Reply::Error(text))),
                _ => Err(protocol(link.name(server), WRONG)),
            });
            (server, waited)
        };
        let waited = answers.into_iter().map(read).collect();
        self.settle(link, round, waited)
    }

    /// Finishes a round if enough replicas have it; else keeps it. `waited`: what each server says of
    /// that, or why its replies are of no use.
    fn settle(
        &mut self,
        link: &mut Link,
        mut round: Round,
        waited: Vec<(usize, Result<Option<Reply>, RedisError>)>,
    ) -> Result<(), Stop> {
        let (mut lacking, mut failed) = (Vec::new(), None);
        for (server, waited) in waited {
            let missing = waited.and_then(|reply| match reply {
                None => Ok(None),
                Some(Reply::Error(text)) => {
                    round.refuse(server, text);
                    Ok(None)
                }
                Some(reply) => {
                    let missing = self.shared.settings.wait.missing(&reply);
                    missing.map_err(|error| protocol(link.name(server), error))
                }
            });
            match missing {
                Ok(None) => {}
                Ok(Some(obstacle)) => lacking.push((server, obstacle)),
                Err(error) => {
                    round.forget(server);
                    failed.get_or_insert(error);
                }
            }
        }
        // A refusal may need more than a wait: the slot may have moved.
        if failed.is_none()
            && !round.has_refusal()
            && let Some((_, obstacle)) = lacking.first()
        {
            let obstacle = obstacle.clone();
            self.unconfirmed = Some(round);
            return Err(Stop::Pause(obstacle));
        }
        for (server, _) in lacking {
            round.forget(server);
        }
        self.finish(link, round, failed)
    }

    fn server(&self, head: &Head) -> usize {
        self.streams[head.stream].place.server
    }

    /// Returns the records of the next round, and finds the places of their streams.
    fn heads(&mut self, link: &Link) -> Result<Vec<Head>, RedisError> {
        let mut state = self.shared.state();
        let now = Instant::now();
        let held = |record: &Record<'_>| self.streams.is_held(record.topic, now);
        let batch = state.records.next_batch(BATCH_RECORDS, BATCH_BYTES, held);
        let mut heads: Vec<Head> = Vec::new();
        // Positions rise, but where the core sends a transaction again, and for a dead letter or a record
        // that waited for one.
        let mut highest = None;
        for queued in batch {
            let head = queued.record.with(|record| {
                let (stream, id) = (self.streams.number(record.topic), record.position.into());
                self.streams[stream].place_at(link.place(record.topic)?);
                let earlier = (highest >= Some(id))
                    .then(|| plan::same_position(&heads, stream, id))
                    .flatten();
                let earlier = earlier.and_then(|at| batch.get(at));
                Ok::<Head, RedisError>(Head {
                    seq: queued.seq,
                    stream,
                    id,
                    again: earlier.is_some_and(|queued| {
                        queued.record.with(|earlier| is_same(earlier, record))
                    }),
                    tried: self.tried.get(&queued.seq).copied(),
                })
            })?;
            highest = highest.max(Some(head.id));
            heads.push(head);
        }
        Ok(heads)
    }

    /// Finds the id of each record; `None`: its entry exists, or is written for an earlier record.
    /// Returns for each server a stream that has such an entry, too. The newest ids of all streams are
    /// known.
    async fn ids(
        &mut self,
        link: &mut Link,
        heads: &[Head],
    ) -> Result<(Vec<Option<NewId>>, BTreeMap<usize, Found>), Stop> {
        let asked = plan::to_look_up(heads, &self.streams);
        let there = self.look_up(link, heads, asked).await?;
        let found = there.iter().map(|at| {
            let Head { stream, .. } = heads[*at];
            let newest = self.streams[stream].newest.unwrap_or_default();
            (self.server(&heads[*at]), Found { stream, newest })
        });
        let found = found.collect();
        let ids = plan::ids(heads, &there, &mut self.streams);
        for (head, id) in heads.iter().zip(&ids) {
            let stream = &mut self.streams[head.stream];
            // Behind a newer one of this sink, it is a dead letter, or has waited for one.
            let is_late = stream.delivered > Some(head.id);
            if matches!(id, Some(NewId::Behind(_))) && !is_late && !stream.logged {
                stream.logged = true;
                warn!(
                    stream = &*stream.name,
                    "the stream has a later entry and not that of an event: it was deleted, or \
                     another one writes there; the event is appended"
                );
            }
        }
        Ok((ids, found))
    }

    /// Writes the records that have an id, as one transaction for each place, and asks who has them, if
    /// that is wanted.
    async fn execute(
        &mut self,
        link: &mut Link,
        mut round: Round,
        found: &BTreeMap<usize, Found>,
    ) -> Result<(), Stop> {
        let Settings { wait, reply, .. } = *self.shared.settings;
        for part in &mut round.parts {
            let server = part.server;
            // If all writes are refused, the connection has written nothing for those that were found.
            if wait.is_wanted() && !part.all_have_ids {
                part.beside = match (link.map(), found.get(&server)) {
                    (None, _) => Beside::Message,
                    (Some(_), Some(Found { stream, newest })) => {
                        let name = &*self.streams[*stream].name;
                        link.put(server, &["XSETID", name, &newest.to_string()]);
                        Beside::NewestId
                    }
                    // They are sent by these transactions.
                    (Some(_), None) => Beside::Nothing,
                };
            }
            for transaction in &part.transactions {
                if transaction.len() > 1 {
                    link.put(server, &["MULTI"]);
                }
                let state = self.shared.state();
                for at in transaction {
                    let queued = state.records.batch().get(*at);
                    if let (Some(queued), Some(id)) = (queued, round.ids[*at]) {
                        let out = link.out(server);
                        let exists = self.streams[round.heads[*at].stream].contents.exists();
                        let put = |record: &Record<'_>| put_xadd(out, record, id, exists);
                        queued.record.with(put);
                        link.expect(server, 1);
                    }
                }
                drop(state);
                if transaction.len() > 1 {
                    link.put(server, &["EXEC"]);
                }
            }
            if part.beside == Beside::Message {
                link.put(server, &MESSAGE);
            }
            if wait.is_wanted() {
                wait.put(link.out(server));
                link.expect(server, 1);
            }
        }
        let limit = if wait.is_wanted() {
            reply + wait.timeout
        } else {
            reply
        };
        let answers = link.call(limit).await;
        let read = |(server, replies): (usize, Result<Vec<Reply>, RedisError>)| {
            let read = replies.and_then(|replies| {
                let read = round.read(server, replies);
                read.map_err(|error| protocol(link.name(server), error))
            });
            (server, read)
        };
        let waited = answers.into_iter().map(read).collect();
        self.settle(link, round, waited)
    }
}

/// A stream that has entries of this round.
struct Found {
    stream: usize,
    /// The newest id that it has.
    newest: EntryId,
}
