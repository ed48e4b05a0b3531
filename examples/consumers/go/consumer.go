// Package consumer processes events, each of which has its effect in Postgres once. For franz-go and pgx 5.
//
// The table processed_events comes from `walrelay init --consumer`. Copy this file, and write the Effect.
package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"
)

const idHeader = "id"

// Effect changes data for an event, in the transaction that claims it.
type Effect func(ctx context.Context, tx pgx.Tx, record *kgo.Record) error

// Options of Run.
type Options struct {
	// Name is the consumer's: each consumer of the same events has claims of its own.
	Name string
	// DeadLetters is the topic for events whose effect has failed Attempts times, with Pause between two.
	DeadLetters string
	Attempts    int
	Pause       time.Duration
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
func EventID(record *kgo.Record) (string, error) {
	for _, header := range record.Headers {
		if header.Key == idHeader {
			return string(header.Value), nil
		}
	}
	return "", fmt.Errorf("a record without the header %s", idHeader)
}

// Process claims the event and has its effect, in one transaction. False: it was processed before.
func Process(ctx context.Context, connection *pgx.Conn, name string, record *kgo.Record, effect Effect) (bool, error) {
	id, err := EventID(record)
	if err != nil {
		return false, err
	}
	isNew := false
	err = pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error {
		// A concurrent claim of the same event is waited for.
		const claim = `INSERT INTO processed_events (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`
		claimed, err := tx.Exec(ctx, claim, name, id)
		if err != nil || claimed.RowsAffected() == 0 {
			return err
		}
		isNew = true
		return effect(ctx, tx, record)
	})
	return isNew && err == nil, err
}

// Run processes records one after another, which keeps the order of each key, until the context ends, a
// server does not answer, or the partitions were given to another consumer. Then start it again with a new
// client: records whose offset is not committed come again, and those that were processed are known.
func Run(ctx context.Context, client *kgo.Client, connection *pgx.Conn, effect Effect, options Options) error {
	for {
		fetches := client.PollRecords(ctx, 100)
		if err := fetches.Err0(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			if err := processOrSetAside(ctx, client, connection, record, effect, options); err != nil {
				return err
			}
			if err := client.CommitRecords(ctx, record); err != nil {
				return err
			}
		}
		client.AllowRebalance()
	}
}

func processOrSetAside(
	ctx context.Context, client *kgo.Client, connection *pgx.Conn, record *kgo.Record, effect Effect, options Options,
) error {
	for attempt := 1; ; attempt++ {
		_, err := Process(ctx, connection, options.Name, record, effect)
		var refused *pgconn.PgError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil || connection.IsClosed():
			return err
		case errors.As(err, &refused) && refused.Code[:2] == "57":
			// The server is shut down: that will pass.
			return err
		case attempt < options.Attempts:
			time.Sleep(options.Pause)
		default:
			// Later events of its key go on without it.
			return setAside(ctx, client, record, err, options.DeadLetters)
		}
	}
}

// setAside writes the record as it is, with the error, and waits for the acknowledgement.
func setAside(ctx context.Context, client *kgo.Client, record *kgo.Record, why error, topic string) error {
	source := fmt.Sprintf("%s[%d]@%d", record.Topic, record.Partition, record.Offset)
	headers := append([]kgo.RecordHeader{}, record.Headers...)
	headers = append(headers,
		kgo.RecordHeader{Key: "error", Value: []byte(why.Error())},
		kgo.RecordHeader{Key: "source", Value: []byte(source)})
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
