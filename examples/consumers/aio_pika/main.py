"""A whole consumer of a queue, which keeps each event in the table `received`: copy it, and write your effect.

    DATABASE_URL=postgres://… RABBITMQ_URL=amqp://… python main.py

QUEUE has a default; it is declared if it does not exist. It ends by SIGTERM or SIGINT after the current event, and
starts again by itself, after growing pauses, when a server does not answer or the effect fails.
"""

import asyncio
import logging
import os
import random
import signal

import aio_pika
import psycopg

import consumer

# With a lock: two processes may start at once.
TABLE = """SELECT pg_advisory_xact_lock(59);
    CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text)"""
log = logging.getLogger("main")


async def effect(connection: psycopg.AsyncConnection, event: consumer.Event) -> None:
    await connection.execute("INSERT INTO received (consumer, topic, key, value) VALUES (%s, %s, %s, %s)",
                             [QUEUE, event.type, event.aggregate_id, str(event.payload)])


async def serve(stop: asyncio.Event, on_progress) -> None:
    async with await aio_pika.connect(os.environ["RABBITMQ_URL"]) as rabbitmq:
        channel = await rabbitmq.channel()
        # One at a time: a stop gives back what was fetched, and that counts as a delivery.
        await channel.set_qos(prefetch_count=1)
        # RabbitMQ 4 drops an event after 20 deliveries unless the queue has a dead-letter exchange: set one by a policy.
        arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
        queue = await channel.declare_queue(QUEUE, durable=True, arguments=arguments)
        async with await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
            await connection.execute(TABLE)
            await consumer.run(queue, connection, QUEUE, effect, stop, on_progress)


async def main() -> None:
    logging.basicConfig(level=os.environ.get("LOG_LEVEL", "INFO"), format="%(asctime)s %(levelname)s %(message)s")
    stop, failures = asyncio.Event(), 0
    for number in signal.SIGTERM, signal.SIGINT:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def on_progress() -> None:
        nonlocal failures
        failures = 0

    log.info("consumes %s", QUEUE)
    while not stop.is_set():
        try:
            await serve(stop, on_progress)
        except consumer.TransactionOpen:
            raise
        except Exception as error:
            pause = min(0.5 * 2**failures, 30) * random.uniform(0.5, 1)
            failures += 1
            # Not its text: an error of an effect may quote the event.
            log.warning("%s; again in %.1f s", type(error).__name__, pause)
            try:
                await asyncio.wait_for(stop.wait(), pause)
            except TimeoutError:
                pass
    log.info("stopped")


if __name__ == "__main__":
    QUEUE = os.environ.get("QUEUE", "orders")
    asyncio.run(main())
