import java.sql.Connection;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;

/** Runs the example for the topic in its argument. CRASH says where it ends by SIGKILL. */
final class Worker {
    private static String last = "";

    private Worker() {}

    private static void crash(String place) {
        if (place.equals(System.getenv("CRASH"))) {
            ProcessHandle self = ProcessHandle.current();
            try {
                new ProcessBuilder("kill", "-KILL", String.valueOf(self.pid())).start().waitFor();
                Thread.sleep(Long.MAX_VALUE);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private static void effect(Connection connection, ConsumerRecord<byte[], byte[]> record) throws Exception {
        int number = Integer.parseInt(new String(record.value()));
        if (number < 0) {
            throw new IllegalStateException("poison");
        }
        String sql = "INSERT INTO java_effects (topic, key, number) VALUES (?, ?, ?)";
        try (var statement = connection.prepareStatement(sql)) {
            statement.setString(1, record.topic());
            statement.setString(2, new String(record.key()));
            statement.setInt(3, number);
            statement.executeUpdate();
        }
        last = String.valueOf(number);
        crash("before commit " + number);
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[0];
        var settings = Servers.kafka();
        settings.put("group.id", topic);
        // A killed worker's partitions are given to another after the time-out.
        settings.put("session.timeout.ms", "2000");
        settings.put("heartbeat.interval.ms", "200");
        EventConsumer.configure(settings);
        var options = new EventConsumer.Options(topic, "id", topic + ".dead", 3, Duration.ofMillis(10));
        var consumer = new KafkaConsumer<byte[], byte[]>(settings) {
            @Override
            public void commitSync(Map<TopicPartition, OffsetAndMetadata> offsets) {
                crash("before offset " + last);
                super.commitSync(offsets);
            }
        };
        try (consumer; var producer = new KafkaProducer<byte[], byte[]>(Servers.kafka());
                var connection = Servers.connect()) {
            consumer.subscribe(List.of(topic));
            EventConsumer.run(consumer, producer, connection, Worker::effect, options,
                new CountDownLatch(1), () -> {});
        }
    }
}
