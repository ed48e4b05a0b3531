// The newest value of a compacted topic, against a real Postgres and Kafka.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Kafka, logLevel } from "kafkajs";
import pg from "pg";
import { apply, POSITION_HEADER } from "./newest.js";

const kafka = new Kafka({ brokers: [process.env.WALRELAY_EXAMPLE_KAFKA ?? ""], logLevel: logLevel.ERROR });
const admin = kafka.admin();
const producer = kafka.producer();
const client = new pg.Client(process.env.WALRELAY_EXAMPLE_POSTGRES);

before(() => Promise.all([admin.connect(), producer.connect(), client.connect()]));
after(() => Promise.all([admin.disconnect(), producer.disconnect(), client.end()]));

test("a repeated suffix in a compacted topic changes nothing", async () => {
  const topic = `ts-newest-${Date.now()}`;
  const configEntries = [{ name: "cleanup.policy", value: "compact" }];
  await admin.createTopics({ topics: [{ topic, numPartitions: 1, configEntries }], waitForLeaders: true });
  const sent: [string, number | null, string | null][] = [
    ["a", 1, "a1"], ["b", 2, "b2"], ["a", 3, "a3"], ["c", 4, "c4"], ["c", 5, null],
    // A crash of the relay: everything from 1 on again, and it is cut off before 3.
    ["a", 1, "a1"], ["b", 2, "b2"], ["c", 4, "c4"],
    // `walrelay resend` sends without a position.
    ["b", null, "old"], ["d", null, "old"], ["d", 6, "d6"],
  ];
  const position = (of: number) => `${of.toString(16).toUpperCase().padStart(16, "0")}/00000000`;
  const messages = sent.map(([key, of, value]) => ({
    key,
    value,
    headers: of === null ? undefined : { [POSITION_HEADER]: position(of) },
  }));
  await producer.send({ topic, messages });
  await client.query("DROP TABLE IF EXISTS newest");
  await client.query('CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)');
  const consumer = kafka.consumer({ groupId: topic });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  const applied: boolean[] = [];
  await new Promise<void>((resolve, reject) => {
    const eachMessage = async ({ message }: { message: Parameters<typeof apply>[1] }) => {
      applied.push(await apply(client, message).catch((error) => (reject(error), false)));
      if (applied.length === sent.length) {
        resolve();
      }
    };
    consumer.run({ partitionsConsumedConcurrently: 1, eachMessage }).catch(reject);
  });
  await consumer.disconnect();
  const { rows } = await client.query("SELECT key, value FROM newest ORDER BY key");
  assert.deepEqual(rows.map(({ key, value }) => [key, value]), [["a", "a3"], ["b", "b2"], ["c", null], ["d", "d6"]]);
  assert.deepEqual(applied, [...Array(5).fill(true), ...Array(4).fill(false), true, true]);
});
