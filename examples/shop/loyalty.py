"""Gives each customer a point for every ten euros of an order. Uses consumer.py of examples/consumers/python."""

import json
import os
import threading

import psycopg
from confluent_kafka import Consumer, Producer

import consumer

TOPIC = "outbox.event.Order"
GROUP = "loyalty"


def effect(connection, message):
    order = json.loads(message.value())
    points = order["total"] // 10
    connection.execute(
        "INSERT INTO points AS held (customer, points) VALUES (%s, %s)"
        " ON CONFLICT (customer) DO UPDATE SET points = held.points + excluded.points",
        [order["customer"], points],
    )
    connection.execute(
        "INSERT INTO point_moves (order_id, customer, points) VALUES (%s, %s, %s)",
        [order["order"], order["customer"], points],
    )


def main():
    kafka = {"bootstrap.servers": os.environ["SHOP_KAFKA"]}
    member = Consumer({**kafka, "group.id": GROUP, "session.timeout.ms": 6000, **consumer.SETTINGS})
    member.subscribe([TOPIC])
    with psycopg.connect(os.environ["SHOP_LOYALTY"], autocommit=True) as connection:
        consumer.run(member, connection, GROUP, effect, producer=Producer(kafka), dead_letters=f"{GROUP}.dead",
                     stop=threading.Event())


if __name__ == "__main__":
    main()
