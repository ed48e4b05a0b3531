// The producer against a real Postgres: WALRELAY_EXAMPLE_POSTGRES names it.

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import pg from "pg";
import { emit, emitAll, NotInTransaction, STATEMENTS } from "./outbox.js";

const url = process.env.WALRELAY_EXAMPLE_POSTGRES;
const client = new pg.Client(url);
const other = new pg.Client(url);
const tables = {
  debezium: ["outbox", "id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb"],
  events_outbox: ["events_outbox", "id bigserial PRIMARY KEY, aggregate_id text, type text, payload jsonb"],
  outbox_events: ["outbox_events", "id uuid PRIMARY KEY, aggregate_id text, event_type text, payload jsonb"],
  outbox: [
    "outbox",
    "id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload jsonb",
  ],
} as const;

before(async () => {
  await client.connect();
  await other.connect();
});
after(async () => {
  await client.end();
  await other.end();
});
beforeEach(() => fresh("debezium"));

async function fresh(table: keyof typeof tables): Promise<void> {
  const [name, columns] = tables[table];
  await client.query("DROP TABLE IF EXISTS orders, outbox, events_outbox, outbox_events");
  await client.query(`CREATE TABLE orders (id int); CREATE TABLE ${name} (${columns})`);
}

async function place(statement: string = STATEMENTS.debezium): Promise<void> {
  await client.query("INSERT INTO orders VALUES (42)");
  await emit(client, { aggregate: "Order", key: "42", type: "placed", payload: { n: 42 } }, statement);
}

/** Compares the numbers of changes and events, as another session sees them. */
async function expect(table: string, changes: number, events: number): Promise<void> {
  for (const [name, expected] of [["orders", changes], [table, events]] as const) {
    const { rows } = await other.query(`SELECT count(*)::int AS count FROM ${name}`);
    assert.equal(rows[0].count, expected, name);
  }
}

test("a commit makes one event and a rollback none", async () => {
  for (const table of Object.keys(tables) as (keyof typeof tables)[]) {
    await fresh(table);
    for (const end of ["COMMIT", "ROLLBACK"]) {
      await client.query("BEGIN");
      await place(STATEMENTS[table]);
      await client.query(end);
      await expect(tables[table][0], 1, 1);
    }
  }
});

test("a savepoint that is rolled back leaves none", async () => {
  await client.query("BEGIN");
  await place();
  await client.query("SAVEPOINT one");
  await place();
  await client.query("ROLLBACK TO one");
  await client.query("COMMIT");
  await expect("outbox", 1, 1);
});

test("it refuses outside of a transaction and before a change", async () => {
  await assert.rejects(place(), NotInTransaction);
  await expect("outbox", 1, 0);
  await client.query("BEGIN");
  const event = { aggregate: "Order", key: "1", type: "placed", payload: {} };
  await assert.rejects(emit(client, event), NotInTransaction);
  await client.query("COMMIT");
  await expect("outbox", 1, 0);
});

test("ids rise, and JSON in a string is kept", async () => {
  await client.query("ALTER TABLE outbox ALTER payload TYPE json");
  const statement = STATEMENTS.debezium.replace("::jsonb", "::json");
  const payload = '{"b":1,  "a":"é"}';
  await client.query("BEGIN");
  await place(statement);
  await emit(client, { aggregate: "Order", key: "43", type: "placed", payload }, statement);
  await client.query("COMMIT");
  const { rows } = await other.query("SELECT aggregateid, payload::text FROM outbox ORDER BY id");
  assert.deepEqual(rows, [
    { aggregateid: "42", payload: '{"n":42}' },
    { aggregateid: "43", payload },
  ]);
});

test("a message without a table is in the log once", async () => {
  await client.query("SELECT pg_create_logical_replication_slot('example_ts', 'test_decoding')");
  try {
    for (const end of ["COMMIT", "ROLLBACK"]) {
      await client.query("BEGIN");
      await place(STATEMENTS.emit);
      await client.query(end);
    }
    const { rows } = await client.query(
      "SELECT data FROM pg_logical_slot_get_changes('example_ts', NULL, NULL) WHERE data LIKE '%prefix: outbox%'",
    );
    assert.equal(rows.length, 1);
  } finally {
    await client.query("SELECT pg_drop_replication_slot('example_ts')");
  }
});

test("several events are one message in their order", async () => {
  const id = "7a1b0c5e-0000-4000-8000-000000000001";
  const order = { aggregate: "Order", key: "42", type: "placed" };
  const events = [{ ...order, payload: { n: 1 } }, { ...order, id, payload: '{"n": 2}' }];
  await client.query("SELECT pg_create_logical_replication_slot('example_ts', 'test_decoding')");
  try {
    await assert.rejects(emitAll(client, events), NotInTransaction);
    for (const end of ["COMMIT", "ROLLBACK"]) {
      await client.query("BEGIN");
      await client.query("INSERT INTO orders VALUES (42)");
      await emitAll(client, events);
      await client.query(end);
    }
    const { rows } = await client.query(
      "SELECT data FROM pg_logical_slot_get_changes('example_ts', NULL, NULL) WHERE data LIKE '%prefix: outbox%'",
    );
    assert.equal(rows.length, 1);
    const batch = JSON.parse(rows[0].data.split("content:")[1]);
    assert.deepEqual(batch.map((event: { payload: unknown }) => event.payload), [{ n: 1 }, { n: 2 }]);
    assert.equal(batch[1].id, id);
  } finally {
    await client.query("SELECT pg_drop_replication_slot('example_ts')");
  }
});
