// A whole consumer of a stream, which keeps the number of each event in the table `received`.
//
//	DATABASE_URL=postgres://… STREAM_URL=redis://localhost:6379 go run ./cmd/consumer
//
// STREAM_URL is of Redis (redis://), NATS (nats://) or RabbitMQ (amqp://). STREAM and GROUP have defaults. It ends by
// SIGTERM or SIGINT after the current event, and starts again by itself, after growing pauses, when a server does not
// answer.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/streams"
)

const table = `SELECT pg_advisory_xact_lock(59);
	CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text)`

var (
	stream = cmp.Or(os.Getenv("STREAM"), "events")
	group  = cmp.Or(os.Getenv("GROUP"), "example")
	kinds  = map[string]func(url, stream string) streams.Source{
		"redis": streams.Redis, "nats": streams.NATS, "amqp": streams.RabbitMQ,
	}
)

func effect(ctx context.Context, tx pgx.Tx, event streams.Event) error {
	if event.Value == nil {
		return errors.New("no value")
	}
	// Fails for an event that is no number: it is kept in failed_events.
	number, err := strconv.Atoi(*event.Value)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "INSERT INTO received (consumer, topic, key, value) VALUES ($1, $2, $3, $4)",
		group, stream, event.Key, fmt.Sprint(number))
	return err
}

func serve(ctx context.Context, source streams.Source, onProgress func()) error {
	connection, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer connection.Close(context.WithoutCancel(ctx))
	if _, err := connection.Exec(ctx, table); err != nil {
		return err
	}
	return streams.Run(ctx, source, connection, effect,
		streams.Options{Consumer: group, Stream: stream, Attempts: 5, OnProgress: onProgress})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	url := os.Getenv("STREAM_URL")
	kind, isKnown := kinds[strings.Split(url, ":")[0]]
	if !isKnown {
		slog.Error("STREAM_URL begins with redis://, nats:// or amqp://")
		os.Exit(64)
	}
	source := kind(url, stream)
	backoff := streams.Backoff{First: 500 * time.Millisecond}
	for ctx.Err() == nil {
		err := serve(ctx, source, backoff.Reset)
		if errors.Is(err, streams.ErrGap) {
			// A person decides. Delete the row of stream_positions to go on from the stream's start.
			slog.Error(err.Error())
			os.Exit(65)
		}
		if err != nil {
			slog.Warn("starts again after a pause", "error", err)
			backoff.Pause(ctx)
		}
	}
	slog.Info("stopped")
}
