package streams

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// NATS reads messages by an ordered consumer. The position is the sequence number.
func NATS(address, stream string) Source {
	return func(ctx context.Context, after string, process func(Event) error) error {
		// A lost connection ends it, as it does for the others: Run is started again, after a pause.
		connection, err := nats.Connect(address, nats.NoReconnect())
		if err != nil {
			return err
		}
		defer connection.Close()
		js, err := jetstream.New(connection)
		if err != nil {
			return err
		}
		kept, err := js.Stream(ctx, stream)
		if err != nil {
			return err
		}
		position, err := strconv.ParseUint("0"+after, 10, 64)
		if err != nil {
			return err
		}
		consumer, err := kept.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: position + 1,
		})
		if err != nil {
			return err
		}
		messages, err := consumer.Messages()
		if err != nil {
			return err
		}
		defer messages.Stop()
		for {
			message, err := messages.Next(jetstream.NextContext(ctx))
			if err != nil {
				return err
			}
			metadata, err := message.Metadata()
			if err != nil {
				return err
			}
			sequence := metadata.Sequence.Stream
			if position > 0 && sequence > position+1 {
				info, err := kept.Info(ctx)
				if err != nil {
					return err
				}
				if first := info.State.FirstSeq; first > position+1 {
					return fmt.Errorf("%w: %s begins at %d, and is processed to %d only", ErrGap, stream, first, position)
				}
			}
			position = sequence
			event, err := natsEvent(message, sequence)
			if err != nil {
				return err
			}
			if err := process(event); err != nil {
				return err
			}
		}
	}
}

func natsEvent(message jetstream.Msg, sequence uint64) (Event, error) {
	event := Event{Position: strconv.FormatUint(sequence, 10)}
	// The relay percent-encodes both.
	id, err := url.PathUnescape(message.Headers().Get("Nats-Msg-Id"))
	if err != nil || id == "" {
		return event, errors.Join(fmt.Errorf("message %d has no id", sequence), err)
	}
	event.ID = id
	if key := message.Headers().Get("walrelay.key"); key != "" {
		if key, err = url.PathUnescape(key); err != nil {
			return event, err
		}
		event.Key = &key
	}
	if message.Headers().Get("walrelay.null") != "true" {
		value := string(message.Data())
		event.Value = &value
	}
	return event, nil
}
