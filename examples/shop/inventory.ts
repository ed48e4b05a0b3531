// Takes the articles of each order out of the stock. Uses consumer.ts of examples/consumers/typescript.

import { Producer, stringSerializer } from "@platformatic/kafka";
import pg from "pg";
import { createConsumer, run } from "./consumer.js";

const GROUP = "inventory";

const bootstrapBrokers = [process.env.SHOP_KAFKA ?? ""];
const consumer = createConsumer(bootstrapBrokers, GROUP, 6000);
const producer = new Producer<Buffer, Buffer, string, Buffer>({
  bootstrapBrokers,
  clientId: GROUP,
  autocreateTopics: true,
  serializers: { headerKey: stringSerializer },
});
const client = new pg.Client(process.env.SHOP_INVENTORY);

// It is started again, and reads what was not committed.
client.on("error", (error) => {
  console.error(error);
  process.exit(1);
});

await client.connect();
await run({
  consumer,
  topic: "outbox.event.Order",
  client,
  name: GROUP,
  idHeader: "id",
  producer,
  deadLetters: `${GROUP}.dead`,
  attempts: 5,
  pause: 1000,
  stop: new AbortController().signal,
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
