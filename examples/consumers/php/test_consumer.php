<?php

declare(strict_types=1);

// The consumer behind a real relay and RabbitMQ: WALRELAY_EXAMPLE_POSTGRES, _RABBITMQ (its port), _BINARY.
// Needs php-cli, php-pgsql and php-amqplib.

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

require 'PhpAmqpLib/autoload.php';
require __DIR__ . '/Newest.php';
require __DIR__ . '/ProcessedEvents.php';
require __DIR__ . '/RabbitmqConsumer.php';

// A loaded machine may take long; nothing waits for less.
const PATIENCE = 120;

/** A connection that ends the process behind a commit where a test asks for it. */
final class CrashingPdo extends PDO
{
    public function commit(): bool
    {
        $committed = parent::commit();
        if (getenv('CRASH') === 'before ack ' . ($GLOBALS['last'] ?? '')) {
            posix_kill(posix_getpid(), SIGKILL);
        }
        return $committed;
    }
}

function connect(): PDO
{
    $url = parse_url((string) getenv('WALRELAY_EXAMPLE_POSTGRES'));
    $name = sprintf('pgsql:host=%s;port=%d;dbname=%s', $url['host'], $url['port'], ltrim($url['path'], '/'));
    return new CrashingPdo($name, $url['user'], $url['pass'] ?? null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
}

function channel(): AMQPChannel
{
    $port = (int) getenv('WALRELAY_EXAMPLE_RABBITMQ');
    return (new AMQPStreamConnection('127.0.0.1', $port, 'guest', 'guest', keepalive: true))->channel();
}

/** Waits until this is true. */
function eventually(string $what, callable $holds): void
{
    $ends = microtime(true) + PATIENCE;
    while (!$holds()) {
        if (microtime(true) > $ends) {
            throw new Exception("not reached: $what");
        }
        usleep(50_000);
    }
}

function same(mixed $expected, mixed $found, string $what): void
{
    if ($expected !== $found) {
        throw new Exception("$what: " . var_export($found, true) . ', not ' . var_export($expected, true));
    }
}

/** The effect of the tests: one row for each event; an error or a crash where a test asks for it. */
function effect(PDO $pdo, AMQPMessage $message): void
{
    global $argv;
    $event = json_decode($message->getBody(), true, flags: JSON_THROW_ON_ERROR);
    $number = $event['payload']['number'];
    $pdo->prepare('INSERT INTO php_orders (consumer, key, number) VALUES (?, ?, ?)')
        ->execute([$argv[1], $event['aggregate_id'], $number]);
    $headers = $message->get('application_headers')->getNativeData();
    Newest::apply($pdo, $headers['walrelay.key'], $headers[Newest::POSITION_HEADER], (string) $number);
    if ($number === 13) {
        throw new RuntimeException('13 is refused');
    }
    if (getenv('CRASH') === "before commit $number") {
        posix_kill(posix_getpid(), SIGKILL);
    }
    $GLOBALS['last'] = $number;
}

if (isset($argv[1])) {
    RabbitmqConsumer::run(channel(), $argv[1], connect(), $argv[1], 'effect', 3, "$argv[1]_dead", pause: 0.01);
    exit(0);
}

$name = 'php_' . bin2hex(random_bytes(4));
$pdo = connect();
$pdo->exec('CREATE TABLE IF NOT EXISTS php_orders (n serial, consumer text, key text, number int)');
$pdo->exec('DROP TABLE IF EXISTS newest');
$pdo->exec('CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)');
$pdo->exec("CREATE TABLE $name (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
    aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb NOT NULL, metadata jsonb,
    created_at timestamptz NOT NULL DEFAULT now())");
$channel = channel();
$channel->queue_declare($name, false, true, false, false, false, new AMQPTable([
    'x-queue-type' => 'quorum', 'x-single-active-consumer' => true,
]));
$channel->queue_declare("{$name}_dead", false, true, false, false);

$config = tempnam(sys_get_temp_dir(), 'walrelay');
file_put_contents($config, <<<TOML
    [source]
    url = "{$_SERVER['WALRELAY_EXAMPLE_POSTGRES']}"
    slot = "$name"
    publication = "$name"
    tables = ["public.$name"]
    [router]
    preset = "outbox"
    position_header = "walrelay-position"
    [sink]
    kind = "rabbitmq"
    [sink.rabbitmq]
    hosts = ["127.0.0.1:{$_SERVER['WALRELAY_EXAMPLE_RABBITMQ']}"]
    username = "guest"
    password = "guest"
    exchange = ""
    routing_key = "$name"
    TOML);

/** Starts a command. */
function start(array $command, array $more = []): mixed
{
    return proc_open($command, [], $pipes, null, $more + getenv());
}

/** Waits for the end of a process; returns the signal that ended it, or its exit code. */
function ended(mixed $process): int
{
    $status = null;
    eventually('the end of a process', function () use ($process, &$status) {
        $status = proc_get_status($process);
        return !$status['running'];
    });
    proc_close($process);
    return $status['signaled'] ? $status['termsig'] : $status['exitcode'];
}

function relay(string $command, array $arguments = []): mixed
{
    global $config;
    $binary = (string) getenv('WALRELAY_EXAMPLE_BINARY');
    return start([$binary, ...explode(' ', $command), ...$arguments, '--config', $config]);
}

function worker(string $crash = ''): mixed
{
    global $name;
    return start([PHP_BINARY, __FILE__, $name], $crash === '' ? [] : ['CRASH' => $crash]);
}

function order(int $number, string $key = 'k'): void
{
    global $pdo, $name;
    $pdo->prepare("INSERT INTO $name (aggregate_type, aggregate_id, event_type, payload)
        VALUES ('Order', ?, 'OrderPaid', ?)")->execute([$key, json_encode(['number' => $number])]);
}

/** The numbers of the effects, in their order. */
function effects(): array
{
    global $pdo, $name;
    $rows = $pdo->prepare('SELECT number FROM php_orders WHERE consumer = ? ORDER BY n');
    $rows->execute([$name]);
    return $rows->fetchAll(PDO::FETCH_COLUMN);
}

same(0, ended(relay('init')), 'init');
same(0, ended(relay('bookmark create', ['start'])), 'a bookmark');
$relay = relay('run');
try {
    foreach ([1, 2, 3] as $number) {
        order($number);
    }
    same(SIGKILL, ended(worker('before commit 2')), 'the worker has crashed');
    same([1], effects(), 'a crash before the commit has no effect');
    same(SIGKILL, ended(worker('before ack 3')), 'the worker has crashed again');
    same([1, 2, 3], effects(), 'a crash behind the commit has its effect');

    // The second waits for the end of the first, which is killed amid the events.
    $first = worker();
    foreach (range(20, 40) as $number) {
        order($number);
    }
    eventually('an effect of the first', fn () => count(effects()) > 3);
    $second = worker();
    proc_terminate($first, SIGKILL);
    same(SIGKILL, ended($first), 'the first was killed');
    $all = [1, 2, 3, ...range(20, 40)];
    eventually('all effects', fn () => count(effects()) >= count($all));
    same($all, effects(), 'each event has one effect, in order, through a takeover');

    // Sent again by the relay: none has a second effect.
    same(0, ended(relay('replay', ['--from', 'start', '--yes'])), 'the replay');
    order(13);
    order(41);
    eventually('the last effect', fn () => in_array(41, effects(), true));
    same([...$all, 41], effects(), 'repeats have no effect');
    $newest = $pdo->query('SELECT key, value FROM newest')->fetchAll(PDO::FETCH_KEY_PAIR);
    same(['k' => '41'], $newest, 'the newest value by the header');
    $dead = null;
    eventually('the dead letter', function () use ($channel, $name, &$dead) {
        return ($dead = $channel->basic_get("{$name}_dead", true)) !== null;
    });
    same(13, json_decode($dead->getBody(), true)['payload']['number'], 'the dead letter is the event');
    $headers = $dead->get('application_headers')->getNativeData();
    same(['13 is refused', 'OrderPaid', 'k'], [$headers['error'], $headers['event-type'], $headers['aggregate-id']],
        'its headers');
    proc_terminate($second);
    ended($second);

    // The whole program.
    $main = start([PHP_BINARY, __DIR__ . '/main.php'], [
        'DATABASE_URL' => (string) getenv('WALRELAY_EXAMPLE_POSTGRES'),
        'RABBITMQ_URL' => 'amqp://guest:guest@127.0.0.1:' . getenv('WALRELAY_EXAMPLE_RABBITMQ'),
        'QUEUE' => $name,
    ]);
    order(50);
    order(51);
    $received = $pdo->prepare("SELECT value::jsonb #>> '{payload,number}' FROM received WHERE consumer = ? ORDER BY n");
    eventually('the effects of main.php', function () use ($pdo, $received, $name) {
        if ($pdo->query("SELECT to_regclass('received')")->fetchColumn() === null) {
            return false;
        }
        $received->execute([$name]);
        return $received->fetchAll(PDO::FETCH_COLUMN) === ['50', '51'];
    });
    proc_terminate($main);
    same(0, ended($main), 'main.php after SIGTERM');

    // A stop ends the pause between attempts, and the message is kept.
    $stops = false;
    order(52);
    RabbitmqConsumer::run(channel(), $name, connect(), $name, function () use (&$stops) {
        $stops = true;
        throw new RuntimeException('it fails');
    }, 3, "{$name}_dead", function () use (&$stops) {
        return $stops;
    }, 3600.0);
    same(true, $stops, 'the effect was tried');
    same(null, $channel->basic_get("{$name}_dead", true), 'a dead letter of a stopped consumer');
    // After a move to a server whose log begins lower, the first byte of positions is raised.
    $newer = fn (string $position) => Newest::apply($pdo, 'moved', "$position/00000000", $position);
    $positions = ['0000000000000006', '0100000000000002', '0000000000000007'];
    same([true, true, false], array_map($newer, $positions), 'positions of both servers');
    foreach ([1 => 1, 2 => 2, 5 => 16, 6 => 30, 9 => 30] as $failures => $most) {
        $pause = RabbitmqConsumer::backoff(1.0, $failures);
        same(true, $pause >= $most / 2 && $pause <= $most, "a pause of $pause s");
    }
} finally {
    proc_terminate($relay);
    same(0, ended($relay), 'the relay');
    unlink($config);
}
