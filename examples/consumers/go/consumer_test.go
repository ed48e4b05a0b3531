package consumer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Tests run against the servers that WALRELAY_EXAMPLE_POSTGRES and WALRELAY_EXAMPLE_KAFKA name.

// A loaded machine may take long; nothing waits for less.
const patience = 2 * time.Minute

// A process with WORKER runs the example for that topic, and CRASH says where it ends by SIGKILL.
func TestMain(m *testing.M) {
	if topic := os.Getenv("WORKER"); topic != "" {
		work(context.Background(), topic)
		return
	}
	os.Exit(m.Run())
}

func brokers() kgo.Opt { return kgo.SeedBrokers(os.Getenv("WALRELAY_EXAMPLE_KAFKA")) }

func crash() {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// effect is one row for each event.
func effect(ctx context.Context, tx pgx.Tx, record *kgo.Record) error {
	number, err := strconv.Atoi(string(record.Value))
	if err != nil || number < 0 {
		return errors.New("poison")
	}
	_, err = tx.Exec(ctx, "INSERT INTO go_effects (topic, key, number) VALUES ($1, $2, $3)",
		record.Topic, string(record.Key), number)
	switch os.Getenv("CRASH") {
	case "before commit " + string(record.Value):
		crash()
	case "before offset " + string(record.Value):
		committed.armed = true
	}
	return err
}

// crashAfterCommit ends the process when the transaction is committed and the offset is not.
type crashAfterCommit struct{ armed bool }

var committed crashAfterCommit

func (*crashAfterCommit) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (c *crashAfterCommit) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if c.armed && data.CommandTag.String() == "COMMIT" {
		crash()
	}
}

func connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(os.Getenv("WALRELAY_EXAMPLE_POSTGRES"))
	if err != nil {
		return nil, err
	}
	config.Tracer = &committed
	return pgx.ConnectConfig(ctx, config)
}

// work runs the example for one topic, until the context ends.
func work(ctx context.Context, topic string) {
	for ctx.Err() == nil {
		connection, err := connect(ctx)
		if err != nil {
			continue
		}
		// A killed worker's partitions are given to another after the time-out.
		options := append(ClientOptions(topic, topic), brokers(), kgo.SessionTimeout(2*time.Second),
			kgo.HeartbeatInterval(200*time.Millisecond), kgo.AllowAutoTopicCreation())
		client, err := kgo.NewClient(options...)
		if err == nil {
			err = Run(ctx, client, connection, effect,
				Options{Name: topic, IDHeader: "id", DeadLetters: topic + ".dead", Attempts: 3, Pause: 10 * time.Millisecond})
			client.CloseAllowingRebalance()
		}
		fmt.Fprintln(os.Stderr, "the consumer ended:", err)
		connection.Close(context.Background())
	}
}

type fixture struct {
	t          *testing.T
	topic      string
	connection *pgx.Conn
	client     *kgo.Client
	admin      *kadm.Client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newFixture(t *testing.T) *fixture {
	connection, err := connect(t.Context())
	must(t, err)
	_, err = connection.Exec(t.Context(),
		"CREATE TABLE IF NOT EXISTS go_effects (n serial, topic text, key text, number int)")
	must(t, err)
	client, err := kgo.NewClient(brokers())
	must(t, err)
	f := &fixture{t, fmt.Sprintf("go-%d", time.Now().UnixNano()), connection, client, kadm.NewClient(client)}
	t.Cleanup(func() { connection.Close(context.Background()); client.Close() })
	_, err = f.admin.CreateTopic(t.Context(), 4, 1, nil, f.topic)
	must(t, err)
	return f
}

func (f *fixture) send(number int, key, id string) {
	record := &kgo.Record{
		Topic: f.topic, Key: []byte(key), Value: []byte(strconv.Itoa(number)),
		Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}},
	}
	must(f.t, f.client.ProduceSync(f.t.Context(), record).FirstErr())
}

func (f *fixture) effects() []string {
	rows, err := f.connection.Query(f.t.Context(),
		"SELECT key || ' ' || number FROM go_effects WHERE topic = $1 ORDER BY n", f.topic)
	must(f.t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(f.t, err)
	return found
}

// lag is the number of records whose offset is not committed.
func (f *fixture) lag() int64 {
	ends, err := f.admin.ListEndOffsets(f.t.Context(), f.topic)
	must(f.t, err)
	offsets, err := f.admin.FetchOffsets(f.t.Context(), f.topic)
	if err != nil {
		return -1
	}
	var lag int64
	ends.Each(func(end kadm.ListedOffset) {
		lag += end.Offset
		if offset, ok := offsets.Lookup(end.Topic, end.Partition); ok && offset.At > 0 {
			lag -= offset.At
		}
	})
	return lag
}

func (f *fixture) until(what string, condition func() bool) {
	f.t.Helper()
	for ends := time.Now().Add(patience); !condition(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(ends) {
			f.t.Fatalf("%s: not reached: lag %d, %v", what, f.lag(), f.effects())
		}
	}
}

func (f *fixture) expect(expected ...string) {
	f.t.Helper()
	if found := f.effects(); !slices.Equal(found, expected) {
		f.t.Fatalf("%v, not %v", found, expected)
	}
}

// worker starts a process that runs the example.
func (f *fixture) worker(crash string) *exec.Cmd {
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), "WORKER="+f.topic, "CRASH="+crash)
	must(f.t, process.Start())
	f.t.Cleanup(func() { process.Process.Kill(); process.Wait() })
	return process
}

func (f *fixture) crashes(process *exec.Cmd) {
	f.t.Helper()
	err := process.Wait()
	if status, ok := process.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		f.t.Fatal(err)
	}
}

func TestTheSameEventTwiceHasOneEffect(t *testing.T) {
	f := newFixture(t)
	for _, number := range []int{1, 2, 1, 2, 3} {
		f.send(number, "k", fmt.Sprint(f.topic, number))
	}
	f.worker("")
	f.until("all", func() bool { return f.lag() == 0 })
	f.expect("k 1", "k 2", "k 3")
}

func TestACrashBetweenEffectAndCommitAndBeforeTheOffset(t *testing.T) {
	f := newFixture(t)
	for number := 1; number <= 3; number++ {
		f.send(number, "k", fmt.Sprint(f.topic, number))
	}
	f.crashes(f.worker("before commit 2"))
	f.expect("k 1")
	f.crashes(f.worker("before offset 3"))
	f.expect("k 1", "k 2", "k 3")
	if f.lag() == 0 {
		t.Fatal("the offset is committed")
	}
	f.worker("")
	f.until("all", func() bool { return f.lag() == 0 })
	f.expect("k 1", "k 2", "k 3")
}

func TestARebalanceLosesAndRepeatsNothing(t *testing.T) {
	f := newFixture(t)
	first := f.worker("")
	var expected []string
	for number := range 300 {
		key := fmt.Sprint("k", number%7)
		f.send(number, key, fmt.Sprint(f.topic, number))
		expected = append(expected, fmt.Sprint(key, " ", number))
		switch number {
		case 50:
			f.until("some", func() bool { return len(f.effects()) > 20 })
			f.worker("")
		case 150:
			must(t, first.Process.Kill())
		}
	}
	f.until("all", func() bool { return f.lag() == 0 })
	// The order of each key, and each event once.
	byKey := func(a, b string) int { return strings.Compare(strings.Fields(a)[0], strings.Fields(b)[0]) }
	found := f.effects()
	slices.SortStableFunc(found, byKey)
	slices.SortStableFunc(expected, byKey)
	if !slices.Equal(found, expected) {
		t.Fatalf("%v, not %v", found, expected)
	}
}

func TestPoisonBecomesADeadLetterAfterTheAttempts(t *testing.T) {
	f := newFixture(t)
	for number, id := range []string{1: "1", 2: "2"} {
		if id != "" {
			f.send(number, "k", f.topic+id)
		}
	}
	f.send(-1, "k", "poison")
	f.send(3, "k", f.topic+"3")
	f.worker("")
	f.until("all", func() bool { return f.lag() == 0 })
	f.expect("k 1", "k 2", "k 3")
	letters, err := kgo.NewClient(brokers(), kgo.ConsumeTopics(f.topic+".dead"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(t, err)
	defer letters.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	records := letters.PollFetches(ctx).Records()
	if len(records) != 1 {
		t.Fatalf("%d dead letters", len(records))
	}
	headers := map[string]string{}
	for _, header := range records[0].Headers {
		headers[header.Key] = string(header.Value)
	}
	value := string(records[0].Value)
	if value != "-1" || headers["id"] != "poison" || headers["error"] != "poison" ||
		!strings.HasPrefix(headers["source"], f.topic+"[") {
		t.Fatal(value, headers)
	}
}

func (f *fixture) consumer() *kgo.Client {
	client, err := kgo.NewClient(append(ClientOptions(f.topic, f.topic), brokers())...)
	must(f.t, err)
	return client
}

// closes fails the test if the client does not end.
func (f *fixture) closes(client *kgo.Client) {
	f.t.Helper()
	closed := make(chan struct{})
	go func() { client.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(patience):
		f.t.Fatal("Close() hangs")
	}
}

func TestAClientCanBeClosedAfterAnErrorAndAfterAStop(t *testing.T) {
	f := newFixture(t)
	f.send(1, "k", f.topic+"1")
	client := f.consumer()
	gone, err := connect(t.Context())
	must(t, err)
	options := Options{Name: f.topic, IDHeader: "id", DeadLetters: f.topic + ".dead", Attempts: 3, Pause: time.Hour}
	loses := func(ctx context.Context, _ pgx.Tx, _ *kgo.Record) error { return gone.Close(ctx) }
	if err := Run(t.Context(), client, gone, loses, options); err == nil {
		t.Fatal("a lost connection is no error")
	}
	f.closes(client)

	// The pause is an hour: the stop ends it, and the event is kept for the next process.
	client = f.consumer()
	ctx, stop := context.WithCancel(t.Context())
	fails := func(context.Context, pgx.Tx, *kgo.Record) error { stop(); return errors.New("poison") }
	other, err := connect(t.Context())
	must(t, err)
	defer other.Close(context.Background())
	must(t, Run(ctx, client, other, fails, options))
	f.closes(client)
	if lag := f.lag(); lag != 1 {
		t.Fatal("the offset is committed", lag)
	}
}

func TestAnEffectThatHidesAnErrorIsNotProcessed(t *testing.T) {
	f := newFixture(t)
	record := &kgo.Record{Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("hidden")}}}
	hides := func(ctx context.Context, tx pgx.Tx, _ *kgo.Record) error {
		if _, err := tx.Exec(ctx, "SELECT 1 / 0"); err == nil {
			t.Error("no error to hide")
		}
		return nil
	}
	options := Options{Name: f.topic, IDHeader: "id"}
	if isNew, err := Process(t.Context(), f.connection, options, record, hides); err == nil || isNew {
		t.Fatal("it was processed", isNew, err)
	}
}

func TestPausesGrowToTheLongest(t *testing.T) {
	backoff := Backoff{First: time.Second}
	for _, most := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		if pause := backoff.Next(); pause > most*time.Second || pause < most*time.Second/2 {
			t.Fatal(pause, most)
		}
	}
}

func TestOldEventsAreForgotten(t *testing.T) {
	f := newFixture(t)
	_, err := f.connection.Exec(t.Context(), `INSERT INTO processed_events (consumer, event_id, processed_at)
		SELECT $1, days, now() - make_interval(days => days) FROM generate_series(1, 40) AS days`, f.topic)
	must(t, err)
	deleted, err := Prune(t.Context(), f.connection, f.topic, 30)
	must(t, err)
	if deleted != 11 {
		t.Fatal(deleted)
	}
}
