package streams

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis reads entries by XREAD. The position is the id of an entry.
//
// Trim with `XTRIM MINID` of the slowest consumer's position: its entry, which stays, shows that none after it was
// removed.
func Redis(url, stream string) Source {
	return func(ctx context.Context, position string, process func(Event) error) error {
		options, err := redis.ParseURL(url)
		if err != nil {
			return err
		}
		client := redis.NewClient(options)
		defer client.Close()
		for ctx.Err() == nil {
			from := position
			if from == "" {
				from = "0-0"
			}
			read := &redis.XReadArgs{Streams: []string{stream, from}, Count: 100, Block: time.Second}
			streams, err := client.XRead(ctx, read).Result()
			if errors.Is(err, redis.Nil) {
				continue
			}
			if err != nil {
				return err
			}
			if position != "" {
				last, err := client.XRange(ctx, stream, position, position).Result()
				if err != nil {
					return err
				}
				if len(last) == 0 {
					return fmt.Errorf("%w: %s was trimmed, and is processed to %s only", ErrGap, stream, position)
				}
			}
			for _, entry := range streams[0].Messages {
				position = entry.ID
				event := Event{Position: position, Key: field(entry, "key"), Value: field(entry, "payload")}
				id := field(entry, "id")
				if id == nil {
					return fmt.Errorf("the entry %s has no id", position)
				}
				event.ID = *id
				if err := process(event); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

func field(entry redis.XMessage, name string) *string {
	if value, ok := entry.Values[name].(string); ok {
		return &value
	}
	return nil
}
