// Consumes events: each one has its effect in Postgres once. For @platformatic/kafka 1 and node-postgres (pg) 8.
//
// The table processed_events comes from `walrelay init --consumer`. Copy this file, and write the effect, as main.ts
// does. Version 2 of @platformatic/kafka has the same interface and needs Node 22.

import { setTimeout as sleep } from "node:timers/promises";
import {
  Consumer,
  FetchIsolationLevels,
  type Message as KafkaMessage,
  type Producer,
  stringDeserializer,
} from "@platformatic/kafka";
import pg from "pg";

/** Names of headers are texts, all else is bytes. A key or a value that is null is undefined. */
export type Message = KafkaMessage<Buffer | undefined, Buffer | undefined, string, Buffer>;
export type EventConsumer = Consumer<Buffer | undefined, Buffer | undefined, string, Buffer>;
export type DeadLetterProducer = Producer<Buffer, Buffer, string, Buffer>;
export type Effect = (client: pg.ClientBase, message: Message) => Promise<void>;

export interface Options {
  consumer: EventConsumer;
  topic: string;
  /** A connection of its own, and no pool: no other query may be in its transactions. */
  client: pg.ClientBase;
  /** Each consumer of the same events has claims of its own. */
  name: string;
  /** The header with the id by which a repeat is known. */
  idHeader: string;
  effect: Effect;
  producer: DeadLetterProducer;
  /** The topic for events whose effect has failed `attempts` times. */
  deadLetters: string;
  attempts: number;
  /** Milliseconds between the first two attempts. The next pauses are twice as long, up to half a minute. */
  pause: number;
  /** Ends `run` after the current event. */
  stop: AbortSignal;
  /** Called after each event. */
  onProgress?: () => void;
}

/** Pauses in milliseconds that double from the first to half a minute, with jitter. */
export class Backoff {
  #failures = 0;

  constructor(readonly first: number) {}

  next(): number {
    const pause = Math.min(this.first * 2 ** this.#failures++, 30_000);
    return pause * (0.5 + Math.random() / 2);
  }

  reset(): void {
    this.#failures = 0;
  }

  /** Waits for the next pause, or until the signal. */
  async pause(stop: AbortSignal): Promise<void> {
    await sleep(this.next(), undefined, { signal: stop }).catch(() => undefined);
  }
}

/** The offset of a record is committed by `run`, after its effect, and by nothing else. */
export function createConsumer(bootstrapBrokers: string[], groupId: string, sessionTimeout = 45_000): EventConsumer {
  return new Consumer<Buffer | undefined, Buffer | undefined, string, Buffer>({
    bootstrapBrokers,
    groupId,
    clientId: groupId,
    sessionTimeout,
    heartbeatInterval: sessionTimeout / 10,
    autocommit: false,
    isolationLevel: FetchIsolationLevels.READ_COMMITTED,
    maxWaitTime: 500,
    highWaterMark: 100,
    deserializers: {
      key: (bytes?: Buffer) => bytes,
      value: (bytes?: Buffer) => bytes,
      headerKey: (bytes?: Buffer) => stringDeserializer(bytes) ?? "",
      headerValue: (bytes?: Buffer) => bytes ?? Buffer.alloc(0),
    },
  });
}

/** The id by which a repeat is known. It is the same in every delivery of an event. */
export function eventId(message: Message, idHeader: string): string {
  const id = message.headers.get(idHeader);
  if (id === undefined) {
    throw new Error(`a record without the header ${idHeader}`);
  }
  return id.toString();
}

/** Claims the event and has its effect, in one transaction. False: it was processed before. */
export async function process(options: Options, message: Message): Promise<boolean> {
  const { client, name, effect } = options;
  await client.query("BEGIN");
  try {
    // A concurrent claim of the same event is waited for.
    const claimed = await client.query(
      "INSERT INTO processed_events (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
      [name, eventId(message, options.idHeader)],
    );
    if (claimed.rowCount === 1) {
      await effect(client, message);
    }
    const { command } = await client.query("COMMIT");
    if (command !== "COMMIT") {
      throw new Error("the effect went on after an error of Postgres, which has rolled it back");
    }
    return claimed.rowCount === 1;
  } catch (error) {
    // Fails if the connection is gone, which ends the transaction, too.
    await client.query("ROLLBACK").catch(() => undefined);
    throw error;
  }
}

const place = ({ topic, partition, offset }: Message) => `${topic}[${partition}]@${offset}`;

/** Writes the record as it is, with the error, and waits for the acknowledgement. */
async function setAside(options: Options, message: Message, error: unknown): Promise<void> {
  const headers = new Map(message.headers);
  headers.set("error", Buffer.from(String(error)));
  headers.set("source", Buffer.from(place(message)));
  const { key, value } = message;
  await options.producer.send({ messages: [{ topic: options.deadLetters, key, value, headers }], acks: -1 });
}

/** False: it was stopped before the event was processed. */
async function processOrSetAside(options: Options, message: Message): Promise<boolean> {
  const backoff = new Backoff(options.pause);
  for (let attempt = 1; ; attempt++) {
    try {
      await process(options, message);
      return true;
    } catch (error) {
      // A connection that is gone fails here: that is no event's fault.
      await options.client.query("SELECT 1");
      // Not its text: an error may quote the event.
      const name = error instanceof Error ? error.name : typeof error;
      console.warn(`${place(message)}: attempt ${attempt} of ${options.attempts}: ${name}`);
      if (attempt === options.attempts) {
        // Later events of its key go on without it.
        await setAside(options, message, error);
        console.error(`${place(message)} is a dead letter in ${options.deadLetters}`);
        return true;
      }
      await backoff.pause(options.stop);
      if (options.stop.aborted) {
        return false;
      }
    }
  }
}

/**
 * Processes records one after another, which keeps the order of each key, until `stop`. The offset of a record is
 * committed after its effect, and by nothing else. An error of a server ends it: close the consumer, and start again
 * with a new one. The record comes again.
 */
export async function run(options: Options): Promise<void> {
  if (!(options.client instanceof pg.Client)) {
    // BEGIN, the claim and COMMIT of a pool could each be of another connection.
    throw new TypeError("options.client must be a pg.Client, or a client that pool.connect() has lent");
  }
  const stopped = new Promise<{ done: true; value: undefined }>((resolve) => {
    const end = () => resolve({ done: true, value: undefined });
    options.stop.addEventListener("abort", end, { once: true });
    if (options.stop.aborted) {
      end();
    }
  });
  const stream = await options.consumer.consume({ topics: [options.topic], mode: "committed", fallbackMode: "earliest" });
  try {
    const messages = stream[Symbol.asyncIterator]();
    for (;;) {
      const next = messages.next();
      next.catch(() => undefined);
      const { done, value: message } = await Promise.race([next, stopped]);
      if (options.stop.aborted) {
        return;
      }
      if (done || message === undefined) {
        throw new Error("the stream of records has ended");
      }
      if (!(await processOrSetAside(options, message))) {
        return;
      }
      try {
        await message.commit();
      } catch (error) {
        // The partition was given to another consumer meanwhile, which finds that this record was processed. If
        // the broker is gone, the stream ends, too.
        console.info(`${place(message)}: its offset is not committed: ${error}`);
      }
      options.onProgress?.();
    }
  } finally {
    await stream.close();
  }
}

/** Forgets events that are older than the longest replay. Run it once a day. */
export async function prune(client: pg.ClientBase, name: string, days: number): Promise<number> {
  const deleted = await client.query(
    "DELETE FROM processed_events WHERE consumer = $1 AND processed_at < now() - make_interval(days => $2)",
    [name, days],
  );
  return deleted.rowCount ?? 0;
}
