<?php

declare(strict_types=1);

// The claims, and the newest value, against a real Postgres: WALRELAY_EXAMPLE_POSTGRES names it. Needs php-cli and php-pgsql.

require __DIR__ . '/Newest.php';
require __DIR__ . '/ProcessedEvents.php';

const CONSUMER = 'example_php';

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

/** Processes an event, and crashes between its effect and the commit if asked. */
function process(PDO $pdo, int $number, bool $crash = false): bool
{
    return ProcessedEvents::process($pdo, CONSUMER, "event-$number", function () use ($pdo, $number, $crash) {
        $pdo->prepare('INSERT INTO php_effects VALUES (?)')->execute([$number]);
        if ($crash) {
            posix_kill(posix_getpid(), SIGKILL);
        }
    });
}

/** Another process that processes an event. */
function start(int $number, string $crash = ''): mixed
{
    return proc_open([PHP_BINARY, __FILE__, (string) $number, $crash], [], $pipes);
}

/** The signal that ended the process, or 0. */
function ended(mixed $process): int
{
    while (($status = proc_get_status($process))['running']) {
        usleep(10_000);
    }
    proc_close($process);
    return $status['signaled'] ? $status['termsig'] : 0;
}

/** The effects, as another session sees them. */
function effects(): array
{
    return connect()->query('SELECT number FROM php_effects ORDER BY number')->fetchAll(PDO::FETCH_COLUMN);
}

$pdo = connect();
if (isset($argv[1])) {
    process($pdo, (int) $argv[1], ($argv[2] ?? '') === 'crash');
    exit(0);
}
$pdo->exec('DROP TABLE IF EXISTS php_effects; CREATE TABLE php_effects (number int)');
$pdo->prepare('DELETE FROM processed_events WHERE consumer = ?')->execute([CONSUMER]);

same([true, true, false, false], [process($pdo, 1), process($pdo, 2), process($pdo, 1), process($pdo, 2)], 'claims');
same([1, 2], effects(), 'the same event twice has one effect');

same(SIGKILL, ended(start(3, 'crash')), 'the process has crashed');
same([1, 2], effects(), 'a crash before the commit has no effect');
same(true, process($pdo, 3), 'after a crash the event is new');

try {
    ProcessedEvents::process($pdo, CONSUMER, 'event-4', function () use ($pdo) {
        $pdo->exec('INSERT INTO php_effects VALUES (4)');
        $pdo->exec('SELECT 1 / 0');
    });
    same('an error', 'none', 'an effect that fails');
} catch (PDOException) {
    same(false, $pdo->inTransaction(), 'a failed effect leaves no transaction open');
}
same(true, process($pdo, 4), 'after a failed effect the event is new');

$silent = connect();
$silent->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_SILENT);
try {
    process($silent, 4);
    same('an error', 'none', 'a connection that hides errors');
} catch (LogicException) {
    // As it must be.
}

try {
    ProcessedEvents::process($pdo, CONSUMER, 'event-hidden', function () use ($pdo) {
        try {
            $pdo->exec('SELECT 1 / 0');
        } catch (PDOException) {
            // Hidden.
        }
    });
    same('an error', 'none', 'an effect that hides an error');
} catch (PDOException $error) {
    same('25P02', $error->getCode(), 'an effect that hides an error');
}

$concurrent = array_map(fn () => start(5), range(1, 4));
same([0, 0, 0, 0], array_map('ended', $concurrent), 'concurrent claims wait for each other');
same([1, 2, 3, 4, 5], effects(), 'each event has one effect');

$pdo->exec("INSERT INTO processed_events (consumer, event_id, processed_at) SELECT '" . CONSUMER . "', days,"
    . ' now() - make_interval(days => days) FROM generate_series(1, 40) AS days');
same(11, ProcessedEvents::prune($pdo, CONSUMER, 30), 'old events are forgotten');

$pdo->exec('DROP TABLE IF EXISTS newest');
$pdo->exec('CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)');
$sent = [
    ['a', 1, 'a1'], ['b', 2, 'b2'], ['a', 3, 'a3'], ['c', 4, 'c4'], ['c', 5, null],
    // A crash of the relay: everything from 1 on again, and it is cut off before 3.
    ['a', 1, 'a1'], ['b', 2, 'b2'], ['c', 4, 'c4'],
    // `walrelay resend` sends without a position.
    ['b', null, 'old'], ['d', null, 'old'], ['d', 6, 'd6'],
];
$applied = [];
foreach ($sent as [$key, $number, $value]) {
    $position = $number === null ? null : sprintf('%016X/00000000', $number);
    $applied[] = Newest::apply($pdo, $key, $position, $value);
}
$kept = $pdo->query('SELECT key, value FROM newest ORDER BY key')->fetchAll(PDO::FETCH_KEY_PAIR);
same(['a' => 'a3', 'b' => 'b2', 'c' => null, 'd' => 'd6'], $kept, 'the newest values');
same([...array_fill(0, 5, true), ...array_fill(0, 4, false), true, true], $applied, 'what is newer');
