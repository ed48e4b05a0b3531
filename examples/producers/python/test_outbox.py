"""The producer against a real Postgres: WALRELAY_EXAMPLE_POSTGRES names it."""

import json
import os
import unittest
import uuid

import psycopg

import outbox

URL = os.environ["WALRELAY_EXAMPLE_POSTGRES"]
TABLES = {
    "debezium": "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text,"
    " payload jsonb)",
    "events_outbox": "CREATE TABLE events_outbox (id bigserial PRIMARY KEY, aggregate_id text, type text,"
    " payload jsonb)",
    "outbox_events": "CREATE TABLE outbox_events (id uuid PRIMARY KEY, aggregate_id text, event_type text,"
    " payload jsonb)",
    "outbox": "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text,"
    " payload jsonb)",
}


class OutboxTest(unittest.TestCase):
    def setUp(self):
        self.connection = psycopg.connect(URL, autocommit=True)
        self.addCleanup(self.connection.close)
        self.fresh("debezium")

    def fresh(self, table):
        self.table = table
        self.connection.execute("DROP TABLE IF EXISTS orders, outbox, outbox_events, events_outbox")
        self.connection.execute("CREATE TABLE orders (id int)")
        self.connection.execute(TABLES[table])

    def place(self, number=42, **more):
        self.connection.execute("INSERT INTO orders VALUES (%s)", [number])
        outbox.emit(self.connection, "Order", str(number), "placed", {"n": number}, table=self.table, **more)

    def count(self):
        """The numbers of changes and of events, as another session sees them."""
        name = "outbox" if self.table in ("debezium", "outbox") else self.table
        with psycopg.connect(URL) as other:
            one = lambda table: other.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            return one("orders"), one(name)

    def test_commit_makes_one_event_and_rollback_none(self):
        for table in TABLES:
            with self.subTest(table):
                self.fresh(table)
                with self.connection.transaction():
                    self.place()
                    self.assertEqual(self.count(), (0, 0))
                self.assertEqual(self.count(), (1, 1))
                with self.connection.transaction():
                    self.place(43)
                    raise psycopg.Rollback
                self.assertEqual(self.count(), (1, 1))

    def test_a_savepoint_that_is_rolled_back_leaves_none(self):
        with self.connection.transaction():
            self.place(1)
            with self.connection.transaction():
                self.place(2)
                raise psycopg.Rollback
            self.place(3)
        self.assertEqual(self.count(), (2, 2))

    def test_it_refuses_outside_of_a_transaction(self):
        with self.assertRaises(outbox.NotInTransaction):
            self.place()
        self.assertEqual(self.count(), (1, 0))
        # The first statement would begin a transaction that has no change.
        with psycopg.connect(URL) as without_autocommit:
            with self.assertRaises(outbox.NotInTransaction):
                outbox.emit(without_autocommit, "Order", "1", "placed", {})

    def test_it_refuses_before_a_change(self):
        with self.assertRaises(outbox.NotInTransaction):
            with self.connection.transaction():
                self.connection.execute("SELECT 1")
                outbox.emit(self.connection, "Order", "1", "placed", {})
        self.assertEqual(self.count(), (0, 0))

    def test_ids_rise_and_can_be_given(self):
        given = uuid.uuid4()
        with self.connection.transaction():
            for number in range(100):
                self.place(number)
        ids = self.connection.execute("SELECT id, aggregateid::int FROM outbox ORDER BY id").fetchall()
        self.assertEqual([number for _, number in ids], list(range(100)))
        self.assertEqual({id.version for id, _ in ids}, {7})
        with self.connection.transaction():
            self.place(id=given)
        self.assertEqual(self.connection.execute("SELECT 1 FROM outbox WHERE id = %s", [given]).rowcount, 1)

    def test_json_in_a_string_is_kept(self):
        self.connection.execute("ALTER TABLE outbox ALTER payload TYPE text")
        statement = outbox.STATEMENTS["debezium"].replace("%(payload)s::jsonb", "%(payload)s")
        text = '{"b":1,  "a":"\u00e9"}'
        outbox.STATEMENTS["text"] = statement
        self.addCleanup(outbox.STATEMENTS.pop, "text")
        with self.connection.transaction():
            self.connection.execute("INSERT INTO orders VALUES (1)")
            outbox.emit(self.connection, "Order", "1", "placed", text, table="text")
        self.assertEqual(self.connection.execute("SELECT payload FROM outbox").fetchone()[0], text)

    def test_a_message_without_a_table_is_in_the_log(self):
        slot = "SELECT data FROM pg_logical_slot_get_changes('example', NULL, NULL)"
        self.connection.execute("SELECT pg_create_logical_replication_slot('example', 'test_decoding')")
        self.addCleanup(self.connection.execute, "SELECT pg_drop_replication_slot('example')")
        self.table = "emit"
        for end in (None, psycopg.Rollback):
            with self.connection.transaction():
                self.place()
                if end:
                    raise end
        messages = [row[0] for row in self.connection.execute(slot) if "prefix: outbox" in row[0]]
        self.assertEqual(len(messages), 1)
        event = json.loads(messages[0].split("content:", 1)[1])
        self.assertEqual((event["aggregate"], event["key"], event["payload"]), ("Order", "42", {"n": 42}))

    def test_several_events_are_one_message(self):
        slot = "SELECT data FROM pg_logical_slot_get_changes('example', NULL, NULL)"
        self.connection.execute("SELECT pg_create_logical_replication_slot('example', 'test_decoding')")
        self.addCleanup(self.connection.execute, "SELECT pg_drop_replication_slot('example')")
        events = [{"aggregate": "Order", "key": str(n), "type": "placed", "payload": {"n": n}} for n in range(3)]
        with self.assertRaises(outbox.NotInTransaction):
            outbox.emit_all(self.connection, events)
        with self.assertRaises(outbox.NotInTransaction):
            with self.connection.transaction():
                outbox.emit_all(self.connection, events)
        for end in (None, psycopg.Rollback):
            with self.connection.transaction():
                self.connection.execute("INSERT INTO orders VALUES (1)")
                outbox.emit_all(self.connection, events)
                if end:
                    raise end
        messages = [row[0] for row in self.connection.execute(slot) if "prefix: outbox" in row[0]]
        self.assertEqual(len(messages), 1)
        written = json.loads(messages[0].split("content:", 1)[1])
        self.assertEqual([event["payload"]["n"] for event in written], [0, 1, 2])
        self.assertEqual(len({uuid.UUID(event["id"]) for event in written}), 3)


if __name__ == "__main__":
    unittest.main()
