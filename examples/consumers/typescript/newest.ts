// Keeps the newest value of each key, whatever is repeated. For @platformatic/kafka 1 and node-postgres (pg) 8.
//
// For caches, upserted tables and compacted topics: no table of processed events is needed. The relay writes
// the position header with `position_header = "walrelay-position"` in [router].
//
//     CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)

import type { Client } from "pg";
import type { Message } from "./consumer.js";

export const POSITION_HEADER = "walrelay-position";

// Positions are compared as bytes, which is what the collation "C" does. A record without a position,
// which `walrelay resend` sends, never replaces one that has a position.
const APPLY = `
  INSERT INTO newest AS kept (key, position, value) VALUES ($1, $2, $3)
  ON CONFLICT (key) DO UPDATE SET position = excluded.position, value = excluded.value
  WHERE kept.position IS NULL OR kept.position < excluded.position`;

/**
 * Applies a record. False: it is not newer than what is kept.
 *
 * A tombstone keeps its row, with a NULL value: its position must be known when an older record comes.
 */
export async function apply(client: Client, message: Message): Promise<boolean> {
  const text = (bytes?: Buffer) => bytes?.toString() ?? null;
  const values = [text(message.key), text(message.headers.get(POSITION_HEADER)), text(message.value)];
  return (await client.query(APPLY, values)).rowCount === 1;
}
