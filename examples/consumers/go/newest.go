package consumer

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Keeps the newest value of each key, whatever is repeated. For franz-go and pgx 5.
//
// For caches, upserted tables and compacted topics: no table of processed events is needed. The relay
// writes the position header with `position_header = "walrelay-position"` in [router].
//
//	CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)

const positionHeader = "walrelay-position"

// Positions are compared as bytes, which is what the collation "C" does. A record without a position,
// which `walrelay resend` sends, never replaces one that has a position.
const applyNewest = `INSERT INTO newest AS kept (key, position, value) VALUES ($1, $2, $3)
	ON CONFLICT (key) DO UPDATE SET position = excluded.position, value = excluded.value
	WHERE kept.position IS NULL OR kept.position < excluded.position`

// ApplyNewest applies a record. False: it is not newer than what is kept.
//
// A tombstone keeps its row, with a NULL value: its position must be known when an older record comes.
func ApplyNewest(ctx context.Context, connection *pgx.Conn, record *kgo.Record) (bool, error) {
	var position *string
	for _, header := range record.Headers {
		if header.Key == positionHeader {
			position = text(header.Value)
		}
	}
	applied, err := connection.Exec(ctx, applyNewest, string(record.Key), position, text(record.Value))
	return applied.RowsAffected() == 1, err
}

// text returns nil for a null value.
func text(bytes []byte) *string {
	if bytes == nil {
		return nil
	}
	text := string(bytes)
	return &text
}
