<?php

declare(strict_types=1);

// Both frameworks against a real Postgres: WALRELAY_EXAMPLE_POSTGRES names it. Needs php-cli, php-pgsql,
// php-illuminate-database and php-doctrine-dbal.

use Doctrine\DBAL\DriverManager;
use Illuminate\Database\Capsule\Manager;

require 'Illuminate/Database/autoload.php';
require 'Doctrine/DBAL/autoload.php';
require __DIR__ . '/../producers/php/Outbox.php';
foreach (['LaravelOutbox', 'LaravelProcessedEvents', 'DoctrineOutbox', 'DoctrineProcessedEvents'] as $class) {
    require __DIR__ . "/$class.php";
}

$url = parse_url((string) getenv('WALRELAY_EXAMPLE_POSTGRES'));
$database = ltrim($url['path'], '/');

function same(mixed $expected, mixed $found, string $what): void
{
    if ($expected !== $found) {
        throw new Exception("$what: " . var_export($found, true) . ', not ' . var_export($expected, true));
    }
}

/** @param class-string<Throwable> $error */
function refuses(string $error, callable $call, string $what): void
{
    try {
        $call();
    } catch (Throwable $thrown) {
        same($error, $thrown::class, $what);
        return;
    }
    throw new Exception("$what is not refused");
}

$capsule = new Manager();
$capsule->addConnection([
    'driver' => 'pgsql', 'host' => $url['host'], 'port' => $url['port'], 'database' => $database,
    'username' => $url['user'], 'password' => $url['pass'] ?? null,
]);
$laravel = $capsule->getDatabaseManager();
$doctrine = DriverManager::getConnection([
    'driver' => 'pdo_pgsql', 'host' => $url['host'], 'port' => $url['port'], 'dbname' => $database,
    'user' => $url['user'], 'password' => $url['pass'] ?? null,
]);
// What a second session sees: committed rows.
$other = new PDO("pgsql:host=$url[host];port=$url[port];dbname=$database", $url['user'], $url['pass'] ?? null);
$count = fn (string $table) => $other->query("SELECT count(*) FROM $table")->fetchColumn();

$frameworks = [
    'Laravel' => [
        new LaravelOutbox($laravel), new LaravelProcessedEvents($laravel),
        fn (callable $work) => $laravel->connection()->transaction($work),
        fn (string $sql) => $laravel->connection()->insert($sql),
    ],
    'Doctrine' => [
        new DoctrineOutbox($doctrine), new DoctrineProcessedEvents($doctrine),
        fn (callable $work) => $doctrine->transactional($work), fn (string $sql) => $doctrine->executeStatement($sql),
    ],
];
foreach ($frameworks as $name => [$outbox, $processed, $transaction, $execute]) {
    $other->exec('DROP TABLE IF EXISTS orders, outbox; CREATE TABLE orders (id int); CREATE TABLE outbox'
        . ' (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)');
    $other->prepare('DELETE FROM processed_events WHERE consumer = ?')->execute([$name]);
    $emit = fn () => $outbox->emit('Order', '42', 'placed', ['total' => 12.5]);
    $place = function () use ($execute, $emit) {
        $execute('INSERT INTO orders VALUES (42)');
        $emit();
    };

    refuses(NotInTransaction::class, $place, "$name: an event without a transaction");
    refuses(NotInTransaction::class, fn () => $transaction($emit), "$name: an event without a change");
    same(0, $count('outbox'), "$name: refused events");
    $transaction($place);
    same(1, $count('outbox'), "$name: the event of a committed change");
    refuses(DomainException::class, fn () => $transaction(function () use ($place) {
        $place();
        throw new DomainException();
    }), "$name: a change that is rolled back");
    same(1, $count('outbox'), "$name: the event of a change that was rolled back");

    $other->exec('TRUNCATE orders');
    $effect = fn () => $execute('INSERT INTO orders VALUES (43)');
    $claim = fn (callable $effect) => $processed->process($name, 'event', $effect);
    refuses(DomainException::class, fn () => $claim(function () use ($effect) {
        $effect();
        throw new DomainException();
    }), "$name: an effect that fails");
    same(0, $count('orders'), "$name: the effect that failed");
    try {
        $claim(function () use ($execute) {
            try {
                $execute('SELECT 1 / 0');
            } catch (Exception) {
                // Hidden.
            }
        });
        same('an error', 'none', "$name: an effect that hides an error");
    } catch (Exception $error) {
        same(true, str_contains($error->getMessage(), '25P02'), "$name: an effect that hides an error: $error");
    }
    same([true, false], [$claim($effect), $claim($effect)], "$name: an event and its repeat");
    same(1, $count('orders'), "$name: the effect of a repeat");
    refuses(LogicException::class, fn () => $transaction(fn () => $claim($effect)), "$name: a transaction around it");
}
