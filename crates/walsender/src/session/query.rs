//! Sessions, and SQL by the simple query protocol.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, Message, RowDescriptionBody};
use postgres_protocol::message::frontend;
use tokio::time::timeout;

use super::rows::Rows;
use crate::conninfo::Host;
use crate::error::{Error, ServerError};
use crate::framing::wire::{Allowance, Incoming, Wire};
use crate::version::ServerVersion;

/// Memory of a row beside its bytes on the wire, and of each value in it.
const ROW_MEMORY: usize = 64;
const VALUE_MEMORY: usize = 32;
/// Parameters that a server reports at most; Postgres 18 reports 15.
const MOST_PARAMETERS: usize = 100;
/// Bytes of a parameter's name and value.
const LONGEST_PARAMETER: usize = 64 * 1024;

/// A connection that is logged in and ready for commands by the simple query protocol.
///
/// # Cancel safety
/// If the future of a command is dropped, the server goes on with the command: the next command
/// first waits for its end and discards its answer. After [`Error::Io`], [`Error::Closed`],
/// [`Error::Protocol`] or a FATAL error the session cannot be used any more.
///
/// Dropping a session closes the socket; [`Session::close`] sends Terminate first.
#[derive(Debug)]
pub struct Session {
    pub(crate) wire: Wire,
    host: Host,
    parameters: Vec<(String, String)>,
    version: ServerVersion,
    backend_pid: i32,
    /// The number of ReadyForQuery messages that have not been received for commands that were
    /// sent.
    pub(super) pending_answers: u32,
    /// The longest time that the answers to one call may take.
    answer_limit: Option<Duration>,
}

impl Session {
    pub(crate) fn new(
        wire: Wire,
        host: Host,
        parameters: Vec<(String, String)>,
        backend_pid: i32,
    ) -> Result<Self, Error> {
        let version = parameters
            .iter()
            .find(|(name, _)| name == "server_version")
            .and_then(|(_, value)| ServerVersion::parse(value))
            .ok_or_else(|| Error::protocol("the server does not report its version"))?;
        tracing::debug!(host = %host, %version, encrypted = wire.is_encrypted(), "logged in");
        Ok(Self {
            wire,
            host,
            parameters,
            version,
            backend_pid,
            pending_answers: 0,
            answer_limit: None,
        })
    }

    /// Limits the time that the answers to one call of [`query`](Self::query),
    /// [`query_within`](Self::query_within) or [`query_all`](Self::query_all) may take as a whole, those
    /// to dropped commands before them included. A `statement_timeout` holds for a server that keeps
    /// to it; this limit holds for any.
    pub fn limit_answers(&mut self, after: Duration) {
        self.answer_limit = Some(after);
    }

    /// Returns a parameter as the server reported it last: `server_version`, `in_hot_standby`,
    /// `TimeZone` …
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns the server's version.
    pub fn server_version(&self) -> ServerVersion {
        self.version
    }

    /// Returns the host of this session.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns true if the connection is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.wire.is_encrypted()
    }

    /// Returns the process that serves this session, as in `pg_stat_activity.pid`.
    pub fn backend_pid(&self) -> i32 {
        self.backend_pid
    }

    /// Returns true if nothing has arrived since the last answer. Then the server has not ended the
    /// session, as far as this machine knows. Otherwise a query tells: a server also reports
    /// changed parameters and notices unasked. Does not wait; costs one system call.
    pub fn is_quiet(&self) -> bool {
        self.pending_answers == 0 && self.wire.is_quiet()
    }

    /// Runs one statement, or several separated by semicolons (then in one transaction, unless they
    /// contain transaction commands). Returns the rows of the last statement that returned rows.
    ///
    /// All rows are held in memory: use it for catalogs, not for data.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the answer has more than 32 MiB. [`Error::Server`] for the first error; the session remains usable unless the error is FATAL.
    /// `COPY … FROM STDIN` fails; the rows of `COPY … TO STDOUT` are discarded.
    pub async fn query(&mut self, sql: &str) -> Result<Rows, Error> {
        let mut answers = self.query_all(&[sql]).await?;
        Ok(answers.pop().unwrap_or_default())
    }

    /// Runs a statement like [`query`](Self::query), whose answer may take as much as `bytes` of
    /// memory: for lists that grow with the data.
    pub async fn query_within(&mut self, sql: &str, bytes: usize) -> Result<Rows, Error> {
        let mut answers = self.run_all(&[sql], Allowance::from_bytes(bytes)).await?;
        Ok(answers.pop().unwrap_or_default())
    }

    /// Runs each statement like [`query`](Self::query), and returns the rows of each. The
    /// statements are sent together, so that all take one round trip. They must be short: nothing
    /// is read before all of them are written.
    ///
    /// # Errors
    /// The error of the first statement that fails. The server runs the others in any case.
    pub async fn query_all(&mut self, statements: &[impl AsRef<str>]) -> Result<Vec<Rows>, Error> {
        self.run_all(statements, Allowance::answer()).await
    }

    async fn run_all(
        &mut self,
        statements: &[impl AsRef<str>],
        allowance: Allowance,
    ) -> Result<Vec<Rows>, Error> {
        let Some(after) = self.answer_limit else {
            return self.answers(statements, allowance).await;
        };
        // Boxed, because the future is large.
        let answers = Box::pin(self.answers(statements, allowance));
        if let Ok(answers) = timeout(after, answers).await {
            return answers;
        }
        let host = self.host.to_string().into();
        Err(Error::NoAnswer { host, after })
    }

    async fn answers(
        &mut self,
        statements: &[impl AsRef<str>],
        mut allowance: Allowance,
    ) -> Result<Vec<Rows>, Error> {
        self.settle().await?;
        self.wire.skipped_publication = None;
        for sql in statements {
            self.wire
                .queue("the statement", |out| frontend::query(sql.as_ref(), out))?;
            self.pending_answers += 1;
        }
        let mut answers = Vec::with_capacity(statements.len());
        for _ in statements {
            let mut rows = Rows::default();
            match self.answer(Some(&mut rows), &mut allowance).await? {
                Answer::Done => answers.push(rows),
                Answer::CopyBoth => {
                    return Err(Error::protocol(
                        "replication must be started with Session::start_replication",
                    ));
                }
            }
        }
        match self.wire.skipped_publication.take() {
            Some(warning) => Err(Error::Server(Arc::new(warning))),
            None => Ok(answers),
        }
    }

    /// Waits for the end of a command whose future was dropped.
    pub(super) async fn settle(&mut self) -> Result<(), Error> {
        while self.pending_answers > 0 {
            match self.answer(None, &mut Allowance::discarded()).await {
                Ok(Answer::Done) => {}
                Ok(Answer::CopyBoth) => {
                    return Err(Error::protocol("a dropped command started replication"));
                }
                // The error belongs to the dropped command.
                Err(Error::Server(error)) if !error.ends_session() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes queued messages, and reads up to the next ReadyForQuery or CopyBothResponse. Without
    /// `rows` the rows are discarded, and reading may begin in the middle of an answer.
    pub(super) async fn answer(
        &mut self,
        mut rows: Option<&mut Rows>,
        allowance: &mut Allowance,
    ) -> Result<Answer, Error> {
        self.wire.flush().await?;
        let mut failure: Option<Error> = None;
        loop {
            let incoming = match self.wire.receive(allowance).await {
                Ok(Incoming::Message(message)) => message,
                Ok(Incoming::CopyBoth) => return Ok(Answer::CopyBoth),
                Err(error @ Error::Protocol { .. }) => return Err(error),
                // An error of the server explains more than the loss of the connection.
                Err(error) => return Err(failure.unwrap_or(error)),
            };
            match incoming {
                Message::ReadyForQuery(_) => {
                    self.pending_answers = self.pending_answers.saturating_sub(1);
                    return failure.map_or(Ok(Answer::Done), Err);
                }
                Message::RowDescription(body) => {
                    if let Some(rows) = &mut rows {
                        rows.begin(column_names(&body)?);
                    }
                }
                Message::DataRow(body) => {
                    if let Some(rows) = &mut rows {
                        let row = values(&body)?;
                        allowance.spend(ROW_MEMORY + VALUE_MEMORY * row.len())?;
                        rows.push(row)?;
                    }
                }
                Message::ErrorResponse(body) => {
                    let error = ServerError::parse(body.fields());
                    if error.ends_session() {
                        return Err(error.into());
                    }
                    failure.get_or_insert(error.into());
                }
                Message::ParameterStatus(body) => {
                    let text = |part: io::Result<&str>| part.unwrap_or_default().to_owned();
                    let (name, value) = (text(body.name()), text(body.value()));
                    note_parameter(&mut self.parameters, name, value)?;
                }
                Message::CopyInResponse(_) => {
                    self.wire.queue("a refusal", |out| {
                        frontend::copy_fail("COPY FROM STDIN is not supported", out)
                    })?;
                    self.wire.flush().await?;
                }
                Message::CommandComplete(_)
                | Message::EmptyQueryResponse
                | Message::CopyOutResponse(_)
                | Message::CopyData(_)
                | Message::CopyDone => {}
                _ => return Err(Error::protocol("unexpected answer to a command")),
            }
        }
    }

    /// Ends the session in order. Errors are ignored, because the session is over in any case.
    pub async fn close(self) {
        self.wire.terminate().await;
    }
}

/// Notes a parameter as the server reported it last.
///
/// # Errors
/// [`Error::Protocol`] for too many parameters, or one that is too long.
pub(super) fn note_parameter(
    parameters: &mut Vec<(String, String)>,
    name: String,
    value: String,
) -> Result<(), Error> {
    if name.len() + value.len() > LONGEST_PARAMETER {
        return Err(Error::protocol(
            "the server reports a parameter of more than 64 KiB",
        ));
    }
    let full = parameters.len() == MOST_PARAMETERS;
    match parameters.iter_mut().find(|(known, _)| *known == name) {
        Some((_, known)) => *known = value,
        None if full => {
            return Err(Error::protocol(
                "the server reports more than 100 parameters",
            ));
        }
        None => parameters.push((name, value)),
    }
    Ok(())
}

pub(super) enum Answer {
    Done,
    CopyBoth,
}

fn column_names(body: &RowDescriptionBody) -> Result<Vec<String>, Error> {
    body.fields()
        .map(|field| Ok(field.name().to_owned()))
        .collect()
        .map_err(|error| Error::malformed("RowDescription", &error))
}

fn values(body: &DataRowBody) -> Result<Vec<Option<String>>, Error> {
    let text = |range: std::ops::Range<usize>| {
        str::from_utf8(&body.buffer()[range])
            .map(str::to_owned)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    };
    body.ranges()
        .map(|range| range.map(text).transpose())
        .collect()
        .map_err(|error| Error::malformed("DataRow", &error))
}
