// Runs the example for the topic WORKER. CRASH says where it ends by SIGKILL.

import { Producer, stringSerializer } from "@platformatic/kafka";
import pg from "pg";
import { createConsumer, run } from "./consumer.js";

const topic = process.env.WORKER ?? "";
const bootstrapBrokers = [process.env.WALRELAY_EXAMPLE_KAFKA ?? ""];
// A killed worker's partitions are given to another after the time-out.
const consumer = createConsumer(bootstrapBrokers, topic, 2000);
const producer = new Producer<Buffer, Buffer, string, Buffer>({
  bootstrapBrokers,
  clientId: topic,
  autocreateTopics: true,
  serializers: { headerKey: stringSerializer },
});
const client = new pg.Client(process.env.WALRELAY_EXAMPLE_POSTGRES);

function crash(place: string): void {
  if (process.env.CRASH === place) {
    process.kill(process.pid, "SIGKILL");
    // The signal may come a moment later.
    for (;;);
  }
}

let last = "";
const commit = consumer.commit.bind(consumer) as (...offsets: unknown[]) => unknown;
consumer.commit = ((...offsets: unknown[]) => {
  crash(`before offset ${last}`);
  return commit(...offsets);
}) as typeof consumer.commit;
await client.connect();
await run({
  consumer,
  topic,
  client,
  name: topic,
  idHeader: "id",
  producer,
  deadLetters: `${topic}.dead`,
  attempts: 3,
  pause: 10,
  stop: new AbortController().signal,
  effect: async (client, message) => {
    const number = Number(message.value);
    if (number < 0) {
      throw new Error("poison");
    }
    await client.query("INSERT INTO ts_effects (topic, key, number) VALUES ($1, $2, $3)", [
      topic,
      message.key?.toString(),
      number,
    ]);
    last = String(number);
    crash(`before commit ${number}`);
  },
});
