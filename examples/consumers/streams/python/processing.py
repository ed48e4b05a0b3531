"""Processes the events of a stream, in its order: each one has its effect in Postgres once. For psycopg 3.

Position, claim and effect are committed together, so nothing is acknowledged at the server of the stream: after a
crash the consumer goes on after the last position in Postgres. The claim drops what the relay has sent again. The
table processed_events comes from `walrelay init --consumer`, `TABLES` has the others.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import psycopg

log = logging.getLogger(__name__)

# With a lock: two processes may start at once.
TABLES = """SELECT pg_advisory_xact_lock(59);
    CREATE TABLE IF NOT EXISTS stream_positions
        (consumer text, stream text, position text NOT NULL, PRIMARY KEY (consumer, stream));
    CREATE TABLE IF NOT EXISTS failed_events
        (consumer text, event_id text, stream text, position text, key text, value text, error text,
         failed_at timestamptz DEFAULT now(), PRIMARY KEY (consumer, event_id))"""


@dataclass(frozen=True)
class Event:
    """An event of a stream. `id` is the same in every delivery; `position` is that of this delivery."""

    id: str
    position: str
    key: str | None
    value: str | None


Effect = Callable[[psycopg.AsyncConnection, Event], Awaitable[None]]
# Yields the events after a position; None is the start of the stream.
Source = Callable[[str | None], AsyncIterator[Event]]


class Gap(Exception):
    """The stream no longer has the next event: its limits removed it before it was processed."""




class Backoff:
    """Pauses in seconds that grow from `first` to `longest`, with jitter."""

    def __init__(self, first: float = 0.5, longest: float = 30.0) -> None:
        self.first, self.longest, self.failures = first, longest, 0

    def next(self) -> float:
        pause = min(self.first * 2**self.failures, self.longest)
        self.failures += 1
        return pause * random.uniform(0.5, 1)

    def reset(self) -> None:
        self.failures = 0

    async def pause(self, stop: asyncio.Event) -> None:
        """Waits for the next pause, or until it is stopped."""
        try:
            await asyncio.wait_for(stop.wait(), self.next())
        except TimeoutError:
            pass


async def run(
    source: Source,
    database: str,
    consumer: str,
    stream: str,
    effect: Effect,
    stop: asyncio.Event,
    *,
    attempts: int = 5,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Processes events one after another until `stop` is set, which finishes the current event.

    An error of a server ends it: start it again. A second process waits until the first has ended, since the lock is
    held by the connection. An event whose effect has failed `attempts` times is kept in failed_events.
    """
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        await connection.execute(TABLES)
        await lock(connection, f"{consumer} {stream}", stop)
        row = await connection.execute("SELECT position FROM stream_positions WHERE consumer = %s AND stream = %s",
                                       [consumer, stream])
        position = (await row.fetchone() or [None])[0]
        log.info("reads %s after %s", stream, position or "its start")
        async for event in until(stop, source(position)):
            backoff = Backoff(0.2)
            for attempt in range(1, attempts + 1):
                try:
                    await process(connection, consumer, stream, event, effect)
                    break
                except psycopg.OperationalError:
                    raise
                except Exception as error:
                    # Not its text: an error may quote the event.
                    log.warning("%s at %s: attempt %d of %d: %s", stream, event.position, attempt, attempts,
                                type(error).__name__)
                    if attempt == attempts:
                        # Later events of its key go on without it.
                        await process(connection, consumer, stream, event, keeps(consumer, stream, error))
                        log.error("%s at %s is kept in failed_events", stream, event.position)
                    else:
                        await backoff.pause(stop)
                        if stop.is_set():
                            return
            on_progress()


async def process(connection: psycopg.AsyncConnection, consumer: str, stream: str, event: Event, effect: Effect) -> bool:
    """Claims the event, has its effect and stores its position, in one transaction. False: it is a repeat."""
    async with connection.transaction():
        claimed = await connection.execute(
            "INSERT INTO processed_events (consumer, event_id) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            [consumer, event.id],
        )
        if claimed.rowcount == 1:
            await effect(connection, event)
        await connection.execute(
            "INSERT INTO stream_positions VALUES (%s, %s, %s)"
            " ON CONFLICT (consumer, stream) DO UPDATE SET position = excluded.position",
            [consumer, stream, event.position],
        )
    return claimed.rowcount == 1


def keeps(consumer: str, stream: str, error: Exception) -> Effect:
    """An effect that keeps the event with its error."""

    async def effect(connection: psycopg.AsyncConnection, event: Event) -> None:
        await connection.execute(
            "INSERT INTO failed_events VALUES (%s, %s, %s, %s, %s, %s, %s)",
            [consumer, event.id, stream, event.position, event.key, event.value, f"{type(error).__name__}: {error}"],
        )

    return effect


async def lock(connection: psycopg.AsyncConnection, name: str, stop: asyncio.Event) -> None:
    """Waits until no other process has this lock, which ends with the connection."""
    is_waiting = False
    while not stop.is_set():
        row = await connection.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [name])
        if (await row.fetchone())[0]:
            return
        if not is_waiting:
            log.info("another process has %s: waits for its end", name)
            is_waiting = True
        try:
            await asyncio.wait_for(stop.wait(), 0.5)
        except TimeoutError:
            pass


async def until(stop: asyncio.Event, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """The events until it is stopped, also while it waits for the next one."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        while not stop.is_set():
            following = asyncio.ensure_future(anext(events))
            await asyncio.wait({following, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                await asyncio.wait({following})
                return
            yield following.result()
    finally:
        stopped.cancel()
        await events.aclose()
