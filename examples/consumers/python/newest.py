"""Keeps the newest value of each key, whatever is repeated. For psycopg 3.

For caches, upserted tables and compacted topics: no table of processed events is needed. The relay writes
the position header with `position_header = "walrelay-position"` in [router].

    CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)
"""

import psycopg

POSITION_HEADER = "walrelay-position"

# Positions are compared as bytes, which is what the collation "C" does. A record without a position,
# which `walrelay resend` sends, never replaces one that has a position.
APPLY = """
INSERT INTO newest AS kept (key, position, value) VALUES (%(key)s, %(position)s, %(value)s)
ON CONFLICT (key) DO UPDATE SET position = excluded.position, value = excluded.value
WHERE kept.position IS NULL OR kept.position < excluded.position
"""


def apply(connection: psycopg.Connection, message) -> bool:
    """Applies a record of a Kafka client. False: it is not newer than what is kept.

    A tombstone keeps its row, with a NULL value: its position must be known when an older record comes.
    """
    headers = dict(message.headers() or [])
    position = headers.get(POSITION_HEADER)
    value = message.value()
    row = {
        "key": message.key().decode(),
        "position": position and position.decode(),
        "value": value and value.decode(),
    }
    return connection.execute(APPLY, row).rowcount == 1
