//! What sinks share that keep one connection on a thread of their own.
//!
//! # Contents
//! - [`Servers`]: connects to the first server that answers. [`TlsFiles`]: the keys of TLS, and its settings;
//!   [`expiry_warning`]: of the client's certificate.
//!   [`Stream`]: what a connection is then. [`within`]: bounds a wait.
//! - [`ConnectError`], [`ClientError`]: why there is no connection. [`certificate_fault`]: what is
//!   wrong with a certificate.
//! - [`SinkThread`]: a thread with an asynchronous client, and the end of both. [`Shared`], [`SinkState`]:
//!   what it shares with the sink. [`Queue`]: the accepted records. [`BatchQueue`]: those of a sink that
//!   sends batches. [`Failure`]: why all of them failed.
//! - [`Reconnects`]: connects as often as it needs. [`Connected`]: what it makes. [`pause`]: the pauses between.
//! - [`Patience`]: for how long refusals that may pass are waited for.
//! - [`host_and_port`]: an address of the configuration. [`run_apart`], [`Apart`]: calls that
//!   connect, and block.
//!
//! # Invariants
//! - Certificates are always verified.
//! - A record is reported once: by [`Shared::report`] when it was taken out of the queue, or by the end
//!   of the thread, which fails all that the queue has. The end of a thread that panics, too.
//! - No error shows a password, or a part of a record.

#![forbid(unsafe_code)]

mod address;
mod batch_queue;
mod certificates;
mod client_thread;
mod connect;
mod patience;
mod reconnects;
mod shared;
mod thread;
mod tls;

pub use address::{address_fault, host_and_port};
pub use batch_queue::{BatchQueue, Held};
pub use certificates::certificate_fault;
pub use client_thread::{Apart, run_apart};
pub use connect::{ClientError, ConnectError, Servers, Stream, reset_on_close, within};
pub use patience::Patience;
pub use reconnects::{Connected, Reconnects, pause};
pub use shared::{FOREVER, Failure, Queue, Shared, SinkState, StateGuard};
pub use thread::SinkThread;
pub use tls::{TlsFiles, expiry_warning};
