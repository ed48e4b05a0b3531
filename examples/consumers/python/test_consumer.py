"""The consumer against a real Postgres and Kafka: WALRELAY_EXAMPLE_POSTGRES, WALRELAY_EXAMPLE_KAFKA."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import uuid

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import consumer as example

POSTGRES = os.environ["WALRELAY_EXAMPLE_POSTGRES"]
KAFKA = os.environ["WALRELAY_EXAMPLE_KAFKA"]
# A loaded machine may take long; nothing waits for less.
PATIENCE = 120


def effect(connection, message):
    """The effect of the tests: one row for each event, and a crash where a test asks for it."""
    number = int(message.value())
    if number < 0:
        raise RuntimeError("poison")
    connection.execute("INSERT INTO effects (topic, key, number) VALUES (%s, %s, %s)",
                       [message.topic(), message.key().decode(), number])
    if os.environ.get("CRASH") == f"before commit {number}":
        os.kill(os.getpid(), signal.SIGKILL)


class CrashesBeforeOffset:
    """A consumer that crashes where a test asks for it: after the effect, before its offset."""

    def __init__(self, consumer):
        self.consumer = consumer
        self.poll = consumer.poll

    def commit(self, message, asynchronous):
        if os.environ.get("CRASH") == f"before offset {int(message.value())}":
            os.kill(os.getpid(), signal.SIGKILL)
        self.consumer.commit(message=message, asynchronous=asynchronous)


def worker(topic, stop=None):
    """Runs the example for one topic."""
    # A killed worker's partitions are given to another after the time-out.
    times = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 200}
    consumer = Consumer({"bootstrap.servers": KAFKA, "group.id": topic, **times, **example.SETTINGS})
    consumer.subscribe([topic])
    producer = Producer({"bootstrap.servers": KAFKA})
    running = CrashesBeforeOffset(consumer)
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        example.run(running, connection, topic, effect, producer=producer, dead_letters=f"{topic}.dead",
                    attempts=3, pause=0.01, stop=stop or threading.Event())
    consumer.close()


class ConsumerTest(unittest.TestCase):
    def setUp(self):
        self.topic = f"orders-{uuid.uuid4().hex[:8]}"
        self.connection = psycopg.connect(POSTGRES, autocommit=True)
        self.addCleanup(self.connection.close)
        self.connection.execute("CREATE TABLE IF NOT EXISTS effects (n serial, topic text, key text, number int)")
        self.producer = Producer({"bootstrap.servers": KAFKA})
        admin = AdminClient({"bootstrap.servers": KAFKA})
        for created in admin.create_topics([NewTopic(self.topic, 4, 1)]).values():
            created.result()

    def send(self, number, key="k", id=None):
        headers = [("id", (id or str(uuid.uuid4())).encode())]
        self.producer.produce(self.topic, key=key, value=str(number), headers=headers)
        self.producer.flush()

    def effects(self):
        rows = self.connection.execute("SELECT key, number FROM effects WHERE topic = %s ORDER BY n", [self.topic])
        return rows.fetchall()

    def until(self, condition):
        ends = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), ends, f"not reached: {self.effects()}")
            time.sleep(0.05)

    def lag(self):
        """Number of records whose offset is not committed."""
        consumer = Consumer({"bootstrap.servers": KAFKA, "group.id": self.topic})
        try:
            partitions = consumer.list_topics(self.topic).topics[self.topic].partitions
            committed = consumer.committed([TopicPartition(self.topic, number) for number in partitions])
            ends = [consumer.get_watermark_offsets(of)[1] for of in committed]
            return sum(end - max(of.offset, 0) for of, end in zip(committed, ends))
        finally:
            consumer.close()

    def process(self, **env):
        process = subprocess.Popen([sys.executable, __file__, "worker", self.topic], env={**os.environ, **env})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def in_thread(self):
        """Runs the example in this process until the test ends."""
        stopped = threading.Event()
        thread = threading.Thread(target=worker, args=[self.topic, stopped])
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(stopped.set)

    def test_the_same_event_twice_has_one_effect(self):
        for number in (1, 2, 1, 2, 3):
            self.send(number, id=f"{self.topic}-{number}")
        self.in_thread()
        self.until(lambda: len(self.effects()) == 3 and self.lag() == 0)
        self.assertEqual(self.effects(), [("k", 1), ("k", 2), ("k", 3)])

    def test_a_crash_between_effect_and_commit_and_before_the_offset(self):
        for number in (1, 2, 3):
            self.send(number)
        crashed = self.process(CRASH="before commit 2")
        self.assertEqual(crashed.wait(PATIENCE), -signal.SIGKILL)
        self.assertEqual(self.effects(), [("k", 1)])
        crashed = self.process(CRASH="before offset 3")
        self.assertEqual(crashed.wait(PATIENCE), -signal.SIGKILL)
        self.assertEqual(self.effects(), [("k", 1), ("k", 2), ("k", 3)])
        self.assertGreater(self.lag(), 0)
        self.process()
        self.until(lambda: self.lag() == 0)
        self.assertEqual(self.effects(), [("k", 1), ("k", 2), ("k", 3)])

    def test_a_rebalance_loses_and_repeats_nothing(self):
        expected = [(f"k{number % 7}", number) for number in range(300)]
        first = self.process()
        for key, number in expected:
            self.send(number, key)
            if number == 50:
                self.until(lambda: len(self.effects()) > 20)
                self.process()
            if number == 150:
                first.kill()
        self.until(lambda: self.lag() == 0)
        effects = self.effects()
        self.assertEqual(sorted(effects), sorted(expected))
        for key in {key for key, _ in expected}:
            numbers = [number for of, number in effects if of == key]
            self.assertEqual(numbers, sorted(numbers), f"the order of {key}")

    def test_poison_becomes_a_dead_letter_after_the_attempts(self):
        self.send(1)
        self.send(-1, id="poison")
        self.send(2)
        self.in_thread()
        self.until(lambda: len(self.effects()) == 2 and self.lag() == 0)
        letters = Consumer({"bootstrap.servers": KAFKA, "group.id": "letters", **example.SETTINGS})
        self.addCleanup(letters.close)
        letters.subscribe([f"{self.topic}.dead"])
        letter = None
        ends = time.monotonic() + PATIENCE
        while (letter is None or letter.error()) and time.monotonic() < ends:
            letter = letters.poll(0.5)
        headers = dict(letter.headers())
        self.assertEqual((letter.key(), letter.value(), headers["id"]), (b"k", b"-1", b"poison"))
        self.assertEqual(headers["error"], b"RuntimeError: poison")
        self.assertIn(self.topic.encode(), headers["source"])
        claims = self.connection.execute("SELECT count(*) FROM processed_events WHERE event_id = 'poison'")
        self.assertEqual(claims.fetchone()[0], 0)

    def test_a_connection_that_would_not_commit_is_refused(self):
        # No record is needed, and no group is joined: it is refused at the start.
        consumer = Consumer({"bootstrap.servers": KAFKA, "group.id": self.topic, **example.SETTINGS})
        self.addCleanup(consumer.close)
        options = {"producer": self.producer, "dead_letters": f"{self.topic}.dead", "stop": threading.Event()}
        with psycopg.connect(POSTGRES) as implicit:
            with self.assertRaises(example.TransactionOpen):
                example.run(consumer, implicit, self.topic, effect, **options)
            # As psycopg opens one by any statement.
            implicit.execute("SELECT 1")
            with self.assertRaises(example.TransactionOpen):
                example.process(implicit, self.topic, None, effect)
        with psycopg.connect(POSTGRES, autocommit=True) as explicit:
            explicit.execute("BEGIN")
            with self.assertRaises(example.TransactionOpen):
                example.run(consumer, explicit, self.topic, effect, **options)

    def test_a_stop_ends_the_pause_between_attempts_and_keeps_the_event(self):
        self.send(-1)
        stop, failed = threading.Event(), threading.Event()

        def fails(connection, message):
            failed.set()
            raise RuntimeError("poison")

        consumer = Consumer({"bootstrap.servers": KAFKA, "group.id": self.topic, **example.SETTINGS})
        self.addCleanup(consumer.close)
        consumer.subscribe([self.topic])
        thread = threading.Thread(target=example.run, args=[consumer, self.connection, self.topic, fails],
                                  kwargs={"producer": self.producer, "dead_letters": f"{self.topic}.dead",
                                          "stop": stop, "pause": 3600.0})
        thread.start()
        self.assertTrue(failed.wait(PATIENCE))
        stop.set()
        thread.join(PATIENCE)
        self.assertFalse(thread.is_alive())
        self.assertEqual(self.lag(), 1)

    def test_an_effect_that_hides_an_error_is_not_processed(self):
        class Record:
            def headers(self):
                return [("id", b"hidden")]

        def hides(connection, message):
            with contextlib.suppress(psycopg.Error):
                connection.execute("SELECT 1 / 0")

        with self.assertRaises(example.HiddenError):
            example.process(self.connection, self.topic, Record(), hides)

    def test_pauses_grow_to_the_longest(self):
        backoff = example.Backoff(1, 8)
        pauses = [backoff.next() for _ in range(6)]
        for pause, most in zip(pauses, (1, 2, 4, 8, 8, 8)):
            self.assertTrue(most / 2 <= pause <= most, pauses)
        backoff.reset()
        self.assertLessEqual(backoff.next(), 1)

    def test_old_events_are_forgotten(self):
        with self.connection.transaction():
            self.connection.execute("INSERT INTO processed_events (consumer, event_id, processed_at)"
                                    " SELECT %s, days, now() - make_interval(days => days)"
                                    " FROM generate_series(1, 40) AS days", [self.topic])
        self.assertEqual(example.prune(self.connection, self.topic, 30), 11)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2])
    else:
        unittest.main()
