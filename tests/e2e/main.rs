//! Tests of the binary `walrelay` between a real Postgres and a real Kafka. They use the history
//! checker of `walrelay-testkit`.
//!
//! - [`history`]: committed rows arrive, in order per key, from Postgres 15 and 18.
//! - [`confirming`]: no position is confirmed before the broker has all records before it.
//! - [`crashes`]: SIGKILL, SIGTERM, servers that go away, connections that are cut.
//! - [`cutover`]: from a polling relay to walrelay, and back.
//! - [`slots`]: a slot that is lost, dropped, moved or another cluster's stops the relay with the
//!   range.
//! - [`modes`]: one producer for latency and one for throughput, and the order of records between
//!   them.
//! - [`idle`], [`large`]: no harm to the primary: idle slots move, memory is bounded.
//! - [`poison`]: an event that cannot be delivered stops the relay, and nothing is lost;
//!   [`dead_letters`]: or it goes elsewhere, by the policy.
//! - [`presets`]: tables of other designs than Debezium's, and own routes; `route` shows what `run`
//!   sends, `check` compares with the table.
//! - [`publication_changes`]: a publication that leaves rows out stops the relay with the range.
//! - [`unfit_tables`]: tables of which the log lacks rows or content, or has an event twice.
//! - [`places`]: the log has tables and columns by their names of then.
//! - [`conformance`]: the sink keeps the promises of every sink.
//! - [`every_sink`]: each sink has each event, in order, while the relay is killed.
//! - [`rabbitmq`]: events are published to RabbitMQ; [`redis`]: written to Redis;
//!   [`nats`]: published to NATS.
//! - [`position`]: the header with an event's position.
//! - [`postgres_19`]: logical decoding that the slot switches on.
//! - [`debezium`]: columns of all types arrive as Debezium writes them, with envelope and headers.
//! - [`registry`]: values by the schemas of a registry, which is away, refuses, or has later ones;
//!   [`cloud_events`]: records as CloudEvents.
//! - [`topics`]: topics are created where configured, and waited for otherwise.
//! - [`endpoint`]: metrics, health and status over HTTP; [`alerts`]: each fault, its alert, its
//!   remedy.
//! - [`otel`]: metrics and spans for a collector. [`service_manager`]: the state for systemd.
//! - [`last_error`]: the error of a relay that has ended is shown by `status`, `check` and the next run.
//! - [`losses`]: what a destination has lost is shown over restarts, and how the former run ended.
//! - [`waiting`]: a relay that waits says for whom; [`shown`]: in each view by itself.
//! - [`logins`]: a login or a port that a sink's servers refuse, in the words of `check`.
//! - [`terminal`]: lines that fit, colours, closed pipes, questions. [`formats`]: what the first release has stored
//!   is read, and what a later one has stored is refused.
//! - [`errors`]: each error has its own id and exit code.
//! - [`commands`]: `init`, `check`, `completions`, standard output as a sink.
//! - [`check`]: `walrelay check` names each thing that is broken. [`slot_commands`]: `slots list`
//!   and the others.
//! - [`replay`]: bookmarks, and replays from them.
//! - [`bench`]: what `bench` measures, and that it leaves nothing behind.
//! - [`secure`]: TLS, logins, access control; least privileges; no secret in any output.
//! - [`dlq`]: dead letters are listed, shown, redriven and dropped; [`dlq_streams`]: in streams of Redis
//!   and NATS.
//! - [`prune`]: sent rows are deleted, no others. [`accounted`]: those that no relay sent stay.
//!   [`open_dead_letters`]: nor are rows marked or deleted whose events are dead letters. [`marks`]: a row is
//!   marked because its event was acknowledged, before the position is confirmed. [`old_rows`]: their outboxes.
//! - [`batches`]: several events in one message, by `outbox.emit_all`.
//! - [`emitting`]: events without a table, by `outbox.emit`.
//! - [`quoting`]: names with quotes, dollars and newlines are names in every statement.
//! - [`import_debezium`]: converts a configuration of Debezium's and takes over its slot.
//! - [`page`]: the status page in a browser.
//! - [`snapshot`]: rows from before the slot are relayed once, before the stream.
//! - [`children`]: programs that a test started end with the test.
//! - [`docs`]: the statements of README, OPERATIONS and other documents are true.
//!
//! One Kafka serves all tests that do not stop it; each has topics of its own.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking with the reason, and says what it measured"
)]
#![expect(
    clippy::too_many_lines,
    reason = "a test is one story, from the setup to the end"
)]

/// Tests of one call each, a line per test.
macro_rules! tests {
    ($($(#[$meta:meta])* fn $name:ident() { $call:expr })*) => {
        $($(#[$meta])* #[test] fn $name() { $call; })*
    };
}

mod accounted;
mod alerts;
mod audit;
mod batches;
mod bench;
mod check;
mod children;
mod cloud_events;
mod commands;
mod confirming;
mod conformance;
mod crashes;
mod cutover;
mod dead_letters;
mod debezium;
#[allow(dead_code, reason = "shared with tests/faults, which uses all of it")]
#[path = "../faults/destination/mod.rs"]
mod destination;
mod dlq;
mod dlq_streams;
mod docs;
mod emitting;
mod endpoint;
mod errors;
mod event_page;
mod every_sink;
mod evidence_cost;
mod formats;
mod history;
mod http;
mod idle;
mod import_debezium;
mod large;
mod last_error;
mod logins;
mod losses;
mod marks;
mod modes;
mod moves;
mod nats;
mod old_rows;
mod open_dead_letters;
mod otel;
mod page;
mod places;
mod poison;
mod position;
mod position_notes;
mod postgres_19;
mod presets;
mod prune;
mod publication_changes;
mod quoting;
mod rabbitmq;
mod redis;
mod refusal_cost;
mod refusals;
mod registry;
mod replay;
mod rig;
mod secure;
mod service_manager;
mod shown;
mod slot_commands;
mod slots;
mod snapshot;
mod stuck;
mod terminal;
mod topics;
mod unfit_tables;
mod until;
mod verify_topic;
mod waits;
mod whereabouts;
