<?php

declare(strict_types=1);

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Exception\AMQPTimeoutException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

/**
 * Consumes events from RabbitMQ: each one has its effect in Postgres once. For php-amqplib 3 and PDO.
 *
 * Copy this file and ProcessedEvents.php. Declare the queue with x-single-active-consumer: then a second
 * process waits for the end of this one, and the order of each key is kept.
 */
final class RabbitmqConsumer
{
    /**
     * Processes the messages of a queue one after another, until it is stopped. An error of a connection ends it:
     * start it again, the message comes again.
     *
     * @param string $consumer the name under which events are claimed in processed_events
     * @param callable(PDO, AMQPMessage): void $effect changes data by this connection
     * @param int $attempts after so many failures of its effect a message goes to the queue $deadLetters
     * @param ?callable(): bool $isStopped ends it after the current message
     * @param float $pause seconds between the first two attempts; the next ones double, up to half a minute
     * @param ?callable(): void $onProgress called after each message
     */
    public static function run(
        AMQPChannel $channel,
        string $queue,
        PDO $pdo,
        string $consumer,
        callable $effect,
        int $attempts,
        string $deadLetters,
        ?callable $isStopped = null,
        float $pause = 1.0,
        ?callable $onProgress = null,
    ): void {
        ProcessedEvents::requireExceptions($pdo);
        $isStopped ??= fn () => false;
        $channel->basic_qos(0, 10, false);
        $channel->confirm_select();
        $process = function (AMQPMessage $message) use (
            $channel, $pdo, $consumer, $effect, $attempts, $deadLetters, $isStopped, $pause, $onProgress,
        ) {
            if ($isStopped()) {
                // Not acknowledged: the next process has it.
                return;
            }
            // The relay's message_id is the event's id: the same in every delivery.
            $id = $message->get('message_id');
            for ($attempt = 1; ; $attempt++) {
                try {
                    ProcessedEvents::process($pdo, $consumer, $id, fn () => $effect($pdo, $message));
                    break;
                } catch (Throwable $error) {
                    // Whether the database is there decides if the message is at fault.
                    $pdo->query('SELECT 1');
                    // Not its text: an error may quote the event.
                    error_log("$id: attempt $attempt of $attempts: " . $error::class);
                    if ($attempt === $attempts) {
                        self::keep($channel, $deadLetters, $message, $error);
                        error_log("$id is a dead letter in $deadLetters");
                        break;
                    }
                    if (!self::pause(self::backoff($pause, $attempt), $isStopped)) {
                        return;
                    }
                }
            }
            // After the commit of the effect, and by nothing else.
            $message->ack();
            if ($onProgress !== null) {
                $onProgress();
            }
        };
        $channel->basic_consume($queue, '', false, false, false, false, $process);
        while ($channel->is_consuming() && !$isStopped()) {
            try {
                $channel->wait(null, false, 1.0);
            } catch (AMQPTimeoutException) {
                // No message for a second: it looks whether it is stopped.
            }
        }
    }

    /** Seconds before the attempt that follows these: they double, up to half a minute, with jitter. */
    public static function backoff(float $first, int $failures): float
    {
        return min($first * 2 ** ($failures - 1), 30.0) * (0.5 + mt_rand() / mt_getrandmax() / 2);
    }

    /** Waits; false if it was stopped meanwhile. */
    public static function pause(float $seconds, callable $isStopped): bool
    {
        $ends = microtime(true) + $seconds;
        while (!$isStopped() && ($left = $ends - microtime(true)) > 0) {
            usleep((int) (min($left, 0.1) * 1_000_000));
        }
        return !$isStopped();
    }

    /** Publishes the message with its headers and the error, and waits until the queue has it. */
    private static function keep(AMQPChannel $channel, string $queue, AMQPMessage $message, Throwable $error): void
    {
        $properties = $message->get_properties();
        $headers = ($properties['application_headers'] ?? new AMQPTable())->getNativeData();
        $properties['application_headers'] = new AMQPTable(['error' => $error->getMessage()] + $headers);
        $isReturned = false;
        $channel->set_return_listener(function () use (&$isReturned) {
            $isReturned = true;
        });
        $channel->set_nack_handler(function () use (&$isReturned) {
            $isReturned = true;
        });
        $channel->basic_publish(new AMQPMessage($message->getBody(), $properties), '', $queue, true);
        $channel->wait_for_pending_acks_returns();
        if ($isReturned) {
            throw new RuntimeException("the queue $queue does not take the dead letter");
        }
    }
}
