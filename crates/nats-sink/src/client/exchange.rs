//! Requests whose answers are awaited together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, split};
use tokio::select;
use tokio::time::sleep_until;
use walrelay_sink::{OpenRequest, SinkStats};
use walrelay_sink_client::ConnectError;

use super::error::NatsError;
use super::wire::Operation;
use super::{Connection, Input, ServerInfo, ended, io_error, is_permission, protocol};

/// The status of an answer that says that the subject has no subscriber.
pub(crate) const NO_RESPONDERS: u16 = 503;

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Option<u16>,
    pub(crate) payload: Vec<u8>,
}

impl Answer {
    /// Returns true if the subject has no subscriber.
    pub(crate) fn is_from_nobody(&self) -> bool {
        self.status == Some(NO_RESPONDERS) && self.payload.is_empty()
    }
}

/// The answers to requests that were sent together.
struct Answers<F> {
    /// In the order of the requests.
    received: Vec<Option<Answer>>,
    missing: usize,
    /// Returns whether a message is an answer.
    is_answer: F,
}

impl<F: Fn(&Answer) -> bool> Answers<F> {
    fn new(count: usize, is_answer: F) -> Self {
        Self {
            received: (0..count).map(|_| None).collect(),
            missing: count,
            is_answer,
        }
    }

    /// Keeps a message to the subject of request `number`, unless it is no answer. Returns true if it was missing.
    fn add(&mut self, number: usize, status: Option<u16>, payload: &[u8]) -> bool {
        let answer = Answer {
            status,
            payload: payload.to_vec(),
        };
        let is_answer = answer.is_from_nobody() || (self.is_answer)(&answer);
        match self.received.get_mut(number) {
            Some(place @ None) if is_answer => {
                *place = Some(answer);
                self.missing -= 1;
                true
            }
            _ => false,
        }
    }
}

/// The reason why requests have no answers.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    Connection(NatsError),
    /// The user may not publish to a subject of JetStream's API.
    ApiDenied,
    /// The user may not publish to the subject of an event.
    SubjectDenied,
}

impl ExchangeError {
    /// Makes the error that a server reports with this text.
    fn from_server(address: &str, text: &[u8]) -> Self {
        if !is_permission(text) {
            return ended(address, text).into();
        }
        let text = String::from_utf8_lossy(text).to_ascii_lowercase();
        if text.contains("publish to \"$js.api.") {
            Self::ApiDenied
        } else {
            Self::SubjectDenied
        }
    }
}

impl From<NatsError> for ExchangeError {
    fn from(error: NatsError) -> Self {
        Self::Connection(error)
    }
}

/// A connection on which requests are sent together, and no further one before all are answered.
pub(crate) struct Exchange {
    connection: Connection,
    /// Bytes that are not written yet.
    unsent: Vec<u8>,
    /// The number of these that are written by now.
    written: usize,
    last_token: u64,
    /// Where a server that answers nothing is noted; `None`: nowhere.
    stats: Option<Arc<SinkStats>>,
}

impl Exchange {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection,
            unsent: Vec::new(),
            written: 0,
            last_token: 0,
            stats: None,
        }
    }

    /// Makes a server that answers nothing be noted.
    pub(crate) fn watched(mut self, stats: &Arc<SinkStats>) -> Self {
        self.stats = Some(Arc::clone(stats));
        self
    }

    /// Returns the connection. All requests are answered.
    pub(crate) fn into_connection(self) -> Connection {
        self.connection
    }

    pub(crate) fn address(&self) -> &str {
        &self.connection.address
    }

    pub(crate) fn info(&self) -> &ServerInfo {
        &self.connection.info
    }

    /// Answers the server until the connection ends. Can be cancelled.
    pub(crate) async fn ended(&mut self) -> NatsError {
        let ended = self.answers(0, None, |_| false, |_, _, _| {}).await;
        match ended {
            Err(ExchangeError::Connection(error)) => error,
            // No request was sent that could be denied.
            _ => NatsError::Closed {
                address: self.connection.address.clone(),
                why: "it denies what was not asked for",
            },
        }
    }

    /// Sends `count` requests, which `put` writes with the subjects of their answers, and returns the
    /// answers in this order. Ends if neither a byte could be sent nor an answer came for `limit`.
    /// What is no answer according to `is_answer` is passed over.
    pub(crate) async fn request_all(
        &mut self,
        count: usize,
        limit: Duration,
        is_answer: impl Fn(&Answer) -> bool,
        put: impl FnMut(&mut Vec<u8>, usize, &str),
    ) -> Result<Vec<Answer>, ExchangeError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        self.answers(count, Some(limit), is_answer, put).await
    }

    /// Sends requests and waits for their answers. `limit`: `None` to go on until the connection ends.
    async fn answers(
        &mut self,
        count: usize,
        limit: Option<Duration>,
        is_answer: impl Fn(&Answer) -> bool,
        mut put: impl FnMut(&mut Vec<u8>, usize, &str),
    ) -> Result<Vec<Answer>, ExchangeError> {
        let Self {
            connection,
            unsent,
            written,
            last_token,
            stats,
        } = self;
        let first = *last_token + 1;
        *last_token += count as u64;
        for number in 0..count {
            let reply = format!("{}.{}", connection.inbox, first + number as u64);
            put(unsent, number, &reply);
        }
        let mut answers = Answers::new(count, is_answer);
        let Connection {
            stream,
            address,
            input,
            info,
            inbox,
        } = connection;
        let (mut reader, mut writer) = split(stream);
        let open = stats.as_ref().filter(|_| count > 0);
        let open = open.map(|stats| OpenRequest::new(stats, address));
        let note_sign = || {
            if let Some(open) = &open {
                open.answered();
            }
        };
        let mut progress = Instant::now();
        let mut unflushed = !unsent.is_empty();
        // One answer is enough for all questions of a server that reads nothing.
        let mut owes_pong = false;
        loop {
            while let Some(operation) = input.next().map_err(|error| protocol(address, error))? {
                match operation {
                    Operation::Message {
                        subject,
                        status,
                        payload,
                    } => {
                        if let Some(number) = number_of(subject, inbox, first)
                            && answers.add(number, status, payload)
                        {
                            progress = Instant::now();
                            note_sign();
                        }
                    }
                    Operation::Ping => owes_pong = true,
                    Operation::Info(json) => {
                        *info =
                            ServerInfo::parse(json).map_err(|error| protocol(address, error))?;
                    }
                    Operation::Error(text) => {
                        return Err(ExchangeError::from_server(address, text));
                    }
                    Operation::Pong | Operation::Ok => {}
                }
            }
            if unsent.is_empty() && std::mem::take(&mut owes_pong) {
                unsent.extend_from_slice(b"PONG\r\n");
                unflushed = true;
            }
            if answers.missing == 0 && limit.is_some() {
                return Ok(answers.received.into_iter().flatten().collect());
            }
            let io = |source| io_error(address, source);
            select! {
                read = fill(input, &mut reader) => read.map_err(io)?,
                wrote = write(unsent.get(*written..).unwrap_or_default(), &mut writer), if unflushed => {
                    let wrote = wrote.map_err(io)?;
                    unflushed = wrote > 0;
                    *written += wrote;
                    if *written >= unsent.len() {
                        unsent.clear();
                        *written = 0;
                    }
                    progress = Instant::now();
                    note_sign();
                }
                () = expired(limit.map(|limit| progress + limit)) => {
                    return Err(NatsError::from(ConnectError::Timeout {
                        address: address.clone(),
                        seconds: limit.unwrap_or_default().as_secs(),
                    })
                    .into());
                }
            }
        }
    }
}

/// Returns which of the requests beginning with the token `first` a subject is of.
fn number_of(subject: &[u8], inbox: &str, first: u64) -> Option<usize> {
    let token = subject.strip_prefix(inbox.as_bytes())?.strip_prefix(b".")?;
    let token: u64 = std::str::from_utf8(token).ok()?.parse().ok()?;
    usize::try_from(token.checked_sub(first)?).ok()
}

async fn fill(input: &mut Input, reader: &mut (impl AsyncRead + Unpin)) -> std::io::Result<()> {
    input.fill(reader).await
}

/// Writes some bytes, or flushes if there are none. Can be cancelled.
async fn write(bytes: &[u8], writer: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<usize> {
    if bytes.is_empty() {
        return writer.flush().await.map(|()| 0);
    }
    writer.write(bytes).await
}

async fn expired(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
