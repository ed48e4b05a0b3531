<?php

declare(strict_types=1);

/**
 * Keeps the newest value of each key, whatever is repeated. By PDO, with any client.
 *
 * For caches and upserted tables: no table of processed events is needed. The relay writes the position
 * header with `position_header = "walrelay-position"` in [router].
 *
 *   CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)
 *
 * For a message of RabbitMQ:
 *
 *   $headers = $message->get('application_headers')->getNativeData();
 *   Newest::apply($pdo, $headers['walrelay.key'], $headers[Newest::POSITION_HEADER] ?? null, $message->getBody());
 */
final class Newest
{
    /** Not the RabbitMQ sink's own header walrelay.position, whose texts do not ascend as bytes. */
    public const POSITION_HEADER = 'walrelay-position';

    // Positions are compared as bytes, which is what the collation "C" does. A record without a position,
    // which `walrelay resend` sends, never replaces one that has a position.
    private const APPLY = '
        INSERT INTO newest AS kept (key, position, value) VALUES (?, ?, ?)
        ON CONFLICT (key) DO UPDATE SET position = excluded.position, value = excluded.value
        WHERE kept.position IS NULL OR kept.position < excluded.position';

    /**
     * Applies a record, in the caller's transaction. False: it is not newer than what is kept.
     *
     * @param ?string $value null for a tombstone. It keeps its row, with a NULL value: its position must be
     *     known when an older record comes
     */
    public static function apply(PDO $pdo, string $key, ?string $position, ?string $value): bool
    {
        $apply = $pdo->prepare(self::APPLY);
        $apply->execute([$key, $position, $value]);
        return $apply->rowCount() === 1;
    }
}
