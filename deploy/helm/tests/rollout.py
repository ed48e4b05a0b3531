#!/usr/bin/env python3
"""A rolling update of the chart's Deployment, by processes in the place of pods: make test-helm runs it.

Two relays run on one slot. As the strategy of the Deployment says, a new relay starts, and an old one gets SIGTERM
after /readyz of the new one answers 200; then the same for the second old relay. Meanwhile a service writes events.
None may be lost, repeated or out of order. The last line says how long an event has waited at most.

Needs psql, and the variables WALRELAY with the program and POSTGRES with the folder of initdb and pg_ctl.
"""

import collections
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

# The longest wait for anything.
PATIENCE = 60


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def eventually(condition, what):
    """Waits until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.02)


class Postgres:
    """A server in a folder, by an account without privileges if root starts it."""

    def __init__(self, folder):
        self.data = folder / "data"
        self.port = free_port()
        self.log = folder / "postgres.log"
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "postgres")
        settings = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c wal_level=logical"
        self.run("pg_ctl", "-D", self.data, "-l", self.log, "-w", "-o", f"{settings} -c fsync=off", "start")

    def run(self, program, *arguments):
        command = [pathlib.Path(os.environ["POSTGRES"]) / program, *arguments]
        if os.getuid() == 0:
            command = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *command]
        # The server keeps its standard output open.
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")

    def psql(self):
        where = ["--host=127.0.0.1", f"--port={self.port}", "--username=postgres"]
        return ["psql", *where, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"]

    def stop(self):
        self.run("pg_ctl", "-D", self.data, "-m", "immediate", "stop")


class Service:
    """Writes an event each 20 ms, with its number."""

    def __init__(self, postgres):
        self.psql = subprocess.Popen(postgres.psql(), stdin=subprocess.PIPE, text=True)
        self.sent = {}
        self.is_ending = threading.Event()
        self.thread = threading.Thread(target=self.write)
        self.thread.start()

    def write(self):
        while not self.is_ending.wait(0.02):
            number = len(self.sent) + 1
            self.sent[number] = time.monotonic()
            row = f"('Order', 'order-1', 'OrderPaid', '{number}')"
            self.psql.stdin.write(f"INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES {row};\n")
            self.psql.stdin.flush()

    def end(self):
        self.is_ending.set()
        self.thread.join()
        self.psql.stdin.close()
        assert self.psql.wait(PATIENCE) == 0, "psql has failed"


class Relay:
    """A relay in the place of a pod; it prints its events."""

    def __init__(self, folder, arrived):
        self.port = free_port()
        self.log = folder / f"{self.port}.log"
        command = [os.environ["WALRELAY"], "run", f"--config={folder}/walrelay.toml"]
        command.append(f"--set=http.listen=127.0.0.1:{self.port}")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log.open("w"), text=True)
        self.arrived = arrived
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        eventually(self.is_ready, f"the relay is ready: {self.log.read_text()}")

    def read(self):
        for line in self.process.stdout:
            self.arrived.append((int(json.loads(line)["value"]), time.monotonic()))

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(PATIENCE)
        self.thread.join()
        assert status == 0, f"a relay has ended with {status}: {self.log.read_text()}"


def roll_out(folder, postgres, relays):
    """Returns the events with their times, sent and arrived, after both relays were replaced."""
    arrived = []
    relays += [Relay(folder, arrived), Relay(folder, arrived)]
    service = Service(postgres)

    def is_current(number):
        return any(event >= number for event, _ in arrived)

    try:
        for old in list(relays):
            now = len(service.sent)
            eventually(lambda number=now: is_current(number + 50), "a second of events has arrived")
            relays.append(Relay(folder, arrived))
            old.terminate()
        now = len(service.sent)
        eventually(lambda: is_current(now + 50), "events arrive after the update")
    finally:
        service.end()
    eventually(lambda: is_current(len(service.sent)), "the last event has arrived")
    return service.sent, arrived


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="walrelay-rollout-"))
    # The account of Postgres writes there.
    folder.chmod(0o777)
    relays = []
    postgres = None
    try:
        postgres = Postgres(folder)
        (folder / "walrelay.toml").write_text(
            "[source]\n"
            f'url = "postgres://postgres@127.0.0.1:{postgres.port}/postgres?sslmode=disable"\n'
            'tables = ["public.outbox"]\n'
            '[sink]\nkind = "stdout"\n[sink.stdout]\nconfirm = true\n'
        )
        init = [os.environ["WALRELAY"], "init", "--dry-run", f"--config={folder}/walrelay.toml"]
        sql = subprocess.run(init, check=True, capture_output=True, text=True).stdout
        subprocess.run(postgres.psql(), input=sql, check=True, capture_output=True, text=True)
        sent, arrived = roll_out(folder, postgres, relays)
        numbers = [number for number, _ in arrived]
        lost = sorted(set(sent) - set(numbers))
        assert not lost, f"events are lost: {lost}"
        repeated = [number for number, count in collections.Counter(numbers).items() if count > 1]
        assert not repeated, f"events are repeated: {repeated}"
        assert numbers == sorted(numbers), "events are out of order"
        longest = max(time - sent[number] for number, time in arrived)
        waited = f"one waited {longest * 1000:.0f} ms at most"
        print(f"rollout: {len(sent)} events, none lost, repeated or out of order; {waited}")
    finally:
        for relay in relays:
            if relay.process.poll() is None:
                relay.process.kill()
                relay.process.wait()
                relay.thread.join()
        if postgres:
            postgres.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
