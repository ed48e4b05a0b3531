"""A whole consumer of a stream, which keeps the number of each event in the table `received`.

    DATABASE_URL=postgres://… STREAM_URL=redis://localhost:6379 python main.py

STREAM_URL is of Redis (redis://), NATS (nats://) or RabbitMQ (amqp://). STREAM and GROUP have defaults. It ends by
SIGTERM or SIGINT after the current event, and starts again by itself, after growing pauses, when a server does not
answer. Copy processing.py and one source of sources.py, and write your effect.
"""

import asyncio
import logging
import os
import signal
import sys

import aio_pika.exceptions
import nats.errors
import psycopg
import redis.exceptions

import processing
import sources

TABLE = """SELECT pg_advisory_xact_lock(59);
    CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text)"""
SOURCES = {"redis": sources.redis_stream, "nats": sources.nats_stream, "amqp": sources.rabbitmq_stream}
PASSING = (psycopg.OperationalError, OSError, redis.exceptions.ConnectionError, nats.errors.Error,
           aio_pika.exceptions.AMQPError)
log = logging.getLogger("main")


async def effect(connection: psycopg.AsyncConnection, event: processing.Event) -> None:
    # Fails for an event that is no number: it is kept in failed_events.
    await connection.execute("INSERT INTO received (consumer, topic, key, value) VALUES (%s, %s, %s, %s)",
                             [GROUP, STREAM, event.key, str(int(event.value))])


async def main() -> None:
    logging.basicConfig(level=os.environ.get("LOG_LEVEL", "INFO"), format="%(asctime)s %(levelname)s %(message)s")
    stop, backoff = asyncio.Event(), processing.Backoff()
    for number in signal.SIGTERM, signal.SIGINT:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    database, url = os.environ["DATABASE_URL"], os.environ["STREAM_URL"]
    source = SOURCES[url.split(":")[0]](url, STREAM)
    while not stop.is_set():
        try:
            async with await psycopg.AsyncConnection.connect(database) as connection:
                await connection.execute(TABLE)
            await processing.run(source, database, GROUP, STREAM, effect, stop, on_progress=backoff.reset)
        except processing.Gap as error:
            # Events are lost: a person decides. Delete the row of stream_positions to go on from the stream's start.
            log.critical("%s", error)
            sys.exit(65)
        except PASSING as error:
            log.warning("%s; starts again after a pause", type(error).__name__)
            await backoff.pause(stop)
    log.info("stopped")


if __name__ == "__main__":
    STREAM, GROUP = os.environ.get("STREAM", "events"), os.environ.get("GROUP", "example")
    asyncio.run(main())
