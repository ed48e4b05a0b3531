<?php

declare(strict_types=1);

use PhpAmqpLib\Channel\AMQPChannel;
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
     * Processes the messages of a queue one after another, for ever. An error of a connection ends it: start
     * it again, the message comes again.
     *
     * @param string $consumer the name under which events are claimed in processed_events
     * @param callable(PDO, AMQPMessage): void $effect changes data by this connection
     * @param int $attempts after so many failures of its effect a message goes to the queue $deadLetters
     */
    public static function run(
        AMQPChannel $channel,
        string $queue,
        PDO $pdo,
        string $consumer,
        callable $effect,
        int $attempts,
        string $deadLetters,
    ): void {
        $channel->basic_qos(0, 10, false);
        $channel->confirm_select();
        $process = function (AMQPMessage $message) use ($channel, $pdo, $consumer, $effect, $attempts, $deadLetters) {
            // The relay's message_id is the event's id: the same in every delivery.
            $id = $message->get('message_id');
            for ($attempt = 1; ; $attempt++) {
                try {
                    ProcessedEvents::process($pdo, $consumer, $id, fn () => $effect($pdo, $message));
                    break;
                } catch (Throwable $error) {
                    // Whether the database is there decides if the message is at fault.
                    $pdo->query('SELECT 1');
                    if ($attempt === $attempts) {
                        self::keep($channel, $deadLetters, $message, $error);
                        break;
                    }
                }
            }
            // After the commit of the effect, and by nothing else.
            $message->ack();
        };
        $channel->basic_consume($queue, '', false, false, false, false, $process);
        while ($channel->is_consuming()) {
            $channel->wait();
        }
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
