//! Throwaway servers: a Postgres or RabbitMQ for one demonstration or one test, removed with its
//! owner.
//!
//! ```no_run
//! use walrelay_throwaway::{Postgres, Shutdown};
//!
//! let server = Postgres::builder().setting("max_wal_size", "1GB").start()?;
//! println!("connect to {}", server.url());
//! server.stop(Shutdown::Fast)?;
//! server.start_again()?; // same port, same data
//! # Ok::<(), walrelay_throwaway::ThrowawayError>(())
//! ```
//!
//! # Contents
//! - [`Postgres`], [`Builder`]: the server, ready for logical replication (`wal_level=logical`).
//!   [`Shutdown`], [`ThrowawayError`] belong to it. [`Postgres::standby`] creates a standby of it.
//!   [`Template`]: the data directory that several servers begin with.
//! - [`PostgresBinaries`], [`Version`]: an installed server and where it was found.
//! - [`RabbitMqServer`], [`RabbitMqOptions`], [`RabbitMqBinaries`]: a RabbitMQ server with its own
//!   port mapper.
//! - [`ServerProcess`]: a server that is stopped and started again, with its directory. [`Process`], [`Port`],
//!   [`Scratch`], [`Account`], [`Signal`]: the parts of any throwaway server. Those of the tests are built from them
//!   too.
//! - [`ChildGuard`], [`end_with_owner`]: a program that ends with the process that started it.
//! - [`Pauses`]: the pauses of a loop that waits for something.
//! - [`copy_dir`]: copies a data directory. [`cache_dir`]: the directory of downloaded servers.
//!   `scripts/cache-dir.sh` has the same rule.
//!
//! # Invariants
//! - **No server outlives its owner.** Dropping a value stops the server and removes its directory;
//!   so does a panic that unwinds. Where destructors do not run (SIGKILL, `abort`, a `static`), a
//!   small shell, the *janitor*, notices that its pipe from the owner closes, ends the server and
//!   removes the directory.
//! - A process is signalled and reaped under one lock, so a signal never reaches another process
//!   that was given the same pid.
//! - If root starts it, the server runs as `postgres` if that account exists, else as `nobody`:
//!   Postgres refuses to run as root.
//! - A signal from the terminal (Ctrl-C) reaches only the owner: servers have process groups of
//!   their own.
//! - No output contains a password: `Debug` omits it. [`Postgres::url`] contains it.

#![forbid(unsafe_code)]

mod account;
mod binaries;
mod builder;
mod child;
mod error;
mod files;
mod initdb;
mod janitor;
mod pauses;
mod port;
mod postgres;
mod process;
mod rabbitmq;
mod server;
mod signal;
mod standby;
mod sync;
mod template;

pub use account::Account;
pub use binaries::{PostgresBinaries, Version, cache_dir};
pub use builder::Builder;
pub use child::{ChildGuard, end_with_owner};
pub use error::ThrowawayError;
pub use files::copy_dir;
pub use janitor::Scratch;
pub use pauses::Pauses;
pub use port::Port;
pub use postgres::{Postgres, Shutdown};
pub use process::Process;
pub use rabbitmq::{RabbitMqBinaries, RabbitMqOptions, RabbitMqServer};
pub use server::ServerProcess;
pub use signal::Signal;
pub use template::Template;
