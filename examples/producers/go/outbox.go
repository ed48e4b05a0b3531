// Package outbox writes an event in the transaction of the change that it tells of. For pgx 5.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if _, err := tx.Exec(ctx, "INSERT INTO orders ..."); err != nil {
//			return err
//		}
//		return outbox.Emit(ctx, tx, outbox.Debezium, outbox.Event{
//			Aggregate: "Order", Key: "42", Type: "OrderPlaced", Payload: map[string]any{"total": 12.5},
//		})
//	})
//
// Copy this file, and keep the statement of your table.
package outbox

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Statement writes an event into one shape of table. Its parameters: id or NULL, aggregate, key, type,
// payload. The event is written only if the transaction has changed something: the number of rows
// tells.
type Statement string

const changed = ` WHERE pg_current_xact_id_if_assigned() IS NOT NULL`

// One statement for each shape of table that walrelay has a preset for, and outbox.emit.
const (
	Debezium Statement = `INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
		SELECT coalesce($1::uuid, outbox.uuidv7()), $2::text, $3::text, $4::text, $5::jsonb` + changed
	// EventsOutbox has a bigserial as its id; that of the event is not used.
	EventsOutbox Statement = `INSERT INTO events_outbox (aggregate_id, type, payload)
		SELECT $3::text, lower($2::text) || '.' || $4::text, $5::jsonb` + changed + ` AND ($1::uuid IS NULL OR true)`
	OutboxEvents Statement = `INSERT INTO outbox_events (id, aggregate_id, event_type, payload)
		SELECT coalesce($1::uuid, outbox.uuidv7()), $3::text, lower($2::text) || '.' || $4::text, $5::jsonb` + changed
	Outbox Statement = `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
		SELECT coalesce($1::uuid, outbox.uuidv7()), $2::text, $3::text, $4::text, $5::jsonb` + changed
	Message Statement = `SELECT outbox.emit(aggregate => $2::text, key => $3::text, type => $4::text,
		payload => $5::jsonb, id => coalesce($1::uuid, outbox.uuidv7()))` + changed

	messages = `SELECT outbox.emit_all($1::jsonb)` + changed
)

// Event is what the consumers get.
type Event struct {
	// ID is made by the database if it is nil.
	ID        *string `json:"id,omitempty"`
	Aggregate string  `json:"aggregate"`
	Key       string  `json:"key"`
	Type      string  `json:"type"`
	// Payload is serialised by Emit, once. A json.RawMessage is kept as it is; a jsonb column normalises
	// it.
	Payload any `json:"payload"`
}

// ErrNoTransaction says that the event would not be committed together with a change.
var ErrNoTransaction = errors.New("an event is written in a transaction that has changed data before")

// Emit writes an event in tx, which has changed the data. A pool or a connection is no pgx.Tx, so a call
// outside of a transaction does not compile; one that has ended returns pgx.ErrTxClosed.
func Emit(ctx context.Context, tx pgx.Tx, statement Statement, event Event) error {
	payload, err := json.Marshal(event.Payload)
	if raw, ok := event.Payload.(json.RawMessage); ok {
		payload, err = raw, nil
	}
	if err != nil {
		return err
	}
	written, err := tx.Exec(ctx, string(statement), event.ID, event.Aggregate, event.Key, event.Type, string(payload))
	if err != nil {
		return err
	}
	if written.RowsAffected() != 1 {
		return ErrNoTransaction
	}
	return nil
}

// EmitAll writes several events as one message in the log, by outbox.emit_all: no table, one request. They
// keep their order.
func EmitAll(ctx context.Context, tx pgx.Tx, events []Event) error {
	batch, err := json.Marshal(events)
	if err != nil {
		return err
	}
	written, err := tx.Exec(ctx, messages, string(batch))
	if err != nil {
		return err
	}
	if written.RowsAffected() != 1 {
		return ErrNoTransaction
	}
	return nil
}
