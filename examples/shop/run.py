"""Opens the shop, kills its parts while orders come in, and proves that each order moved stock and points once.

scripts/example.sh (`make example`) starts it beside a Postgres and a Kafka of its own, with

    EXAMPLE_SECONDS=60   how long orders are taken
    EXAMPLE_SEED=…       makes the same orders, and kills in the same order
    EXAMPLE_EVERY=5      seconds between two kills
    EXAMPLE_FAULT=…      plants a mistake of a service (see FAULTS), so that the proof must fail
"""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ledger import Ledger, query

HERE = Path(__file__).parent
WORK = Path(os.environ["SHOP_WORK"])
WALRELAY = os.environ["SHOP_WALRELAY"]
KAFKA = os.environ["WALRELAY_EXAMPLE_KAFKA"]
SERVER = os.environ["WALRELAY_EXAMPLE_POSTGRES"].rpartition("/")[0]
ORDERS, INVENTORY, LOYALTY = (f"{SERVER}/shop_{name}" for name in ("orders", "inventory", "loyalty"))
SECONDS = float(os.environ.get("EXAMPLE_SECONDS") or 60)
SEED = os.environ.get("EXAMPLE_SEED") or str(random.randrange(10000))
EVERY = float(os.environ.get("EXAMPLE_EVERY") or 5)
TOPIC, PARTITIONS, GROUPS = "outbox.event.Order", 3, ("inventory", "loyalty")
CUSTOMERS = ("Ada", "Edsger", "Grace", "Tony")
# A loaded machine may take long; nothing waits for less.
PATIENCE = 300

# Mistakes that a service could have: code that runs before it.
FAULTS = {
    # The effect happens without the claim of the event's id.
    "no-claim": ("loyalty", "import consumer, uuid; consumer.event_id = lambda *_: str(uuid.uuid4())"),
    # Some offsets are committed without the effect.
    "no-effect": ("loyalty", """
import consumer
process = consumer.process
consumer.process = lambda *all: all[2].offset() % 20 == 0 or process(*all)"""),
    # The event is written by another connection than the order.
    "no-transaction": ("orders", """
import os, outbox, psycopg
emit = outbox.emit
def alone(_, *event):
    with psycopg.connect(os.environ["SHOP_ORDERS"]) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        emit(connection, *event)
outbox.emit = alone"""),
}

begun = time.monotonic()


def say(words):
    print(f"example: {time.monotonic() - begun:4.0f} s  {words}", flush=True)


class Part:
    """A process of the shop. It is started again whenever it ends, until `stop`."""

    all = []

    def __init__(self, name, command):
        self.name, self.command = name, command
        self.log = open(WORK / f"{name}.log", "ab")
        self.lock = threading.Lock()
        self.stopped = False
        self.start()
        Part.all.append(self)
        threading.Thread(target=self.watch, daemon=True).start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log, cwd=WORK, env=environment())

    def watch(self):
        while True:
            code = self.process.wait()
            time.sleep(0.2)
            with self.lock:
                if self.stopped:
                    return
                if code != -signal.SIGKILL:
                    say(f"{self.name} has ended with {code}, and is started again")
                self.start()

    def crash(self):
        self.process.kill()

    def stop(self):
        with self.lock:
            self.stopped = True
            self.process.kill()
        self.process.wait()


class Server:
    """Postgres or Kafka, which the parent process kills and starts again with its data."""

    def __init__(self, name):
        self.name = name
        self.restarting = None
        self.is_back = True

    def crash(self):
        self.is_back = False
        self.restarting = threading.Thread(target=self.restart, daemon=True)
        self.restarting.start()

    def await_back(self):
        if self.restarting:
            self.restarting.join(PATIENCE)
        if not self.is_back:
            sys.exit(f"example: FAILED: {self.name} is not started again")

    def restart(self):
        host, port = os.environ["WALRELAY_EXAMPLE_CRASH"].split(":")
        with socket.create_connection((host, int(port))) as parent:
            parent.sendall(f"{self.name}\n".encode())
            self.is_back = parent.makefile().readline() == "ready\n"


def environment():
    copied = (HERE.parent / folder / "python" for folder in ("producers", "consumers"))
    return {**os.environ, "SHOP_ORDERS": ORDERS, "SHOP_INVENTORY": INVENTORY, "SHOP_LOYALTY": LOYALTY,
            "SHOP_KAFKA": KAFKA, "PYTHONPATH": ":".join(map(str, [HERE, *copied])), "PYTHONDONTWRITEBYTECODE": "1"}


def walrelay(*arguments):
    command = [WALRELAY, *arguments, "--config", str(HERE / "walrelay.toml")]
    done = subprocess.run(command, env=environment(), cwd=WORK, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"walrelay {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def python(name):
    """A service in Python, with the mistakes that are planted in it."""
    wanted = (os.environ.get("EXAMPLE_FAULT") or "").split(",")
    planted = [code for fault, (service, code) in FAULTS.items() if fault in wanted and service == name]
    return [sys.executable, "-c", "\n".join([*planted, f"import {name}; {name}.main()"])]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def prepare():
    with psycopg.connect(f"{SERVER}/postgres", autocommit=True) as connection:
        for database in (ORDERS, INVENTORY, LOYALTY):
            connection.execute(f"CREATE DATABASE {database.rpartition('/')[2]}")
    walrelay("init")
    of_consumers = walrelay("init", "--consumer")
    for database, name in (ORDERS, "orders"), (INVENTORY, "inventory"), (LOYALTY, "loyalty"):
        with psycopg.connect(database) as connection:
            # All have the function of ids, and only the consumers need the table.
            connection.execute(of_consumers)
            connection.execute((HERE / f"{name}.sql").read_text())
    # From here on everything can be replayed.
    walrelay("bookmark", "create", "opening")
    admin = AdminClient({"bootstrap.servers": KAFKA, "log_level": 3})
    for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        created.result()


class Customer(threading.Thread):
    """Orders, and sends an order again until it is answered: the service may have died before or after it."""

    def __init__(self, name, port, ends):
        super().__init__(daemon=True)
        self.name, self.port, self.ends = name, port, ends
        self.random = random.Random(f"{SEED}-{name}")
        self.answers = {204: 0, 402: 0}

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        while time.monotonic() < self.ends:
            id = uuid.UUID(int=self.random.getrandbits(128), version=4)
            order = {"customer": self.name, "article": self.random.randint(1, 5), "quantity": self.random.randint(1, 4)}
            time.sleep(self.random.uniform(0, 0.2))
            while True:
                try:
                    connection.request("PUT", f"/orders/{id}", json.dumps(order))
                    answer = connection.getresponse()
                    answer.read()
                    self.answers[answer.status] += 1
                    break
                except (OSError, http.client.HTTPException):
                    connection.close()
                    time.sleep(0.1)


def eventually(what, holds):
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            if holds():
                return
        except (KafkaException, psycopg.OperationalError):
            pass
        if time.monotonic() > ends:
            sys.exit(f"example: FAILED: not reached in {PATIENCE} s: {what}")
        time.sleep(0.2)


def records():
    """Number of records in the topic."""
    reader = Consumer({"bootstrap.servers": KAFKA, "group.id": "ends", "log_level": 0})
    try:
        return sum(reader.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=5)[1]
                   for number in range(PARTITIONS))
    finally:
        reader.close()


def processed(group):
    """Number of records whose offset the group has committed."""
    reader = Consumer({"bootstrap.servers": KAFKA, "group.id": group, "log_level": 0})
    try:
        committed = reader.committed([TopicPartition(TOPIC, number) for number in range(PARTITIONS)], timeout=5)
        return sum(max(of.offset, 0) for of in committed)
    finally:
        reader.close()


def await_all(ledger):
    """Waits until the relay has confirmed everything and everybody has read it."""
    end = query(ORDERS, "SELECT pg_current_wal_flush_lsn()::text")[0][0]
    eventually("the relay has confirmed the last order", lambda: query(
        ORDERS, "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = 'walrelay'",
        [end])[0][0])
    await_readers(ledger)


def await_readers(ledger):
    for group in GROUPS:
        eventually(f"{group} has processed all records", lambda: processed(group) == records())
    eventually("the ledger has read all records", lambda: ledger.records == records())


def prove(ledger, when):
    faults = ledger.faults()
    for what, of in faults.items():
        say(f"{what}: {len(of)}, such as {of[0]}")
    if faults:
        say(f"FAILED {when}; EXAMPLE_SEED={SEED} repeats the choices")
    else:
        say(f"proved {when}: each order moved its stock once and its points once, and nothing moved without an order")
    return not faults


def kill_parts(parts, ledger, ends):
    """Kills a part every few seconds: all of them in a random order, then again."""
    chooses = random.Random(SEED)
    turn, kills = [], 0
    due = time.monotonic() + EVERY
    while due < ends:
        time.sleep(max(0, due - time.monotonic()))
        due += EVERY
        turn = turn or chooses.sample(parts, len(parts))
        part = turn.pop()
        if isinstance(part, Server):
            part.await_back()
        part.crash()
        kills += 1
        ledger.last = f"killed {part.name}"
        say(ledger.last)
    time.sleep(max(0, ends - time.monotonic()))
    return kills


def main():
    prepare()
    port = free_port()
    os.environ["SHOP_PORT"] = str(port)
    ledger = Ledger(ORDERS, INVENTORY, LOYALTY, KAFKA, TOPIC, PARTITIONS)
    say(f"seed {SEED}; orders, events, stock and points side by side: {ledger.serve()}")
    orders = Part("orders", python("orders"))
    parts = [
        orders,
        Part("relay", [WALRELAY, "run", "--config", str(HERE / "walrelay.toml")]),
        Part("inventory", ["node", os.environ["SHOP_INVENTORY_JS"]]),
        Part("loyalty", python("loyalty")),
        Server("kafka"),
        Server("postgres"),
    ]
    ends = time.monotonic() + SECONDS
    customers = [Customer(name, port, ends) for name in CUSTOMERS]
    for customer in customers:
        customer.start()
    kills = kill_parts(parts, ledger, ends)
    for customer in customers:
        customer.join(PATIENCE)
        if customer.is_alive():
            sys.exit(f"example: FAILED: the last order of {customer.name} was not answered")
    for server in parts[-2:]:
        server.await_back()
    orders.stop()
    await_all(ledger)
    sums = ledger.page()["sums"]
    taken, sent = sums["orders"], sums["records"]
    declined = sum(customer.answers[402] for customer in customers)
    say(f"{taken} orders committed, {declined} rolled back, {kills} kills; {sent} records, {sent - taken} of them repeats")
    if taken == 0:
        sys.exit("example: FAILED: no order was taken")
    after_kills = prove(ledger, "after the kills")
    walrelay("replay", "--from", "opening", "--yes")
    eventually("the replay has sent everything again", lambda: records() >= sent + taken)
    await_readers(ledger)
    say(f"walrelay replay sent them again: {records()} records")
    after_replay = prove(ledger, "after a replay of everything")
    return 0 if after_kills and after_replay else 1


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    try:
        sys.exit(main())
    finally:
        for part in Part.all:
            part.stop()
