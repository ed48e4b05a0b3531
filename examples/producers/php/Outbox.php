<?php

declare(strict_types=1);

/** The event would not be committed together with a change. */
final class NotInTransaction extends RuntimeException
{
}

/**
 * Writes an event in the transaction of the change that it tells of, by PDO. In Laravel, the connection
 * is DB::connection()->getPdo(); in Doctrine, $connection->getNativeConnection().
 *
 *   $pdo->beginTransaction();
 *   $pdo->exec('INSERT INTO orders ...');
 *   Outbox::emit($pdo, 'Order', '42', 'OrderPlaced', ['total' => 12.5]);
 *   $pdo->commit();
 *
 * Copy this file, and keep the statement of your table.
 */
final class Outbox
{
    /** The event is written only if the transaction has changed something: the number of rows tells. */
    private const CHANGED = ' FROM (SELECT CAST(:id AS uuid) AS id, CAST(:aggregate AS text) AS aggregate,'
        . ' CAST(:key AS text) AS key, CAST(:type AS text) AS type, CAST(:payload AS text) AS payload) AS e'
        . ' WHERE pg_current_xact_id_if_assigned() IS NOT NULL';

    /** One statement for each shape of table that walrelay has a preset for, and outbox.emit. */
    public const STATEMENTS = [
        'debezium' => 'INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)'
            . ' SELECT coalesce(e.id, outbox.uuidv7()), e.aggregate, e.key, e.type, CAST(e.payload AS jsonb)'
            . self::CHANGED,
        // The id is a bigserial; that of the event is not used.
        'events_outbox' => 'INSERT INTO events_outbox (aggregate_id, type, payload)'
            . " SELECT e.key, lower(e.aggregate) || '.' || e.type, CAST(e.payload AS jsonb)" . self::CHANGED,
        'outbox_events' => 'INSERT INTO outbox_events (id, aggregate_id, event_type, payload)'
            . " SELECT coalesce(e.id, outbox.uuidv7()), e.key, lower(e.aggregate) || '.' || e.type,"
            . ' CAST(e.payload AS jsonb)' . self::CHANGED,
        'outbox' => 'INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)'
            . ' SELECT coalesce(e.id, outbox.uuidv7()), e.aggregate, e.key, e.type, CAST(e.payload AS jsonb)'
            . self::CHANGED,
        'emit' => 'SELECT outbox.emit(aggregate => e.aggregate, key => e.key, type => e.type,'
            . ' payload => CAST(e.payload AS jsonb), id => coalesce(e.id, outbox.uuidv7()))' . self::CHANGED,
    ];

    private const EMIT_ALL = 'SELECT outbox.emit_all(CAST(:events AS jsonb))'
        . ' WHERE pg_current_xact_id_if_assigned() IS NOT NULL';

    /**
     * Writes an event by the connection that has changed the data, in its open transaction.
     *
     * A transaction that was begun by `exec('BEGIN')` counts: PDO asks the server's protocol.
     *
     * @param mixed $payload serialised here, once; a string is JSON already and is kept, and a jsonb
     *     column normalises it
     */
    public static function emit(
        PDO $pdo,
        string $aggregate,
        string $key,
        string $type,
        mixed $payload,
        ?string $id = null,
        string $table = 'debezium',
    ): void {
        self::write($pdo, self::STATEMENTS[$table], [
            'id' => $id,
            'aggregate' => $aggregate,
            'key' => $key,
            'type' => $type,
            'payload' => is_string($payload) ? $payload : json_encode($payload, JSON_THROW_ON_ERROR),
        ]);
    }

    /**
     * Writes several events as one message in the log, by outbox.emit_all: no table, one request. They keep
     * their order.
     *
     * @param list<array<string, mixed>> $events each with the members aggregate, key, type and payload, and
     *     perhaps id, topic or headers
     */
    public static function emitAll(PDO $pdo, array $events): void
    {
        self::write($pdo, self::EMIT_ALL, ['events' => json_encode($events, JSON_THROW_ON_ERROR)]);
    }

    private static function write(PDO $pdo, string $sql, array $parameters): void
    {
        if (!$pdo->inTransaction()) {
            throw new NotInTransaction('an event is written in the transaction of its change: none is open');
        }
        $statement = $pdo->prepare($sql);
        $statement->execute($parameters);
        if ($statement->rowCount() !== 1) {
            throw new NotInTransaction('the transaction has changed nothing yet: change the data first');
        }
    }
}
