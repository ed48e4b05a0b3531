"""Consumes events: each one has its effect in Postgres once. For confluent-kafka and psycopg 3.

The table processed_events comes from `walrelay init --consumer`. Copy this file, and write `effect`.
"""

import time
from collections.abc import Callable

import psycopg
from confluent_kafka import Consumer, KafkaException, Message, Producer

ID_HEADER = "id"

# The offset of a record is committed by `run`, after its effect, and by nothing else.
SETTINGS = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}

Effect = Callable[[psycopg.Connection, Message], None]


def event_id(message: Message) -> str:
    """The id by which a repeat is known. It is the same in every delivery of an event."""
    for name, value in message.headers() or []:
        if name == ID_HEADER:
            return value.decode()
    raise ValueError(f"a record without the header {ID_HEADER}")


def process(connection: psycopg.Connection, name: str, message: Message, effect: Effect) -> bool:
    """Claims the event and has its effect, in one transaction. False: it was processed before."""
    with connection.transaction():
        claimed = connection.execute(
            # A concurrent claim of the same event is waited for.
            "INSERT INTO processed_events (consumer, event_id) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            [name, event_id(message)],
        )
        if claimed.rowcount == 0:
            return False
        effect(connection, message)
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
            ("source", f"{message.topic()}[{message.partition()}]@{message.offset()}".encode()),
        ],
        on_delivery=lambda failure, _: failures.append(failure),
    )
    producer.flush()
    if failures != [None]:
        raise KafkaException(failures[0] if failures else "the dead letter was not acknowledged")


def run(
    consumer: Consumer,
    connection: psycopg.Connection,
    name: str,
    effect: Effect,
    *,
    producer: Producer,
    dead_letters: str,
    attempts: int = 5,
    pause: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Processes records one after another, which keeps the order of each key, until `stop`.

    An error of the connection ends it: start it again, the record comes again. `connection` is in
    autocommit mode. `consumer` is subscribed; partitions are revoked in `poll` only, when no record
    is at hand.
    """
    while not stop():
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        for attempt in range(1, attempts + 1):
            try:
                process(connection, name, message, effect)
                break
            except psycopg.OperationalError:
                raise
            except Exception as error:
                if attempt == attempts:
                    # Later events of its key go on without it.
                    dead_letter(producer, dead_letters, message, error)
                else:
                    time.sleep(pause)
        try:
            consumer.commit(message=message, asynchronous=False)
        except KafkaException:
            # The partition was given to another consumer meanwhile: it begins with this record, and
            # finds that it was processed.
            pass


def prune(connection: psycopg.Connection, name: str, days: int) -> int:
    """Forgets events that are older than the longest replay. Run it once a day."""
    deleted = connection.execute(
        "DELETE FROM processed_events WHERE consumer = %s AND processed_at < now() - make_interval(days => %s)",
        [name, days],
    )
    return deleted.rowcount
