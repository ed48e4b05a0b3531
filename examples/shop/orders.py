"""Takes orders: PUT /orders/<id> with {"customer": "Ada", "article": 1, "quantity": 2}.

The customer chooses the id, so that an order can be sent again when no answer has come. Uses outbox.py of
examples/producers/python.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

import outbox

PRICES = {1: 10, 2: 25, 3: 40, 4: 75, 5: 120}
# The bank declines what is more expensive.
LIMIT = 400


class Declined(Exception):
    pass


def pay(total):
    """The last step of an order, which may fail when everything else has been written."""
    if total > LIMIT:
        raise Declined


def take(connection, id, order):
    """Writes the order and its event in one transaction: both are there, or none."""
    total = PRICES[order["article"]] * order["quantity"]
    with connection.transaction():
        taken = connection.execute(
            "INSERT INTO orders (id, customer, article, quantity, total) VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            [id, order["customer"], order["article"], order["quantity"], total],
        )
        if taken.rowcount == 0:
            return
        outbox.emit(connection, "Order", id, "OrderPlaced", {"order": id, **order, "total": total})
        pay(total)


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.connection_to_orders = psycopg.connect(os.environ["SHOP_ORDERS"], autocommit=True)

    def finish(self):
        self.connection_to_orders.close()
        super().finish()

    def do_PUT(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            take(self.connection_to_orders, self.path.removeprefix("/orders/"), order)
            self.answer(204)
        except Declined:
            self.answer(402)

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["SHOP_PORT"])), Service).serve_forever()


if __name__ == "__main__":
    main()
