// Verifies the signature of a request, as Standard Webhooks describes it. Needs Node only: copy this file.
//
//     const eventId = verify(keys, (name) => request.headers[name], body);
//
// `body` are the bytes of the request, before anything parses them.

import { createHmac, timingSafeEqual } from "node:crypto";

const PREFIX = "whsec_";

/** The request is not one of the sender: answer 401, and do nothing else. */
export class InvalidSignature extends Error {}

/** The bytes of a secret, `whsec_` and base64. Call it at the start: a mistake in it must not wait. */
export function keyOf(secret: string): Buffer {
  const text = secret.slice(PREFIX.length);
  const key = Buffer.from(text, "base64");
  // Node skips what is no base64.
  const isWhole = key.toString("base64").replace(/=+$/, "") === text.replace(/=+$/, "");
  if (!secret.startsWith(PREFIX) || !isWhole || key.length < 24 || key.length > 64) {
    throw new RangeError("a secret is whsec_ and the base64 of 24 to 64 bytes");
  }
  return key;
}

/**
 * Returns the event's id, by which a repeat is known.
 *
 * @param keys one, or the old and the new one while secrets are rotated
 * @param header the value of a header, whose name is in lower case
 * @param tolerance seconds that the clocks may differ; a request that a third party has kept is refused after that
 */
export function verify(
  keys: Buffer[],
  header: (name: string) => string | string[] | undefined,
  body: Buffer,
  tolerance = 300,
  now = Date.now() / 1000,
): string {
  const [id, sent, signatures] = ["id", "timestamp", "signature"].map((name) => header(`webhook-${name}`));
  if (typeof id !== "string" || typeof sent !== "string" || typeof signatures !== "string" || id === "") {
    throw new InvalidSignature("a header is missing");
  }
  if (!/^[0-9]+$/.test(sent) || Math.abs(now - Number(sent)) > tolerance) {
    throw new InvalidSignature("it was sent too long ago, or by a wrong clock");
  }
  for (const key of keys) {
    const digest = createHmac("sha256", key).update(`${id}.${sent}.`).update(body).digest("base64");
    const expected = Buffer.from(`v1,${digest}`);
    for (const signature of signatures.split(" ").map((text) => Buffer.from(text))) {
      // In constant time: its duration must not tell how much of a guess is right.
      if (signature.length === expected.length && timingSafeEqual(signature, expected)) {
        return id;
      }
    }
  }
  throw new InvalidSignature("no signature is of a known secret");
}
