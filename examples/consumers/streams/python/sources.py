"""Streams as sources of events: Redis Streams, NATS JetStream, streams of RabbitMQ. Copy the one that you have."""

from collections.abc import AsyncIterator
from urllib.parse import unquote

import aio_pika
import nats
import redis.asyncio
from nats.js.api import ConsumerConfig, DeliverPolicy

from processing import Event, Gap, Source


def redis_stream(url: str, stream: str) -> Source:
    """Entries by XREAD. The position is the id of an entry.

    Trim with `XTRIM MINID` of the slowest consumer's position: its entry, which stays, shows that none after it was
    removed.
    """

    async def events(after: str | None) -> AsyncIterator[Event]:
        async with redis.asyncio.Redis.from_url(url, decode_responses=True) as client:
            position = after
            while True:
                for _, entries in await client.xread({stream: position or "0-0"}, count=100, block=1000):
                    if position and not await client.xrange(stream, position, position):
                        raise Gap(f"{stream} was trimmed, and is processed to {position} only")
                    for position, fields in entries:
                        yield Event(fields["id"], position, fields.get("key"), fields.get("payload"))

    return events


def nats_stream(url: str, stream: str) -> Source:
    """Messages by an ordered consumer. The position is the sequence number."""

    async def events(after: str | None) -> AsyncIterator[Event]:
        # A lost connection ends it, as it does for the others: `run` is started again, after a pause.
        client = await nats.connect(url, allow_reconnect=False)
        try:
            jetstream = client.jetstream()
            position = int(after or 0)
            config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=position + 1)
            messages = await jetstream.subscribe(">", stream=stream, ordered_consumer=True, config=config)
            while True:
                try:
                    message = await messages.next_msg(timeout=1)
                except nats.errors.TimeoutError:
                    if client.is_closed:
                        raise ConnectionError("the connection to NATS is lost") from None
                    continue
                sequence = message.metadata.sequence.stream
                if position and sequence > position + 1:
                    first = (await jetstream.stream_info(stream)).state.first_seq
                    if first > position + 1:
                        raise Gap(f"{stream} begins at {first}, and is processed to {position} only")
                position = sequence
                headers = message.headers or {}
                is_null = headers.get("walrelay.null") == "true"
                key = headers.get("walrelay.key")
                yield Event(
                    unquote(headers["Nats-Msg-Id"]),
                    str(sequence),
                    None if key is None else unquote(key),
                    None if is_null else message.data.decode(),
                )
        finally:
            await client.close()

    return events


def rabbitmq_stream(url: str, stream: str) -> Source:
    """Messages of a queue of the type `stream`, by AMQP. The position is the offset.

    The server does not tell which offsets its limits have removed, and leaves out some of its own. So keep messages
    longer than the longest outage of the consumer.
    """

    async def events(after: str | None) -> AsyncIterator[Event]:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=100)
            queue = await channel.get_queue(stream, ensure=False)
            first = int(after) + 1 if after else 0
            async with queue.iterator(arguments={"x-stream-offset": first}) as messages:
                async for message in messages:
                    # It asks for more, and removes nothing.
                    await message.ack()
                    offset = message.headers["x-stream-offset"]
                    if offset < first:
                        # The server begins with the chunk that has the offset.
                        continue
                    key = message.headers.get("walrelay.key")
                    yield Event(message.message_id, str(offset), key, message.body.decode())

    return events
