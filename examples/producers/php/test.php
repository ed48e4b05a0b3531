<?php

declare(strict_types=1);

// The producer against a real Postgres: WALRELAY_EXAMPLE_POSTGRES names it. Needs php-cli and php-pgsql.

require __DIR__ . '/Outbox.php';

const TABLES = [
    'debezium' => ['outbox', 'id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb'],
    'events_outbox' => ['events_outbox', 'id bigserial PRIMARY KEY, aggregate_id text, type text, payload jsonb'],
    'outbox_events' => ['outbox_events', 'id uuid PRIMARY KEY, aggregate_id text, event_type text, payload jsonb'],
    'outbox' => ['outbox', 'id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text,'
        . ' payload jsonb'],
];

function connect(): PDO
{
    $url = parse_url((string) getenv('WALRELAY_EXAMPLE_POSTGRES'));
    $name = sprintf('pgsql:host=%s;port=%d;dbname=%s', $url['host'], $url['port'], ltrim($url['path'], '/'));
    return new PDO($name, $url['user'], $url['pass'] ?? null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
}

function same(mixed $expected, mixed $found, string $what): void
{
    if ($expected !== $found) {
        throw new Exception("$what: " . var_export($found, true) . ', not ' . var_export($expected, true));
    }
}

function refuses(callable $call, string $what): void
{
    try {
        $call();
    } catch (NotInTransaction) {
        return;
    }
    throw new Exception("$what is not refused");
}

function fresh(PDO $pdo, string $table): void
{
    [$name, $columns] = TABLES[$table];
    $pdo->exec('DROP TABLE IF EXISTS orders, outbox, events_outbox, outbox_events');
    $pdo->exec("CREATE TABLE orders (id int); CREATE TABLE $name ($columns)");
}

function place(PDO $pdo, string $table = 'debezium'): void
{
    $pdo->exec('INSERT INTO orders VALUES (42)');
    Outbox::emit($pdo, 'Order', '42', 'placed', ['n' => 42], null, $table);
}

/** The numbers of changes and events, as another session sees them. */
function counts(string $table = 'debezium'): array
{
    $sql = 'SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM ' . TABLES[$table][0] . ')';
    return connect()->query($sql)->fetch(PDO::FETCH_NUM);
}

$pdo = connect();
foreach (array_keys(TABLES) as $table) {
    fresh($pdo, $table);
    $pdo->beginTransaction();
    place($pdo, $table);
    $pdo->commit();
    same([1, 1], counts($table), "$table: a commit makes one event");
    $pdo->beginTransaction();
    place($pdo, $table);
    $pdo->rollBack();
    same([1, 1], counts($table), "$table: a rollback makes none");
}

fresh($pdo, 'debezium');
$pdo->beginTransaction();
place($pdo);
$pdo->exec('SAVEPOINT one');
place($pdo);
$pdo->exec('ROLLBACK TO one');
$pdo->commit();
same([1, 1], counts(), 'a savepoint that is rolled back leaves none');

refuses(fn () => place($pdo), 'an event outside of a transaction');
$pdo->beginTransaction();
refuses(fn () => Outbox::emit($pdo, 'Order', '1', 'placed', []), 'an event before a change');
$pdo->commit();
same([2, 1], counts(), 'refused events are not written');
$pdo->exec('BEGIN');
place($pdo);
$pdo->exec('COMMIT');
same([3, 2], counts(), 'BEGIN by hand is a transaction');

$pdo->beginTransaction();
$pdo->exec('TRUNCATE outbox');
$given = '019aa1c2-7d3e-7b1a-9c55-0123456789ab';
Outbox::emit($pdo, 'Order', '1', 'placed', '{"a": 1}', $given);
$pdo->commit();
$found = $pdo->query('SELECT id, payload FROM outbox')->fetch(PDO::FETCH_NUM);
same([$given, '{"a": 1}'], $found, 'an id can be given, JSON in a string is kept');

$pdo->exec("SELECT pg_create_logical_replication_slot('example_php', 'test_decoding')");
try {
    $pdo->beginTransaction();
    place($pdo, 'emit');
    $pdo->commit();
    $pdo->beginTransaction();
    place($pdo, 'emit');
    $pdo->rollBack();
    $sql = "SELECT count(*) FROM pg_logical_slot_get_changes('example_php', NULL, NULL)"
        . " WHERE data LIKE '%prefix: outbox%'";
    same(1, $pdo->query($sql)->fetchColumn(), 'a message without a table is in the log once');
} finally {
    $pdo->exec("SELECT pg_drop_replication_slot('example_php')");
}

$events = [
    ['aggregate' => 'Order', 'key' => '1', 'type' => 'placed', 'payload' => ['n' => 1]],
    ['id' => $given, 'aggregate' => 'Order', 'key' => '2', 'type' => 'placed', 'payload' => ['n' => 2]],
];
refuses(fn () => Outbox::emitAll($pdo, $events), 'events outside of a transaction');
$pdo->exec("SELECT pg_create_logical_replication_slot('example_php', 'test_decoding')");
try {
    foreach (['commit', 'rollBack'] as $end) {
        $pdo->beginTransaction();
        refuses(fn () => Outbox::emitAll($pdo, $events), 'events before a change');
        $pdo->exec('INSERT INTO orders VALUES (42)');
        Outbox::emitAll($pdo, $events);
        $pdo->$end();
    }
    $sql = "SELECT data FROM pg_logical_slot_get_changes('example_php', NULL, NULL)"
        . " WHERE data LIKE '%prefix: outbox%'";
    $messages = $pdo->query($sql)->fetchAll(PDO::FETCH_COLUMN);
    same(1, count($messages), 'several events are one message');
    $batch = json_decode(explode('content:', $messages[0], 2)[1], true);
    same([1, 2], array_map(fn ($event) => $event['payload']['n'], $batch), 'they keep their order');
    same($given, $batch[1]['id'], 'an id of several can be given');
} finally {
    $pdo->exec("SELECT pg_drop_replication_slot('example_php')");
}
