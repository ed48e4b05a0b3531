"""Writes an event in the transaction of the change that it tells of. For psycopg 3.

    with connection.transaction():
        connection.execute("INSERT INTO orders ...")
        outbox.emit(connection, "Order", "42", "OrderPlaced", {"total": 12.5})

Copy this file, and keep the statement of your table.
"""

import json
import uuid

import psycopg
from psycopg.pq import TransactionStatus

# One statement for each shape of table that walrelay has a preset for, and outbox.emit. The event is
# written only if the transaction has changed something: the number of rows tells.
_CHANGED = " WHERE pg_current_xact_id_if_assigned() IS NOT NULL"
STATEMENTS = {
    "debezium": "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)"
    " SELECT coalesce(%(id)s, outbox.uuidv7()), %(aggregate)s, %(key)s, %(type)s, %(payload)s::jsonb" + _CHANGED,
    # The id is a bigserial; that of the event is not used.
    "events_outbox": "INSERT INTO events_outbox (aggregate_id, type, payload)"
    " SELECT %(key)s, lower(%(aggregate)s) || '.' || %(type)s, %(payload)s::jsonb" + _CHANGED,
    "outbox_events": "INSERT INTO outbox_events (id, aggregate_id, event_type, payload)"
    " SELECT coalesce(%(id)s, outbox.uuidv7()), %(key)s, lower(%(aggregate)s) || '.' || %(type)s,"
    " %(payload)s::jsonb" + _CHANGED,
    "outbox": "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)"
    " SELECT coalesce(%(id)s, outbox.uuidv7()), %(aggregate)s, %(key)s, %(type)s, %(payload)s::jsonb" + _CHANGED,
    "emit": "SELECT outbox.emit(aggregate => %(aggregate)s, key => %(key)s, type => %(type)s,"
    " payload => %(payload)s::jsonb, id => coalesce(%(id)s, outbox.uuidv7()))" + _CHANGED,
}
EMIT_ALL = "SELECT outbox.emit_all(%s::jsonb)" + _CHANGED


class NotInTransaction(Exception):
    """The event would not be committed together with a change."""


def emit(
    connection: psycopg.Connection,
    aggregate: str,
    key: str,
    type: str,
    payload: object,
    *,
    id: uuid.UUID | None = None,
    table: str = "debezium",
) -> None:
    """Writes an event by the connection that has changed the data, in its open transaction.

    `payload` is serialised here, once; a str is JSON already and is kept as it is. A jsonb column
    normalises it: take a json or text column, without the cast, if its bytes count.
    """
    _in_transaction(connection)
    text = payload if isinstance(payload, str) else json.dumps(payload)
    values = {"id": id, "aggregate": aggregate, "key": key, "type": type, "payload": text}
    if connection.execute(STATEMENTS[table], values).rowcount != 1:
        raise NotInTransaction("the transaction has changed nothing yet: change the data first")


def emit_all(connection: psycopg.Connection, events: list[dict]) -> None:
    """Writes several events as one message in the log, by outbox.emit_all: no table, one request.

    Each is a dict with the members aggregate, key, type and payload, and perhaps id (a str), topic or
    headers. They keep their order.
    """
    _in_transaction(connection)
    if connection.execute(EMIT_ALL, [json.dumps(events)]).rowcount != 1:
        raise NotInTransaction("the transaction has changed nothing yet: change the data first")


def _in_transaction(connection: psycopg.Connection) -> None:
    # The driver knows whether a transaction is open, in autocommit mode, too.
    if connection.info.transaction_status != TransactionStatus.INTRANS:
        raise NotInTransaction("an event is written in the transaction of its change: none is open")
