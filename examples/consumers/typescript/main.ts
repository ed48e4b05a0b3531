// A whole consumer, which keeps each event in the table `received`: copy it, and write your effect.
//
//     npm ci && npx tsc && DATABASE_URL=postgres://… KAFKA_BROKERS=localhost:9094 node build/main.js
//
// TOPIC and GROUP have defaults. With --id-header=x-outbox-event-id it reads another header than `id`. It ends by
// SIGTERM or SIGINT after the current event, and starts again by itself, after growing pauses, when a server does not
// answer.

import { parseArgs } from "node:util";
import { Producer, stringSerializer } from "@platformatic/kafka";
import pg from "pg";
import { Backoff, createConsumer, type DeadLetterProducer, type Effect, run } from "./consumer.js";

const env = process.env;
const topic = env.TOPIC ?? "outbox.event.Order";
const group = env.GROUP ?? "example";
const bootstrapBrokers = (env.KAFKA_BROKERS ?? "").split(",");
const options = { "id-header": { type: "string", default: env.ID_HEADER ?? "id" } } as const;
const idHeader = parseArgs({ options }).values["id-header"];
const sessionTimeout = Number(env.SESSION_TIMEOUT_MS ?? 45_000);

// With a lock: two processes may start at once.
const TABLE = `SELECT pg_advisory_xact_lock(59);
  CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text)`;

const effect: Effect = async (client, message) => {
  await client.query("INSERT INTO received (consumer, topic, key, value) VALUES ($1, $2, $3, $4)", [
    group,
    message.topic,
    message.key?.toString(),
    message.value?.toString(),
  ]);
};

async function serve(stop: AbortSignal, onProgress: () => void): Promise<void> {
  const client = new pg.Client(env.DATABASE_URL);
  // The next query fails, too, and says it.
  client.on("error", () => undefined);
  const consumer = createConsumer(bootstrapBrokers, group, sessionTimeout);
  const producer: DeadLetterProducer = new Producer({
    bootstrapBrokers,
    clientId: group,
    autocreateTopics: true,
    serializers: { headerKey: stringSerializer },
  });
  try {
    await client.connect();
    await client.query(TABLE);
    const deadLetters = `${topic}.dead`;
    const patience = { attempts: 5, pause: 1000 };
    await run({ consumer, topic, client, name: group, idHeader, effect, producer, deadLetters, ...patience, stop, onProgress });
  } finally {
    // Leaves the group: its partitions are given away at once.
    await Promise.allSettled([consumer.close(true), producer.close(), client.end()]);
  }
}

const stopping = new AbortController();
for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.on(signal, () => stopping.abort());
}
const backoff = new Backoff(500);
console.info(`consumes ${topic} as ${group}`);
while (!stopping.signal.aborted) {
  try {
    await serve(stopping.signal, () => backoff.reset());
  } catch (error) {
    console.warn(`${error}; starts again after a pause`);
    await backoff.pause(stopping.signal);
  }
}
console.info("stopped");
