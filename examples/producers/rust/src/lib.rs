//! Writes an event in the transaction of the change that it tells of. For tokio-postgres.
//!
//! ```ignore
//! let transaction = client.transaction().await?;
//! transaction.execute("INSERT INTO orders ...", &[]).await?;
//! let event = Event { id: None, aggregate: "Order", key: "42", kind: "OrderPlaced" };
//! emit(&transaction, Table::Debezium, &event, &json!({ "total": 12.5 })).await?;
//! transaction.commit().await?;
//! ```
//!
//! Copy this file, and keep the statement of your table.

use serde::Serialize;
use serde_json::json;
use tokio_postgres::Transaction;
use uuid::Uuid;

/// A shape of table that walrelay has a preset for, or the function `outbox.emit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Debezium,
    /// The id is a bigserial; that of the event is not used.
    EventsOutbox,
    OutboxEvents,
    Outbox,
    Message,
}

impl Table {
    /// The statement. The event is written only if the transaction has changed something: the number
    /// of rows tells.
    fn statement(self) -> String {
        let write = match self {
            Self::Debezium => {
                "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
                 SELECT coalesce(e.id, outbox.uuidv7()), e.aggregate, e.key, e.type, e.payload::jsonb"
            }
            Self::EventsOutbox => {
                "INSERT INTO events_outbox (aggregate_id, type, payload) \
                 SELECT e.key, lower(e.aggregate) || '.' || e.type, e.payload::jsonb"
            }
            Self::OutboxEvents => {
                "INSERT INTO outbox_events (id, aggregate_id, event_type, payload) \
                 SELECT coalesce(e.id, outbox.uuidv7()), e.key, lower(e.aggregate) || '.' || e.type, \
                 e.payload::jsonb"
            }
            Self::Outbox => {
                "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
                 SELECT coalesce(e.id, outbox.uuidv7()), e.aggregate, e.key, e.type, e.payload::jsonb"
            }
            Self::Message => {
                "SELECT outbox.emit(aggregate => e.aggregate, key => e.key, type => e.type, \
                 payload => e.payload::jsonb, id => coalesce(e.id, outbox.uuidv7()))"
            }
        };
        format!(
            "{write} FROM (SELECT $1::uuid AS id, $2::text AS aggregate, $3::text AS key, $4::text AS type, \
             $5::text AS payload) AS e WHERE pg_current_xact_id_if_assigned() IS NOT NULL"
        )
    }
}

/// An event without its payload.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// Made by the database if it is `None`.
    pub id: Option<Uuid>,
    pub aggregate: &'a str,
    pub key: &'a str,
    /// The type of the event.
    pub kind: &'a str,
}

/// Why an event is not written.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    #[error("the transaction has changed nothing yet: change the data first")]
    NoChange,
    #[error("the payload cannot be serialised")]
    Payload(#[from] serde_json::Error),
    #[error("the statement failed")]
    Postgres(#[from] tokio_postgres::Error),
}

/// Writes an event in the transaction that has changed the data. A client is no [`Transaction`], so a
/// call outside of one does not compile.
///
/// The payload is serialised here, once; a `serde_json::value::RawValue` is kept as it is. A jsonb column
/// normalises it.
///
/// # Errors
/// If the transaction has changed nothing, or the statement fails.
pub async fn emit(
    transaction: &Transaction<'_>,
    table: Table,
    event: &Event<'_>,
    payload: &impl Serialize,
) -> Result<(), EmitError> {
    let payload = serde_json::to_string(payload)?;
    let Event {
        id,
        aggregate,
        key,
        kind,
    } = event;
    let written = transaction
        .execute(&table.statement(), &[id, aggregate, key, kind, &payload])
        .await?;
    match written {
        1 => Ok(()),
        _ => Err(EmitError::NoChange),
    }
}

/// Writes several events as one message in the log, by `outbox.emit_all`: no table, one request. They keep
/// their order.
///
/// # Errors
/// If the transaction has changed nothing, or the statement fails.
pub async fn emit_all<P: Serialize>(
    transaction: &Transaction<'_>,
    events: &[(Event<'_>, P)],
) -> Result<(), EmitError> {
    let mut members = Vec::new();
    for (event, payload) in events {
        members.push(json!({
            "id": event.id.map(|id| id.to_string()),
            "aggregate": event.aggregate,
            "key": event.key,
            "type": event.kind,
            "payload": serde_json::to_value(payload)?,
        }));
    }
    let batch = serde_json::to_string(&members)?;
    let written = transaction
        .execute(
            "SELECT outbox.emit_all($1::text::jsonb) WHERE pg_current_xact_id_if_assigned() IS NOT NULL",
            &[&batch],
        )
        .await?;
    match written {
        1 => Ok(()),
        _ => Err(EmitError::NoChange),
    }
}

#[cfg(test)]
mod tests;
