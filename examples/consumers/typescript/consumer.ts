// Consumes events: each one has its effect in Postgres once. For KafkaJS 2 and node-postgres (pg) 8.
//
// The table processed_events comes from `walrelay init --consumer`. Copy this file, and write `effect`.

import type { Consumer, EachMessagePayload, KafkaMessage, Producer } from "kafkajs";
import type { Client } from "pg";

const ID_HEADER = "id";

export type Effect = (client: Client, message: KafkaMessage) => Promise<void>;

export interface Options {
  consumer: Consumer;
  /** A connection of its own: no other query may be in its transactions. */
  client: Client;
  /** Each consumer of the same events has claims of its own. */
  name: string;
  effect: Effect;
  producer: Producer;
  /** The topic for events whose effect has failed `attempts` times, with `pause` milliseconds between. */
  deadLetters: string;
  attempts: number;
  pause: number;
}

/** The id by which a repeat is known. It is the same in every delivery of an event. */
export function eventId(message: KafkaMessage): string {
  const id = message.headers?.[ID_HEADER];
  if (id === undefined) {
    throw new Error(`a record without the header ${ID_HEADER}`);
  }
  return id.toString();
}

/** Claims the event and has its effect, in one transaction. False: it was processed before. */
export async function process(options: Options, message: KafkaMessage): Promise<boolean> {
  const { client, name, effect } = options;
  await client.query("BEGIN");
  try {
    // A concurrent claim of the same event is waited for.
    const claimed = await client.query(
      "INSERT INTO processed_events (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
      [name, eventId(message)],
    );
    if (claimed.rowCount === 1) {
      await effect(client, message);
    }
    await client.query("COMMIT");
    return claimed.rowCount === 1;
  } catch (error) {
    // Fails if the connection is gone, which ends the transaction, too.
    await client.query("ROLLBACK").catch(() => undefined);
    throw error;
  }
}

/** Writes the record as it is, with the error, and waits for the acknowledgement. */
async function setAside(options: Options, { topic, partition, message }: EachMessagePayload, error: unknown) {
  const headers = {
    ...message.headers,
    error: String(error),
    source: `${topic}[${partition}]@${message.offset}`,
  };
  await options.producer.send({
    topic: options.deadLetters,
    acks: -1,
    messages: [{ key: message.key, value: message.value, headers }],
  });
}

async function processOrSetAside(options: Options, payload: EachMessagePayload): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      await process(options, payload.message);
      return;
    } catch (error) {
      // A connection that is gone fails here: that is no event's fault.
      await options.client.query("SELECT 1");
      if (attempt === options.attempts) {
        // Later events of its key go on without it.
        await setAside(options, payload, error);
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, options.pause));
      await payload.heartbeat();
    }
  }
}

/**
 * Processes records one after another, which keeps the order of each key. The offset of a record is
 * committed after its effect, and by nothing else. If a record fails here, or its offset, KafkaJS reads it
 * again. The consumer is subscribed; end the process when the connection ends, and start it again.
 */
export async function run(options: Options): Promise<void> {
  await options.consumer.run({
    autoCommit: false,
    partitionsConsumedConcurrently: 1,
    eachMessage: async (payload) => {
      await processOrSetAside(options, payload);
      const { topic, partition, message } = payload;
      const offset = (BigInt(message.offset) + 1n).toString();
      await options.consumer.commitOffsets([{ topic, partition, offset }]);
    },
  });
}

/** Forgets events that are older than the longest replay. Run it once a day. */
export async function prune(client: Client, name: string, days: number): Promise<number> {
  const deleted = await client.query(
    "DELETE FROM processed_events WHERE consumer = $1 AND processed_at < now() - make_interval(days => $2)",
    [name, days],
  );
  return deleted.rowCount ?? 0;
}
