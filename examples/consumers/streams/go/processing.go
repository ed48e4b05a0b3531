// Package streams processes the events of a stream, in its order: each one has its effect in Postgres once.
//
// Position, claim and effect are committed together, so nothing is acknowledged at the server of the stream: after a
// crash the consumer goes on after the last position in Postgres. The claim drops what the relay has sent again. The
// table processed_events comes from `walrelay init --consumer`, Tables has the others. Copy this file and one of
// redis.go, nats.go and rabbitmq.go.
package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tables creates the tables, with a lock: two processes may start at once.
const Tables = `SELECT pg_advisory_xact_lock(59);
	CREATE TABLE IF NOT EXISTS stream_positions
		(consumer text, stream text, position text NOT NULL, PRIMARY KEY (consumer, stream));
	CREATE TABLE IF NOT EXISTS failed_events
		(consumer text, event_id text, stream text, position text, key text, value text, error text,
		 failed_at timestamptz DEFAULT now(), PRIMARY KEY (consumer, event_id))`

// Event is an event of a stream. ID is the same in every delivery; Position is that of this delivery.
type Event struct {
	ID, Position string
	Key, Value   *string
}

// Effect changes data for an event, in the transaction that claims it.
type Effect func(ctx context.Context, tx pgx.Tx, event Event) error

// Source hands the events after a position to process, in their order, until it returns an error or the context
// ends. The empty position is the start of the stream.
type Source func(ctx context.Context, after string, process func(Event) error) error

// ErrGap: the stream no longer has the next event, which its limits removed before it was processed.
var ErrGap = errors.New("events are lost")

// Options of Run.
type Options struct {
	// Consumer is its name: each consumer of the same events has claims of its own.
	Consumer, Stream string
	// Attempts at an effect; then the event is kept in failed_events.
	Attempts int
	// OnProgress is called after each event.
	OnProgress func()
}

// Backoff gives pauses that double from First to half a minute, with jitter.
type Backoff struct {
	First    time.Duration
	failures int
}

// Pause waits for the next pause, or until the context ends; then it returns false.
func (b *Backoff) Pause(ctx context.Context) bool {
	pause := min(b.First<<min(b.failures, 16), 30*time.Second)
	b.failures++
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause/2 + rand.N(pause/2+1)):
		return true
	}
}

// Reset starts again with the first pause.
func (b *Backoff) Reset() { b.failures = 0 }

// Run processes events one after another. When the context ends, it finishes the current event and returns nil. An
// error of a server ends it: start it again. A second process waits until the first has ended, since the lock is
// held by the connection.
func Run(ctx context.Context, source Source, connection *pgx.Conn, effect Effect, options Options) error {
	if _, err := connection.Exec(ctx, Tables); err != nil {
		return err
	}
	if err := lock(ctx, connection, options.Consumer+" "+options.Stream); err != nil {
		return stopped(ctx, err)
	}
	var position string
	err := connection.QueryRow(ctx, "SELECT position FROM stream_positions WHERE consumer = $1 AND stream = $2",
		options.Consumer, options.Stream).Scan(&position)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return stopped(ctx, err)
	}
	slog.Info("reads a stream", "stream", options.Stream, "after", position)
	err = source(ctx, position, func(event Event) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := processOrKeep(ctx, connection, event, effect, options); err != nil {
			return err
		}
		options.OnProgress()
		return nil
	})
	return stopped(ctx, err)
}

// stopped returns nil if the context has ended: that is no error.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func processOrKeep(stop context.Context, connection *pgx.Conn, event Event, effect Effect, options Options) error {
	// An event that has begun is finished.
	ctx := context.WithoutCancel(stop)
	backoff := Backoff{First: 200 * time.Millisecond}
	for attempt := 1; ; attempt++ {
		err := process(ctx, connection, event, effect, options)
		if err == nil {
			return nil
		}
		var refused *pgconn.PgError
		if connection.IsClosed() || errors.As(err, &refused) && refused.Code[:2] == "57" {
			// The connection is gone, or the server is shut down: that will pass.
			return err
		}
		// Not its text: an error may quote the event.
		slog.Warn("an event failed", "stream", options.Stream, "at", event.Position, "attempt", attempt,
			"of", options.Attempts, "error", fmt.Sprintf("%T", err))
		if attempt >= options.Attempts {
			// Later events of its key go on without it.
			slog.Error("an event is kept in failed_events", "stream", options.Stream, "at", event.Position)
			return process(ctx, connection, event, keeps(options, err), options)
		}
		if !backoff.Pause(stop) {
			return stop.Err()
		}
	}
}

// process claims the event, has its effect and stores its position, in one transaction.
func process(ctx context.Context, connection *pgx.Conn, event Event, effect Effect, options Options) error {
	return pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error {
		claimed, err := tx.Exec(ctx,
			"INSERT INTO processed_events (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
			options.Consumer, event.ID)
		if err != nil {
			return err
		}
		if claimed.RowsAffected() == 1 {
			if err := effect(ctx, tx, event); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `INSERT INTO stream_positions VALUES ($1, $2, $3)
			ON CONFLICT (consumer, stream) DO UPDATE SET position = excluded.position`,
			options.Consumer, options.Stream, event.Position)
		return err
	})
}

// keeps is an effect that keeps the event with its error.
func keeps(options Options, why error) Effect {
	return func(ctx context.Context, tx pgx.Tx, event Event) error {
		_, err := tx.Exec(ctx, "INSERT INTO failed_events VALUES ($1, $2, $3, $4, $5, $6, $7)",
			options.Consumer, event.ID, options.Stream, event.Position, event.Key, event.Value, why.Error())
		return err
	}
}

// lock waits until no other process has this lock, which ends with the connection.
func lock(ctx context.Context, connection *pgx.Conn, name string) error {
	for waits := false; ; waits = true {
		var isMine bool
		err := connection.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", name).Scan(&isMine)
		if err != nil || isMine {
			return err
		}
		if !waits {
			slog.Info("waits for the end of another process", "name", name)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}
