package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Tests run against the Postgres that WALRELAY_EXAMPLE_POSTGRES names.

type table struct {
	statement Statement
	name      string
	columns   string
}

var tables = []table{
	{Debezium, "outbox", "id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb"},
	{EventsOutbox, "events_outbox", "id bigserial PRIMARY KEY, aggregate_id text, type text, payload jsonb"},
	{OutboxEvents, "outbox_events", "id uuid PRIMARY KEY, aggregate_id text, event_type text, payload jsonb"},
	{Outbox, "outbox", "id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload jsonb"},
}

var errRollback = errors.New("rolled back")

func connect(t *testing.T) *pgx.Conn {
	connection, err := pgx.Connect(t.Context(), os.Getenv("WALRELAY_EXAMPLE_POSTGRES"))
	must(t, err)
	t.Cleanup(func() { connection.Close(context.Background()) })
	return connection
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fresh(t *testing.T, of table) *pgx.Conn {
	connection := connect(t)
	for _, sql := range []string{
		"DROP TABLE IF EXISTS orders, outbox, events_outbox, outbox_events",
		"CREATE TABLE orders (id int)",
		"CREATE TABLE " + of.name + " (" + of.columns + ")",
	} {
		_, err := connection.Exec(t.Context(), sql)
		must(t, err)
	}
	return connection
}

func place(ctx context.Context, tx pgx.Tx, statement Statement) error {
	if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES (42)"); err != nil {
		return err
	}
	payload := map[string]int{"n": 42}
	return Emit(ctx, tx, statement, Event{Aggregate: "Order", Key: "42", Type: "placed", Payload: payload})
}

// expect compares the numbers of changes and events, as another session sees them.
func expect(t *testing.T, of table, number int) {
	t.Helper()
	other := connect(t)
	for _, name := range []string{"orders", of.name} {
		var count int
		must(t, other.QueryRow(t.Context(), "SELECT count(*) FROM "+name).Scan(&count))
		if count != number {
			t.Fatalf("%s has %d rows, not %d", name, count, number)
		}
	}
}

func TestCommitMakesOneEventAndRollbackNone(t *testing.T) {
	for _, of := range tables {
		connection := fresh(t, of)
		for _, end := range []error{nil, errRollback} {
			err := pgx.BeginFunc(t.Context(), connection, func(tx pgx.Tx) error {
				must(t, place(t.Context(), tx, of.statement))
				return end
			})
			if !errors.Is(err, end) {
				t.Fatal(err)
			}
			expect(t, of, 1)
		}
	}
}

func TestSavepointThatIsRolledBackLeavesNone(t *testing.T) {
	connection := fresh(t, tables[0])
	must(t, pgx.BeginFunc(t.Context(), connection, func(tx pgx.Tx) error {
		must(t, place(t.Context(), tx, Debezium))
		err := pgx.BeginFunc(t.Context(), tx, func(savepoint pgx.Tx) error {
			must(t, place(t.Context(), savepoint, Debezium))
			return errRollback
		})
		if !errors.Is(err, errRollback) {
			t.Fatal(err)
		}
		return nil
	}))
	expect(t, tables[0], 1)
}

func TestItRefusesOutsideOfATransactionAndBeforeAChange(t *testing.T) {
	connection := fresh(t, tables[0])
	event := Event{Aggregate: "Order", Key: "1", Type: "placed", Payload: 1}
	tx, err := connection.Begin(t.Context())
	must(t, err)
	if err := Emit(t.Context(), tx, Debezium, event); !errors.Is(err, ErrNoTransaction) {
		t.Fatal(err)
	}
	must(t, tx.Commit(t.Context()))
	if err := Emit(t.Context(), tx, Debezium, event); !errors.Is(err, pgx.ErrTxClosed) {
		t.Fatal(err)
	}
	expect(t, tables[0], 0)
}

func TestIdsRiseAndJSONIsKept(t *testing.T) {
	connection := fresh(t, tables[0])
	_, err := connection.Exec(t.Context(), "ALTER TABLE outbox ALTER payload TYPE json")
	must(t, err)
	statement := Statement(`INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
		SELECT coalesce($1::uuid, outbox.uuidv7()), $2::text, $3::text, $4::text, $5::json` + changed)
	const text = `{"b":1,  "a":"é<"}`
	must(t, pgx.BeginFunc(t.Context(), connection, func(tx pgx.Tx) error {
		must(t, place(t.Context(), tx, statement))
		return Emit(t.Context(), tx, statement, Event{Key: "2", Payload: json.RawMessage(text)})
	}))
	var rises bool
	var payload string
	sql := `SELECT max(id::text) FILTER (WHERE aggregateid = '42') < max(id::text) FILTER (WHERE aggregateid = '2'),
		max(payload::text) FILTER (WHERE aggregateid = '2') FROM outbox`
	must(t, connection.QueryRow(t.Context(), sql).Scan(&rises, &payload))
	if !rises || payload != text {
		t.Fatal(rises, payload)
	}
}

func TestMessageIsInTheLogOnce(t *testing.T) {
	connection := fresh(t, tables[0])
	_, err := connection.Exec(t.Context(), "SELECT pg_create_logical_replication_slot('example_go', 'test_decoding')")
	must(t, err)
	t.Cleanup(func() {
		connection.Exec(context.Background(), "SELECT pg_drop_replication_slot('example_go')")
	})
	for _, end := range []error{nil, errRollback} {
		err := pgx.BeginFunc(t.Context(), connection, func(tx pgx.Tx) error {
			must(t, place(t.Context(), tx, Message))
			return end
		})
		if !errors.Is(err, end) {
			t.Fatal(err)
		}
	}
	var count int
	sql := "SELECT count(*) FROM pg_logical_slot_get_changes('example_go', NULL, NULL) WHERE data LIKE '%prefix: outbox%'"
	must(t, connection.QueryRow(t.Context(), sql).Scan(&count))
	if count != 1 {
		t.Fatalf("%d messages", count)
	}
}

func TestSeveralEventsAreOneMessageInTheirOrder(t *testing.T) {
	connection := fresh(t, tables[0])
	_, err := connection.Exec(t.Context(), "SELECT pg_create_logical_replication_slot('example_go', 'test_decoding')")
	must(t, err)
	t.Cleanup(func() {
		connection.Exec(context.Background(), "SELECT pg_drop_replication_slot('example_go')")
	})
	given := "7a1b0c5e-0000-4000-8000-000000000001"
	events := []Event{
		{Aggregate: "Order", Key: "1", Type: "placed", Payload: map[string]int{"n": 1}},
		{ID: &given, Aggregate: "Order", Key: "2", Type: "placed", Payload: json.RawMessage(`{"n": 2}`)},
	}
	for _, end := range []error{nil, errRollback} {
		err := pgx.BeginFunc(t.Context(), connection, func(tx pgx.Tx) error {
			if err := EmitAll(t.Context(), tx, events); !errors.Is(err, ErrNoTransaction) {
				t.Fatal(err)
			}
			_, err := tx.Exec(t.Context(), "INSERT INTO orders VALUES (42)")
			must(t, err)
			must(t, EmitAll(t.Context(), tx, events))
			return end
		})
		if !errors.Is(err, end) {
			t.Fatal(err)
		}
	}
	var count int
	var numbers, id string
	sql := `SELECT count(*), min(jsonb_path_query_array(batch, '$[*].payload.n')::text), min(batch->1->>'id')
		FROM (SELECT split_part(data, 'content:', 2)::jsonb AS batch
			FROM pg_logical_slot_get_changes('example_go', NULL, NULL) WHERE data LIKE '%prefix: outbox%') AS messages`
	must(t, connection.QueryRow(t.Context(), sql).Scan(&count, &numbers, &id))
	if count != 1 || numbers != "[1, 2]" || id != given {
		t.Fatal(count, numbers, id)
	}
}
