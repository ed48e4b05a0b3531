package consumer

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestARepeatedSuffixInACompactedTopicChangesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	topic := fmt.Sprintf("go-newest-%d", time.Now().UnixNano())
	client, err := kgo.NewClient(brokers(), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(t, err)
	defer client.Close()
	compact := "compact"
	settings := map[string]*string{"cleanup.policy": &compact}
	_, err = kadm.NewClient(client).CreateTopic(ctx, 1, 1, settings, topic)
	must(t, err)
	sent := []struct {
		key      string
		position int
		value    string
	}{
		{"a", 1, "a1"}, {"b", 2, "b2"}, {"a", 3, "a3"}, {"c", 4, "c4"}, {"c", 5, ""},
		// A crash of the relay: everything from 1 on again, and it is cut off before 3.
		{"a", 1, "a1"}, {"b", 2, "b2"}, {"c", 4, "c4"},
		// `walrelay resend` sends without a position.
		{"b", 0, "old"}, {"d", 0, "old"}, {"d", 6, "d6"},
		// After a move to a server whose log begins lower: the first byte is raised.
		{"a", 0x0100000000000002, "a7"}, {"a", 3, "a3"},
	}
	for _, event := range sent {
		record := &kgo.Record{Topic: topic, Key: []byte(event.key)}
		if event.value != "" {
			record.Value = []byte(event.value)
		}
		if event.position != 0 {
			position := fmt.Appendf(nil, "%016X/00000000", event.position)
			record.Headers = []kgo.RecordHeader{{Key: positionHeader, Value: position}}
		}
		must(t, client.ProduceSync(ctx, record).FirstErr())
	}
	connection, err := connect(ctx)
	must(t, err)
	defer connection.Close(context.Background())
	_, err = connection.Exec(ctx, `DROP TABLE IF EXISTS newest;
		CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)`)
	must(t, err)
	var applied []bool
	for len(applied) < len(sent) {
		fetches := client.PollFetches(ctx)
		must(t, fetches.Err0())
		for _, record := range fetches.Records() {
			isNewer, err := ApplyNewest(ctx, connection, record)
			must(t, err)
			applied = append(applied, isNewer)
		}
	}
	rows, err := connection.Query(ctx, "SELECT key || ' ' || coalesce(value, 'null') FROM newest ORDER BY key")
	must(t, err)
	kept, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	if !slices.Equal(kept, []string{"a a7", "b b2", "c null", "d d6"}) {
		t.Fatal(kept)
	}
	expected := []bool{true, true, true, true, true, false, false, false, false, true, true, true, false}
	if !slices.Equal(applied, expected) {
		t.Fatal(applied)
	}
}
