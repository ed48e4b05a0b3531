// A whole receiver of webhooks: each event has its effect in Postgres once, in the table `received`.
//
//     npm ci && npx tsc && DATABASE_URL=postgres://… WEBHOOK_SECRETS=whsec_… node build/receiver.js
//
// The table processed_events comes from `walrelay init --consumer`. PORT (8080) and GROUP have defaults. It ends by
// SIGTERM or SIGINT after the requests that have begun. Use the server of your framework instead, and keep `receive`.

import { createServer, type IncomingMessage } from "node:http";
import pg from "pg";
import { InvalidSignature, keyOf, verify } from "./verifier.js";

const LIMIT = 1 << 20;
const group = process.env.GROUP ?? "example";
const keys = (process.env.WEBHOOK_SECRETS ?? "").split(/\s+/).map(keyOf);
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
// Of a connection that is not in use.
pool.on("error", (error) => console.warn(error.message));

// With a lock: two processes may start at once.
const TABLE = `SELECT pg_advisory_xact_lock(59);
  CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text)`;

async function effect(client: pg.ClientBase, topic: string, key: string | undefined, body: Buffer): Promise<void> {
  await client.query("INSERT INTO received (consumer, topic, key, value) VALUES ($1, $2, $3, $4)", [
    group,
    topic,
    key,
    body.toString(),
  ]);
}

/** Claims the event and has its effect, in one transaction. */
async function claimAndApply(id: string, topic: string, key: string | undefined, body: Buffer): Promise<void> {
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    // A concurrent claim of the same event is waited for.
    const claimed = await client.query(
      "INSERT INTO processed_events (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
      [group, id],
    );
    if (claimed.rowCount === 1) {
      await effect(client, topic, key, body);
    }
    const { command } = await client.query("COMMIT");
    if (command !== "COMMIT") {
      throw new Error("the effect went on after an error of Postgres, which has rolled it back");
    }
    client.release();
  } catch (error) {
    // Ends the connection, and with it the transaction.
    client.release(true);
    throw error;
  }
}

/** Returns the status of the answer. */
async function receive(request: IncomingMessage): Promise<number> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of request as AsyncIterable<Buffer>) {
    length += part.length;
    if (length > LIMIT) {
      return 413;
    }
    parts.push(part);
  }
  const body = Buffer.concat(parts);
  const id = verify(keys, (name) => request.headers[name], body);
  const key = request.headers["x-event-key"];
  await claimAndApply(id, (request.url ?? "").split("/").pop() ?? "", typeof key === "string" ? key : undefined, body);
  // After the commit, and for a repeat, too.
  return 204;
}

const server = createServer((request, response) => {
  receive(request)
    .catch((error) => {
      if (error instanceof InvalidSignature) {
        console.warn(`refused: ${error.message}`);
        return 401;
      }
      // walrelay sends it again, after growing pauses. Not its text: an error may quote the event.
      console.error(`an event failed: ${error.name}`);
      return 503;
    })
    .then((status) => response.writeHead(status).end());
});

await pool.query(TABLE);
server.listen(Number(process.env.PORT ?? 8080), () => console.info("listens"));
for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.on(signal, () => {
    // Requests that have begun get their answers; idle connections are closed.
    server.close(() => pool.end().then(() => console.info("stopped")));
    server.closeIdleConnections();
  });
}
