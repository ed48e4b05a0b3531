"""A whole receiver of webhooks: each event has its effect in Postgres once, in the table `received`.

    DATABASE_URL=postgres://… WEBHOOK_SECRETS=whsec_… python receiver.py

The table processed_events comes from `walrelay init --consumer`. PORT (8080) and GROUP have defaults. It ends by
SIGTERM or SIGINT after the requests that have begun. Use the server of your framework instead, and keep `receive`.
"""

import logging
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from psycopg.pq import TransactionStatus

import verifier

LIMIT = 1 << 20
# With a lock: two processes may start at once.
TABLE = """SELECT pg_advisory_xact_lock(59);
    CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text)"""
log = logging.getLogger("receiver")


def effect(connection: psycopg.Connection, topic: str, key: str | None, body: bytes) -> None:
    connection.execute("INSERT INTO received (consumer, topic, key, value) VALUES (%s, %s, %s, %s)",
                       [GROUP, topic, key, body.decode()])


def receive(topic: str, headers, body: bytes) -> int:
    """Claims the event and has its effect, in one transaction; returns the status of the answer."""
    try:
        id = verifier.verify(KEYS, headers, body)
    except verifier.InvalidSignature as error:
        log.warning("refused: %s", error)
        return 401
    # A pool saves a connection for each request. The block commits at its end.
    with psycopg.connect(DATABASE) as connection:
        claimed = connection.execute(
            # A concurrent claim of the same event is waited for.
            "INSERT INTO processed_events (consumer, event_id) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            [GROUP, id],
        )
        if claimed.rowcount == 1:
            effect(connection, topic, headers.get("x-event-key"), body)
            if connection.info.transaction_status == TransactionStatus.INERROR:
                raise RuntimeError("the effect went on after an error of Postgres, which would roll it back")
    # After the commit, and for a repeat, too.
    return 204


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        if length > LIMIT:
            # The body is not read: the connection cannot be used again.
            self.close_connection = True
            self.answer(413)
            return
        body = self.rfile.read(length)
        try:
            status = receive(self.path.rsplit("/", 1)[-1], self.headers, body)
        except Exception as error:
            # walrelay sends it again, after growing pauses. Not its text: an error may quote the event.
            log.error("an event failed: %s", type(error).__name__)
            status = 503
        self.answer(status)

    def answer(self, status: int) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("content-length", "0")
        self.end_headers()

    def log_request(self, *_) -> None:
        pass


class Server(ThreadingHTTPServer):
    # Its end waits for the threads: a request that has begun gets its answer.
    daemon_threads = False


def main() -> None:
    logging.basicConfig(level=os.environ.get("LOG_LEVEL", "INFO"), format="%(asctime)s %(levelname)s %(message)s")
    with psycopg.connect(DATABASE) as connection:
        connection.execute(TABLE)
    server = Server(("", int(os.environ.get("PORT", "8080"))), Handler)
    # An idle connection that the relay keeps open must not hold the end.
    Handler.timeout = 5
    for number in signal.SIGTERM, signal.SIGINT:
        # It waits for the loop, which this thread runs.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    log.info("listens on port %d", server.server_port)
    server.serve_forever(poll_interval=0.1)
    server.server_close()
    log.info("stopped")


if __name__ == "__main__":
    DATABASE, GROUP = os.environ["DATABASE_URL"], os.environ.get("GROUP", "example")
    KEYS = [verifier.key_of(secret) for secret in os.environ["WEBHOOK_SECRETS"].split()]
    main()
