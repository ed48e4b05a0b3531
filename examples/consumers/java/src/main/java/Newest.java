import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/**
 * Keeps the newest value of each key, whatever is repeated. For Kafka's client and JDBC.
 *
 * <p>For caches, upserted tables and compacted topics: no table of processed events is needed. The relay
 * writes the position header with {@code position_header = "walrelay-position"} in [router].
 *
 * <pre>CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)</pre>
 */
public final class Newest {
    static final String POSITION_HEADER = "walrelay-position";

    // Positions are compared as bytes, which is what the collation "C" does. A record without a position,
    // which `walrelay resend` sends, never replaces one that has a position.
    private static final String APPLY = """
        INSERT INTO newest AS kept (key, position, value) VALUES (?, ?, ?)
        ON CONFLICT (key) DO UPDATE SET position = excluded.position, value = excluded.value
        WHERE kept.position IS NULL OR kept.position < excluded.position""";

    private Newest() {}

    /**
     * Applies a record, in the caller's transaction. False: it is not newer than what is kept.
     *
     * <p>A tombstone keeps its row, with a NULL value: its position must be known when an older record comes.
     */
    public static boolean apply(Connection connection, ConsumerRecord<byte[], byte[]> record) throws SQLException {
        var position = record.headers().lastHeader(POSITION_HEADER);
        try (var statement = connection.prepareStatement(APPLY)) {
            statement.setString(1, text(record.key()));
            statement.setString(2, position == null ? null : text(position.value()));
            statement.setString(3, text(record.value()));
            return statement.executeUpdate() == 1;
        }
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }
}
