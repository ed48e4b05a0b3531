"""Compares orders, events, stock and points: a page while the shop is open, and the proof at its end.

It reads the database of each service, and counts the records of the topic by order.
"""

import json
import threading
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

PAGE = Path(__file__).with_name("ledger.html").read_bytes()
STOCK = 100_000


class Ledger:
    def __init__(self, orders, inventory, loyalty, kafka, topic, partitions):
        self.orders, self.inventory, self.loyalty = orders, inventory, loyalty
        self.last = "nothing was killed yet"
        # Number of records, by order.
        self.events = Counter()
        # Number of records that were read.
        self.records = 0
        self.reader = Consumer({"bootstrap.servers": kafka, "group.id": "ledger", "enable.auto.commit": False,
                                "reconnect.backoff.max.ms": 500, "log_level": 0})
        self.reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        while True:
            message = self.reader.poll(1.0)
            # While the broker is away there are errors; the records come when it is back.
            if message is not None and not message.error():
                self.events[json.loads(message.value())["order"]] += 1
                self.records += 1

    def page(self):
        """The newest orders and what has come of them."""
        newest = query(self.orders, "SELECT id::text, customer, article, quantity FROM orders"
                                    " ORDER BY taken_at DESC LIMIT 25")
        sums = {"orders": query(self.orders, "SELECT count(*) FROM orders")[0][0], "records": self.records}
        moved = []
        for service, table in (self.inventory, "stock_moves"), (self.loyalty, "point_moves"):
            of_newest = query(service, f"SELECT order_id::text FROM {table} WHERE order_id = ANY(%s::uuid[])",
                              [[order[0] for order in newest]])
            moved.append(Counter(order for order, in of_newest))
            sums[table] = query(service, f"SELECT count(*) FROM {table}")[0][0]
        stock, points = moved
        orders = [{"id": id, "customer": customer, "article": article, "quantity": quantity,
                   "events": self.events[id], "stock": stock[id], "points": points[id]}
                  for id, customer, article, quantity in newest]
        return {"orders": orders, "sums": {**sums, "last": self.last}}

    def faults(self):
        """What contradicts, by kind: each committed order has moved stock and points once, and nothing else has."""
        orders = {id: rest for id, *rest in query(
            self.orders, "SELECT id::text, article, quantity, customer, total FROM orders")}
        stock_of, points_of = defaultdict(list), defaultdict(list)
        stock, points = Counter(), Counter()
        for id, article, units in query(self.inventory, "SELECT order_id::text, article, units FROM stock_moves"):
            stock_of[id].append([article, units])
            stock[article] += units
        for id, customer, given in query(self.loyalty, "SELECT order_id::text, customer, points FROM point_moves"):
            points_of[id].append([customer, given])
            points[customer] += given
        faults = defaultdict(list)
        for id, (article, quantity, customer, total) in orders.items():
            if self.events[id] == 0:
                faults["an order without an event"].append(id)
            for what, found, expected in (("stock", stock_of[id], [article, quantity]),
                                          ("points", points_of[id], [customer, total // 10])):
                if found != [expected]:
                    how = {0: "not moved", 1: "moved wrongly"}.get(len(found), "moved more than once")
                    faults[f"{what} {how}"].append(f"{id}: {found}, not {[expected]}")
        for what, ids in ("an event", self.events), ("stock moved", stock_of), ("points moved", points_of):
            faults[f"{what} without an order"] += ids.keys() - orders.keys()
        for article, units in query(self.inventory, "SELECT article, units FROM stock"):
            if units != STOCK - stock[article]:
                faults["stock that differs from its moves"].append(f"{article}: {units}, moved {stock[article]}")
        if dict(query(self.loyalty, "SELECT customer, points FROM points")) != points:
            faults["points that differ from their moves"].append(f"moved: {points}")
        return {what: of for what, of in faults.items() if of}

    def serve(self):
        """Serves the page by a thread; returns its address."""
        ledger = self

        class Page(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/ledger.json":
                    kind, body = "application/json", json.dumps(ledger.page()).encode()
                else:
                    kind, body = "text/html", PAGE
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        server.handle_error = lambda *_: None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/"


def query(database, text, values=None):
    with psycopg.connect(database) as connection:
        return connection.execute(text, values).fetchall()
