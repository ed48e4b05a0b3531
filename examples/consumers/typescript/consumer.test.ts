// The consumer against a real Postgres and Kafka: WALRELAY_EXAMPLE_POSTGRES, WALRELAY_EXAMPLE_KAFKA.

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { Admin, ListOffsetTimestamps, Producer, stringSerializers } from "@platformatic/kafka";
import pg from "pg";
import { Backoff, createConsumer, type Effect, type Message, prune, run } from "./consumer.js";

// A loaded machine may take long; nothing waits for less.
const PATIENCE = 120_000;
const bootstrapBrokers = [process.env.WALRELAY_EXAMPLE_KAFKA ?? ""];
const PARTITIONS = 4;
const admin = new Admin({ bootstrapBrokers, clientId: "test" });
const producer = new Producer({ bootstrapBrokers, clientId: "test", serializers: stringSerializers });
const client = new pg.Client(process.env.WALRELAY_EXAMPLE_POSTGRES);
let topic = "";
let workers: ChildProcess[] = [];

before(async () => {
  await client.connect();
  await client.query("CREATE TABLE IF NOT EXISTS ts_effects (n serial, topic text, key text, number int)");
});
after(() => Promise.all([admin.close(), producer.close(), client.end()]));
beforeEach(async () => {
  topic = `ts-${Date.now()}`;
  await admin.createTopics({ topics: [topic], partitions: PARTITIONS, replicas: 1 });
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
  await producer.send({ messages: [{ topic, key, value: String(number), headers: new Map([["id", id]]) }] });
}

async function effects(): Promise<[string, number][]> {
  const { rows } = await client.query("SELECT key, number FROM ts_effects WHERE topic = $1 ORDER BY n", [topic]);
  return rows.map(({ key, number }) => [key, number]);
}

/** Number of records whose offset is not committed. */
async function lag(): Promise<number> {
  const partitions = Array.from({ length: PARTITIONS }, (_, partitionIndex) => ({
    partitionIndex,
    timestamp: ListOffsetTimestamps.LATEST,
  }));
  const [ends] = await admin.listOffsets({ topics: [{ name: topic, partitions }] });
  // Fails while the group has no coordinator: then no offset is committed.
  const [group] = await admin.listConsumerGroupOffsets({ groups: [topic] }).catch(() => []);
  const sum = (all: bigint[]) => all.reduce((sum, offset) => sum + Math.max(0, Number(offset)), 0);
  const committed = group?.topics.flatMap(({ partitions }) => partitions) ?? [];
  return sum(ends.partitions.map(({ offset }) => offset)) - sum(committed.map(({ committedOffset }) => committedOffset));
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
  const letters = createConsumer(bootstrapBrokers, `${topic}-letters`);
  const stream = await letters.consume({ topics: [`${topic}.dead`], mode: "earliest" });
  const { value: letter } = await stream[Symbol.asyncIterator]().next();
  await stream.close();
  await letters.close(true);
  const header = (name: string) => (letter as Message).headers.get(name)?.toString();
  assert.deepEqual([letter.key?.toString(), letter.value?.toString(), header("id")], ["k", "-1", "poison"]);
  assert.equal(header("error"), "Error: poison");
  assert.ok(header("source")?.startsWith(`${topic}[`));
});

/** Runs the example in this process. */
async function consume(own: pg.Client, effect: Effect, stop: AbortSignal): Promise<void> {
  const consumer = createConsumer(bootstrapBrokers, topic);
  const letters = new Producer<Buffer, Buffer, string, Buffer>({ bootstrapBrokers, clientId: topic });
  const name = topic;
  const patience = { attempts: 3, pause: 3_600_000, deadLetters: `${topic}.dead` };
  try {
    await run({ consumer, topic, client: own, name, idHeader: "id", effect, producer: letters, ...patience, stop });
  } finally {
    await Promise.all([consumer.close(true), letters.close()]);
  }
}

test("a stop ends the pause between attempts, and keeps the event", async () => {
  await send(-1);
  const stopping = new AbortController();
  const fails = async () => {
    stopping.abort();
    throw new Error("poison");
  };
  await consume(client, fails, stopping.signal);
  assert.equal(await lag(), 1);
});

test("an effect that hides an error is not processed", async () => {
  await send(1);
  const stopping = new AbortController();
  const hides: Effect = async (own) => {
    await own.query("SELECT 1 / 0").catch(() => undefined);
    // In the pause after it.
    setTimeout(() => stopping.abort(), 50);
  };
  await consume(client, hides, stopping.signal);
  assert.equal(await lag(), 1);
});

test("a pool is refused", async () => {
  const pool = new pg.Pool({ connectionString: process.env.WALRELAY_EXAMPLE_POSTGRES });
  const refused = consume(pool as unknown as pg.Client, async () => undefined, new AbortController().signal);
  await assert.rejects(refused, TypeError);
  await pool.end();
});

test("pauses grow to the longest", () => {
  const backoff = new Backoff(1000);
  for (const most of [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]) {
    const pause = backoff.next();
    assert.ok(pause >= most / 2 && pause <= most, `${pause} of ${most}`);
  }
});

test("old events are forgotten", async () => {
  await client.query(
    `INSERT INTO processed_events (consumer, event_id, processed_at)
     SELECT $1, days, now() - make_interval(days => days) FROM generate_series(1, 40) AS days`,
    [topic],
  );
  assert.equal(await prune(client, topic, 30), 11);
});
