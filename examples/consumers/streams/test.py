"""The test of a consumer of streams in any language, behind a real relay.

    test.py SINK COMMAND…    redis, nats or rabbitmq, and the command that runs the consumer, with its variables

Two consumers are started, of which one waits. The first, the relay and Postgres are killed amid the events, all
events are sent again, one of them is poison, and the stream loses events that are not processed. Needs
WALRELAY_EXAMPLE_POSTGRES, _CRASH, and _REDIS, _NATS or _RABBITMQ (ports), and in WALRELAY_EXAMPLE_BINARY the binary.
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path

import aio_pika
import nats
import psycopg
import redis
from nats.js.api import StreamConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import PATIENCE, POSTGRES, connect, crash_postgres, eventually  # noqa: E402

EVENTS = 120
sink, command = sys.argv[1], sys.argv[2:]
port = os.environ[f"WALRELAY_EXAMPLE_{sink.upper()}"]
name = f"stream_{sink}_{random.getrandbits(32):08x}"
URL = {"redis": f"redis://127.0.0.1:{port}", "nats": f"nats://127.0.0.1:{port}",
       "rabbitmq": f"amqp://guest:guest@127.0.0.1:{port}/"}[sink]
VARIABLES = {"DATABASE_URL": POSTGRES, "STREAM_URL": URL, "STREAM": name, "GROUP": name}
# Repeats reach the stream: Redis and NATS would drop most of them.
SINKS = {
    "redis": f'[sink.redis]\nhosts = ["127.0.0.1:{port}"]\nstream = "{name}"\nids = "server"',
    "nats": f'[sink.nats]\nhosts = ["127.0.0.1:{port}"]\nsubject = "{name}.event"',
    "rabbitmq": f"""[sink.rabbitmq]
hosts = ["127.0.0.1:{port}"]
username = "guest"
password = "guest"
exchange = ""
routing_key = "{name}"
""",
}
CONFIG = f"""{harness.source(name)}
[sink]
kind = "{sink}"

{SINKS[sink]}
"""


async def create_stream():
    if sink == "nats":
        client = await nats.connect(URL)
        await client.jetstream().add_stream(StreamConfig(name, subjects=[f"{name}.>"], duplicate_window=0.1))
        await client.close()
    elif sink == "rabbitmq":
        async with await aio_pika.connect(URL) as connection:
            channel = await connection.channel()
            await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})


async def length(remove=False):
    """Number of messages in the stream, which are removed if asked. RabbitMQ removes whole segments only."""
    if sink == "redis":
        client = redis.Redis(port=int(port))
        return client.xtrim(name, maxlen=0, approximate=False) if remove else client.xlen(name)
    client = await nats.connect(URL)
    try:
        if remove:
            await client.jetstream().purge_stream(name)
        return (await client.jetstream().stream_info(name)).state.messages
    finally:
        await client.close()


def scenario(connection, programs):
    walrelay, start = programs.walrelay, programs.start

    def rows(table, columns):
        try:
            return connection.execute(f"SELECT {columns} FROM {table} WHERE consumer = %s", [name]).fetchall()
        except psycopg.errors.UndefinedTable:
            # The consumer creates it.
            return []

    def effects():
        return rows("(SELECT * FROM received ORDER BY n) AS received", "key, value::int")

    def event(key, payload):
        connection.execute(f"INSERT INTO {name} (aggregate_id, event_type, payload) VALUES (%s, %s, %s)",
                           [key, f"{name}.placed", json.dumps(payload)])

    asyncio.run(create_stream())
    connection.execute(harness.table(name))
    programs.prepare(name)
    relay, first = start(walrelay("run")), start(command)
    expected = [(f"k{number % 7}", number) for number in range(EVENTS)]
    for key, number in expected:
        event(key, number)
        if number == EVENTS // 2:
            eventually("the first effects", lambda: len(effects()) > 5)
            # It waits for the end of the first, and goes on after the last position.
            second = start(command)
            for killed in relay, first:
                killed.kill()
                killed.wait()
            relay = start(walrelay("run"))
        if number == EVENTS * 3 // 4:
            eventually("an effect of the second", lambda: len(effects()) > EVENTS // 2)
            crash_postgres()
            connection = connect()
    event("poison", "no number")
    eventually("all effects", lambda: len(effects()) >= EVENTS)
    programs.replay(name)
    event("last", EVENTS)
    expected.append(("last", EVENTS))
    eventually("the effect after the replay", lambda: ("last", EVENTS) in effects())
    by_key = sorted(effects(), key=lambda effect: effect[0])
    assert by_key == sorted(expected, key=lambda effect: effect[0]), f"not each event once, in order: {by_key}"
    failed = rows("failed_events", "key, value::jsonb")
    assert failed == [("poison", "no number")], f"not the poison, once: {failed}"
    second.terminate()
    status = second.wait(PATIENCE)
    assert status == 0, f"the consumer ended by SIGTERM with {status}"
    print(f"streams: {EVENTS} events of {sink}, each with one effect")
    if sink == "rabbitmq":
        return
    # While the consumer is away the stream loses an event that is not processed.
    before = asyncio.run(length())
    event("lost", 1000)
    eventually("the stream has the event", lambda: asyncio.run(length()) > before)
    asyncio.run(length(remove=True))
    event("after", 1001)
    status = start(command).wait(PATIENCE)
    assert status == 65, f"the consumer ended after a gap with {status}"
    assert len(effects()) == len(expected), "an effect after a gap"


harness.run(scenario, name, CONFIG, VARIABLES)
