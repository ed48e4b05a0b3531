"""The same test for a consumer in any language: what walrelay sends again has no second effect.

    replay.py COMMAND…    the command that runs the whole consumer, with its variables

The relay, the consumer and Postgres are killed amid the events. At its end the consumer is stopped by SIGTERM.
With REPLAY_POISON=1 a record without an id must become a dead letter: for a consumer whose own tests send none.
Needs WALRELAY_EXAMPLE_POSTGRES, _KAFKA, _CRASH, and in WALRELAY_EXAMPLE_BINARY the binary.
"""

import os
import random
import sys
from pathlib import Path

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).with_name("python")))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
import harness  # noqa: E402
import newest  # noqa: E402
from harness import POSTGRES, connect, crash_postgres  # noqa: E402

PATIENCE = harness.PATIENCE = 300

KAFKA = {"bootstrap.servers": os.environ["WALRELAY_EXAMPLE_KAFKA"]}
PARTITIONS, EVENTS = 3, 200

command = sys.argv[1:]
name = topic = f"replay_{random.getrandbits(32):08x}"
# The header with the ids, by option. The second process has it by the variable.
by_option = [*command, "--id-header=x-outbox-event-id"]
by_variable = ["env", "ID_HEADER=x-outbox-event-id", *command]
# What the README of the examples names. A killed consumer's partitions are given to another after two seconds.
VARIABLES = {"DATABASE_URL": POSTGRES, "KAFKA_BROKERS": KAFKA["bootstrap.servers"], "TOPIC": topic, "GROUP": topic,
             "SESSION_TIMEOUT_MS": "2000"}
CONFIG = f"""{harness.source(name)}position_header = "{newest.POSITION_HEADER}"

[sink.kafka]
"bootstrap.servers" = "{KAFKA['bootstrap.servers']}"
"""


def eventually(what, holds):
    harness.eventually(what, holds, passing=KafkaException)


def offsets():
    """Number of records in the topic, and of those whose offset the worker has committed."""
    reader = Consumer({**KAFKA, "group.id": topic})
    try:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        ends = [reader.get_watermark_offsets(of, timeout=10)[1] for of in partitions]
        return sum(ends), sum(max(of.offset, 0) for of in reader.committed(partitions, timeout=10))
    finally:
        reader.close()


def newest_values(connection):
    """The newest value of each key by the position header, of all records in a random order."""
    reader = Consumer({**KAFKA, "group.id": f"{topic}.newest", "enable.auto.commit": False})
    reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    count, records = offsets()[0], []
    while len(records) < count:
        records += [message for message in reader.consume(count, 1.0) if not message.error()]
    reader.close()
    random.shuffle(records)
    connection.execute('CREATE TEMPORARY TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)')
    for message in records:
        newest.apply(connection, message)
    return dict(connection.execute("SELECT key, value::int FROM newest").fetchall())


def scenario(connection, programs):
    walrelay, start = programs.walrelay, programs.start

    def effects():
        query = "SELECT key, value::int FROM received WHERE consumer = %s AND topic = %s ORDER BY n"
        try:
            return connection.execute(query, [topic, topic]).fetchall()
        except psycopg.errors.UndefinedTable:
            # The consumer creates it.
            return []

    connection.execute(harness.table(name))
    admin = AdminClient(KAFKA)
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        created.result()
    programs.prepare(name)
    relay, first = start(walrelay("run")), start(by_option)
    expected = [(f"k{number % 7}", number) for number in range(EVENTS)]
    for key, number in expected:
        connection.execute(f"INSERT INTO {name} (aggregate_id, event_type, payload) VALUES (%s, %s, %s)",
                           [key, f"{name}.placed", str(number)])
        if number == EVENTS // 2:
            eventually("the first effects", lambda: len(effects()) > 20)
            relay.kill()
            first.kill()
            relay.wait()
            start(walrelay("run"))
            second = start(by_variable)
        if number == EVENTS * 3 // 4:
            # The consumer connects again, after its pause.
            eventually("an effect of the second", lambda: len(effects()) > EVENTS // 2)
            crash_postgres()
            connection = connect()

    def done(records):
        there, processed = offsets()
        return there >= records and there == processed and len(effects()) >= EVENTS

    eventually("all effects", lambda: done(EVENTS))
    before = offsets()[0]
    programs.replay(name)
    eventually("all that was sent again is processed", lambda: done(before + EVENTS))
    by_key = sorted(effects(), key=lambda effect: effect[0])
    assert by_key == sorted(expected, key=lambda effect: effect[0]), f"not each event once, in order: {by_key}"
    kept = newest_values(connection)
    assert kept == dict(expected), f"not the newest values: {kept}"
    if os.environ.get("REPLAY_POISON"):
        producer = Producer(KAFKA)
        producer.produce(topic, key="k0", value="poison")
        producer.flush()
        dead = Consumer({**KAFKA, "group.id": f"{topic}.letters", "auto.offset.reset": "earliest"})
        dead.subscribe([f"{topic}.dead"])
        letters = []
        eventually("the dead letter", lambda: letters.extend(
            letter for letter in dead.consume(1, 1.0) if not letter.error()) or letters)
        dead.close()
        assert (letters[0].key(), letters[0].value()) == (b"k0", b"poison"), "not the dead letter"
        assert len(effects()) == EVENTS, "an effect of the poison"
    second.terminate()
    status = second.wait(PATIENCE)
    # 143: what a JVM says of a stop in order.
    assert status in (0, 143), f"the consumer ended by SIGTERM with {status}"
    print(f"replay: {offsets()[0]} records of {EVENTS} events, each with one effect")


harness.run(scenario, name, CONFIG, VARIABLES)
