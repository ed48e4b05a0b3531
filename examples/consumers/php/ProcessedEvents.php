<?php

declare(strict_types=1);

/**
 * Processes events, each of which has its effect in Postgres once. By PDO, with any client.
 *
 * The table processed_events comes from `walrelay init --consumer`. Copy this file. RabbitmqConsumer.php is
 * the loop for RabbitMQ. For Kafka with php-rdkafka:
 *
 *   $consumer->subscribe(['outbox.event.Order']);    // enable.auto.commit=false, auto.offset.reset=earliest
 *   while (true) {
 *       $message = $consumer->consume(1000);
 *       if ($message->err === RD_KAFKA_RESP_ERR_NO_ERROR) {
 *           ProcessedEvents::process($pdo, 'stock', $message->headers['id'], fn () => takeFromStock($pdo, $message));
 *           $consumer->commit($message);             // after the effect, and by nothing else
 *       }
 *   }
 *
 * In Laravel, the connection is DB::connection()->getPdo(); in Doctrine, $connection->getNativeConnection().
 */
final class ProcessedEvents
{
    /**
     * Claims the event and has its effect, in one transaction.
     *
     * @param string $id the header "id", by which a repeat is known: the same in every delivery of an event
     * @param callable(): void $effect changes data by the same connection; if it throws, nothing is changed
     * @return bool false if the event was processed before
     */
    public static function process(PDO $pdo, string $consumer, string $id, callable $effect): bool
    {
        self::requireExceptions($pdo);
        $pdo->beginTransaction();
        try {
            // A concurrent claim of the same event is waited for.
            $claim = $pdo->prepare(
                'INSERT INTO processed_events (consumer, event_id) VALUES (?, ?) ON CONFLICT DO NOTHING',
            );
            $claim->execute([$consumer, $id]);
            $isNew = $claim->rowCount() === 1;
            if ($isNew) {
                $effect();
                // Fails if the effect has hidden an error: then COMMIT would roll back, and say nothing.
                $pdo->query('SELECT 1');
            }
            $pdo->commit();
            return $isNew;
        } catch (Throwable $error) {
            try {
                $pdo->rollBack();
            } catch (PDOException) {
                // The connection is gone, which ends the transaction, too.
            }
            throw $error;
        }
    }

    /** Refuses a connection whose errors would look like repeats: a claim that fails has no rows, too. */
    public static function requireExceptions(PDO $pdo): void
    {
        if ($pdo->getAttribute(PDO::ATTR_ERRMODE) !== PDO::ERRMODE_EXCEPTION) {
            throw new LogicException('set PDO::ATTR_ERRMODE to PDO::ERRMODE_EXCEPTION');
        }
    }

    /** Forgets events that are older than the longest replay; returns their number. Run it once a day. */
    public static function prune(PDO $pdo, string $consumer, int $days): int
    {
        $old = $pdo->prepare(
            'DELETE FROM processed_events WHERE consumer = ? AND processed_at < now() - make_interval(days => ?)',
        );
        $old->execute([$consumer, $days]);
        return $old->rowCount();
    }
}
