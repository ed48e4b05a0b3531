"""The consumer behind a real relay and RabbitMQ: WALRELAY_EXAMPLE_POSTGRES, _RABBITMQ (its port), _BINARY."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import uuid
from pathlib import Path

import aio_pika
import psycopg

import consumer as example

POSTGRES = os.environ["WALRELAY_EXAMPLE_POSTGRES"]
PORT = os.environ["WALRELAY_EXAMPLE_RABBITMQ"]
# A loaded machine may take long; nothing waits for less.
PATIENCE = 120

OUTBOX = """CREATE TABLE {} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
    aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb NOT NULL, metadata jsonb,
    created_at timestamptz NOT NULL DEFAULT now())"""

CONFIG = """
[source]
url = "{url}"
slot = "{name}"
publication = "{name}"
tables = ["public.{name}"]
[router]
preset = "outbox"
[sink]
kind = "rabbitmq"
[sink.rabbitmq]
hosts = ["127.0.0.1:{port}"]
username = "guest"
password = "guest"
exchange = "{name}"
routing_key = "{{event_type | lower | replace('event', '')}}"
"""


async def effect(connection, event):
    """The effect of the tests: one row for each event, and a crash where a test asks for it."""
    await connection.execute("INSERT INTO rabbitmq_effects (consumer, event_id, key, number) VALUES (%s, %s, %s, %s)",
                             [os.environ["CONSUMER"], event.id, event.aggregate_id, event.payload["number"]])
    if os.environ.get("CRASH") == f"before commit {event.payload['number']}":
        os.kill(os.getpid(), signal.SIGKILL)


async def connected():
    connection = await aio_pika.connect(host="127.0.0.1", port=int(PORT), login="guest", password="guest")
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=10)
    return connection, channel


async def declared(channel, name):
    """A durable quorum queue at the relay's exchange, with one active consumer."""
    exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    queue = await channel.declare_queue(name, durable=True, arguments=arguments)
    await queue.bind(exchange, "order.#")
    await queue.bind(exchange, "orderpaid")
    return queue


async def worker(name):
    """Runs the example for one queue."""
    connection, channel = await connected()
    if crash := os.environ.get("CRASH", "").removeprefix("before ack "):
        process = example.process

        async def crashes(db, consumer, event, effect):
            await process(db, consumer, event, effect)
            if crash == str(event.payload["number"]):
                os.kill(os.getpid(), signal.SIGKILL)

        example.process = crashes
    async with connection, await psycopg.AsyncConnection.connect(POSTGRES, autocommit=True) as db:
        await example.run(await declared(channel, name), db, name, effect, asyncio.Event())


class ConsumerTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.name = f"orders_{uuid.uuid4().hex[:8]}"
        self.db = await psycopg.AsyncConnection.connect(POSTGRES, autocommit=True)
        self.addAsyncCleanup(self.db.close)
        await self.db.execute("CREATE TABLE IF NOT EXISTS rabbitmq_effects"
                              " (n serial, consumer text, event_id text, key text, number int)")
        await self.db.execute(OUTBOX.format(self.name))
        connection, self.channel = await connected()
        self.addAsyncCleanup(connection.close)
        self.queue = await declared(self.channel, self.name)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        config = f"{folder.name}/walrelay.toml"
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(url=POSTGRES, name=self.name, port=PORT))
        self.relay = subprocess.Popen([os.environ["WALRELAY_EXAMPLE_BINARY"], "run", "--config", config],
                                      stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end_relay)
        while "streaming" not in (line := self.relay.stderr.readline()):
            self.assertNotEqual(line, "", "the relay has ended")

    def end_relay(self):
        self.relay.terminate()
        self.relay.communicate(timeout=PATIENCE)
        self.assertEqual(self.relay.returncode, 0)

    async def order(self, number, key="k", event="OrderPaidEvent"):
        row = await self.db.execute(
            f"INSERT INTO {self.name} (aggregate_type, aggregate_id, event_type, payload, metadata)"
            " VALUES ('Order', %s, %s, %s, %s) RETURNING id::text",
            [key, event, json.dumps({"number": number}), json.dumps({"user": "u"})])
        return (await row.fetchone())[0]

    def process(self, **env):
        process = subprocess.Popen([sys.executable, __file__, self.name],
                                   env={**os.environ, "CONSUMER": self.name, **env})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    async def effects(self):
        rows = await self.db.execute("SELECT key, number FROM rabbitmq_effects WHERE consumer = %s ORDER BY n",
                                     [self.name])
        return await rows.fetchall()

    async def drained(self, effects):
        """Waits until these are the effects, and the queue is empty."""
        async with asyncio.timeout(PATIENCE):
            while await self.effects() != effects or await self.waiting():
                await asyncio.sleep(0.05)

    async def waiting(self):
        """Number of messages in the queue that no consumer has."""
        queue = await declared(self.channel, self.name)
        return queue.declaration_result.message_count

    async def test_headers_and_body_are_those_of_the_preset(self):
        event_id = await self.order(7, key="42")
        async with asyncio.timeout(PATIENCE), self.queue.iterator() as messages:
            message = await anext(messages)
            await message.ack()
        self.assertEqual((message.exchange, message.routing_key), (self.name, "orderpaid"))
        self.assertEqual(message.message_id, event_id)
        self.assertEqual(message.delivery_mode, aio_pika.DeliveryMode.PERSISTENT)
        self.assertEqual(message.headers["event-type"], "OrderPaidEvent")
        self.assertEqual(message.headers["aggregate-id"], "42")
        body = json.loads(message.body)
        self.assertEqual(list(body), ["event_id", "event_type", "aggregate_type", "aggregate_id", "payload",
                                      "metadata", "timestamp"])
        event = example.event_of(message)
        self.assertEqual(event, example.Event(event_id, "OrderPaidEvent", "Order", "42", {"number": 7},
                                              {"user": "u"}, body["timestamp"]))

    async def test_each_event_has_its_effect_once_through_crashes(self):
        for number in range(1, 4):
            await self.order(number)
        crashed = self.process(CRASH="before commit 2")
        self.assertEqual(await asyncio.to_thread(crashed.wait, PATIENCE), -signal.SIGKILL)
        self.assertEqual(await self.effects(), [("k", 1)])
        crashed = self.process(CRASH="before ack 3")
        self.assertEqual(await asyncio.to_thread(crashed.wait, PATIENCE), -signal.SIGKILL)
        self.assertEqual(await self.effects(), [("k", 1), ("k", 2), ("k", 3)])
        self.process()
        await self.drained([("k", 1), ("k", 2), ("k", 3)])

    async def test_a_connection_that_would_not_commit_is_refused(self):
        await self.order(1)
        async with await psycopg.AsyncConnection.connect(POSTGRES) as implicit:
            with self.assertRaises(example.TransactionOpen):
                await example.run(self.queue, implicit, self.name, effect, asyncio.Event())
        async with await psycopg.AsyncConnection.connect(POSTGRES, autocommit=True) as explicit:
            await explicit.execute("BEGIN")
            with self.assertRaises(example.TransactionOpen):
                await example.run(self.queue, explicit, self.name, effect, asyncio.Event())
        self.process()
        await self.drained([("k", 1)])

    async def test_an_effect_that_hides_an_error_is_not_processed(self):
        async def hides(connection, event):
            with contextlib.suppress(psycopg.Error):
                await connection.execute("SELECT 1 / 0")

        event = example.Event("hidden", "", "", "", None, None, "")
        with self.assertRaises(example.HiddenError):
            await example.process(self.db, self.name, event, hides)

    async def test_the_whole_consumer_ends_by_sigterm(self):
        variables = {"DATABASE_URL": POSTGRES, "RABBITMQ_URL": f"amqp://guest:guest@127.0.0.1:{PORT}/",
                     "QUEUE": self.name}
        main = subprocess.Popen([sys.executable, Path(__file__).with_name("main.py")], env={**os.environ, **variables})
        self.addCleanup(main.wait)
        self.addCleanup(main.kill)
        await self.order(1)
        received = "SELECT key FROM received WHERE consumer = %s"
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    rows = await (await self.db.execute(received, [self.name])).fetchall()
                except psycopg.errors.UndefinedTable:
                    rows = []
                if rows:
                    break
                await asyncio.sleep(0.05)
        self.assertEqual(rows, [("k",)])
        main.terminate()
        self.assertEqual(await asyncio.to_thread(main.wait, PATIENCE), 0)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        asyncio.run(worker(sys.argv[1]))
    else:
        unittest.main()
