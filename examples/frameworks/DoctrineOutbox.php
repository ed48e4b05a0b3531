<?php

declare(strict_types=1);

use Doctrine\DBAL\Connection;

/**
 * Writes an event in the transaction of the change that it tells of, by Doctrine, for example in Symfony, whose
 * container makes it without a line in services.yaml. Needs Outbox.php of examples/producers/php.
 *
 *   $entityManager->wrapInTransaction(function ($entityManager) use ($outbox, $order) {
 *       $entityManager->persist($order);
 *       $entityManager->flush();          // else nothing has changed yet, and the event is refused
 *       $outbox->emit('Order', $order->id(), 'OrderPlaced', ['total' => $order->total()]);
 *   });
 */
final class DoctrineOutbox
{
    public function __construct(private readonly Connection $connection)
    {
    }

    /** Refuses an event outside of a transaction, or before a change. */
    public function emit(string $aggregate, string $key, string $type, mixed $payload, ?string $id = null): void
    {
        Outbox::emit($this->connection->getNativeConnection(), $aggregate, $key, $type, $payload, $id);
    }
}
