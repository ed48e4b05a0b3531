//! Maps each error of the crates below to a [`Failure`]: what is wrong, the exit code, the remedy.

mod events;

use walrelay_failure::{Exit, Failure, ToFailure};
use walrelay_lsn::Lsn;
use walrelay_observe::EndpointError;
use walrelay_postgres_source::{PostgresError, log_failure};
use walrelay_relay::{CoreError, PipelineError};
use walrelay_sink::Disposition;

pub(crate) use events::{messages, plan, schema, schema_file, unregistered};
use events::{plan_within_stream, route};

pub(crate) fn endpoint(error: EndpointError) -> Failure {
    let (exit, remedy) = match &error {
        EndpointError::Listen { .. } => (
            Exit::Config,
            "choose another address for [http] listen: another process has this one, or this machine has not",
        ),
        EndpointError::Tls { .. } => (
            Exit::Config,
            "[http.tls] needs a chain of certificates and its key, both PEM files that the relay's user can read",
        ),
        EndpointError::Thread(_) => (
            Exit::Unavailable,
            "see the limits of the system and the user",
        ),
    };
    Failure::new("http-endpoint", exit, "the HTTP endpoint cannot be served")
        .caused_by(error)
        .remedy(remedy)
}

pub(crate) fn pipeline<K: ToFailure>(error: PipelineError<PostgresError, K>) -> Failure {
    let what = error.to_string();
    match error {
        PipelineError::Source(error) => error.into(),
        // A start finds out whether the password of then is still meant: its exit code says so.
        PipelineError::StillRefused(error) => Failure {
            exit: Exit::Temporary,
            ..error.into()
        },
        PipelineError::Sink(error) => error.to_failure(),
        PipelineError::Core(error) => core(error),
        PipelineError::Delivery { source, event, .. } => {
            let exit = match source.disposition {
                Disposition::Configuration => Exit::Config,
                Disposition::Retryable | Disposition::Fatal => Exit::Data,
            };
            let failure = if event.is_some_and(|event| event.dead_letter) {
                Failure::new("dlq-write", exit, what).remedy(
                    "the topic of dead letters, which the cause names, refuses the record: raise its \
                     max.message.bytes, create it, or allow the principal WRITE and DESCRIBE on it. \
                     Then start again: neither this event nor anything after it was confirmed",
                )
            } else {
                Failure::new("delivery", exit, what).remedy(
                    "nothing after it was confirmed: mend the cause and start again. The row is in \
                     the outbox table, and in the log at the position given. [poison] can make a dead \
                     letter of such an event instead: docs/operate/troubleshooting.md, \"An event cannot be \
                     delivered\"",
                )
            };
            failure.caused_by(source)
        }
        PipelineError::Log(error) => log_failure(&error),
        PipelineError::Unsendable {
            xid,
            commit,
            source,
            ..
        } => {
            // The decoder skips a transaction whose commit record starts before the slot's position
            // (SnapBuildXactNeedsSkip in snapbuild.c).
            let after = Lsn::new(commit.get().saturating_add(1));
            Failure::new("unsendable", Exit::Data, what)
                .caused_by(source)
                .remedy(format!(
                    "the cause names the fault of the row that follows. The transaction's rows are \
                     those WHERE xmin = '{xid}'::xid; everything before it is delivered. To pass \
                     over the whole transaction: walrelay slots advance SLOT --to {after}, start \
                     again (with a state_file once with --accept-gap), and insert again those of \
                     its rows that can be sent: docs/operate/troubleshooting.md, \"A row cannot be \
                     sent\""
                ))
        }
        // The relay retries these for as long as it runs, so a run does not end with them.
        other => Failure::new("postgres-unreachable", Exit::Unavailable, what)
            .caused_by(other.to_string())
            .remedy("see whether Postgres runs, and start again"),
    }
}

/// Corrects the remedy of `unsendable` for a copy of a slot: the slot itself is not to be moved.
pub(crate) fn correct_for_copy(failure: Failure) -> Failure {
    if failure.id != "unsendable" {
        return failure;
    }
    failure.remedy(
        "the cause names the fault of the row that follows. The slot itself need not be moved for \
         this: a relay that reads it stops at the transaction as well, and names the way out. \
         walrelay replay can begin behind it, with --from and a later position",
    )
}

/// Makes a failure of the relay's core: of an event, a table or the protocol.
pub(crate) fn core(error: CoreError) -> Failure {
    let what = error.to_string();
    match error {
        CoreError::Plan { source, .. } => plan_within_stream(&what, source),
        CoreError::UnknownTable { table, gone } => {
            let now = if gone {
                ""
            } else {
                "add it to [source] tables, or "
            };
            Failure::new("table-unknown", Exit::Config, what).remedy(format!(
                "everything before it is confirmed. If its rows are events, {now}start with \
                 [source] former_tables = [\"{table}\"] to send them. If no consumer needs them, \
                 start with --pass-over {table}: its rows are confirmed and not sent. Either stays \
                 necessary until the slot has passed these rows: docs/operate/troubleshooting.md, \
                 \"An outbox was renamed, detached or dropped\""
            ))
        }
        CoreError::AboveOutbox { table, partition } => {
            Failure::new("table-above-outbox", Exit::Config, what).remedy(format!(
                "everything before it is confirmed. Put {table} in the place of {partition} in \
                 [source] tables, with publish_via_partition_root = true in the publication: rows \
                 under either name are then sent as those of {table}. If no row of {table} is an \
                 event, start with --pass-over {table}: its rows are confirmed and not sent"
            ))
        }
        CoreError::Route { source, .. } => route(what, *source),
        CoreError::OfDeadLetters { .. } => Failure::new("unroutable", Exit::Data, what).remedy(
            "everything before it is confirmed. Start again with [poison] unroutable = \
             \"dead-letter\" (--set poison.unroutable=dead-letter) to keep the event as a dead \
             letter and go on, or \"skip\" to pass it over; and let no event have the topic of \
             [poison], or a header whose name begins with walrelay.dlq.",
        ),
        CoreError::Schema { source, .. } => Failure {
            what,
            ..schema(source)
        },
        CoreError::Message { source, .. } => Failure::new("message", Exit::Data, what)
            .caused_by(source)
            .remedy(
                "everything before it is confirmed. Write such events with outbox.emit, which \
                 refuses messages that are no events: docs/reference/configuration.md, \
                 \"[source.messages]\". To go on, start again with [poison] undecodable or \
                 unroutable = \"dead-letter\" (--set poison.undecodable=dead-letter), or \"skip\"",
            ),
        CoreError::NotTransactional { .. } => {
            Failure::new("message-not-transactional", Exit::Data, what).remedy(
                "emit it with true as the first argument, or with outbox.emit. Everything before \
                 it is confirmed. If no consumer needs this one, start once with --set \
                 poison.unroutable=skip",
            )
        }
        CoreError::PositionTooHigh { .. } => Failure::new("position-too-high", Exit::Data, what)
            .remedy("move the outbox to a server whose log begins lower: walrelay move"),
        CoreError::Update { .. } => Failure::new("outbox-updated", Exit::Data, what).remedy(
            "events are inserted rows, and table.op.invalid.behavior = \"fatal\" asks for this. \
             Have the publication carry insertions only (ALTER PUBLICATION … SET (publish = \
             'insert')), or start with [router.debezium] \"table.op.invalid.behavior\" = \"warn\": \
             the update itself is never sent. Everything before it is confirmed",
        ),
        CoreError::SinkPosition { .. } => Failure::new("sink-position", Exit::Data, what).remedy(
            "the events of the sink were written from another log: of another server, of a server \
             before it was restored, or of one that lost its end in a failover. Nothing was sent \
             from here. Find out which events the sink has, and use a new sink, or remove the \
             position that it stores",
        ),
        CoreError::Decode { source, .. } => Failure::new("undecodable", Exit::Internal, what)
            .caused_by(source)
            .remedy(BUG),
        CoreError::Ledger { source, .. } => Failure::new("ledger", Exit::Internal, what)
            .caused_by(source)
            .remedy(BUG),
        _ => Failure::new("protocol", Exit::Internal, what).remedy(BUG),
    }
}

const BUG: &str = "this is a bug in walrelay or in the server; nothing was confirmed past it. \
                   Please report it with the server's version";
