"""The part that the tests of whole programs share: a relay and programs that are killed, with the servers of others.

A test passes its scenario to `run`. Needs WALRELAY_EXAMPLE_POSTGRES, in WALRELAY_EXAMPLE_BINARY the binary, and for
`crash_postgres` WALRELAY_EXAMPLE_CRASH.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

POSTGRES = os.environ["WALRELAY_EXAMPLE_POSTGRES"]
# A loaded machine may take long; nothing waits for less. A test may set more.
PATIENCE = 120


def source(name):
    """The parts of a relay's configuration that the tests share."""
    return f"""
[source]
url = "{POSTGRES}"
tables = ["public.{name}"]
slot = "{name}"
publication = "{name}"

[router]
preset = "outbox_events"
"""


def table(name):
    return f"""CREATE TABLE {name} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_id text NOT NULL,
    event_type text NOT NULL, payload jsonb NOT NULL, occurred_at timestamptz NOT NULL DEFAULT now())"""


def connect():
    return psycopg.connect(POSTGRES, autocommit=True)


def crash_postgres():
    """Kills the server, and waits until it is back."""
    host, port = os.environ["WALRELAY_EXAMPLE_CRASH"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as servers:
        servers.sendall(b"postgres\n")
        assert servers.makefile().readline() == "ready\n"


def eventually(what, holds, passing=()):
    """Waits until it holds. `passing`: exceptions that count as not yet."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            if holds():
                return
        except passing:
            pass
        if time.monotonic() > ends:
            sys.exit(f"{sys.argv[0]}: not reached in {PATIENCE} s: {what}")
        time.sleep(0.05)


class Programs:
    """The programs of a test: the relay and those under test, with their logs in a folder."""

    def __init__(self, folder, config, variables):
        self.folder, self.variables, self.running = Path(folder), variables, []
        self.config = self.folder / "walrelay.toml"
        self.config.write_text(config)

    def walrelay(self, *arguments):
        return [os.environ["WALRELAY_EXAMPLE_BINARY"], *arguments, "--config", str(self.config)]

    def start(self, command):
        with (self.folder / f"{len(self.running)}.log").open("wb") as log:
            process = subprocess.Popen(command, env={**os.environ, **self.variables}, stdout=log, stderr=log)
        self.running.append(process)
        return process

    def prepare(self, name):
        """Makes publication and slot, and a bookmark to replay from."""
        for step in self.walrelay("init"), self.walrelay("bookmark", "create", f"{name}_from"):
            subprocess.run(step, check=True, stdout=subprocess.DEVNULL)

    def replay(self, name):
        """Sends everything since `prepare` again."""
        subprocess.run(self.walrelay("replay", "--from", f"{name}_from", "--yes"), check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def print_logs(self):
        for log in sorted(self.folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")

    def kill(self):
        for process in self.running:
            process.kill()
            process.wait()


def drop_slots(name):
    """The server has few slots, and others use it. A killed walsender may still be at its end."""
    connection = connect()

    def are_dropped():
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                           " WHERE slot_name LIKE %s AND NOT active", [f"{name}%"])
        return not connection.execute("SELECT FROM pg_replication_slots WHERE slot_name LIKE %s",
                                      [f"{name}%"]).fetchall()

    eventually("the slots are dropped", are_dropped)


def run(scenario, name, config, variables):
    """Runs a scenario with a connection to Postgres and its programs, which are killed at its end."""
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(folder, config, variables)
        try:
            scenario(connect(), programs)
        except BaseException:
            programs.print_logs()
            raise
        finally:
            programs.kill()
            drop_slots(name)
