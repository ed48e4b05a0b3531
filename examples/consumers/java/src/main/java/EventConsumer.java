import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.header.Header;

/**
 * Consumes events: each one has its effect in Postgres once. For Kafka's client and JDBC.
 *
 * <p>The table processed_events comes from {@code walrelay init --consumer}. Copy this file, and write the
 * effect.
 */
public final class EventConsumer {
    private static final Logger LOG = System.getLogger(EventConsumer.class.getName());

    /** Changes data for an event, in the transaction that claims it. */
    @FunctionalInterface
    public interface Effect {
        void apply(Connection connection, ConsumerRecord<byte[], byte[]> record) throws Exception;
    }

    /**
     * What a consumer is.
     *
     * @param name each consumer of the same events has claims of its own
     * @param idHeader the header with the id by which a repeat is known
     * @param deadLetters the topic for events whose effect has failed {@code attempts} times
     * @param pause between the first two attempts; the next ones are twice as long, up to half a minute
     */
    public record Options(String name, String idHeader, String deadLetters, int attempts, Duration pause) {}

    /** The connection is in autocommit mode: a claim would be committed before its effect. */
    public static final class AutocommitException extends IllegalStateException {
        AutocommitException() {
            super("the connection is in autocommit mode: call setAutoCommit(false)");
        }
    }

    /** Pauses that double from the first to half a minute, with jitter. */
    public static final class Backoff {
        private static final long LONGEST = Duration.ofSeconds(30).toMillis();
        private final long first;
        private int failures;

        public Backoff(Duration first) {
            this.first = first.toMillis();
        }

        public long nextMillis() {
            long pause = Math.min(first << Math.min(failures++, 16), LONGEST);
            return pause / 2 + ThreadLocalRandom.current().nextLong(pause / 2 + 1);
        }

        public void reset() {
            failures = 0;
        }
    }

    private EventConsumer() {}

    /** The offset of a record is committed by {@link #run}, after its effect, and by nothing else. */
    public static void configure(Properties consumer) {
        consumer.put("enable.auto.commit", "false");
        consumer.put("auto.offset.reset", "earliest");
        consumer.put("isolation.level", "read_committed");
        // All records of one poll must be processed within max.poll.interval.ms.
        consumer.put("max.poll.records", "100");
    }

    /** The id by which a repeat is known. It is the same in every delivery of an event. */
    public static String eventId(ConsumerRecord<byte[], byte[]> record, String idHeader) {
        Header header = record.headers().lastHeader(idHeader);
        if (header == null) {
            throw new IllegalArgumentException("a record without the header " + idHeader);
        }
        return new String(header.value(), StandardCharsets.UTF_8);
    }

    /**
     * Claims the event and has its effect, in one transaction. False: it was processed before.
     *
     * @throws AutocommitException if {@code connection} is in autocommit mode
     */
    public static boolean process(
        Connection connection, Options options, ConsumerRecord<byte[], byte[]> record, Effect effect) throws Exception {
        if (connection.getAutoCommit()) {
            throw new AutocommitException();
        }
        // A concurrent claim of the same event is waited for.
        String claim = "INSERT INTO processed_events (consumer, event_id) VALUES (?, ?) ON CONFLICT DO NOTHING";
        try (var statement = connection.prepareStatement(claim)) {
            statement.setString(1, options.name());
            statement.setString(2, eventId(record, options.idHeader()));
            boolean isNew = statement.executeUpdate() == 1;
            if (isNew) {
                effect.apply(connection, record);
                // Fails if the effect has hidden an error: then COMMIT would roll back, and say nothing.
                try (var alive = connection.prepareStatement("SELECT 1")) {
                    alive.execute();
                }
            }
            connection.commit();
            return isNew;
        } catch (Exception error) {
            connection.rollback();
            throw error;
        }
    }

    /**
     * Processes records one after another, which keeps the order of each key, until {@code stop} has counted down
     * or a server does not answer. Then start it again: the record comes again. The consumer is subscribed;
     * partitions are revoked in {@code poll} only, when no record is at hand.
     *
     * @param onProgress is run after each event
     * @throws AutocommitException if {@code connection} is in autocommit mode
     */
    public static void run(
        Consumer<byte[], byte[]> consumer, Producer<byte[], byte[]> producer, Connection connection, Effect effect,
        Options options, CountDownLatch stop, Runnable onProgress) throws Exception {
        if (connection.getAutoCommit()) {
            throw new AutocommitException();
        }
        while (stop.getCount() > 0) {
            for (var record : consumer.poll(Duration.ofSeconds(1))) {
                if (stop.getCount() == 0 || !processOrSetAside(producer, connection, record, effect, options, stop)) {
                    // Its offset is not committed: the next process has it again.
                    return;
                }
                var partition = new TopicPartition(record.topic(), record.partition());
                try {
                    consumer.commitSync(Map.of(partition, new OffsetAndMetadata(record.offset() + 1)));
                } catch (CommitFailedException | RebalanceInProgressException moved) {
                    // The partition was given to another consumer, or is about to be: it finds that this
                    // record was processed. Each record of this poll has its effect here or there, once.
                    LOG.log(Level.INFO, "{0}: its offset is not committed: {1}", place(record), moved.getMessage());
                }
                onProgress.run();
            }
        }
    }

    /** False: it was stopped before the event was processed. */
    private static boolean processOrSetAside(
        Producer<byte[], byte[]> producer, Connection connection, ConsumerRecord<byte[], byte[]> record, Effect effect,
        Options options, CountDownLatch stop) throws Exception {
        var backoff = new Backoff(options.pause());
        for (int attempt = 1; ; attempt++) {
            try {
                process(connection, options, record, effect);
                return true;
            } catch (AutocommitException error) {
                throw error;
            } catch (Exception error) {
                if (!connection.isValid(5)) {
                    // No event's fault.
                    throw error;
                }
                // Not its text: an error may quote the event.
                LOG.log(Level.WARNING, "{0}: attempt {1} of {2}: {3}", place(record), attempt, options.attempts(),
                    error.getClass().getName());
                if (attempt >= options.attempts()) {
                    // Later events of its key go on without it.
                    setAside(producer, options.deadLetters(), record, error);
                    LOG.log(Level.ERROR, "{0} is a dead letter in {1}", place(record), options.deadLetters());
                    return true;
                }
                if (stop.await(backoff.nextMillis(), TimeUnit.MILLISECONDS)) {
                    return false;
                }
            }
        }
    }

    private static String place(ConsumerRecord<?, ?> record) {
        return record.topic() + "[" + record.partition() + "]@" + record.offset();
    }

    /** Writes the record as it is, with the error, and waits for the acknowledgement. */
    private static void setAside(
        Producer<byte[], byte[]> producer, String topic, ConsumerRecord<byte[], byte[]> record, Exception error)
        throws InterruptedException, ExecutionException {
        var letter = new ProducerRecord<>(topic, null, record.key(), record.value(), List.of(record.headers().toArray()));
        letter.headers().add("error", error.toString().getBytes(StandardCharsets.UTF_8));
        letter.headers().add("source", place(record).getBytes(StandardCharsets.UTF_8));
        producer.send(letter).get();
    }

    /** Forgets events that are older than the longest replay. Run it once a day. */
    public static int prune(Connection connection, String name, int days) throws SQLException {
        String old = "DELETE FROM processed_events WHERE consumer = ?"
            + " AND processed_at < now() - make_interval(days => ?)";
        try (var statement = connection.prepareStatement(old)) {
            statement.setString(1, name);
            statement.setInt(2, days);
            int deleted = statement.executeUpdate();
            connection.commit();
            return deleted;
        }
    }
}
