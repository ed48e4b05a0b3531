<?php

declare(strict_types=1);

use Illuminate\Database\ConnectionInterface;
use Illuminate\Database\ConnectionResolverInterface;

/**
 * Processes events, each of which has its effect in Postgres once, in Laravel: in a job, or in the loop of a consumer.
 * The table processed_events comes from `walrelay init --consumer`.
 *
 *   $processed->process('stock', $eventId, fn ($connection) => $connection->table('stock')->...);
 */
final class LaravelProcessedEvents
{
    public function __construct(private readonly ConnectionResolverInterface $databases, private readonly ?string $name = null)
    {
    }

    /**
     * Claims the event and has its effect, in one transaction.
     *
     * @param callable(ConnectionInterface): void $effect changes data by this connection, also by models of it
     * @return bool false if the event was processed before
     */
    public function process(string $consumer, string $id, callable $effect): bool
    {
        $connection = $this->databases->connection($this->name);
        if ($connection->transactionLevel() !== 0) {
            // It would be a savepoint, and commit nothing before the acknowledgement.
            throw new LogicException('a transaction is open: process() must commit');
        }
        return $connection->transaction(function (ConnectionInterface $connection) use ($consumer, $id, $effect): bool {
            // ON CONFLICT DO NOTHING. A concurrent claim of the same event is waited for.
            $claimed = $connection->table('processed_events')->insertOrIgnore(['consumer' => $consumer, 'event_id' => $id]);
            if ($claimed === 1) {
                $effect($connection);
                // Fails if the effect has hidden an error: then COMMIT would roll back, and say nothing.
                $connection->select('SELECT 1');
            }
            return $claimed === 1;
        });
    }
}
