// Writes an event in the transaction of the change that it tells of. For node-postgres (pg) 8.
//
//   await client.query("BEGIN");
//   await client.query("INSERT INTO orders ...");
//   await emit(client, { aggregate: "Order", key: "42", type: "OrderPlaced", payload: { total: 12.5 } });
//   await client.query("COMMIT");
//
// Copy this file, and keep the statement of your table.

import type { ClientBase } from "pg";

// The event is written only if the transaction has changed something: the number of rows tells.
const CHANGED = "WHERE pg_current_xact_id_if_assigned() IS NOT NULL";

// One statement for each shape of table that walrelay has a preset for, and outbox.emit. Parameters: id
// or null, aggregate, key, type, payload.
export const STATEMENTS = {
  debezium: `INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
    SELECT coalesce($1::uuid, outbox.uuidv7()), $2::text, $3::text, $4::text, $5::jsonb ${CHANGED}`,
  // The id is a bigserial; that of the event is not used.
  events_outbox: `INSERT INTO events_outbox (aggregate_id, type, payload)
    SELECT $3::text, lower($2::text) || '.' || $4::text, $5::jsonb ${CHANGED} AND ($1::uuid IS NULL OR true)`,
  outbox_events: `INSERT INTO outbox_events (id, aggregate_id, event_type, payload)
    SELECT coalesce($1::uuid, outbox.uuidv7()), $3::text, lower($2::text) || '.' || $4::text, $5::jsonb ${CHANGED}`,
  outbox: `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
    SELECT coalesce($1::uuid, outbox.uuidv7()), $2::text, $3::text, $4::text, $5::jsonb ${CHANGED}`,
  emit: `SELECT outbox.emit(aggregate => $2::text, key => $3::text, type => $4::text, payload => $5::jsonb,
    id => coalesce($1::uuid, outbox.uuidv7())) ${CHANGED}`,
};
const EMIT_ALL = `SELECT outbox.emit_all($1::jsonb) ${CHANGED}`;

export interface Event {
  /** Made by the database if it is missing. */
  id?: string;
  aggregate: string;
  key: string;
  type: string;
  /** Serialised by `emit`, once. A string is JSON already and is kept; a jsonb column normalises it. */
  payload: unknown;
}

/** The event would not be committed together with a change. */
export class NotInTransaction extends Error {}

/**
 * Writes an event by the client that has changed the data, in its open transaction. A pool will not do:
 * each of its queries may take another connection.
 *
 * pg does not say whether a transaction is open. In autocommit this statement is a transaction of its
 * own that has changed nothing, so the server refuses it by the same condition.
 */
export async function emit(
  client: ClientBase,
  event: Event,
  statement: string = STATEMENTS.debezium,
): Promise<void> {
  const payload = typeof event.payload === "string" ? event.payload : JSON.stringify(event.payload);
  const values = [event.id ?? null, event.aggregate, event.key, event.type, payload];
  const written = await client.query(statement, values);
  if (written.rowCount !== 1) {
    throw new NotInTransaction("an event is written in a transaction that has changed data before");
  }
}

/** Writes several events as one message in the log, by outbox.emit_all: no table, one request, in their order. */
export async function emitAll(client: ClientBase, events: Event[]): Promise<void> {
  const members = events.map(({ payload, ...event }) => {
    const text = typeof payload === "string" ? payload : JSON.stringify(payload);
    return `${JSON.stringify(event).slice(0, -1)},"payload":${text}}`;
  });
  const written = await client.query(EMIT_ALL, [`[${members.join(",")}]`]);
  if (written.rowCount !== 1) {
    throw new NotInTransaction("an event is written in a transaction that has changed data before");
  }
}
