<?php

declare(strict_types=1);

use Doctrine\DBAL\Connection;

/**
 * Processes events, each of which has its effect in Postgres once, by Doctrine: in a handler of Symfony Messenger, or in
 * the loop of a consumer. The table processed_events comes from `walrelay init --consumer`.
 *
 *   $processed->process('stock', $eventId, function ($connection) use ($entityManager, $event) {
 *       $entityManager->persist(...);
 *       $entityManager->flush();
 *   });
 *
 * In Symfony Messenger leave out the middleware doctrine_transaction: it would open the transaction before.
 */
final class DoctrineProcessedEvents
{
    public function __construct(private readonly Connection $connection)
    {
    }

    /**
     * Claims the event and has its effect, in one transaction.
     *
     * @param callable(Connection): void $effect changes data by this connection
     * @return bool false if the event was processed before
     */
    public function process(string $consumer, string $id, callable $effect): bool
    {
        if ($this->connection->isTransactionActive()) {
            // It would be a savepoint, and commit nothing before the acknowledgement.
            throw new LogicException('a transaction is open: process() must commit');
        }
        return $this->connection->transactional(function (Connection $connection) use ($consumer, $id, $effect): bool {
            // A concurrent claim of the same event is waited for.
            $claimed = $connection->executeStatement(
                'INSERT INTO processed_events (consumer, event_id) VALUES (?, ?) ON CONFLICT DO NOTHING',
                [$consumer, $id],
            );
            if ($claimed === 1) {
                $effect($connection);
                // Fails if the effect has hidden an error: then COMMIT would roll back, and say nothing.
                $connection->executeStatement('SELECT 1');
            }
            return $claimed === 1;
        });
    }
}
