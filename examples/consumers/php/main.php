<?php

declare(strict_types=1);

/**
 * A whole consumer of a queue of RabbitMQ, which keeps each event in the table `received`: copy it, and write your
 * effect. Needs php-cli, php-pgsql and php-amqplib.
 *
 *   DATABASE_URL=postgres://… RABBITMQ_URL=amqp://… php main.php
 *
 * QUEUE has a default; it is declared, and so is the queue for dead letters. It ends by SIGTERM or SIGINT after the
 * current message, and starts again by itself, after growing pauses, when a server does not answer.
 */

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPExceptionInterface;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

// Debian's package; with Composer it is vendor/autoload.php.
require 'PhpAmqpLib/autoload.php';
require __DIR__ . '/ProcessedEvents.php';
require __DIR__ . '/RabbitmqConsumer.php';

$queue = getenv('QUEUE') ?: 'orders';

function connect(): PDO
{
    $url = parse_url((string) getenv('DATABASE_URL'));
    $name = sprintf('pgsql:host=%s;port=%d;dbname=%s', $url['host'], $url['port'] ?? 5432, ltrim($url['path'], '/'));
    $pdo = new PDO($name, $url['user'], $url['pass'] ?? null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
    // With a lock: two processes may start at once.
    $pdo->exec('SELECT pg_advisory_xact_lock(59);
        CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text)');
    return $pdo;
}

function channel(string $queue): AMQPChannel
{
    $url = parse_url((string) getenv('RABBITMQ_URL'));
    $host = urldecode(ltrim($url['path'] ?? '', '/')) ?: '/';
    $channel = (new AMQPStreamConnection(
        $url['host'], $url['port'] ?? 5672, $url['user'], $url['pass'] ?? '', $host, keepalive: true,
    ))->channel();
    // A second process waits for the end of this one: the order of each key is kept.
    $arguments = new AMQPTable(['x-queue-type' => 'quorum', 'x-single-active-consumer' => true]);
    $channel->queue_declare($queue, false, true, false, false, false, $arguments);
    $channel->queue_declare("{$queue}_dead", false, true, false, false);
    return $channel;
}

function effect(PDO $pdo, AMQPMessage $message): void
{
    global $queue;
    $headers = $message->get('application_headers')->getNativeData();
    $pdo->prepare('INSERT INTO received (consumer, topic, key, value) VALUES (?, ?, ?, ?)')
        ->execute([$queue, $message->getRoutingKey(), $headers['walrelay.key'] ?? null, $message->getBody()]);
}

$isStopped = false;
pcntl_async_signals(true);
foreach ([SIGTERM, SIGINT] as $signal) {
    pcntl_signal($signal, function () use (&$isStopped) {
        $isStopped = true;
    });
}
$stopped = function () use (&$isStopped): bool {
    return $isStopped;
};
$failures = 0;
$onProgress = function () use (&$failures) {
    $failures = 0;
};
error_log("consumes $queue");
while (!$stopped()) {
    try {
        $channel = channel($queue);
        RabbitmqConsumer::run(
            $channel, $queue, connect(), $queue, 'effect', 5, "{$queue}_dead", $stopped, onProgress: $onProgress,
        );
        $channel->getConnection()->close();
    } catch (PDOException | AMQPExceptionInterface $error) {
        $pause = RabbitmqConsumer::backoff(0.5, ++$failures);
        error_log(sprintf('%s; again in %.1f s', $error::class, $pause));
        RabbitmqConsumer::pause($pause, $stopped);
    }
}
error_log('stopped');
