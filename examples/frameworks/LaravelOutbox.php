<?php

declare(strict_types=1);

use Illuminate\Database\ConnectionResolverInterface;

/**
 * Writes an event in the transaction of the change that it tells of, in Laravel. Laravel's container makes it without a
 * provider; needs Outbox.php of examples/producers/php.
 *
 *   DB::transaction(function () use ($outbox, $order) {
 *       $order->save();
 *       $outbox->emit('Order', (string) $order->id, 'OrderPlaced', $order->toArray());
 *   });
 */
final class LaravelOutbox
{
    // Not a connection: a worker of a queue reconnects.
    public function __construct(private readonly ConnectionResolverInterface $databases, private readonly ?string $name = null)
    {
    }

    /** Refuses an event outside of a transaction, or before a change. */
    public function emit(string $aggregate, string $key, string $type, mixed $payload, ?string $id = null): void
    {
        Outbox::emit($this->databases->connection($this->name)->getPdo(), $aggregate, $key, $type, $payload, $id);
    }
}
