// A whole consumer, which keeps each event in the table `received`: copy it, and write your effect.
//
//	DATABASE_URL=postgres://… KAFKA_BROKERS=localhost:9094 go run ./cmd/consumer
//
// TOPIC and GROUP have defaults. With --id-header=x-outbox-event-id it reads another header than `id`. It ends by
// SIGTERM or SIGINT after the current event, and starts again by itself, after growing pauses, when a server does not
// answer.
package main

import (
	"cmp"
	"context"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"example.com/consumer"
)

// With a lock: two processes may start at once.
const table = `SELECT pg_advisory_xact_lock(59);
	CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text)`

var (
	topic = cmp.Or(os.Getenv("TOPIC"), "outbox.event.Order")
	group = cmp.Or(os.Getenv("GROUP"), "example")

	idHeader = flag.String("id-header", cmp.Or(os.Getenv("ID_HEADER"), "id"), "the header with the event's id")
)

func effect(ctx context.Context, tx pgx.Tx, record *kgo.Record) error {
	_, err := tx.Exec(ctx, "INSERT INTO received (consumer, topic, key, value) VALUES ($1, $2, $3, $4)",
		group, record.Topic, text(record.Key), text(record.Value))
	return err
}

func text(bytes []byte) *string {
	if bytes == nil {
		return nil
	}
	text := string(bytes)
	return &text
}

func serve(ctx context.Context, onProgress func()) error {
	connection, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer connection.Close(context.WithoutCancel(ctx))
	if _, err := connection.Exec(ctx, table); err != nil {
		return err
	}
	options := append(consumer.ClientOptions(group, topic),
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...), kgo.AllowAutoTopicCreation())
	if milliseconds, err := strconv.Atoi(os.Getenv("SESSION_TIMEOUT_MS")); err == nil {
		session := time.Duration(milliseconds) * time.Millisecond
		options = append(options, kgo.SessionTimeout(session), kgo.HeartbeatInterval(session/10))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	// Leaves the group: its partitions are given away at once.
	defer client.Close()
	return consumer.Run(ctx, client, connection, effect, consumer.Options{
		Name: group, IDHeader: *idHeader, DeadLetters: topic + ".dead",
		Attempts: 5, Pause: time.Second, OnProgress: onProgress,
	})
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	slog.Info("consumes", "topic", topic, "group", group)
	backoff := consumer.Backoff{First: 500 * time.Millisecond}
	for ctx.Err() == nil {
		if err := serve(ctx, backoff.Reset); err != nil {
			slog.Warn("starts again after a pause", "error", err)
			backoff.Pause(ctx)
		}
	}
	slog.Info("stopped")
}
