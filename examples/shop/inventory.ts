// Takes the articles of each order out of the stock. Uses consumer.ts of examples/consumers/typescript.

import { Kafka, logLevel } from "kafkajs";
import pg from "pg";
import { run } from "./consumer.js";

const GROUP = "inventory";

const kafka = new Kafka({ brokers: [process.env.SHOP_KAFKA ?? ""], logLevel: logLevel.ERROR });
const consumer = kafka.consumer({ groupId: GROUP, sessionTimeout: 6000, heartbeatInterval: 500 });
const producer = kafka.producer({ allowAutoTopicCreation: true });
const client = new pg.Client(process.env.SHOP_INVENTORY);

// It is started again, and reads what was not committed.
client.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
consumer.on(consumer.events.CRASH, ({ payload }) => {
  if (!payload.restart) {
    process.exit(1);
  }
});

await Promise.all([client.connect(), producer.connect(), consumer.connect()]);
await consumer.subscribe({ topics: ["outbox.event.Order"], fromBeginning: true });
await run({
  consumer,
  client,
  name: GROUP,
  producer,
  deadLetters: `${GROUP}.dead`,
  attempts: 5,
  pause: 1000,
  effect: async (client, message) => {
    const { order, article, quantity } = JSON.parse(String(message.value));
    await client.query("UPDATE stock SET units = units - $2 WHERE article = $1", [article, quantity]);
    await client.query("INSERT INTO stock_moves (order_id, article, units) VALUES ($1, $2, $3)", [
      order,
      article,
      quantity,
    ]);
  },
});
