// The newest value of a compacted topic, against a real Postgres and Kafka.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Admin, Producer, stringSerializers } from "@platformatic/kafka";
import pg from "pg";
import { createConsumer } from "./consumer.js";
import { apply, POSITION_HEADER } from "./newest.js";

const bootstrapBrokers = [process.env.WALRELAY_EXAMPLE_KAFKA ?? ""];
const admin = new Admin({ bootstrapBrokers, clientId: "test" });
const producer = new Producer({ bootstrapBrokers, clientId: "test", serializers: stringSerializers });
const client = new pg.Client(process.env.WALRELAY_EXAMPLE_POSTGRES);

before(() => client.connect());
after(() => Promise.all([admin.close(), producer.close(), client.end()]));

test("a repeated suffix in a compacted topic changes nothing", async () => {
  const topic = `ts-newest-${Date.now()}`;
  const configs = [{ name: "cleanup.policy", value: "compact" }];
  await admin.createTopics({ topics: [topic], partitions: 1, replicas: 1, configs });
  const sent: [string, bigint | null, string | null][] = [
    ["a", 1n, "a1"], ["b", 2n, "b2"], ["a", 3n, "a3"], ["c", 4n, "c4"], ["c", 5n, null],
    // A crash of the relay: everything from 1 on again, and it is cut off before 3.
    ["a", 1n, "a1"], ["b", 2n, "b2"], ["c", 4n, "c4"],
    // `walrelay resend` sends without a position.
    ["b", null, "old"], ["d", null, "old"], ["d", 6n, "d6"],
    // After a move to a server whose log begins lower: the first byte is raised.
    ["a", 0x0100000000000002n, "a7"], ["a", 3n, "a3"],
  ];
  const position = (of: bigint) => `${of.toString(16).toUpperCase().padStart(16, "0")}/00000000`;
  const messages = sent.map(([key, of, value]) => ({
    topic,
    key,
    value: value ?? undefined,
    headers: new Map(of === null ? [] : [[POSITION_HEADER, position(of)]]),
  }));
  await producer.send({ messages });
  await client.query("DROP TABLE IF EXISTS newest");
  await client.query('CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)');
  const consumer = createConsumer(bootstrapBrokers, topic);
  const stream = await consumer.consume({ topics: [topic], mode: "earliest" });
  const applied: boolean[] = [];
  for await (const message of stream) {
    applied.push(await apply(client, message));
    if (applied.length === sent.length) {
      break;
    }
  }
  await consumer.close(true);
  const { rows } = await client.query("SELECT key, value FROM newest ORDER BY key");
  assert.deepEqual(rows.map(({ key, value }) => [key, value]), [["a", "a7"], ["b", "b2"], ["c", null], ["d", "d6"]]);
  assert.deepEqual(applied, [...Array(5).fill(true), ...Array(4).fill(false), ...Array(3).fill(true), false]);
});
