import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The consumer against a real Postgres and Kafka. */
class EventConsumerTest {
    /** A loaded machine may take long; nothing waits for less. */
    private static final long PATIENCE_SECONDS = 120;

    private final String topic = "java-" + System.nanoTime();
    private final List<Process> workers = new ArrayList<>();
    private Connection connection;
    private Admin admin;
    private KafkaProducer<byte[], byte[]> producer;

    @BeforeEach
    void open() throws Exception {
        connection = Servers.connect();
        connection.setAutoCommit(true);
        execute("CREATE TABLE IF NOT EXISTS java_effects (n serial, topic text, key text, number int)");
        admin = Admin.create(Servers.kafka());
        admin.createTopics(List.of(new NewTopic(topic, 4, (short) 1))).all().get();
        producer = new KafkaProducer<>(Servers.kafka());
    }

    @AfterEach
    void close() throws Exception {
        for (Process worker : workers) {
            worker.destroyForcibly().waitFor();
        }
        producer.close();
        admin.close();
        connection.close();
    }

    private void execute(String sql) throws SQLException {
        try (var statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    private void send(int number, String key, String id) throws Exception {
        var record = new ProducerRecord<>(topic, key.getBytes(), String.valueOf(number).getBytes());
        record.headers().add("id", id.getBytes());
        producer.send(record).get();
    }

    private Process worker(String crash) throws Exception {
        var builder = new ProcessBuilder(
            ProcessHandle.current().info().command().orElse("java"), "-XX:TieredStopAtLevel=1", "-cp",
            System.getProperty("java.class.path"), "Worker", topic);
        builder.environment().put("CRASH", crash);
        builder.redirectOutput(ProcessBuilder.Redirect.DISCARD).redirectError(ProcessBuilder.Redirect.DISCARD);
        Process worker = builder.start();
        workers.add(worker);
        return worker;
    }

    private List<String> effects() throws SQLException {
        List<String> found = new ArrayList<>();
        String sql = "SELECT key || ' ' || number FROM java_effects WHERE topic = '" + topic + "' ORDER BY n";
        try (var statement = connection.createStatement(); var rows = statement.executeQuery(sql)) {
            while (rows.next()) {
                found.add(rows.getString(1));
            }
        }
        return found;
    }

    /** Number of records whose offset is not committed. */
    private long lag() throws Exception {
        var partitions = new java.util.HashMap<TopicPartition, OffsetSpec>();
        for (int number = 0; number < 4; number++) {
            partitions.put(new TopicPartition(topic, number), OffsetSpec.latest());
        }
        long lag = 0;
        for (var end : admin.listOffsets(partitions).all().get().values()) {
            lag += end.offset();
        }
        var committed = admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata();
        try {
            for (var offset : committed.get().values()) {
                lag -= offset == null ? 0 : offset.offset();
            }
        } catch (java.util.concurrent.ExecutionException noGroupYet) {
            return lag;
        }
        return lag;
    }

    private void until(Callable<Boolean> condition) throws Exception {
        long ends = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        while (!condition.call()) {
            assertTrue(System.nanoTime() < ends, () -> "not reached");
            Thread.sleep(50);
        }
    }

    private void untilDone() throws Exception {
        until(() -> lag() == 0);
    }

    /** Waits for the end by SIGKILL. */
    private static void crashes(Process worker) throws Exception {
        assertTrue(worker.waitFor(PATIENCE_SECONDS, TimeUnit.SECONDS));
        assertEquals(128 + 9, worker.exitValue());
    }

    @Test
    void theSameEventTwiceHasOneEffect() throws Exception {
        for (int number : new int[] {1, 2, 1, 2, 3}) {
            send(number, "k", topic + number);
        }
        worker("");
        untilDone();
        assertEquals(List.of("k 1", "k 2", "k 3"), effects());
    }

    @Test
    void crashesBetweenEffectAndCommitAndBeforeTheOffset() throws Exception {
        for (int number = 1; number <= 3; number++) {
            send(number, "k", topic + number);
        }
        crashes(worker("before commit 2"));
        assertEquals(List.of("k 1"), effects());
        crashes(worker("before offset 3"));
        assertEquals(List.of("k 1", "k 2", "k 3"), effects());
        assertTrue(lag() > 0);
        worker("");
        untilDone();
        assertEquals(List.of("k 1", "k 2", "k 3"), effects());
    }

    @Test
    void aRebalanceLosesAndRepeatsNothing() throws Exception {
        Process first = worker("");
        List<String> expected = new ArrayList<>();
        for (int number = 0; number < 300; number++) {
            String key = "k" + number % 7;
            send(number, key, topic + number);
            expected.add(key + " " + number);
            if (number == 50) {
                until(() -> effects().size() > 20);
                worker("");
            } else if (number == 150) {
                first.destroyForcibly();
            }
        }
        untilDone();
        // The order of each key, and each event once.
        Comparator<String> byKey = Comparator.comparing(effect -> effect.split(" ")[0]);
        assertEquals(expected.stream().sorted(byKey).toList(), effects().stream().sorted(byKey).toList());
    }

    @Test
    void poisonBecomesADeadLetterAfterTheAttempts() throws Exception {
        send(1, "k", topic + 1);
        send(-1, "k", "poison");
        send(2, "k", topic + 2);
        worker("");
        untilDone();
        assertEquals(List.of("k 1", "k 2"), effects());
        var settings = Servers.kafka();
        settings.putAll(Map.of("group.id", topic + "-letters", "auto.offset.reset", "earliest"));
        try (var letters = new KafkaConsumer<byte[], byte[]>(settings)) {
            letters.subscribe(List.of(topic + ".dead"));
            var found = letters.poll(Duration.ofSeconds(1));
            for (int n = 0; n < PATIENCE_SECONDS && found.isEmpty(); n++) {
                found = letters.poll(Duration.ofSeconds(1));
            }
            var letter = found.iterator().next();
            assertEquals("-1", new String(letter.value()));
            assertEquals("poison", new String(letter.headers().lastHeader("id").value()));
            assertEquals("java.lang.IllegalStateException: poison",
                new String(letter.headers().lastHeader("error").value()));
            assertTrue(new String(letter.headers().lastHeader("source").value()).startsWith(topic + "["));
        }
    }

    /** Runs the example in this thread, until an error or a stop. */
    private void consume(Connection own, EventConsumer.Effect effect, CountDownLatch stop) throws Exception {
        var settings = Servers.kafka();
        settings.put("group.id", topic);
        EventConsumer.configure(settings);
        var options = new EventConsumer.Options(topic, "id", topic + ".dead", 3, Duration.ofHours(1));
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings)) {
            consumer.subscribe(List.of(topic));
            EventConsumer.run(consumer, producer, own, effect, options, stop, () -> {});
        }
    }

    @Test
    void aConnectionInAutocommitModeIsRefused() throws Exception {
        send(1, "k", topic + 1);
        assertThrows(EventConsumer.AutocommitException.class,
            () -> consume(connection, (own, record) -> {}, new CountDownLatch(1)));
        assertEquals(1, lag());
    }

    @Test
    void aStopEndsThePauseBetweenAttemptsAndKeepsTheEvent() throws Exception {
        send(-1, "k", topic + 1);
        var stop = new CountDownLatch(1);
        try (Connection own = Servers.connect()) {
            consume(own, (connection, record) -> {
                stop.countDown();
                throw new IllegalStateException("poison");
            }, stop);
        }
        assertEquals(1, lag());
    }

    @Test
    void anEffectThatHidesAnErrorIsNotProcessed() throws Exception {
        var record = new ConsumerRecord<byte[], byte[]>(topic, 0, 0, null, null);
        record.headers().add("id", "hidden".getBytes());
        var options = new EventConsumer.Options(topic, "id", topic + ".dead", 3, Duration.ofHours(1));
        try (Connection own = Servers.connect()) {
            assertThrows(SQLException.class, () -> EventConsumer.process(own, options, record, (connection, of) -> {
                try (var statement = connection.createStatement()) {
                    statement.execute("SELECT 1 / 0");
                } catch (SQLException hidden) {
                    // And goes on.
                }
            }));
        }
    }

    @Test
    void pausesGrowToTheLongest() {
        var backoff = new EventConsumer.Backoff(Duration.ofSeconds(1));
        for (long most : new long[] {1, 2, 4, 8, 16, 30, 30}) {
            long pause = backoff.nextMillis();
            assertTrue(pause >= most * 500 && pause <= most * 1000, () -> pause + " ms");
        }
    }

    @Test
    void oldEventsAreForgotten() throws Exception {
        execute("INSERT INTO processed_events (consumer, event_id, processed_at) SELECT '" + topic
            + "', days, now() - make_interval(days => days) FROM generate_series(1, 40) AS days");
        try (Connection other = Servers.connect()) {
            assertEquals(11, EventConsumer.prune(other, topic, 30));
        }
    }
}
