//! Batches: the first records of the queue, and what the stream answers to them.

use std::time::Instant;

use walrelay_sink::{Disposition, Obstacle, Poison, Record};

use super::search::{ASKED_AT_ONCE, unknown};
use super::{BATCH_RECORDS, Chain, Stop};
use crate::client::exchange::{Answer, Exchange};
use crate::client::identity::is_same;
use crate::client::jetstream::{
    Kept, KeptMessage, PubAnswer, Refusal, STREAM_NAMES, StreamNames, kept_message, kept_request,
    kept_subject, names_request, pub_answer, stream_names,
};
use crate::client::message::{
    self, Predecessor, check_size, is_dead_letter, message_id, put_message, put_predecessor,
    put_request,
};

/// The bytes from which on a batch gets no further record.
const BATCH_BYTES: usize = 1 << 20;
/// Refusals in a row after which the relay pauses: another client writes to the stream all the time.
const MAX_REFUSALS: u32 = 3;

/// A message without the subject of its answer.
struct Message {
    seq: u64,
    /// The message is a dead letter, and follows none.
    is_dead_letter: bool,
    headers: Vec<u8>,
}

impl Chain<'_> {
    /// Publishes the first records of the queue, and reports those that are stored.
    pub(super) async fn publish(&mut self, exchange: &mut Exchange) -> Result<(), Stop> {
        let max_payload = exchange.info().max_payload;
        self.shared.stats.sizes.set_server_limit(max_payload);
        let batch = match self.batch(max_payload) {
            Ok(batch) => batch,
            Err((seq, poison, why)) => {
                self.shared.refuse(seq, poison, why);
                return Ok(());
            }
        };
        let limit = self.shared.settings.ack;
        // A dead letter is alone.
        let is_chained = !batch.first().is_some_and(|message| message.is_dead_letter);
        let is_answer = |answer: &Answer| match pub_answer(&answer.payload) {
            Some(PubAnswer::Stored { stream, .. }) => !is_chained || stream == self.stream,
            other => other.is_some(),
        };
        let answers = {
            let shared = self.shared;
            let put = |out: &mut Vec<u8>, number: usize, reply: &str| {
                let state = shared.state();
                // Only this thread removes records.
                if let (Some(message), Some(queued)) =
                    (batch.get(number), state.records.waiting().get(number))
                {
                    let headers = &message.headers;
                    queued
                        .record
                        .with(|record| put_message(out, record, reply, headers));
                }
            };
            let answers = exchange.request_all(batch.len(), limit, is_answer, put);
            answers.await?
        };
        self.finish(exchange, &batch, &answers).await
    }

    /// Makes the messages of the first records. An error is a record that is too large.
    fn batch(&self, max_payload: u64) -> Result<Vec<Message>, (u64, Poison, String)> {
        let count = self.rising().min(self.batch_limit);
        let state = self.shared.state();
        let mut messages: Vec<Message> = Vec::new();
        let mut bytes = 0;
        let heads = state.records.waiting().iter().take(count);
        // Those that came meanwhile were not looked for.
        for queued in heads.take_while(|queued| Some(queued.seq) <= self.looked_for) {
            let dead_letter = queued.record.with(is_dead_letter);
            let previous = messages.last().map(|message| message_id(&message.headers));
            // A dead letter may be in another stream, and what follows a message without an id cannot
            // name it.
            if previous.is_some() && (dead_letter || previous == Some(None)) {
                break;
            }
            let predecessor = Predecessor {
                stream: &self.stream,
                seq: self
                    .last
                    .unwrap_or_default()
                    .saturating_add(messages.len() as u64),
                id: previous.flatten(),
            };
            let headers = queued.record.with(|record| {
                let mut headers = message::headers(record);
                let predecessor = (!dead_letter).then_some(predecessor);
                put_predecessor(&mut headers, self.source.as_deref(), predecessor);
                check_size(record, headers.len(), max_payload, "max_payload")?;
                bytes += headers.len() + record.value.map_or(0, <[u8]>::len);
                Ok(headers)
            });
            match headers {
                Ok(headers) => messages.push(Message {
                    seq: queued.seq,
                    is_dead_letter: dead_letter,
                    headers,
                }),
                // Those before it are sent first.
                Err(_) if !messages.is_empty() => break,
                Err((poison, why)) => return Err((queued.seq, poison, why)),
            }
            if dead_letter || bytes >= BATCH_BYTES {
                break;
            }
        }
        Ok(messages)
    }

    /// Reports the messages that are stored, and decides about the first one that is not.
    async fn finish(
        &mut self,
        exchange: &mut Exchange,
        batch: &[Message],
        answers: &[Answer],
    ) -> Result<(), Stop> {
        let mut stored = Vec::new();
        let mut repeats = Vec::new();
        let mut refused = None;
        for (message, answer) in batch.iter().zip(answers) {
            match pub_answer(&answer.payload) {
                Some(PubAnswer::Stored {
                    stream,
                    seq,
                    is_duplicate: true,
                }) => repeats.push((message.seq, stream, seq)),
                Some(PubAnswer::Stored { stream, seq, .. }) => {
                    stored.push(message.seq);
                    // Behind a refused message, all that is known ends before it.
                    let follows = self
                        .last
                        .is_some_and(|last| last.checked_add(1) == Some(seq));
                    if refused.is_none() && follows && stream == self.stream {
                        self.last = Some(seq);
                    }
                }
                other if refused.is_none() => {
                    let refusal = other.and_then(|answer| match answer {
                        PubAnswer::Refused(refusal) => Some(refusal),
                        PubAnswer::Stored { .. } => None,
                    });
                    refused = Some((message.seq, refusal));
                }
                Some(PubAnswer::Refused(_)) | None => {}
            }
        }
        self.raise_top(&stored);
        self.delivered(&stored);
        self.compare(exchange, &repeats).await?;
        if let Some((_, stream, at)) = repeats.last() {
            // The records behind a repeat follow it in the stream, too, if they were stored.
            self.next_repeat = (*stream == self.stream).then(|| at.saturating_add(1));
            self.batch_limit = 1;
        } else if refused.is_none() {
            self.batch_limit = self.batch_limit.saturating_mul(2).min(BATCH_RECORDS);
        }
        match refused {
            // A repeat got no number, so the messages behind it expected a wrong one.
            None | Some((_, Some(Refusal::WrongLast))) if !repeats.is_empty() => Ok(()),
            None => Ok(()),
            Some((seq, refusal)) => self.refused(exchange, seq, refusal).await,
        }
    }

    /// Notes the positions of records that are stored now.
    fn raise_top(&mut self, stored: &[u64]) {
        if self.source.is_none() {
            return;
        }
        let state = self.shared.state();
        let Some(last) = stored.last() else {
            return;
        };
        let records = state
            .records
            .waiting()
            .iter()
            .take_while(|queued| queued.seq <= *last);
        for queued in records {
            let (is_event, position) = queued
                .record
                .with(|record| (!is_dead_letter(record), record.position));
            if is_event && stored.binary_search(&queued.seq).is_ok() {
                self.top = self.top.max(Some(position));
            }
        }
    }

    /// Decides about records whose ids a stream has, by the messages with these ids. A repeat is a record,
    /// the stream, and the number of the message there.
    async fn compare(
        &mut self,
        exchange: &mut Exchange,
        repeats: &[(u64, String, u64)],
    ) -> Result<(), Stop> {
        let what = "of which message it has the id of an event";
        for repeats in repeats.chunks(ASKED_AT_ONCE as usize) {
            let subjects = repeats.iter().map(|(_, stream, _)| kept_subject(stream));
            let subjects: Option<Vec<String>> = subjects.collect();
            let subjects = subjects.ok_or_else(|| unknown(what))?;
            let put = |out: &mut Vec<u8>, number: usize, reply: &str| {
                if let (Some(subject), Some((_, _, at))) =
                    (subjects.get(number), repeats.get(number))
                {
                    put_request(out, subject, reply, &kept_request(*at));
                }
            };
            let limit = self.shared.settings.ack;
            let answers = exchange.request_all(repeats.len(), limit, |_| true, put);
            for ((seq, _, _), answer) in repeats.iter().zip(answers.await?) {
                let is_same = match kept_message(&answer.payload) {
                    Kept::Message(kept) => self.is_record(*seq, &kept),
                    // Consumed: the stream would not have the id of an event that it never had.
                    Kept::Gone => true,
                    Kept::Unknown => return Err(unknown(what)),
                };
                if is_same {
                    self.delivered(&[*seq]);
                    continue;
                }
                let why =
                    "its stream has another event with its id: ids must be unique in a stream";
                self.shared.refuse(*seq, Poison::Rejected, why.to_owned());
            }
        }
        Ok(())
    }

    /// Returns true if a message with the id of a record is the record.
    fn is_record(&self, seq: u64, kept: &KeptMessage) -> bool {
        let state = self.shared.state();
        let mut records = state.records.waiting().iter();
        let queued = records.find(|queued| queued.seq == seq);
        let source = self.source.as_deref();
        queued.is_some_and(|queued| queued.record.with(|record| is_same(record, source, kept)))
    }

    /// Decides about the first record of a batch that is not stored. `None`: its subject has no
    /// subscriber.
    async fn refused(
        &mut self,
        exchange: &mut Exchange,
        seq: u64,
        refusal: Option<Refusal>,
    ) -> Result<(), Stop> {
        let (what, disposition, remedy) = match refusal {
            None => return self.nobody(exchange, seq).await,
            Some(Refusal::OtherStream) => {
                let why = "its subject is one of another stream than exclusive_stream";
                return self.no_place(seq, why);
            }
            Some(Refusal::WrongLast) => {
                self.is_refused = true;
                self.refusals += 1;
                if self.refusals < MAX_REFUSALS {
                    return Ok(());
                }
                (
                    "another publisher writes to the stream of exclusive_stream".to_owned(),
                    Disposition::Configuration,
                    Some("see that only this relay writes to it, or unset exclusive_stream"),
                )
            }
            Some(Refusal::Oversize) => {
                let why = "the message is larger than the stream accepts (max_msg_size)";
                self.shared.refuse(seq, Poison::Oversize, why.to_owned());
                return Ok(());
            }
            Some(Refusal::Full) => (
                "a stream is full and refuses events (10077)".to_owned(),
                Disposition::Retryable,
                Some("see that consumers receive messages from it, or raise its limits"),
            ),
            Some(Refusal::Configuration(code, why)) => {
                (format!("{why} ({code})"), Disposition::Configuration, None)
            }
            Some(Refusal::Other(code, why)) => {
                (format!("{why} ({code})"), Disposition::Retryable, None)
            }
        };
        Err(Stop::Pause(Obstacle {
            what,
            disposition,
            remedy,
        }))
    }

    /// Decides about a record whose subject has no subscriber.
    async fn nobody(&mut self, exchange: &mut Exchange, seq: u64) -> Result<(), Stop> {
        let body = {
            let state = self.shared.state();
            let mut records = state.records.waiting().iter();
            let queued = records.find(|queued| queued.seq == seq);
            queued.map(|queued| queued.record.with(|record| names_request(record.topic)))
        };
        let body = body.unwrap_or_default();
        let limit = self.shared.settings.ack;
        let put = |out: &mut Vec<u8>, _, reply: &str| put_request(out, STREAM_NAMES, reply, &body);
        let answers = exchange.request_all(1, limit, |_| true, put).await?;
        let names = answers.first().map_or(StreamNames::Unknown, |answer| {
            stream_names(answer.status, &answer.payload)
        });
        Err(match names {
            StreamNames::Names(names) if names.is_empty() => {
                return self.no_place(seq, "no stream has its subject");
            }
            StreamNames::Names(_) => unknown("anything about an event, whose stream it has"),
            StreamNames::Unknown => unknown("whether a stream has the subject of an event"),
        })
    }

    /// Pauses before a record is sent again that the stream does not accept, because that may be changed;
    /// refuses it for good when it was so for `retry_for`.
    fn no_place(&self, seq: u64, why: &str) -> Result<(), Stop> {
        let now = Instant::now();
        let refusals = &self.shared.settings.refusals;
        let is_over = {
            let mut state = self.shared.state();
            let queued = state.records.waiting_mut(seq);
            queued.is_none_or(|queued| {
                let since = *queued.refused_since.get_or_insert(now);
                let is_over =
                    |record: &Record<'_>| refusals.is_over(record.topic.as_bytes(), since, now);
                queued.record.with(is_over)
            })
        };
        if is_over {
            self.shared.refuse(seq, Poison::Unroutable, why.to_owned());
            return Ok(());
        }
        Err(Stop::Pause(Obstacle {
            what: format!("an event is refused in the end: {why}"),
            disposition: Disposition::Retryable,
            remedy: Some("give the subject to the stream; otherwise [poison] decides"),
        }))
    }
}
