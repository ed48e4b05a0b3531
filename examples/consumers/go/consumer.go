// Package consumer processes events, each of which has its effect in Postgres once. For franz-go and pgx 5.
//
// The table processed_events comes from `walrelay init --consumer`. Copy this file, and write the Effect.
package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Effect changes data for an event, in the transaction that claims it.
type Effect func(ctx context.Context, tx pgx.Tx, record *kgo.Record) error

// Options of Run.
type Options struct {
	// Name is the consumer's: each consumer of the same events has claims of its own.
	Name string
	// IDHeader has the id by which a repeat is known.
	IDHeader string
	// DeadLetters is the topic for events whose effect has failed Attempts times. The pause between two
	// attempts doubles from Pause to half a minute.
	DeadLetters string
	Attempts    int
	Pause       time.Duration
	// OnProgress is called after each event, if it is set.
	OnProgress func()
}

// Backoff gives pauses that double from First to half a minute, with jitter.
type Backoff struct {
	First    time.Duration
	failures int
}

const longestPause = 30 * time.Second

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	pause := min(b.First<<min(b.failures, 16), longestPause)
	b.failures++
	return pause/2 + rand.N(pause/2+1)
}

// Reset starts again with the first pause.
func (b *Backoff) Reset() { b.failures = 0 }

// Pause waits for the next pause, or until the context ends; then it returns false.
func (b *Backoff) Pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(b.Next()):
		return true
	}
}

// ClientOptions are those of a client for Run. An offset is committed by Run, after the effect, and by
// nothing else; partitions are revoked between two polls, when no record is at hand.
func ClientOptions(group, topic string) []kgo.Opt {
	return []kgo.Opt{
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
	}
}

// EventID returns the id by which a repeat is known. It is the same in every delivery of an event.
func EventID(record *kgo.Record, idHeader string) (string, error) {
	for _, header := range record.Headers {
		if header.Key == idHeader {
			return string(header.Value), nil
		}
	}
	return "", fmt.Errorf("a record without the header %s", idHeader)
}

// Process claims the event and has its effect, in one transaction. False: it was processed before.
func Process(
	ctx context.Context, connection *pgx.Conn, options Options, record *kgo.Record, effect Effect,
) (bool, error) {
	id, err := EventID(record, options.IDHeader)
	if err != nil {
		return false, err
	}
	isNew := false
	err = pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error {
		// A concurrent claim of the same event is waited for.
		const claim = `INSERT INTO processed_events (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`
		claimed, err := tx.Exec(ctx, claim, options.Name, id)
		if err != nil || claimed.RowsAffected() == 0 {
			return err
		}
		isNew = true
		return effect(ctx, tx, record)
	})
	return isNew && err == nil, err
}

// errStopped ends Run amid the attempts of an event, which comes again.
var errStopped = errors.New("stopped")

// Run processes records one after another, which keeps the order of each key. When the context ends, it
// finishes the current event and returns nil. It returns an error when a server does not answer, or the
// partitions were given to another consumer. Then start it again with a new client: records whose offset is
// not committed come again, and those that were processed are known.
func Run(ctx context.Context, client *kgo.Client, connection *pgx.Conn, effect Effect, options Options) error {
	// A poll blocks rebalances, and a client that is closed waits for one.
	defer client.AllowRebalance()
	for {
		fetches := client.PollRecords(ctx, 100)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err0(); err != nil {
			return err
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			slog.Warn("a partition cannot be read", "topic", topic, "partition", partition, "error", err)
		})
		for _, record := range fetches.Records() {
			if err := processOrSetAside(ctx, client, connection, record, effect, options); err != nil {
				if err == errStopped {
					return nil
				}
				return err
			}
			if err := client.CommitRecords(context.WithoutCancel(ctx), record); err != nil {
				return err
			}
			if options.OnProgress != nil {
				options.OnProgress()
			}
			if ctx.Err() != nil {
				return nil
			}
		}
		client.AllowRebalance()
	}
}

func processOrSetAside(
	stopped context.Context, client *kgo.Client, connection *pgx.Conn, record *kgo.Record, effect Effect, options Options,
) error {
	// An event that has begun is finished.
	ctx := context.WithoutCancel(stopped)
	backoff := Backoff{First: options.Pause}
	for attempt := 1; ; attempt++ {
		_, err := Process(ctx, connection, options, record, effect)
		if err == nil {
			return nil
		}
		var refused *pgconn.PgError
		if connection.IsClosed() || errors.As(err, &refused) && refused.Code[:2] == "57" {
			// The connection is gone, or the server is shut down: that will pass.
			return err
		}
		// Not its text: an error may quote the event.
		slog.Warn("an event failed", "at", place(record), "attempt", attempt, "of", options.Attempts,
			"error", fmt.Sprintf("%T", err))
		if attempt >= options.Attempts {
			// Later events of its key go on without it.
			slog.Error("an event is a dead letter", "at", place(record), "topic", options.DeadLetters)
			return setAside(ctx, client, record, err, options.DeadLetters)
		}
		if !backoff.Pause(stopped) {
			return errStopped
		}
	}
}

func place(record *kgo.Record) string {
	return fmt.Sprintf("%s[%d]@%d", record.Topic, record.Partition, record.Offset)
}

// setAside writes the record as it is, with the error, and waits for the acknowledgement.
func setAside(ctx context.Context, client *kgo.Client, record *kgo.Record, why error, topic string) error {
	headers := append([]kgo.RecordHeader{}, record.Headers...)
	headers = append(headers,
		kgo.RecordHeader{Key: "error", Value: []byte(why.Error())},
		kgo.RecordHeader{Key: "source", Value: []byte(place(record))})
	letter := &kgo.Record{Topic: topic, Key: record.Key, Value: record.Value, Headers: headers}
	return client.ProduceSync(ctx, letter).FirstErr()
}

// Prune forgets events that are older than the longest replay. Run it once a day.
func Prune(ctx context.Context, connection *pgx.Conn, name string, days int) (int64, error) {
	const old = `DELETE FROM processed_events
		WHERE consumer = $1 AND processed_at < now() - make_interval(days => $2)`
	deleted, err := connection.Exec(ctx, old, name, days)
	return deleted.RowsAffected(), err
}
