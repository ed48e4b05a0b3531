"""The newest value of a compacted topic, against a real Postgres and Kafka."""

import os
import time
import unittest
import uuid

import psycopg
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import newest

KAFKA = {"bootstrap.servers": os.environ["WALRELAY_EXAMPLE_KAFKA"]}


class NewestTest(unittest.TestCase):
    def test_a_repeated_suffix_in_a_compacted_topic_changes_nothing(self):
        topic = f"newest-{uuid.uuid4().hex[:8]}"
        settings = {"cleanup.policy": "compact"}
        admin = AdminClient(KAFKA)
        for created in admin.create_topics([NewTopic(topic, 1, 1, config=settings)]).values():
            created.result()
        producer = Producer(KAFKA)
        sent = [
            ("a", 1, "a1"), ("b", 2, "b2"), ("a", 3, "a3"), ("c", 4, "c4"), ("c", 5, None),
            # A crash of the relay: everything from 1 on again, and it is cut off before 3.
            ("a", 1, "a1"), ("b", 2, "b2"), ("c", 4, "c4"),
            # `walrelay resend` sends without a position.
            ("b", None, "old"), ("d", None, "old"), ("d", 6, "d6"),
            # After a move to a server whose log begins lower: the first byte is raised.
            ("a", 0x0100000000000002, "a7"), ("a", 3, "a3"),
        ]
        for key, position, value in sent:
            headers = [] if position is None else [(newest.POSITION_HEADER, f"{position:016X}/00000000".encode())]
            producer.produce(topic, key=key, value=value, headers=headers)
        producer.flush()
        consumer = Consumer({**KAFKA, "group.id": topic, "auto.offset.reset": "earliest"})
        self.addCleanup(consumer.close)
        consumer.subscribe([topic])
        applied = []
        with psycopg.connect(os.environ["WALRELAY_EXAMPLE_POSTGRES"], autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS newest")
            connection.execute('CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)')
            ends = time.monotonic() + 120
            while len(applied) < len(sent) and time.monotonic() < ends:
                message = consumer.poll(0.5)
                if message is not None and not message.error():
                    applied.append(newest.apply(connection, message))
            rows = connection.execute("SELECT key, value FROM newest ORDER BY key").fetchall()
        self.assertEqual(rows, [("a", "a7"), ("b", "b2"), ("c", None), ("d", "d6")])
        self.assertEqual(applied, [True] * 5 + [False] * 4 + [True] * 3 + [False])


if __name__ == "__main__":
    unittest.main()
