//! Throwaway servers: a Postgres for one demonstration or one test, gone with its owner.
//!
//! ```no_run
//! use walrelay_lab::servers::{Postgres, Shutdown};
//!
//! let server = Postgres::builder().setting("max_wal_size", "1GB").start()?;
//! println!("connect to {}", server.url());
//! server.stop(Shutdown::Fast)?;
//! server.start_again()?; // same port, same data
//! # Ok::<(), walrelay_lab::servers::ThrowawayError>(())
//! ```
//!
//! # Contents
//! - [`Postgres`], [`Builder`]: the server, ready for logical replication (`wal_level=logical`).
//!   [`Shutdown`], [`Auth`], [`ThrowawayError`] belong to it. [`Postgres::standby`] makes it a standby.
//! - [`PostgresBinaries`], [`Version`]: an installed server and where it was found.
//! - [`Process`], [`Scratch`], [`Account`], [`Signal`]: what any throwaway server is made of. The
//!   tests' Kafka is built from the same parts.
//! - [`ChildGuard`], [`end_with_owner`]: a program that ends with whoever started it.
//! - [`cache_dir`]: where downloaded servers lie. `scripts/fetch-servers.sh` has the same rule.
//!
//! # Invariants
//! - **Nothing outlives its owner.** Dropping a value stops the server and removes its directory; so
//!   does a panic that unwinds. Where destructors do not run (SIGKILL, `abort`, a `static`), a small
//!   shell, the *janitor*, sees its pipe from the owner close, ends the server and removes the
//!   directory.
//! - A process is signalled and reaped under one lock: a signal can never reach a stranger that was
//!   given the same pid.
//! - Started by root, the server runs as `postgres` where that account exists, else as `nobody`:
//!   Postgres refuses to run as root.
//! - A signal from the terminal (Ctrl-C) reaches the owner only: servers have their own process
//!   group.
//! - Nothing here prints a password: `Debug` leaves it out. [`Postgres::url`] contains it.

mod account;
mod binaries;
mod builder;
mod child;
mod error;
mod files;
mod janitor;
mod postgres;
mod process;
mod signal;
mod standby;

pub use account::Account;
pub use binaries::{PostgresBinaries, Version, cache_dir};
pub use builder::{Auth, Builder};
pub use child::{ChildGuard, end_with_owner};
pub use error::ThrowawayError;
pub use janitor::Scratch;
pub use postgres::{Postgres, Shutdown};
pub use process::Process;
pub use signal::Signal;
