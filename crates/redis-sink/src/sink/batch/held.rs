//! What the servers have: the newest ids of streams, and entries of records.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::{Batches, Stop};
use crate::client::error::RedisError;
use crate::client::link::Link;
use crate::client::protocol;
use crate::client::refusal::is_forbidden_id;
use crate::client::resp::Reply;
use crate::section::Ids;
use crate::sink::Settings;
use crate::sink::entry::{EntryId, Newest, is_stored, newest};
use crate::sink::plan::Head;
use crate::sink::round::WRONG;

/// The most streams whose ends are asked for at once: each reply has the first and the last entry.
const ASKED_AT_ONCE: usize = 16;

impl Batches<'_> {
    /// Asks for the newest ids that are not known, and what streams have that were not looked at lately. Notes
    /// what they have lost.
    pub(super) async fn ask_newest(&mut self, link: &mut Link, heads: &[Head]) -> Result<(), Stop> {
        let Settings {
            ids,
            look_every,
            reply,
            ..
        } = *self.shared.settings;
        if self.may_not_look {
            return Ok(());
        }
        let now = Instant::now();
        let mut first_of = BTreeMap::new();
        for (at, head) in heads.iter().enumerate() {
            let stream = &self.streams[head.stream];
            if stream.newest.is_none() || stream.contents.is_due(now, look_every) {
                first_of.entry(head.stream).or_insert(at);
            }
        }
        let all: Vec<(usize, usize)> = first_of.into_iter().collect();
        let mut refused = Vec::new();
        for some in all.chunks(ASKED_AT_ONCE) {
            // A replica answers too, and may lack what its master has. Of streams to which nothing was
            // delivered that shows later.
            let mut compared = BTreeMap::new();
            for (stream, at) in some {
                let stream = &self.streams[*stream];
                let ask = ["XINFO", "STREAM", &stream.name];
                link.put(stream.place.server, &ask);
                if stream.contents.has_delivered() {
                    compared.entry(stream.place.server).or_insert(*at);
                }
            }
            self.put_probes(link, heads, &compared);
            let mut replies = link.call_all(reply).await?;
            let mut unclear = BTreeSet::new();
            for (server, at) in compared {
                match replies[server].next_back() {
                    // The server's ids need no answer, and a write shows what is refused.
                    Some(Reply::Error(text)) if ids == Ids::Server && !is_forbidden_id(&text) => {
                        unclear.insert(server);
                    }
                    probe => self.takes_writes(link, server, heads, at, probe)?,
                }
            }
            for (number, at) in some {
                let server = self.server(&heads[*at]);
                let stream = &mut self.streams[*number];
                let end = match replies[server].next() {
                    Some(Reply::Error(text)) if text.starts_with(b"ERR no such key") => {
                        Newest::missing()
                    }
                    Some(Reply::Error(text)) if ids == Ids::Server => {
                        self.may_not_look |= text.starts_with(b"NOPERM");
                        stream.newest = Some(EntryId::default());
                        stream.contents.not_told(now);
                        continue;
                    }
                    Some(_) if unclear.contains(&server) => {
                        stream.newest.get_or_insert_default();
                        stream.contents.not_told(now);
                        continue;
                    }
                    Some(Reply::Error(text)) => {
                        refused.push((server, *at, text));
                        continue;
                    }
                    Some(reply) => {
                        newest(&reply).map_err(|error| protocol(link.name(server), error))?
                    }
                    None => return Err(protocol(link.name(server), WRONG).into()),
                };
                if let Some(lost) = stream.found(&end, now) {
                    self.shared.stats.note_loss(lost.into_loss(&stream.name));
                }
            }
        }
        let is_refused = !refused.is_empty();
        for (server, at, text) in refused {
            let stop = self.refused_at(link, server, heads, at, &text);
            if !matches!(stop, Stop::Again) {
                return Err(stop);
            }
        }
        if is_refused {
            return Err(Stop::Again);
        }
        Ok(())
    }

    /// Compares the notes of former sinks with the servers' streams, before anything is written.
    /// A stream of which a server does not say it is compared by the next write to it.
    pub(in crate::sink) async fn compare_ends(
        &mut self,
        link: &mut Link,
    ) -> Result<(), RedisError> {
        let reply = self.shared.settings.reply;
        let names: Vec<String> = self.shared.stats.ends.all().into_keys().collect();
        for some in names.chunks(ASKED_AT_ONCE) {
            let mut asked = Vec::new();
            for name in some {
                let (number, place) = (self.streams.number(name), link.place(name)?);
                link.open(place.server).await?;
                self.streams[number].place_at(place);
                link.put(place.server, &["XINFO", "STREAM", name]);
                // A replica answers too, and may lack what its master has.
                link.put(place.server, &["XADD", name, "0-0", "field", "value"]);
                asked.push((number, place.server));
            }
            let mut replies = link.call_all(reply).await?;
            let now = Instant::now();
            for (number, server) in asked {
                let end = replies[server].next().zip(replies[server].next());
                let (told, probe) = end.ok_or_else(|| protocol(link.name(server), WRONG))?;
                let takes_writes = matches!(&probe, Reply::Error(text) if is_forbidden_id(text));
                let end = match told {
                    Reply::Error(text) if text.starts_with(b"ERR no such key") => Newest::missing(),
                    Reply::Error(_) => continue,
                    told => newest(&told).map_err(|error| protocol(link.name(server), error))?,
                };
                let stream = &mut self.streams[number];
                if let Some(lost) = takes_writes.then(|| stream.found(&end, now)).flatten() {
                    self.shared.stats.note_loss(lost.into_loss(&stream.name));
                }
            }
        }
        Ok(())
    }

    /// Returns which of the `asked` records have an entry.
    pub(super) async fn look_up(
        &mut self,
        link: &mut Link,
        heads: &[Head],
        asked: Vec<usize>,
    ) -> Result<BTreeSet<usize>, Stop> {
        if asked.is_empty() {
            return Ok(BTreeSet::new());
        }
        // The first record of each server.
        let mut first_of = BTreeMap::new();
        for at in &asked {
            let id = heads[*at].stored_id().to_string();
            let stream = &self.streams[heads[*at].stream];
            let look_up = ["XRANGE", &stream.name, &id, &id];
            link.put(stream.place.server, &look_up);
            first_of.entry(stream.place.server).or_insert(*at);
        }
        // A replica answers XRANGE too, and may lack what its master has, or have what is about to be
        // dropped.
        self.put_probes(link, heads, &first_of);
        let mut replies = link.call_all(self.shared.settings.reply).await?;
        let (mut there, mut holders) = (BTreeSet::new(), BTreeSet::new());
        for at in asked {
            let server = self.server(&heads[at]);
            let wrong = |error| protocol(link.name(server), error);
            let reply = replies[server].next().ok_or_else(|| wrong(WRONG))?;
            if let Reply::Error(text) = &reply {
                return Err(self.refused_at(link, server, heads, at, text));
            }
            let state = self.shared.state();
            let queued = state.records.batch().get(at);
            let stored =
                queued.map(|queued| queued.record.with(|record| is_stored(&reply, record)));
            drop(state);
            if stored.transpose().map_err(wrong)? == Some(true) {
                there.insert(at);
                holders.insert(server);
            }
        }
        for (server, first) in first_of {
            if holders.contains(&server) {
                let probe = replies[server].next();
                self.takes_writes(link, server, heads, first, probe)?;
            }
        }
        Ok(there)
    }

    /// Appends for each server a command that shows whether writes are taken: an entry without an
    /// allowed id, which changes nothing. `records`: one of each server.
    pub(super) fn put_probes(
        &self,
        link: &mut Link,
        heads: &[Head],
        records: &BTreeMap<usize, usize>,
    ) {
        for (server, at) in records {
            let name = &*self.streams[heads[*at].stream].name;
            link.put(*server, &["XADD", name, "0-0", "field", "value"]);
        }
    }

    /// Reads the reply to such a command.
    fn takes_writes(
        &mut self,
        link: &mut Link,
        server: usize,
        heads: &[Head],
        at: usize,
        probe: Option<Reply>,
    ) -> Result<(), Stop> {
        match probe {
            Some(Reply::Error(text)) if is_forbidden_id(&text) => Ok(()),
            Some(Reply::Error(text)) => Err(self.refused_at(link, server, heads, at, &text)),
            _ => Err(protocol(link.name(server), WRONG).into()),
        }
    }
}
