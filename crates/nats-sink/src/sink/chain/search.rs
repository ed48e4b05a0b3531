//! Finds out which records a stream has.

use std::collections::BTreeMap;

use tracing::warn;
use walrelay_sink::{Disposition, EventPosition, Obstacle};
use walrelay_sink_client::Failure;

use super::{BATCH_RECORDS, Chain, Stop};
use crate::client::exchange::Exchange;
use crate::client::identity::{Likeness, is_of, likeness, position_of, stored_position};
use crate::client::jetstream::{
    Kept, KeptMessage, LastNumber, info_subject, kept_message, kept_request, kept_subject,
    last_number,
};
use crate::client::message::{is_dead_letter, put_request};

/// Messages of the stream that are asked for at once.
pub(super) const ASKED_AT_ONCE: u64 = 16;
/// Messages behind the last known one that are read at most.
const MAX_UNREAD: u64 = 20_000;
/// Messages among which the newest event of the source, and an event that is sent again, are looked for.
pub(super) const MAX_BACK: u64 = 100_000;

impl Chain<'_> {
    /// Asks for the last number of the stream, and on the first time for the newest event of the
    /// source.
    pub(super) async fn ask_last(&mut self, exchange: &mut Exchange) -> Result<(), Stop> {
        let subject = info_subject(&self.stream);
        let limit = self.shared.settings.ack;
        let put = |out: &mut Vec<u8>, _, reply: &str| put_request(out, &subject, reply, b"");
        let answers = exchange.request_all(1, limit, |_| true, put).await?;
        let number = answers.first().map(|answer| last_number(&answer.payload));
        let last = match number {
            Some(LastNumber::Number(last)) => last,
            Some(LastNumber::NoStream) => {
                return Err(Stop::Pause(Obstacle {
                    what: "there is no stream of the name in exclusive_stream".to_owned(),
                    disposition: Disposition::Configuration,
                    remedy: Some("create it, or correct exclusive_stream in [sink.nats]"),
                }));
            }
            Some(LastNumber::Unknown) | None => {
                return Err(unknown("which number the last message of the stream has"));
            }
        };
        match self.last {
            None => {
                self.top = self.newest(exchange, last).await?;
                self.since = Some(last);
            }
            Some(known) if last > known => {
                let after = self.unread.map_or(known, |(after, _)| after);
                self.unread = Some((after, last));
            }
            Some(known) if last < known => {
                warn!(
                    stream = self.stream,
                    "the stream was recreated, or has lost messages"
                );
                if let Some(acknowledged) = self.acknowledged.take() {
                    let loss = acknowledged.lost(&self.stream, known - last);
                    self.shared.stats.note_loss(loss);
                    self.shared.stats.ends.forget(&self.stream);
                }
                // Nothing is known of what the stream has now.
                self.unread = Some((0, last));
                (self.since, self.top) = (self.since.min(Some(last)), None);
                self.repeat_to = None;
            }
            Some(_) => {}
        }
        self.last = Some(last);
        self.is_refused = false;
        (self.looked_for, self.found_at) = (None, None);
        Ok(())
    }

    /// Returns the position of the newest event of the source in the stream; `None` if there is none
    /// among the last messages.
    async fn newest(
        &mut self,
        exchange: &mut Exchange,
        last: u64,
    ) -> Result<Option<EventPosition>, Stop> {
        let Some(source) = self.source.clone() else {
            return Ok(None);
        };
        let mut to = last;
        while to > last.saturating_sub(MAX_BACK) {
            let kept = self.read(exchange, to).await?;
            let positions = kept.iter().flatten();
            let newest = positions
                .filter_map(|kept| position_of(kept, &source))
                .max();
            if newest.is_some() {
                return Ok(newest);
            }
            to -= kept.len() as u64;
        }
        Ok(None)
    }

    /// Looks for the first records of the queue in the stream, if another client may have written them,
    /// and reports the existing ones. Returns true if there are any.
    pub(super) async fn look_for(&mut self, exchange: &mut Exchange) -> Result<bool, Stop> {
        let count = self.rising();
        let (seqs, heads) = {
            let state = self.shared.state();
            let heads = state.records.waiting().iter().take(count);
            let heads: Vec<(u64, EventPosition)> = heads
                .map(|queued| (queued.seq, queued.record.with(|record| record.position)))
                .collect();
            let new = heads.iter().filter(|(seq, _)| self.looked_for < Some(*seq));
            let mut seqs: BTreeMap<EventPosition, Vec<u64>> = BTreeMap::new();
            for (seq, position) in new {
                seqs.entry(*position).or_default().push(*seq);
            }
            (seqs, heads)
        };
        let (Some((first_seq, first)), Some(last)) = (heads.first().copied(), self.last) else {
            return Ok(false);
        };
        if self.begins_with_dead_letter() {
            // It is published alone, and nothing is said of those behind it.
            self.looked_for = self.looked_for.max(Some(first_seq));
            return Ok(false);
        }
        let newest = seqs.values().flatten().max().copied();
        let mut found = Vec::new();
        let is_clear = if let Some((after, to)) = self.unread {
            self.read_unread(exchange, &seqs, after, to, &mut found)
                .await?
        } else if self.top >= Some(first) && self.repeat_to < Some(first) && !seqs.is_empty() {
            let is_clear = self
                .read_back(exchange, &seqs, first, last, &mut found)
                .await?;
            // Where all that was found is from before this sink, the relay was started again. From the
            // first event on that is not there, it repeats all: that one may have been deleted.
            if self.found_at <= self.since {
                let there = heads.iter().take_while(|(seq, _)| found.contains(seq));
                let there: Vec<u64> = there.map(|(seq, _)| *seq).collect();
                if there.len() < found.len() {
                    self.repeat_to = self.top;
                    found = there;
                }
            }
            is_clear
        } else {
            true
        };
        self.unread = None;
        self.looked_for = self.looked_for.max(newest);
        self.delivered(&found);
        if !is_clear {
            // An event that is not found may have been stored, and deleted since, or by a relay of
            // another configuration. A relay that has the slot starts again, and repeats it; one that was
            // displaced must not.
            return Err(Stop::Broken(Failure {
                class: "given up",
                reason: "another relay or publisher has written to the stream, and not all of it can be \
                         read"
                    .to_owned(),
                disposition: Disposition::Retryable,
            }));
        }
        Ok(!found.is_empty())
    }

    /// Reads all messages behind `after` up to `to`. Returns false if one of them cannot be read any
    /// more, or does not say which event it is.
    async fn read_unread(
        &mut self,
        exchange: &mut Exchange,
        seqs: &BTreeMap<EventPosition, Vec<u64>>,
        after: u64,
        to: u64,
        found: &mut Vec<u64>,
    ) -> Result<bool, Stop> {
        if to - after > MAX_UNREAD {
            return Ok(false);
        }
        let mut is_complete = true;
        let (mut has_others, mut has_ours) = (false, false);
        let mut at = to;
        while at > after {
            let read = self.read(exchange, at).await?;
            for kept in read.iter().take((at - after) as usize) {
                let Some(kept) = kept else {
                    is_complete = false;
                    continue;
                };
                is_complete &= self.find(seqs, kept, found);
                if let Some(source) = &self.source {
                    let is_ours = is_of(kept, source);
                    has_others |= !is_ours;
                    has_ours |= is_ours;
                    self.top = self.top.max(position_of(kept, source));
                }
            }
            at = after.max(at - read.len() as u64);
        }
        if has_ours {
            // Another relay of the slot has gone on: what it has stored is looked for.
            self.repeat_to = None;
        }
        if !self.logged && has_others {
            self.logged = true;
            warn!(
                stream = self.stream,
                "another publisher writes to the stream of exclusive_stream in [sink.nats]: each of its \
                 messages makes the relay read and send again"
            );
        }
        Ok(is_complete)
    }

    /// Reads back from the last message, until one is of an earlier event than all of the records.
    /// Returns false if not all of them are found, and a message that was written since the sink began
    /// cannot be read, or does not say which event it is. Of an earlier one, the event is repeated.
    async fn read_back(
        &mut self,
        exchange: &mut Exchange,
        seqs: &BTreeMap<EventPosition, Vec<u64>>,
        first: EventPosition,
        last: u64,
        found: &mut Vec<u64>,
    ) -> Result<bool, Stop> {
        let (Some(source), Some(end)) = (self.source.clone(), seqs.keys().next_back()) else {
            return Ok(true);
        };
        let total: usize = seqs.values().map(Vec::len).sum();
        let mut is_clear = true;
        // The records of the last batch were there, so these follow them.
        let ahead = seqs.len() as u64 + ASKED_AT_ONCE;
        let hint = self.found_at.map(|at| last.min(at.saturating_add(ahead)));
        'begins: for begin in hint.into_iter().chain([last]) {
            let mut to = begin;
            while to > begin.saturating_sub(MAX_BACK) {
                let read = self.read(exchange, to).await?;
                let mut positions = read.iter().flatten();
                let newest = positions.find_map(|kept| position_of(kept, &source));
                if to == begin && begin < last && newest < Some(*end) {
                    continue 'begins;
                }
                for (kept, number) in read.iter().zip((0..=to).rev()) {
                    let is_new = self.since < Some(number);
                    let Some(kept) = kept else {
                        is_clear &= !is_new;
                        continue;
                    };
                    if position_of(kept, &source).is_some_and(|position| position < first) {
                        return Ok(is_clear || found.len() == total);
                    }
                    let before = found.len();
                    is_clear &= self.find(seqs, kept, found) || !is_new;
                    if found.len() > before {
                        self.found_at = self.found_at.max(Some(number));
                    }
                }
                to -= read.len() as u64;
                if to == 0 {
                    return Ok(is_clear || found.len() == total);
                }
            }
            is_clear &= self.since >= Some(to);
        }
        Ok(is_clear || found.len() == total)
    }

    /// Returns true if the first record is a dead letter, whose position is that of an earlier event.
    fn begins_with_dead_letter(&self) -> bool {
        let state = self.shared.state();
        let first = state.records.waiting().front();
        first.is_some_and(|queued| queued.record.with(is_dead_letter))
    }

    /// Adds the records that a message is. Returns false if it may be another record, and does not say.
    fn find(
        &self,
        seqs: &BTreeMap<EventPosition, Vec<u64>>,
        kept: &KeptMessage,
        found: &mut Vec<u64>,
    ) -> bool {
        let position = stored_position(kept);
        let Some(candidates) = position.and_then(|position| seqs.get(&position)) else {
            return true;
        };
        let mut is_clear = true;
        let state = self.shared.state();
        for queued in state.records.waiting().iter().take(BATCH_RECORDS) {
            if candidates.contains(&queued.seq) && !found.contains(&queued.seq) {
                let source = self.source.as_deref();
                match queued.record.with(|record| likeness(record, source, kept)) {
                    Likeness::Same => found.push(queued.seq),
                    Likeness::Unclear => is_clear = false,
                    Likeness::Other => {}
                }
            }
        }
        is_clear
    }

    /// Reads some messages up to this number, in descending order; `None`: it is deleted.
    pub(super) async fn read(
        &mut self,
        exchange: &mut Exchange,
        to: u64,
    ) -> Result<Vec<Option<KeptMessage>>, Stop> {
        let what = "what a message of the stream is";
        let subject = kept_subject(&self.stream).ok_or_else(|| unknown(what))?;
        let count = ASKED_AT_ONCE.min(to) as usize;
        let limit = self.shared.settings.ack;
        let put = |out: &mut Vec<u8>, number: usize, reply: &str| {
            put_request(out, &subject, reply, &kept_request(to - number as u64));
        };
        let answers = exchange.request_all(count, limit, |_| true, put).await?;
        let messages = answers.iter().map(|answer| kept_message(&answer.payload));
        messages
            .map(|kept| match kept {
                Kept::Message(message) => Ok(Some(message)),
                Kept::Gone => Ok(None),
                Kept::Unknown => Err(unknown(what)),
            })
            .collect()
    }
}

/// Returns the pause while JetStream does not say something.
pub(super) fn unknown(what: &str) -> Stop {
    Stop::Pause(Obstacle {
        what: format!("JetStream does not say {what}"),
        disposition: Disposition::Retryable,
        remedy: Some("see that JetStream is on, and that the stream has a leader"),
    })
}
