//! What the server and its streams answer.

use std::time::Instant;

use tracing::warn;
use walrelay_sink::{Disposition, Obstacle, Poison, Record};
use walrelay_sink_client::{Failure, pause};

use super::Session;
use crate::client::error::NatsError;
use crate::client::identity::is_same;
use crate::client::jetstream::{
    Kept, PubAnswer, Refusal, StreamNames, kept_message, pub_answer, stream_names,
};
use crate::client::wire::Operation;
use crate::client::{Input, ServerInfo, ended, is_permission, protocol};
use crate::sink::sequences::Floor;
use crate::sink::unacked::{Awaited, Question};

/// The cause for which a repeat is sent again: JetStream does not say of which message it is one. It is no
/// subject of an event.
const NO_ANSWER: &[u8] = b"$JS.API.STREAM.MSG.GET";
/// The status of an answer that says that the subject has no subscriber.
const NO_RESPONDERS: u16 = 503;

impl Session<'_> {
    /// Handles all received operations. `Some`: the sink ends.
    pub(super) fn take_operations(
        &mut self,
        input: &mut Input,
    ) -> Result<Option<Failure>, NatsError> {
        let mut newest = None;
        loop {
            let next = input.next();
            match next.map_err(|error| protocol(&self.address, error))? {
                None => break,
                Some(Operation::Message {
                    subject,
                    status,
                    payload,
                }) => {
                    let token = subject
                        .strip_prefix(self.inbox.as_bytes())
                        .and_then(|token| std::str::from_utf8(token).ok()?.parse().ok());
                    let answered = token.and_then(|token| self.answer(token, status, payload));
                    newest = answered.or(newest);
                }
                Some(Operation::Ping) => self.owes_pong = true,
                Some(Operation::Info(json)) => {
                    let info = ServerInfo::parse(json);
                    self.info = info.map_err(|error| protocol(&self.address, error))?;
                }
                Some(Operation::Error(text)) if is_permission(text) => {
                    if let Some(failure) = self.denied(text) {
                        return Ok(Some(failure));
                    }
                }
                Some(Operation::Error(text)) => return Err(ended(&self.address, text)),
                Some(Operation::Pong | Operation::Ok) => {}
            }
        }
        if let Some((sent, again)) = newest {
            let round_trip = Some(sent.elapsed());
            self.endpoints.attempt(&self.address, round_trip, again);
        }
        Ok(None)
    }

    /// Handles the answer to a request. Returns when the message was sent, and whether it was sent more
    /// than once, if a stream has decided about it.
    fn answer(
        &mut self,
        token: u64,
        status: Option<u16>,
        payload: &[u8],
    ) -> Option<(Instant, bool)> {
        let awaited = self.in_flight.answered(token)?;
        let seq = match awaited {
            Awaited::Names(seq) => {
                self.names(seq, &stream_names(status, payload));
                return None;
            }
            Awaited::Kept(seq) => {
                self.kept(seq, &kept_message(payload));
                return None;
            }
            Awaited::Ack(seq) => seq,
        };
        if status == Some(NO_RESPONDERS) && payload.is_empty() {
            if self.may_not_ask {
                self.nobody_says(seq);
            } else {
                self.ask(seq, Question::Nobody, Instant::now());
            }
            return None;
        }
        let Some(answer) = pub_answer(payload) else {
            // Of another subscriber of the subject. That of the stream may follow.
            self.in_flight.await_again(token, awaited);
            return None;
        };
        if std::mem::take(&mut self.is_overdue) {
            self.shared.set_obstacle(None);
        }
        match answer {
            PubAnswer::Stored {
                stream,
                seq: at,
                is_duplicate: true,
            } => {
                self.note_number(seq, &stream, at, None);
                self.ask_for_kept(seq, &stream, at);
                None
            }
            PubAnswer::Stored {
                stream, seq: at, ..
            } => {
                let floor = self.in_flight.floor(seq);
                self.note_number(seq, &stream, at, floor);
                self.stored(seq)
            }
            PubAnswer::Refused(refusal) => {
                self.has_stream(seq);
                self.refused(seq, refusal)
            }
        }
    }

    /// Notes the number that a stream has given to a record, and what that shows to be lost.
    fn note_number(&mut self, seq: u64, stream: &str, at: u64, floor: Option<Floor>) {
        let state = self.shared.state();
        let Some(queued) = state.records.in_flight(seq) else {
            return;
        };
        let record = &queued.record;
        let loss = record.with(|record| self.sequences.stored(stream, at, floor, record));
        drop(state);
        if let Some(loss) = loss {
            self.shared.stats.note_loss(loss);
        }
    }

    /// Decides about a record whose id its stream has, by the message with that id. One that is gone
    /// counts as the record. While JetStream does not say, the record is sent again for `retry_for`.
    pub(super) fn kept(&mut self, seq: u64, kept: &Kept) {
        let is_other = {
            let state = self.shared.state();
            let Some(queued) = state.records.in_flight(seq) else {
                return;
            };
            let is_other = |record: &Record<'_>| match kept {
                Kept::Message(kept) => !is_same(record, self.source, kept),
                Kept::Gone | Kept::Unknown => false,
            };
            queued.record.with(is_other)
        };
        if *kept != Kept::Unknown {
            self.shared.settings.refusals.forget(NO_ANSWER);
        }
        if is_other {
            let why = "its stream has another event with its id: ids must be unique in a stream";
            self.refuse(seq, Poison::Rejected, why.to_owned());
        } else if *kept == Kept::Unknown && !self.is_over(seq, |_| NO_ANSWER) {
            let obstacle = Obstacle {
                what: "a stream has the id of an event and does not say of which message"
                    .to_owned(),
                disposition: Disposition::Retryable,
                remedy: Some("see that JetStream answers $JS.API.STREAM.MSG.GET"),
            };
            self.send_again(seq, obstacle);
        } else {
            self.stored(seq);
        }
    }

    /// Notes that a stream has the subject of a record.
    fn has_stream(&self, seq: u64) {
        let refusals = &self.shared.settings.refusals;
        if refusals.is_unused() {
            return;
        }
        let state = self.shared.state();
        if let Some(queued) = state.records.in_flight(seq) {
            let record = &queued.record;
            record.with(|record| refusals.forget(record.topic.as_bytes()));
        }
    }

    /// Notes that a record is refused, for a cause that may pass. Returns true if it is to be given up.
    fn is_over(&self, seq: u64, cause: impl for<'r> FnOnce(&Record<'r>) -> &'r [u8]) -> bool {
        let now = Instant::now();
        let mut state = self.shared.state();
        let since = state.records.refused_since(seq, now).unwrap_or(now);
        let refusals = &self.shared.settings.refusals;
        let queued = state.records.in_flight(seq);
        queued.is_some_and(|queued| {
            let record = &queued.record;
            record.with(|record| refusals.is_over(cause(record), since, now))
        })
    }

    /// Reports a record that a stream has.
    pub(super) fn stored(&mut self, seq: u64) -> Option<(Instant, bool)> {
        let removed = self.in_flight.remove(seq);
        self.has_stored = true;
        self.has_stream(seq);
        let done = self.shared.state().records.done(seq);
        if let Some(queued) = done {
            self.shared.report(&queued, Ok(()));
        }
        removed
    }

    fn refused(&mut self, seq: u64, refusal: Refusal) -> Option<(Instant, bool)> {
        let (what, disposition, remedy) = match refusal {
            Refusal::Oversize => {
                let removed = self.in_flight.remove(seq);
                let why = "the message is larger than the stream accepts (max_msg_size)";
                self.refuse(seq, Poison::Oversize, why.to_owned());
                return removed;
            }
            Refusal::Full => (
                "a stream is full and refuses events (10077)".to_owned(),
                Disposition::Retryable,
                Some("see that consumers receive messages from it, or raise its limits"),
            ),
            Refusal::Configuration(code, why) => {
                (format!("{why} ({code})"), Disposition::Configuration, None)
            }
            // Nothing is expected of the stream.
            Refusal::WrongLast | Refusal::OtherStream => (
                "a stream refuses an event for its last message".to_owned(),
                Disposition::Retryable,
                None,
            ),
            Refusal::Other(code, why) => (format!("{why} ({code})"), Disposition::Retryable, None),
        };
        self.send_again(
            seq,
            Obstacle {
                what,
                disposition,
                remedy,
            },
        )
    }

    /// Handles the answer to the question which streams have the subject of a record.
    fn names(&mut self, seq: u64, names: &StreamNames) {
        let nobody = self.in_flight.question(seq) == Some(Question::Nobody);
        match names {
            StreamNames::Names(names) if names.is_empty() => self.unroutable(seq),
            StreamNames::Names(_) if nobody => {
                self.has_stream(seq);
                let obstacle = Obstacle {
                    what: "the stream of an event accepts nothing at the moment".to_owned(),
                    disposition: Disposition::Retryable,
                    remedy: Some("see that the stream has a leader"),
                };
                self.send_again(seq, obstacle);
            }
            StreamNames::Unknown if nobody => self.nobody_says(seq),
            StreamNames::Names(_) | StreamNames::Unknown => {}
        }
    }

    /// Sends a message again whose subject has no subscriber, while JetStream does not say whether
    /// there is a stream.
    pub(super) fn nobody_says(&mut self, seq: u64) {
        let remedy = if self.may_not_ask {
            "create a stream for its subject, and let the user publish to $JS.API.STREAM.NAMES"
        } else {
            "see that JetStream is on (jetstream in the server's configuration) and has a leader"
        };
        let obstacle = Obstacle {
            what:
                "no stream answers for the subject of an event, and JetStream does not say whether \
                   there is one"
                    .to_owned(),
            disposition: Disposition::Retryable,
            remedy: Some(remedy),
        };
        self.send_again(seq, obstacle);
    }

    /// Sends a message again whose subject no stream has, because one may be created later; refuses it
    /// for good when there has been none for `retry_for`.
    fn unroutable(&mut self, seq: u64) {
        if !self.is_over(seq, |record| record.topic.as_bytes()) {
            let obstacle = Obstacle {
                what: "no stream has the subject of an event, which is refused in the end"
                    .to_owned(),
                disposition: Disposition::Retryable,
                remedy: Some("create a stream for it; otherwise [poison] decides"),
            };
            self.send_again(seq, obstacle);
            return;
        }
        let why = "no stream has its subject";
        self.refuse(seq, Poison::Unroutable, why.to_owned());
    }

    /// Sends a message again after a pause.
    fn send_again(&mut self, seq: u64, obstacle: Obstacle) -> Option<(Instant, bool)> {
        let removed = self.in_flight.remove(seq);
        let mut state = self.shared.state();
        let now = Instant::now();
        let pauses = self.shared.settings.pauses;
        state.records.retry_with(seq, &obstacle.what, |refusals| {
            now + pause(pauses, refusals)
        });
        if state.refusal.as_ref() != Some(&obstacle) {
            warn!(
                reason = obstacle.what,
                "waiting for NATS to accept an event"
            );
            state.refusal = Some(obstacle);
        }
        removed
    }

    /// Shows what all records wait for.
    pub(super) fn show(&self, obstacle: &Obstacle) {
        let known = self.shared.state().obstacle.replace(obstacle.clone());
        if known.as_ref() != Some(obstacle) {
            warn!(
                reason = obstacle.what,
                "waiting for NATS to accept an event"
            );
        }
    }

    /// Handles the refusal of one operation, whose text has its subject. `Some`: the sink ends.
    fn denied(&mut self, text: &[u8]) -> Option<Failure> {
        let text = String::from_utf8_lossy(text);
        let denies = |subject: &str| {
            let begin = format!("publish to \"{subject}").to_ascii_lowercase();
            text.to_ascii_lowercase().contains(&begin)
        };
        if denies("$JS.API.STREAM.MSG.GET.") {
            if !self.may_not_look {
                warn!(
                    "the user of NATS may not publish to $JS.API.STREAM.MSG.GET.*: an event whose id \
                     is that of another one is not noticed"
                );
            }
            self.may_not_look = true;
            for seq in self.in_flight.asked(Question::Duplicate) {
                self.stored(seq);
            }
            return None;
        }
        if denies("$JS.API.") {
            if !self.may_not_ask {
                warn!("the user of NATS may not ask which streams have a subject");
            }
            self.may_not_ask = true;
            for seq in self.in_flight.asked(Question::Nobody) {
                self.nobody_says(seq);
            }
            return None;
        }
        let what = if denies("") {
            "the user may not publish to the subject of an event"
        } else {
            "the user may not subscribe to _INBOX.>, where acknowledgements arrive"
        };
        Some(Failure {
            class: "denied",
            reason: what.to_owned(),
            disposition: Disposition::Configuration,
        })
    }
}
