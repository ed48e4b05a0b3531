"""Consumes events: each one has its effect in Postgres once. For confluent-kafka and psycopg 3.

The table processed_events comes from `walrelay init --consumer`. Copy this file, and write `effect`, as main.py
does.
"""

import logging
import random
import threading
from collections.abc import Callable

import psycopg
from confluent_kafka import Consumer, KafkaException, Message, Producer
from psycopg.pq import TransactionStatus

log = logging.getLogger(__name__)

# The offset of a record is committed by `run`, after its effect, and by nothing else.
SETTINGS = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}

Effect = Callable[[psycopg.Connection, Message], None]


class TransactionOpen(Exception):
    """The effect would not be committed before the offset."""


class HiddenError(Exception):
    """The effect went on after an error of Postgres, which rolls the transaction back instead of committing it."""


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


def event_id(message: Message, id_header: str = "id") -> str:
    """The id by which a repeat is known. It is the same in every delivery of an event."""
    for name, value in message.headers() or []:
        if name == id_header:
            return value.decode()
    raise ValueError(f"a record without the header {id_header}")


def process(connection: psycopg.Connection, name: str, message: Message, effect: Effect, id_header: str = "id") -> bool:
    """Claims the event and has its effect, in one transaction. False: it was processed before."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        # `transaction()` would be a savepoint of the open transaction, and commit nothing.
        raise TransactionOpen("a transaction is open: connect with autocommit=True")
    with connection.transaction():
        claimed = connection.execute(
            # A concurrent claim of the same event is waited for.
            "INSERT INTO processed_events (consumer, event_id) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            [name, event_id(message, id_header)],
        )
        if claimed.rowcount == 0:
            return False
        effect(connection, message)
        if connection.info.transaction_status == TransactionStatus.INERROR:
            raise HiddenError("COMMIT would roll back")
    return True


def dead_letter(producer: Producer, topic: str, message: Message, error: Exception) -> None:
    """Writes the record as it is, with the error, and waits for the acknowledgement."""
    failures = []
    producer.produce(
        topic,
        key=message.key(),
        value=message.value(),
        headers=[
            *(message.headers() or []),
            ("error", f"{type(error).__name__}: {error}".encode()),
            ("source", place(message).encode()),
        ],
        on_delivery=lambda failure, _: failures.append(failure),
    )
    producer.flush()
    if failures != [None]:
        raise KafkaException(failures[0] if failures else "the dead letter was not acknowledged")


def place(message: Message) -> str:
    return f"{message.topic()}[{message.partition()}]@{message.offset()}"


def run(
    consumer: Consumer,
    connection: psycopg.Connection,
    name: str,
    effect: Effect,
    *,
    producer: Producer,
    dead_letters: str,
    stop: threading.Event,
    attempts: int = 5,
    pause: float = 1.0,
    id_header: str = "id",
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Processes records one after another, which keeps the order of each key, until `stop` is set.

    An error of the connection ends it: start it again, the record comes again. `connection` is in
    autocommit mode. `consumer` is subscribed; partitions are revoked in `poll` only, when no record
    is at hand. Pauses between attempts double; all of them are shorter than `max.poll.interval.ms`.
    """
    if not connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE:
        # Without autocommit its first statement would open a transaction that nothing commits.
        raise TransactionOpen("connect with autocommit=True, and open no transaction")
    while not stop.is_set():
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        backoff = Backoff(pause)
        for attempt in range(1, attempts + 1):
            try:
                is_new = process(connection, name, message, effect, id_header)
                log.debug("%s %s", place(message), "processed" if is_new else "was processed before")
                break
            except (psycopg.OperationalError, TransactionOpen):
                raise
            except Exception as error:
                # Not its text: an error may quote the event.
                log.warning("%s: attempt %d of %d: %s", place(message), attempt, attempts, type(error).__name__)
                if attempt == attempts:
                    # Later events of its key go on without it.
                    dead_letter(producer, dead_letters, message, error)
                    log.error("%s is a dead letter in %s", place(message), dead_letters)
                elif stop.wait(backoff.next()):
                    # Its offset is not committed: the next process has it again.
                    return
        try:
            consumer.commit(message=message, asynchronous=False)
        except KafkaException as error:
            # The partition was given to another consumer meanwhile: it begins with this record, and
            # finds that it was processed.
            log.info("%s: its offset is not committed: %s", place(message), error)
        on_progress()


def prune(connection: psycopg.Connection, name: str, days: int) -> int:
    """Forgets events that are older than the longest replay. Run it once a day."""
    deleted = connection.execute(
        "DELETE FROM processed_events WHERE consumer = %s AND processed_at < now() - make_interval(days => %s)",
        [name, days],
    )
    return deleted.rowcount
