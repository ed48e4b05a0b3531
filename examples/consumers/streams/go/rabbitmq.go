package streams

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitMQ reads messages of a queue of the type `stream`, by AMQP. The position is the offset.
//
// The server does not tell which offsets its limits have removed, and leaves out some of its own. So keep messages
// longer than the longest outage of the consumer.
func RabbitMQ(url, stream string) Source {
	return func(ctx context.Context, after string, process func(Event) error) error {
		connection, err := amqp.Dial(url)
		if err != nil {
			return err
		}
		defer connection.Close()
		channel, err := connection.Channel()
		if err != nil {
			return err
		}
		if err := channel.Qos(100, 0, false); err != nil {
			return err
		}
		var first int64
		if after != "" {
			if first, err = strconv.ParseInt(after, 10, 64); err != nil {
				return err
			}
			first++
		}
		messages, err := channel.Consume(stream, "", false, false, false, false, amqp.Table{"x-stream-offset": first})
		if err != nil {
			return err
		}
		for {
			select {
			case <-ctx.Done():
				return nil
			case message, isOpen := <-messages:
				if !isOpen {
					return errors.New("the connection to RabbitMQ is lost")
				}
				// It asks for more, and removes nothing.
				if err := message.Ack(false); err != nil {
					return err
				}
				offset, ok := message.Headers["x-stream-offset"].(int64)
				if !ok {
					return fmt.Errorf("%s is no stream", stream)
				}
				if offset < first {
					// The server begins with the chunk that has the offset.
					continue
				}
				value := string(message.Body)
				event := Event{ID: message.MessageId, Position: strconv.FormatInt(offset, 10), Value: &value}
				if key, ok := message.Headers["walrelay.key"].(string); ok {
					event.Key = &key
				}
				if err := process(event); err != nil {
					return err
				}
			}
		}
	}
}
