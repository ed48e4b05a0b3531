//! `walrelay`, the binary, between a real Postgres and a real Kafka. The history checker of
//! `walrelay-testkit` is the judge.
//!
//! - [`history`]: what was committed arrives, in order per key, from Postgres 15 and 18.
//! - [`confirming`]: no position is confirmed before the broker has what lies before it.
//! - [`crashes`]: SIGKILL, SIGTERM, servers that go away, connections that are cut.
//! - [`cutover`]: from a polling relay to walrelay, and back.
//! - [`slots`]: slots that are lost, dropped, moved or another cluster's stop the relay with the range.
//! - [`modes`]: one producer for latency and one for throughput, and the order of records between them.
//! - [`idle`], [`large`]: the primary is not hurt: idle slots move, memory is bounded.
//! - [`poison`]: what cannot be delivered stops the relay, and nothing is lost; [`dead_letters`]: or
//!   goes elsewhere, as the policy says.
//! - [`presets`]: tables that others than Debezium's users have, and routes of one's own; `route` shows
//!   what `run` sends, `check` compares with the table.
//! - [`position`]: the header that carries an event's position.
//! - [`debezium`]: columns of all types arrive as Debezium writes them, with envelope and headers.
//! - [`registry`]: values by the schemas of a registry, which is away, refuses, or has later ones;
//!   [`cloud_events`]: records as CloudEvents.
//! - [`topics`]: they are created where configured, and waited for where not.
//! - [`endpoint`]: metrics, health and status over HTTP; [`alerts`]: each fault, its alert, its remedy.
//! - [`otel`]: metrics and spans for a collector.
//! - [`errors`]: each mistake has its own word and exit code.
//! - [`commands`]: `init`, `check`, `completions`, standard output as a sink.
//! - [`check`]: the doctor names each thing that is broken. [`slot_commands`]: `slots list` and the others.
//! - [`replay`]: bookmarks, and what is sent again from them.
//! - [`bench`]: what `bench` measures, and that it leaves nothing behind.
//! - [`secure`]: TLS, logins, access control; that the relay needs no more, and tells no secret.
//! - [`dlq`]: dead letters are listed, shown, redriven and dropped.
//! - [`prune`]: confirmed rows are deleted, no other.
//! - [`emitting`]: events without a table, by `outbox.emit`.
//! - [`import_debezium`]: a configuration of Debezium's becomes one of walrelay's, which takes its slot over.
//! - [`page`]: the status page in a browser.
//! - [`snapshot`]: rows from before the slot are relayed once, before the log.
//! - [`children`]: what a test has started ends with the test.
//! - [`docs`]: what README, OPERATIONS and GUARANTEES say is so.
//!
//! One Kafka serves all tests that do not stop it; each has topics of its own.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking with the reason, and says what it measured"
)]

mod alerts;
mod bench;
mod check;
mod children;
mod cloud_events;
mod commands;
mod confirming;
mod crashes;
mod cutover;
mod dead_letters;
mod debezium;
mod dlq;
mod docs;
mod emitting;
mod endpoint;
mod errors;
mod history;
mod idle;
mod import_debezium;
mod large;
mod modes;
mod otel;
mod page;
mod poison;
mod position;
mod presets;
mod prune;
mod registry;
mod replay;
mod rig;
mod secure;
mod slot_commands;
mod slots;
mod snapshot;
mod topics;
