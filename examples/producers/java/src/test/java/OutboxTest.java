import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.util.List;
import java.util.UUID;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** The producer against a real Postgres: WALRELAY_EXAMPLE_POSTGRES names it. */
class OutboxTest {
    private Connection connection;

    private static Connection connect() throws SQLException {
        URI url = URI.create(System.getenv("WALRELAY_EXAMPLE_POSTGRES"));
        String[] login = (url.getUserInfo() + ":").split(":", 3);
        return DriverManager.getConnection(
            "jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath(), login[0], login[1]);
    }

    @BeforeEach
    void open() throws SQLException {
        connection = connect();
        fresh(Outbox.Table.DEBEZIUM);
    }

    @AfterEach
    void close() throws SQLException {
        connection.close();
    }

    private static String name(Outbox.Table table) {
        return switch (table) {
            case EVENTS_OUTBOX -> "events_outbox";
            case OUTBOX_EVENTS -> "outbox_events";
            default -> "outbox";
        };
    }

    private void fresh(Outbox.Table table) throws SQLException {
        String columns = switch (table) {
            case EVENTS_OUTBOX -> "id bigserial PRIMARY KEY, aggregate_id text, type text";
            case OUTBOX_EVENTS -> "id uuid PRIMARY KEY, aggregate_id text, event_type text";
            case OUTBOX -> "id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text";
            default -> "id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text";
        };
        execute("DROP TABLE IF EXISTS orders, outbox, events_outbox, outbox_events");
        execute("CREATE TABLE orders (id int)");
        execute("CREATE TABLE " + name(table) + " (" + columns + ", payload jsonb)");
        connection.setAutoCommit(false);
    }

    private void execute(String sql) throws SQLException {
        try (var statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    private void place(Outbox.Table table) throws SQLException {
        execute("INSERT INTO orders VALUES (42)");
        Outbox.emit(connection, table, new Outbox.Event(null, "Order", "42", "placed", "{\"n\": 42}"));
    }

    /** Compares the numbers of changes and events, as another session sees them. */
    private void expect(Outbox.Table table, long changes, long events) throws SQLException {
        String sql = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM " + name(table) + ")";
        try (Connection other = connect(); ResultSet row = other.createStatement().executeQuery(sql)) {
            row.next();
            assertEquals(changes, row.getLong(1));
            assertEquals(events, row.getLong(2));
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "MESSAGE")
    void commitMakesOneEventAndRollbackNone(Outbox.Table table) throws SQLException {
        connection.setAutoCommit(true);
        fresh(table);
        place(table);
        connection.commit();
        expect(table, 1, 1);
        place(table);
        connection.rollback();
        expect(table, 1, 1);
    }

    @Test
    void savepointThatIsRolledBackLeavesNone() throws SQLException {
        connection.setAutoCommit(true);
        fresh(Outbox.Table.DEBEZIUM);
        place(Outbox.Table.DEBEZIUM);
        Savepoint savepoint = connection.setSavepoint();
        place(Outbox.Table.DEBEZIUM);
        connection.rollback(savepoint);
        connection.commit();
        expect(Outbox.Table.DEBEZIUM, 1, 1);
    }

    @Test
    void itRefusesOutsideOfATransactionAndBeforeAChange() throws SQLException {
        assertThrows(Outbox.NotInTransaction.class, () -> Outbox.emit(connection, Outbox.Table.DEBEZIUM,
            new Outbox.Event(null, "Order", "1", "placed", "{}")));
        connection.rollback();
        connection.setAutoCommit(true);
        assertThrows(Outbox.NotInTransaction.class, () -> place(Outbox.Table.DEBEZIUM));
        expect(Outbox.Table.DEBEZIUM, 1, 0);
    }

    @Test
    void idsRiseAndCanBeGiven() throws SQLException {
        UUID given = UUID.randomUUID();
        for (int n = 0; n < 100; n++) {
            place(Outbox.Table.DEBEZIUM);
        }
        Outbox.emit(connection, Outbox.Table.DEBEZIUM, new Outbox.Event(given, "Order", "1", "placed", "{}"));
        connection.commit();
        String sql = "SELECT array_agg(id ORDER BY ctid) = array_agg(id ORDER BY id) FROM outbox WHERE id <> '" + given
            + "'";
        try (Connection other = connect(); ResultSet row = other.createStatement().executeQuery(sql)) {
            row.next();
            assertEquals(true, row.getBoolean(1));
        }
        expect(Outbox.Table.DEBEZIUM, 100, 101);
    }

    @Test
    void messageIsInTheLogOnce() throws SQLException {
        connection.setAutoCommit(true);
        execute("SELECT pg_create_logical_replication_slot('example_java', 'test_decoding')");
        try {
            connection.setAutoCommit(false);
            place(Outbox.Table.MESSAGE);
            connection.commit();
            place(Outbox.Table.MESSAGE);
            connection.rollback();
            connection.setAutoCommit(true);
            String sql = "SELECT count(*) FROM pg_logical_slot_get_changes('example_java', NULL, NULL)"
                + " WHERE data LIKE '%prefix: outbox%'";
            try (ResultSet row = connection.createStatement().executeQuery(sql)) {
                row.next();
                assertEquals(1, row.getLong(1));
            }
        } finally {
            connection.setAutoCommit(true);
            execute("SELECT pg_drop_replication_slot('example_java')");
        }
    }

    @Test
    void severalEventsAreOneMessageInTheirOrder() throws SQLException {
        UUID given = UUID.randomUUID();
        List<Outbox.Event> events = List.of(
            new Outbox.Event(null, "Order", "1", "placed", "{\"n\": 1}"),
            new Outbox.Event(given, "Order", "2", "placed", "{\"n\": 2}"),
            new Outbox.Event(null, "Order", "1", "paid", "{\"n\": 3}"));
        connection.commit();
        assertThrows(Outbox.NotInTransaction.class, () -> Outbox.emitAll(connection, events));
        connection.rollback();
        connection.setAutoCommit(true);
        execute("SELECT pg_create_logical_replication_slot('example_java_all', 'test_decoding')");
        try {
            connection.setAutoCommit(false);
            execute("INSERT INTO orders VALUES (42)");
            Outbox.emitAll(connection, events);
            connection.commit();
            execute("INSERT INTO orders VALUES (42)");
            Outbox.emitAll(connection, events);
            connection.rollback();
            connection.setAutoCommit(true);
            String sql = "SELECT count(*), min(jsonb_path_query_array(split_part(data, 'content:', 2)::jsonb,"
                + " '$[*].payload.n')::text), bool_and(data LIKE '%" + given + "%')"
                + " FROM pg_logical_slot_get_changes('example_java_all', NULL, NULL) WHERE data LIKE '%prefix: outbox%'";
            try (ResultSet row = connection.createStatement().executeQuery(sql)) {
                row.next();
                assertEquals(1, row.getLong(1));
                assertEquals("[1, 2, 3]", row.getString(2));
                assertEquals(true, row.getBoolean(3));
            }
        } finally {
            connection.setAutoCommit(true);
            execute("SELECT pg_drop_replication_slot('example_java_all')");
        }
    }
}
