"""The test of a receiver in any language, behind a real relay, whose requests are signed with two secrets.

    test.py COMMAND…    the command that runs the receiver, with its variables

The receiver and the relay are killed amid the events, and all events are sent again. Forged requests are refused.
Needs WALRELAY_EXAMPLE_POSTGRES, and in WALRELAY_EXAMPLE_BINARY the binary.
"""

import base64
import hashlib
import hmac
import http.client
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

POSTGRES = os.environ["WALRELAY_EXAMPLE_POSTGRES"]
# A loaded machine may take long; nothing waits for less.
PATIENCE = 120
EVENTS = 60
command = sys.argv[1:]
name = f"hooks_{random.getrandbits(32):08x}"
OLD, NEW = (f"whsec_{base64.b64encode(random.randbytes(24)).decode()}" for _ in range(2))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


PORT = free_port()
VARIABLES = {"DATABASE_URL": POSTGRES, "WEBHOOK_SECRETS": NEW, "PORT": str(PORT), "GROUP": name}
CONFIG = f"""
[source]
url = "{POSTGRES}"
tables = ["public.{name}"]
slot = "{name}"
publication = "{name}"

[router]
preset = "outbox_events"

[sink]
kind = "http"

[sink.http]
url = "http://127.0.0.1:{PORT}/events/{{topic}}"
secrets = "{OLD} {NEW}"
key_header = "x-event-key"
"""
TABLE = f"""CREATE TABLE {name} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_id text NOT NULL,
    event_type text NOT NULL, payload jsonb NOT NULL, occurred_at timestamptz NOT NULL DEFAULT now())"""


def eventually(what, holds):
    ends = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > ends:
            sys.exit(f"webhooks: not reached in {PATIENCE} s: {what}")
        time.sleep(0.05)


def signature(secret, id, sent, body):
    key = base64.b64decode(secret.removeprefix("whsec_"))
    return "v1," + base64.b64encode(hmac.digest(key, f"{id}.{sent}.".encode() + body, hashlib.sha256)).decode()


def post(headers, body=b"1000"):
    """Posts as a third party would, and returns the status."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE)
    try:
        connection.request("POST", "/events/forged", body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def is_listening():
    try:
        return post({}) == 401
    except OSError:
        return False


def forgeries():
    """Headers that must be refused."""
    now, id = int(time.time()), "forged"

    def headers(secret=NEW, id=id, sent=now, body=b"1000", **more):
        return {"webhook-id": id, "webhook-timestamp": str(sent), "webhook-signature": signature(secret, id, sent, body),
                **more}

    yield "no signature", {}
    yield "an empty signature", {**headers(), "webhook-signature": ""}
    yield "no base64", {**headers(), "webhook-signature": "v1,!"}
    yield "another version", {**headers(), "webhook-signature": headers()["webhook-signature"].replace("v1,", "v2,")}
    yield "another secret", headers(secret=OLD)
    yield "another body", headers(body=b"1")
    yield "another id", {**headers(), "webhook-id": "other"}
    yield "another time", {**headers(), "webhook-timestamp": str(now - 1)}
    yield "an hour old", headers(sent=now - 3600)
    yield "an hour early", headers(sent=now + 3600)
    yield "no time", {**headers(), "webhook-timestamp": "now"}


def scenario(connection, folder, running):
    config = Path(folder, "walrelay.toml")
    config.write_text(CONFIG)

    def walrelay(*arguments):
        return [os.environ["WALRELAY_EXAMPLE_BINARY"], *arguments, "--config", str(config)]

    def start(command):
        with Path(folder, f"{len(running)}.log").open("wb") as log:
            process = subprocess.Popen(command, env={**os.environ, **VARIABLES}, stdout=log, stderr=log)
        running.append(process)
        return process

    def effects():
        query = "SELECT key, value::int FROM received WHERE consumer = %s AND topic = %s ORDER BY n"
        return connection.execute(query, [name, name]).fetchall()

    connection.execute(TABLE)
    for step in walrelay("init"), walrelay("bookmark", "create", f"{name}_from"):
        subprocess.run(step, check=True, stdout=subprocess.DEVNULL)
    relay, receiver = start(walrelay("run")), start(command)
    eventually("the receiver listens", is_listening)
    expected = [(f"k{number % 7}", number) for number in range(EVENTS)]
    for key, number in expected:
        connection.execute(f"INSERT INTO {name} (aggregate_id, event_type, payload) VALUES (%s, %s, %s)",
                           [key, f"{name}.placed", str(number)])
        if number == EVENTS // 2:
            eventually("the first effects", lambda: len(effects()) > 5)
            for killed in relay, receiver:
                killed.kill()
                killed.wait()
            start(walrelay("run"))
            receiver = start(command)
    eventually("all effects", lambda: len(effects()) >= EVENTS)
    subprocess.run(walrelay("replay", "--from", f"{name}_from", "--yes"), check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    for what, headers in forgeries():
        assert post(headers) == 401, f"{what} is accepted"
    good = {"webhook-id": f"{name}-good", "webhook-timestamp": str(int(time.time()))}
    good["webhook-signature"] = "v1,AAAA " + signature(NEW, good["webhook-id"], good["webhook-timestamp"], b"1000")
    # The key's header is no part of the signature: a receiver that routes by it trusts the body instead.
    assert [post(good), post(good)] == [204, 204], "a signed request, and its repeat"
    by_key = sorted(effects(), key=lambda effect: effect[0])
    assert by_key == sorted(expected, key=lambda effect: effect[0]), f"not each event once, in order: {by_key}"
    forged = connection.execute("SELECT value FROM received WHERE consumer = %s AND topic = 'forged'", [name])
    assert forged.fetchall() == [("1000",)], "an effect of a forged request"
    receiver.terminate()
    status = receiver.wait(PATIENCE)
    assert status == 0, f"the receiver ended by SIGTERM with {status}"
    print(f"webhooks: {EVENTS} events, each with one effect; {len(list(forgeries()))} forgeries refused")


with psycopg.connect(POSTGRES, autocommit=True) as connection, tempfile.TemporaryDirectory() as folder:
    running = []
    try:
        scenario(connection, folder, running)
    except BaseException:
        for log in sorted(Path(folder).glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
        raise
    finally:
        for process in running:
            process.kill()
            process.wait()

        # The server has few slots, and others use it. A killed walsender may still be at its end.
        def is_dropped():
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                               " WHERE slot_name LIKE %s AND NOT active", [f"{name}%"])
            return not connection.execute("SELECT FROM pg_replication_slots WHERE slot_name LIKE %s",
                                          [f"{name}%"]).fetchall()

        eventually("the slots are dropped", is_dropped)
