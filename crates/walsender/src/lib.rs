//! A client of Postgres' streaming replication protocol: TLS, authentication, framing, feedback.
//!
//! # Contents
//! - [`ConnInfo`]: where and how to connect, a libpq connection string read strictly.
//! - [`Session`]: a connection that is logged in and takes commands: SQL by the simple protocol
//!   ([`Session::query`]), and those of the replication grammar ([`Session::identify_system`],
//!   [`Session::create_logical_slot`], [`Session::start_replication`]).
//! - [`ReplicationStream`]: frames in, status updates out. [`framing`] has the same as pure functions
//!   over bytes.
//! - [`Error`]: what went wrong; [`ErrorClass`]: what that means, and whether to try again.
//! - [`quote_ident`], [`quote_literal`]: names and strings in SQL.
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
//!     publications: vec!["walrelay".to_owned()],
//!     messages: true,
//!     proto_version: 1,
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
//! buffer, the socket), `error`, `tls`, `conninfo`.
//!
//! # Cancel safety
//! - [`ReplicationStream::read`] and [`ReplicationStream::flush`] can be dropped at any await and
//!   called again; nothing that was read or half written is lost. They are made for `select!`.
//! - [`Session::query`] and the commands built on it leave their answer to be read by the next
//!   command, which throws it away. The statement may have taken effect.
//! - [`Session::connect`], [`Session::start_replication`], [`ReplicationStream::finish`] and the
//!   `close` methods take the connection with them when they are dropped.
//!
//! # Ordering
//! Frames are delivered in the order in which the server sent them, and a failure behind the last
//! whole frame before it. Status updates are written in the order in which they were queued; one
//! that has not begun to be written is replaced by the next.
//!
//! # Invariants
//! - What is inside an XLogData frame is bytes to this crate: it knows no pgoutput and no Kafka.
//! - Only a [`CommitEnd`](walrelay_lsn::CommitEnd) can be reported as flushed, and what is reported
//!   never goes back.
//! - A length that came over the wire is checked before anything is reserved or sliced by it, and
//!   nothing is reserved before it arrives. No bytes of the server can make this crate panic.
//! - A message that is not known is an error, never skipped.
//! - No password, and no value of a row, is in an error, a `Debug` form or a log line. What the
//!   server writes in its own messages is passed on (but for the details of the SQLSTATE classes 22
//!   and 23, which quote values).
//! - Nothing is logged above `debug`: the caller knows what matters.

#![forbid(unsafe_code)]

mod conninfo;
mod error;
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
pub use error::{Error, ErrorClass, ServerError, SqlState};
pub use framing::wire::Socket;
pub use framing::{Frame, StatusUpdate};
pub use quote::{quote_ident, quote_literal};
pub use session::{
    Ancestor, ColumnIndex, CreatedSlot, ReplicationStream, Row, Rows, Session, SessionKind,
    SlotOptions, StartReplication, SystemIdentity,
};
pub use tls::TlsError;
pub use version::ServerVersion;
