"""Consumes events from RabbitMQ: each one has its effect in Postgres once. For aio-pika and psycopg 3.

The table processed_events comes from `walrelay init --consumer`. Copy this file, and write `effect`.
The relay's preset is `outbox`, whose headers and body these are.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue
from psycopg.pq import TransactionStatus

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """An event of the preset `outbox`."""

    id: str
    type: str
    aggregate_type: str
    aggregate_id: str
    payload: Any
    metadata: Any
    timestamp: str


Effect = Callable[[psycopg.AsyncConnection, Event], Awaitable[None]]


class TransactionOpen(Exception):
    """The effect would not be committed before the acknowledgement."""


class HiddenError(Exception):
    """The effect went on after an error of Postgres, which rolls the transaction back instead of committing it."""


def event_of(message: AbstractIncomingMessage) -> Event:
    """Reads the message. Its headers say type and aggregate, too, for those who route by them."""
    body = json.loads(message.body)
    return Event(
        # The same in every delivery of an event.
        id=message.message_id or body["event_id"],
        type=message.headers["event-type"],
        aggregate_type=body["aggregate_type"],
        aggregate_id=message.headers["aggregate-id"],
        payload=body["payload"],
        metadata=body["metadata"],
        timestamp=body["timestamp"],
    )


async def process(connection: psycopg.AsyncConnection, name: str, event: Event, effect: Effect) -> bool:
    """Claims the event and has its effect, in one transaction. False: it was processed before."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        # `transaction()` would be a savepoint of the open transaction, and commit nothing.
        raise TransactionOpen("a transaction is open: connect with autocommit=True")
    async with connection.transaction():
        claimed = await connection.execute(
            # A concurrent claim of the same event is waited for.
            "INSERT INTO processed_events (consumer, event_id) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            [name, event.id],
        )
        if claimed.rowcount == 0:
            return False
        await effect(connection, event)
        if connection.info.transaction_status == TransactionStatus.INERROR:
            raise HiddenError("COMMIT would roll back")
    return True


async def run(
    queue: AbstractQueue,
    connection: psycopg.AsyncConnection,
    name: str,
    effect: Effect,
    stop: asyncio.Event,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Processes messages one after another, which keeps the order of each key, until `stop` is set.

    Declare the queue with `x-single-active-consumer`, and set a prefetch: then a second process waits
    for the end of this one, and the order is kept. An error ends it: start it again after a pause, the
    message comes again. A quorum queue with a delivery limit dead-letters a message that fails each time.
    `connection` is in autocommit mode.
    """
    if not connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE:
        # Without autocommit its first statement would open a transaction that nothing commits.
        raise TransactionOpen("connect with autocommit=True, and open no transaction")
    stopped = asyncio.ensure_future(stop.wait())
    try:
        async with queue.iterator() as messages:
            while not stop.is_set():
                following = asyncio.ensure_future(anext(messages))
                await asyncio.wait({following, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    following.cancel()
                    return
                message = following.result()
                # Acknowledges after the commit; by an error, puts the message back.
                async with message.process(requeue=True):
                    is_new = await process(connection, name, event_of(message), effect)
                log.debug("%s %s", message.message_id, "processed" if is_new else "was processed before")
                on_progress()
    finally:
        stopped.cancel()
