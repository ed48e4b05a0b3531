import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.junit.jupiter.api.Test;

/** The newest value of a compacted topic, against a real Postgres and Kafka. */
class NewestTest {
    /** A loaded machine may take long; nothing waits for less. */
    private static final long PATIENCE_SECONDS = 120;

    private record Event(String key, Long position, String value) {}

    private static final List<Event> SENT = List.of(
        new Event("a", 1L, "a1"), new Event("b", 2L, "b2"), new Event("a", 3L, "a3"), new Event("c", 4L, "c4"),
        new Event("c", 5L, null),
        // A crash of the relay: everything from 1 on again, and it is cut off before 3.
        new Event("a", 1L, "a1"), new Event("b", 2L, "b2"), new Event("c", 4L, "c4"),
        // `walrelay resend` sends without a position.
        new Event("b", null, "old"), new Event("d", null, "old"), new Event("d", 6L, "d6"),
        // After a move to a server whose log begins lower: the first byte is raised.
        new Event("a", 0x0100000000000002L, "a7"), new Event("a", 3L, "a3"));

    @Test
    void aRepeatedSuffixInACompactedTopicChangesNothing() throws Exception {
        var partition = new TopicPartition("java-newest-" + System.nanoTime(), 0);
        try (var admin = Admin.create(Servers.kafka());
                var producer = new KafkaProducer<byte[], byte[]>(Servers.kafka())) {
            var compacted = new NewTopic(partition.topic(), 1, (short) 1).configs(Map.of("cleanup.policy", "compact"));
            admin.createTopics(List.of(compacted)).all().get();
            for (Event event : SENT) {
                byte[] value = event.value() == null ? null : event.value().getBytes();
                var record = new ProducerRecord<>(partition.topic(), event.key().getBytes(), value);
                if (event.position() != null) {
                    String position = String.format("%016X/00000000", event.position());
                    record.headers().add(Newest.POSITION_HEADER, position.getBytes());
                }
                producer.send(record).get();
            }
        }
        List<Boolean> applied = new ArrayList<>();
        List<String> kept = new ArrayList<>();
        try (var connection = Servers.connect(); var consumer = new KafkaConsumer<byte[], byte[]>(Servers.kafka())) {
            connection.setAutoCommit(true);
            try (var statement = connection.createStatement()) {
                statement.execute("DROP TABLE IF EXISTS newest");
                statement.execute(
                    "CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE \"C\", value text)");
            }
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long ends = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
            while (applied.size() < SENT.size()) {
                assertTrue(System.nanoTime() < ends, () -> "not reached: " + applied);
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    applied.add(Newest.apply(connection, record));
                }
            }
            try (var statement = connection.createStatement();
                    var rows = statement.executeQuery("SELECT key, value FROM newest ORDER BY key")) {
                while (rows.next()) {
                    kept.add(rows.getString(1) + " " + rows.getString(2));
                }
            }
        }
        assertEquals(List.of("a a7", "b b2", "c null", "d d6"), kept);
        assertEquals(
            List.of(true, true, true, true, true, false, false, false, false, true, true, true, false), applied);
    }
}
