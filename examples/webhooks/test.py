"""The test of a receiver in any language, behind a real relay, whose requests are signed with two secrets.

    test.py COMMAND…    the command that runs the receiver, with its variables

The receiver and the relay are killed amid the events, and all events are sent again. Forged requests are refused.
Needs WALRELAY_EXAMPLE_POSTGRES, and in WALRELAY_EXAMPLE_BINARY the binary.
"""

import base64
import hashlib
import hmac
import http.client
import random
import socket
import sys
import time
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import PATIENCE, POSTGRES, eventually  # noqa: E402

EVENTS = 60
command = sys.argv[1:]
name = f"hooks_{random.getrandbits(32):08x}"
OLD, NEW = (f"whsec_{base64.b64encode(random.randbytes(24)).decode()}" for _ in range(2))


# The receiver is killed and starts again at its port. Until the end, no other process is given it: a socket is bound to it
# that does not listen.
held = socket.socket()
held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
held.bind(("127.0.0.1", 0))
PORT = held.getsockname()[1]
VARIABLES = {"DATABASE_URL": POSTGRES, "WEBHOOK_SECRETS": NEW, "PORT": str(PORT), "GROUP": name}
CONFIG = f"""{harness.source(name)}
[sink]
kind = "http"

[sink.http]
url = "http://127.0.0.1:{PORT}/events/{{topic}}"
secrets = "{OLD} {NEW}"
key_header = "x-event-key"
"""


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


def scenario(connection, programs):
    walrelay, start = programs.walrelay, programs.start

    def effects():
        query = "SELECT key, value::int FROM received WHERE consumer = %s AND topic = %s ORDER BY n"
        return connection.execute(query, [name, name]).fetchall()

    connection.execute(harness.table(name))
    programs.prepare(name)
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
    programs.replay(name)
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


harness.run(scenario, name, CONFIG, VARIABLES)
