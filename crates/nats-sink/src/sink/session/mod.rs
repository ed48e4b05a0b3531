//! The use of one connection: publishes, and reads the answers.

mod answers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::select;
use tokio::time::sleep_until;
use walrelay_sink::{
    ANSWER_LIMIT, Disposition, Endpoints, Obstacle, OpenRequest, Poison, RecordKind,
};
use walrelay_sink_client::{ConnectError, Failure};

use super::Shared;
use super::sequences::Sequences;
use super::unacked::{InFlight, Question};
use crate::client::error::NatsError;
use crate::client::jetstream::{Kept, STREAM_NAMES, kept_request, kept_subject, names_request};
use crate::client::message::{self, check_size, put_message, put_predecessor, put_request};
use crate::client::{Connection, ServerInfo, io_error};

/// No further message is encoded while so many bytes are to be written.
const OUTPUT_BYTES: usize = 256 * 1024;
/// The most messages in flight. A stream queues 10,000 messages by default and refuses those beyond.
const MAX_UNACKED: usize = 2_000;
/// The longest wait for the last bytes of a connection that is closed.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// The use of one connection, and the records in flight on it.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each follows what the server sends, whatever the others are"
)]
pub(super) struct Session<'s> {
    shared: &'s Arc<Shared>,
    /// The source of positions, which each event names; `None`: of no slot.
    source: Option<&'s str>,
    endpoints: &'s mut Endpoints,
    sequences: &'s mut Sequences,
    /// There while messages are in flight.
    open: Option<OpenRequest>,
    address: String,
    /// The beginning of the subjects of answers, with the last dot.
    inbox: String,
    info: ServerInfo,
    in_flight: InFlight,
    /// The server has said that the user may not ask which streams have a subject.
    may_not_ask: bool,
    /// The server has said that the user may not read messages of a stream.
    may_not_look: bool,
    /// An acknowledgement has not come in time, and none has come since.
    is_overdue: bool,
    /// A stream has stored a message.
    pub(super) has_stored: bool,
    /// The server has asked for a sign. One answer is enough for all its questions, so a server that asks
    /// without an end and reads nothing fills no memory.
    pub(super) owes_pong: bool,
    out: Vec<u8>,
    written: usize,
}

impl<'s> Session<'s> {
    pub(super) fn new(
        connection: &Connection,
        shared: &'s Arc<Shared>,
        source: Option<&'s str>,
        endpoints: &'s mut Endpoints,
        sequences: &'s mut Sequences,
    ) -> Self {
        Self {
            shared,
            source,
            endpoints,
            sequences,
            open: None,
            address: connection.address.clone(),
            inbox: format!("{}.", connection.inbox),
            info: connection.info.clone(),
            in_flight: InFlight::default(),
            may_not_ask: false,
            may_not_look: false,
            is_overdue: false,
            has_stored: false,
            owes_pong: false,
            out: Vec::new(),
            written: 0,
        }
    }

    /// Notes whether messages are in flight.
    fn note_open(&mut self) {
        let (stats, address) = (&self.shared.stats, &self.address);
        let waits = !self.in_flight.is_empty();
        OpenRequest::keep(&mut self.open, waits, stats, address);
    }

    /// Notes a sign of the server. A stream that does not answer is no silent server.
    fn note_sign(&self) {
        if let Some(open) = &self.open {
            open.answered();
        }
    }

    /// Publishes until the sink is closed or broken (`Ok`), or the connection breaks.
    pub(super) async fn run(&mut self, connection: Connection) -> Result<Failure, NatsError> {
        let sizes = &self.shared.stats.sizes;
        sizes.set_server_limit(self.info.max_payload);
        let Connection {
            stream, mut input, ..
        } = connection;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut last_sign = Instant::now();
        let mut pinged = None;
        let mut unflushed = false;
        loop {
            if let Some(failure) = self.take_operations(&mut input)? {
                return Ok(failure);
            }
            if self.shared.is_over() {
                if self.shared.window.in_flight() > 0 {
                    // What is not delivered is given up: nothing more of it is sent.
                    return Ok(Failure::closed());
                }
                let rest = self.out.split_off(self.written.min(self.out.len()));
                let last = async {
                    writer.write_all(&rest).await?;
                    writer.flush().await
                };
                // Whether the server reads it is of no importance.
                let _ = tokio::time::timeout(CLOSE_LIMIT, last).await;
                return Ok(Failure::closed());
            }
            let now = Instant::now();
            if self.out.len() < OUTPUT_BYTES && std::mem::take(&mut self.owes_pong) {
                self.out.extend_from_slice(b"PONG\r\n");
            }
            self.send_overdue(now);
            self.publish(now);
            self.note_open();
            let timer = self.timers(now, last_sign, &mut pinged)?;
            let closing = self.shared.state().closing;
            let timer = closing.map_or(timer, |at| at.min(timer));
            let io = |source| io_error(&self.address, source);
            let pending = self.out.get(self.written..).unwrap_or_default();
            // Both can be cancelled without loss.
            let write = async {
                if pending.is_empty() {
                    return writer.flush().await.map(|()| 0);
                }
                writer.write(pending).await
            };
            select! {
                read = input.fill(&mut reader) => {
                    read.map_err(io)?;
                    last_sign = Instant::now();
                    pinged = None;
                    self.note_sign();
                }
                wrote = write, if unflushed || !pending.is_empty() => {
                    let wrote = wrote.map_err(io)?;
                    unflushed = !pending.is_empty();
                    if wrote < pending.len() {
                        // The socket is full, so the server reads: a large message takes its time.
                        last_sign = Instant::now();
                        self.note_sign();
                    }
                    self.written += wrote;
                    if self.written == self.out.len() {
                        self.out.clear();
                        self.written = 0;
                    }
                }
                () = sleep_until(timer.into()) => {}
                () = self.shared.wake.notified() => {}
            }
        }
    }

    /// Returns when to look again, and asks the server for a sign if it has given none for half of the
    /// time that it may be silent, or soon if messages are in flight.
    fn timers(
        &mut self,
        now: Instant,
        last_sign: Instant,
        pinged: &mut Option<Instant>,
    ) -> Result<Instant, NatsError> {
        let silence = self.shared.settings.ack;
        let half = match self.open {
            // A server that answers must not be shown as a silent one.
            Some(_) => last_sign + (silence / 2).min(ANSWER_LIMIT / 2),
            None => last_sign + silence / 2,
        };
        // The answer to the question has its time, also if this thread had none.
        let end = pinged.map(|at| (at + silence / 2).max(last_sign + silence));
        if end.is_some_and(|end| now >= end) {
            return Err(ConnectError::Timeout {
                address: self.address.clone(),
                seconds: silence.as_secs(),
            }
            .into());
        }
        if now >= half && pinged.is_none() {
            self.out.extend_from_slice(b"PING\r\n");
            *pinged = Some(now);
        }
        let mut next = match *pinged {
            Some(at) => (at + silence / 2).max(last_sign + silence),
            None => half,
        };
        // What cannot be sent now is no reason to look again: a write or an answer is.
        if self.out.is_empty() {
            next = self.in_flight.next_expiry().map_or(next, |at| at.min(next));
        }
        if self.has_room() {
            let due = self.shared.state().records.next_due();
            next = due.map_or(next, |due| due.max(now).min(next));
        }
        Ok(next)
    }

    fn has_room(&self) -> bool {
        self.out.len() < OUTPUT_BYTES && self.in_flight.len() < MAX_UNACKED
    }

    /// Appends the messages that may be sent now.
    fn publish(&mut self, now: Instant) {
        let shared = Arc::clone(self.shared);
        while self.has_room() {
            let next = shared.state().records.next(now).map(|next| next.seq);
            let Some(seq) = next else {
                return;
            };
            self.send(seq, now);
        }
    }

    /// Appends a copy of the message of a record in flight.
    fn send(&mut self, seq: u64, now: Instant) {
        let shared = Arc::clone(self.shared);
        let state = shared.state();
        let Some(queued) = state.records.in_flight(seq) else {
            return;
        };
        let sent = queued.record.with(|record| {
            let mut headers = message::headers(record);
            // A dead letter has its slot in its id.
            let source = self.source.filter(|_| record.kind == RecordKind::Event);
            put_predecessor(&mut headers, source, None);
            check_size(record, headers.len(), self.info.max_payload, "max_payload")?;
            let (ack, floor) = (shared.settings.ack, self.sequences.floor());
            let token = self.in_flight.publish(seq, now, ack, floor);
            let reply = format!("{}{token}", self.inbox);
            put_message(&mut self.out, record, &reply, &headers);
            Ok::<_, (Poison, String)>(())
        });
        drop(state);
        if let Err((poison, why)) = sent {
            self.refuse(seq, poison, why);
        }
    }

    /// Sends messages again whose acknowledgements have not come in time. The first copy may be on its
    /// way: the stream stores one of them, and the acknowledgement of either counts.
    fn send_overdue(&mut self, now: Instant) {
        if !self.out.is_empty() {
            // The first copies are not written yet.
            return;
        }
        while self.out.len() < OUTPUT_BYTES
            && let Some(seq) = self.in_flight.expired(now)
        {
            // A question that has no answer.
            match self.in_flight.question(seq) {
                Some(Question::Nobody) => {
                    self.nobody_says(seq);
                    continue;
                }
                Some(Question::Duplicate) => {
                    self.kept(seq, &Kept::Unknown);
                    continue;
                }
                Some(Question::Overdue) | None => {}
            }
            // Somebody else may be subscribed to the subject, and no stream.
            self.ask(seq, Question::Overdue, now);
            self.send(seq, now);
            self.is_overdue = true;
            self.show(&Obstacle {
                what: "no stream has acknowledged an event in time".to_owned(),
                disposition: Disposition::Retryable,
                remedy: Some(
                    "see that the stream of its subject has a leader, and that the server has room",
                ),
            });
        }
    }

    /// Asks which streams have the subject of a record in flight.
    fn ask(&mut self, seq: u64, question: Question, now: Instant) {
        if self.may_not_ask {
            return;
        }
        let state = self.shared.state();
        let Some(queued) = state.records.in_flight(seq) else {
            return;
        };
        let body = queued.record.with(|record| names_request(record.topic));
        drop(state);
        let ack = self.shared.settings.ack;
        if let Some(token) = self.in_flight.ask(seq, question, now, ack) {
            let reply = format!("{}{token}", self.inbox);
            put_request(&mut self.out, STREAM_NAMES, &reply, &body);
        }
    }

    /// Asks which message a stream has under the id of a record in flight. It has the number `at`.
    fn ask_for_kept(&mut self, seq: u64, stream: &str, at: u64) {
        let subject = kept_subject(stream).filter(|_| !self.may_not_look);
        let (now, ack) = (Instant::now(), self.shared.settings.ack);
        let asked = subject.and_then(|subject| {
            let token = self.in_flight.ask(seq, Question::Duplicate, now, ack)?;
            Some((subject, token))
        });
        let Some((subject, token)) = asked else {
            self.stored(seq);
            return;
        };
        let reply = format!("{}{token}", self.inbox);
        put_request(&mut self.out, &subject, &reply, &kept_request(at));
    }

    /// Makes all messages in flight be sent again by the next connection.
    pub(super) fn send_all_again(&mut self) {
        self.shared.send_again(self.in_flight.take_all());
    }

    /// Reports a record that is refused for good.
    fn refuse(&mut self, seq: u64, poison: Poison, reason: String) {
        self.in_flight.remove(seq);
        self.shared.refuse(seq, poison, reason);
    }
}
