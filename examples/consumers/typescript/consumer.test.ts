// The consumer against a real Postgres and Kafka: WALRELAY_EXAMPLE_POSTGRES, WALRELAY_EXAMPLE_KAFKA.

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { Kafka, type KafkaMessage, logLevel } from "kafkajs";
import pg from "pg";
import { prune } from "./consumer.js";

// A loaded machine may take long; nothing waits for less.
const PATIENCE = 120_000;
const kafka = new Kafka({ brokers: [process.env.WALRELAY_EXAMPLE_KAFKA ?? ""], logLevel: logLevel.ERROR });
const admin = kafka.admin();
const producer = kafka.producer();
const client = new pg.Client(process.env.WALRELAY_EXAMPLE_POSTGRES);
let topic = "";
let workers: ChildProcess[] = [];

before(async () => {
  await Promise.all([admin.connect(), producer.connect(), client.connect()]);
  await client.query("CREATE TABLE IF NOT EXISTS ts_effects (n serial, topic text, key text, number int)");
});
after(() => Promise.all([admin.disconnect(), producer.disconnect(), client.end()]));
beforeEach(async () => {
  topic = `ts-${Date.now()}`;
  await admin.createTopics({ topics: [{ topic, numPartitions: 4 }], waitForLeaders: true });
});
afterEach(async () => {
  await Promise.all(workers.map((worker) => kill(worker)));
  workers = [];
});

function ended(worker: ChildProcess): Promise<NodeJS.Signals | null> {
  if (worker.exitCode !== null || worker.signalCode !== null) {
    return Promise.resolve(worker.signalCode);
  }
  return new Promise((resolve) => worker.once("exit", (_, signal) => resolve(signal)));
}

async function kill(worker: ChildProcess): Promise<void> {
  worker.kill("SIGKILL");
  await ended(worker);
}

function worker(crash = ""): ChildProcess {
  const env = { ...process.env, WORKER: topic, CRASH: crash };
  const started = spawn(process.execPath, ["build/worker.js"], { env, stdio: "inherit" });
  workers.push(started);
  return started;
}

async function send(number: number, key = "k", id = `${topic}-${number}`): Promise<void> {
  await producer.send({ topic, messages: [{ key, value: String(number), headers: { id } }] });
}

async function effects(): Promise<[string, number][]> {
  const { rows } = await client.query("SELECT key, number FROM ts_effects WHERE topic = $1 ORDER BY n", [topic]);
  return rows.map(({ key, number }) => [key, number]);
}

/** Number of records whose offset is not committed. */
async function lag(): Promise<number> {
  const ends = await admin.fetchTopicOffsets(topic);
  // Fails while the group has no coordinator: then no offset is committed.
  const [group] = await admin.fetchOffsets({ groupId: topic, topics: [topic] }).catch(() => []);
  const sum = (all: { offset: string }[]) => all.reduce((sum, { offset }) => sum + Math.max(0, Number(offset)), 0);
  return sum(ends) - sum(group?.partitions ?? []);
}

async function until(condition: () => Promise<boolean>): Promise<void> {
  for (const ends = Date.now() + PATIENCE; !(await condition()); ) {
    assert.ok(Date.now() < ends, `not reached: lag ${await lag()}, ${await effects()}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const isDone = async () => (await lag()) === 0;

test("the same event twice has one effect", async () => {
  for (const number of [1, 2, 1, 2, 3]) {
    await send(number);
  }
  worker();
  await until(isDone);
  assert.deepEqual(await effects(), [["k", 1], ["k", 2], ["k", 3]]);
});

test("a crash between effect and commit, and before the offset", async () => {
  for (const number of [1, 2, 3]) {
    await send(number);
  }
  assert.equal(await ended(worker("before commit 2")), "SIGKILL");
  assert.deepEqual(await effects(), [["k", 1]]);
  assert.equal(await ended(worker("before offset 3")), "SIGKILL");
  const all = [["k", 1], ["k", 2], ["k", 3]];
  assert.deepEqual(await effects(), all);
  assert.notEqual(await lag(), 0);
  worker();
  await until(isDone);
  assert.deepEqual(await effects(), all);
});

test("a rebalance loses and repeats nothing", async () => {
  const first = worker();
  const expected: [string, number][] = [];
  for (let number = 0; number < 300; number++) {
    const key = `k${number % 7}`;
    await send(number, key);
    expected.push([key, number]);
    if (number === 50) {
      await until(async () => (await effects()).length > 20);
      worker();
    } else if (number === 150) {
      await kill(first);
    }
  }
  await until(isDone);
  // The order of each key, and each event once.
  const byKey = (all: [string, number][]) => all.toSorted(([a], [b]) => a.localeCompare(b));
  assert.deepEqual(byKey(await effects()), byKey(expected));
});

test("poison becomes a dead letter after the attempts", async () => {
  await send(1);
  await send(-1, "k", "poison");
  await send(2);
  worker();
  await until(isDone);
  assert.deepEqual(await effects(), [["k", 1], ["k", 2]]);
  const letters = kafka.consumer({ groupId: `${topic}-letters` });
  await letters.connect();
  await letters.subscribe({ topics: [`${topic}.dead`], fromBeginning: true });
  const letter = await new Promise<KafkaMessage>((resolve, reject) => {
    letters.run({ eachMessage: async ({ message }) => resolve(message) }).catch(reject);
  });
  await letters.disconnect();
  const header = (name: string) => letter.headers?.[name]?.toString();
  assert.deepEqual([letter.key?.toString(), letter.value?.toString(), header("id")], ["k", "-1", "poison"]);
  assert.equal(header("error"), "Error: poison");
  assert.ok(header("source")?.startsWith(`${topic}[`));
});

test("old events are forgotten", async () => {
  await client.query(
    `INSERT INTO processed_events (consumer, event_id, processed_at)
     SELECT $1, days, now() - make_interval(days => days) FROM generate_series(1, 40) AS days`,
    [topic],
  );
  assert.equal(await prune(client, topic, 30), 11);
});
