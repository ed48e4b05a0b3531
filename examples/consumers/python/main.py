"""A whole consumer, which keeps each event in the table `received`: copy it, and write your effect.

    DATABASE_URL=postgres://… KAFKA_BROKERS=localhost:9094 python main.py

TOPIC and GROUP have defaults. With --id-header=x-outbox-event-id it reads another header than `id`. It ends by
SIGTERM or SIGINT after the current event, and starts again by itself, after growing pauses, when a server does not
answer.
"""

import argparse
import logging
import os
import signal
import threading

import psycopg
from confluent_kafka import Consumer, KafkaException, Message, Producer

import consumer

# With a lock: two processes may start at once.
TABLE = """SELECT pg_advisory_xact_lock(59);
    CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text)"""
log = logging.getLogger("main")


def effect(connection: psycopg.Connection, message: Message) -> None:
    connection.execute(
        "INSERT INTO received (consumer, topic, key, value) VALUES (%s, %s, %s, %s)",
        [GROUP, message.topic(), text(message.key()), text(message.value())],
    )


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def serve(id_header: str, stop: threading.Event, on_progress) -> None:
    settings = {"bootstrap.servers": os.environ["KAFKA_BROKERS"]}
    session = {"session.timeout.ms": int(os.environ.get("SESSION_TIMEOUT_MS", "45000"))}
    member = Consumer({**settings, **session, "group.id": GROUP, **consumer.SETTINGS})
    try:
        member.subscribe([TOPIC])
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
            connection.execute(TABLE)
            consumer.run(member, connection, GROUP, effect, producer=Producer(settings), stop=stop,
                         dead_letters=f"{TOPIC}.dead", id_header=id_header, on_progress=on_progress)
    finally:
        # Leaves the group: its partitions are given away at once.
        member.close()


def main() -> None:
    logging.basicConfig(level=os.environ.get("LOG_LEVEL", "INFO"), format="%(asctime)s %(levelname)s %(message)s")
    options = argparse.ArgumentParser(description="Keeps each event in the table received.")
    options.add_argument("--id-header", default=os.environ.get("ID_HEADER", "id"), metavar="NAME",
                         help="the header with the event's id (default: ID_HEADER, or id)")
    id_header = options.parse_args().id_header
    stop = threading.Event()
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, lambda *_: stop.set())
    backoff = consumer.Backoff()
    log.info("consumes %s as %s", TOPIC, GROUP)
    while not stop.is_set():
        try:
            serve(id_header, stop, backoff.reset)
        except (psycopg.OperationalError, KafkaException) as error:
            pause = backoff.next()
            log.warning("%s; again in %.1f s", error, pause)
            stop.wait(pause)
    log.info("stopped")


if __name__ == "__main__":
    TOPIC = os.environ.get("TOPIC", "outbox.event.Order")
    GROUP = os.environ.get("GROUP", "example")
    main()
