import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaException;

/**
 * A whole consumer, which keeps each event in the table {@code received}: copy it, and write your effect.
 *
 * <pre>mvn --quiet compile dependency:build-classpath -Dmdep.outputFile=classpath
 * DATABASE_URL=postgres://… KAFKA_BROKERS=localhost:9094 java -cp "target/classes:$(cat classpath)" Main</pre>
 *
 * <p>TOPIC and GROUP have defaults. With --id-header=x-outbox-event-id it reads another header than {@code id}. It ends
 * by SIGTERM or SIGINT after the current event, and starts again by itself, after growing pauses, when a server does
 * not answer.
 */
public final class Main {
    private static final Logger LOG = System.getLogger(Main.class.getName());
    private static final Map<String, String> ENV = System.getenv();
    private static final String TOPIC = ENV.getOrDefault("TOPIC", "outbox.event.Order");
    private static final String GROUP = ENV.getOrDefault("GROUP", "example");

    /** With a lock: two processes may start at once. */
    private static final String TABLE = "SELECT pg_advisory_xact_lock(59);"
        + " CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text)";

    private Main() {}

    private static void effect(Connection connection, ConsumerRecord<byte[], byte[]> record) throws SQLException {
        String sql = "INSERT INTO received (consumer, topic, key, value) VALUES (?, ?, ?, ?)";
        try (var statement = connection.prepareStatement(sql)) {
            statement.setString(1, GROUP);
            statement.setString(2, record.topic());
            statement.setString(3, text(record.key()));
            statement.setString(4, text(record.value()));
            statement.executeUpdate();
        }
    }

    private static String text(byte[] value) {
        return value == null ? null : new String(value, StandardCharsets.UTF_8);
    }

    private static Connection connect() throws SQLException {
        URI url = URI.create(ENV.get("DATABASE_URL"));
        String[] login = (url.getUserInfo() + ":").split(":", 3);
        int port = url.getPort() < 0 ? 5432 : url.getPort();
        Connection connection = DriverManager.getConnection(
            "jdbc:postgresql://" + url.getHost() + ":" + port + url.getPath(), login[0], login[1]);
        connection.setAutoCommit(false);
        return connection;
    }

    private static Properties kafka() {
        var settings = new Properties();
        settings.put("bootstrap.servers", ENV.get("KAFKA_BROKERS"));
        String bytes = "org.apache.kafka.common.serialization.ByteArray";
        settings.put("key.serializer", bytes + "Serializer");
        settings.put("value.serializer", bytes + "Serializer");
        settings.put("key.deserializer", bytes + "Deserializer");
        settings.put("value.deserializer", bytes + "Deserializer");
        return settings;
    }

    private static void serve(String idHeader, CountDownLatch stop, Runnable onProgress) throws Exception {
        var settings = kafka();
        settings.put("group.id", GROUP);
        int session = Integer.parseInt(ENV.getOrDefault("SESSION_TIMEOUT_MS", "45000"));
        settings.put("session.timeout.ms", session);
        settings.put("heartbeat.interval.ms", session / 10);
        EventConsumer.configure(settings);
        var options = new EventConsumer.Options(GROUP, idHeader, TOPIC + ".dead", 5, Duration.ofSeconds(1));
        // The consumer leaves the group when it is closed: its partitions are given away at once.
        try (var connection = connect();
                var producer = new KafkaProducer<byte[], byte[]>(kafka());
                var consumer = new KafkaConsumer<byte[], byte[]>(settings)) {
            try (var statement = connection.createStatement()) {
                statement.execute(TABLE);
            }
            connection.commit();
            consumer.subscribe(List.of(TOPIC));
            EventConsumer.run(consumer, producer, connection, Main::effect, options, stop, onProgress);
        }
    }

    private static String idHeader(String[] arguments) {
        String option = "--id-header=";
        if (arguments.length == 0) {
            return ENV.getOrDefault("ID_HEADER", "id");
        }
        if (arguments.length > 1 || !arguments[0].startsWith(option)) {
            throw new IllegalArgumentException("the only argument is " + option + "NAME");
        }
        return arguments[0].substring(option.length());
    }

    public static void main(String[] arguments) throws Exception {
        String idHeader = idHeader(arguments);
        var stop = new CountDownLatch(1);
        var stopped = new CountDownLatch(1);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stop.countDown();
            try {
                main.join();
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
            if (stopped.getCount() == 0) {
                // Otherwise the exit code would be that of a process that SIGTERM has killed.
                Runtime.getRuntime().halt(0);
            }
        }));
        var backoff = new EventConsumer.Backoff(Duration.ofMillis(500));
        LOG.log(Level.INFO, "consumes {0} as {1}", TOPIC, GROUP);
        while (stop.getCount() > 0) {
            try {
                serve(idHeader, stop, backoff::reset);
            } catch (SQLException | KafkaException error) {
                long pause = backoff.nextMillis();
                LOG.log(Level.WARNING, "{0}; again in {1} ms", error.getMessage(), pause);
                stop.await(pause, TimeUnit.MILLISECONDS);
            }
        }
        LOG.log(Level.INFO, "stopped");
        stopped.countDown();
    }
}
