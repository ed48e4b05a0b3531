// Runs the example for the topic WORKER. CRASH says where it ends by SIGKILL.

import { Kafka, logLevel } from "kafkajs";
import pg from "pg";
import { run } from "./consumer.js";

const topic = process.env.WORKER ?? "";
const kafka = new Kafka({ brokers: [process.env.WALRELAY_EXAMPLE_KAFKA ?? ""], logLevel: logLevel.ERROR });
// A killed worker's partitions are given to another after the time-out. KafkaJS sends no heartbeat while the
// broker keeps a fetch waiting.
const times = { sessionTimeout: 2000, heartbeatInterval: 200, maxWaitTimeInMs: 200 };
const consumer = kafka.consumer({ groupId: topic, ...times });
const producer = kafka.producer({ allowAutoTopicCreation: true });
const client = new pg.Client(process.env.WALRELAY_EXAMPLE_POSTGRES);

async function crash(place: string): Promise<void> {
  if (process.env.CRASH === place) {
    process.kill(process.pid, "SIGKILL");
    await new Promise(() => undefined);
  }
}

let last = "";
const commitOffsets = consumer.commitOffsets.bind(consumer);
consumer.commitOffsets = async (offsets) => {
  await crash(`before offset ${last}`);
  await commitOffsets(offsets);
};
await client.connect();
await producer.connect();
await consumer.connect();
await consumer.subscribe({ topics: [topic], fromBeginning: true });
await run({
  consumer,
  client,
  name: topic,
  producer,
  deadLetters: `${topic}.dead`,
  attempts: 3,
  pause: 10,
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
    await crash(`before commit ${number}`);
  },
});
