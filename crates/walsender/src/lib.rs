//! A client of Postgres' streaming replication protocol: TLS, authentication, framing, feedback.
//!
//! # Contents
//! - [`ConnInfo`]: where and how to connect, parsed strictly from a libpq connection string.
//! - [`Session`]: a connection that is logged in and takes commands: SQL by the simple protocol
//!   ([`Session::query`]), and those of the replication grammar ([`Session::identify_system`],
//!   [`Session::create_logical_slot`], [`Session::start_replication`]).
//! - [`ReplicationStream`]: frames in, status updates out. [`framing`] has the same as pure
//!   functions over bytes.
//! - [`Error`]: what failed; [`ErrorClass`]: what kind of failure it is, and whether to retry.
//! - [`quote_ident`], [`quote_literal`], [`dollar_quoted`]: names and strings in SQL.
//!
//! ```no_run
//! use walrelay_lsn::Lsn;
//! use walrelay_walsender::{ConnInfo, Error, Frame, Session, SessionKind, StartReplication};
//!
//! # async fn run() -> Result<(), Error> {
//! let info: ConnInfo = "postgres://relay@db1,db2/app?target_session_attrs=primary".parse()?;
//! let settings = [("wal_sender_timeout", "5s")];
//! let session = Session::connect(&info, SessionKind::Replication, &settings).await?;
//! let start = StartReplication {
//!     slot: "walrelay".to_owned(),
//!     start: Lsn::ZERO,
//!     publication: "walrelay".to_owned(),
//!     messages: true,
//! };
//! let mut stream = session.start_replication(&start).await?;
//! loop {
//!     stream.read().await?;
//!     while let Some(frame) = stream.peek()? {
//!         if let Frame::XLogData { body, .. } = frame {
//!             let _a_message_of_pgoutput: &[u8] = body;
//!         }
//!         stream.consume();
//!     }
//! }
//! # }
//! ```
//!
//! # Folders
//! Each uses only those after it: `session` (login, commands, the stream), `framing` (messages, the
//! buffer, the socket), `failure` (words for the operator), `error`, `tls`, `conninfo`.
//!
//! # Cancel safety
//! - [`ReplicationStream::read`] and [`ReplicationStream::flush`] can be dropped at any await and
//!   called again, as `select!` does: nothing that was read or half written is lost.
//! - If [`Session::query`] or a command built on it is dropped, the next command discards its
//!   answer. The statement may have taken effect.
//! - All other futures close the connection when they are dropped.
//!
//! # Invariants
//! - This crate does not interpret the body of an XLogData frame: it knows no pgoutput and no
//!   Kafka.
//! - Only a [`CommitEnd`](walrelay_lsn::CommitEnd) can be reported as flushed, and reported
//!   positions never go back.
//! - A length from the wire is checked before it is used to allocate or slice, and memory grows
//!   only with bytes that arrived. No bytes of the server can make this crate panic.
//! - An unknown message is an error, never skipped.
//! - No password and no value of a row is in an error, in `Debug` output or in a log line. The
//!   server's messages are passed on, except for details of the SQLSTATE classes 22 and 23, which
//!   quote values.
//! - Nothing is logged above `debug`.

#![forbid(unsafe_code)]

mod conninfo;
mod error;
mod failure;
pub mod framing;
#[doc(hidden)]
pub mod fuzzing;
mod quote;
mod secret_file;
mod session;
mod tls;
mod version;

pub use conninfo::{
    AuthMethods, ChannelBinding, ConnInfo, ConnInfoError, DEFAULT_PORT, DEFAULT_SOCKET_DIR, Host,
    HostAddr, Keepalives, RootCert, SecretString, SslMode, TargetSessionAttrs,
};
pub use error::{Error, ErrorClass, ServerError};
pub use failure::{conn_info_failure, error_words};
pub use framing::wire::Socket;
pub use framing::{Frame, StatusUpdate};
pub use quote::{dollar_quoted, quote_ident, quote_literal};
pub use session::{
    Ancestor, ColumnIndex, CopyItem, CopyOut, CreatedSlot, ReplicationStream, Row, Rows, Session,
    SessionKind, SlotOptions, StartReplication, SystemIdentity,
};
pub use tls::TlsError;
pub use version::ServerVersion;
