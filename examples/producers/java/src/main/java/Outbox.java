import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.Collections;
import java.util.List;
import java.util.UUID;

/**
 * Writes an event in the transaction of the change that it tells of, by JDBC. In Spring, take the
 * connection of the transaction: {@code DataSourceUtils.getConnection(dataSource)} in a
 * {@code @Transactional} method.
 *
 * <p>Copy this file, and keep the statement of your table.
 */
public final class Outbox {
    /** The event is written only if the transaction has changed something: the number of rows tells. */
    private static final String CHANGED = " WHERE pg_current_xact_id_if_assigned() IS NOT NULL";

    /** One statement for each shape of table that walrelay has a preset for, and outbox.emit. */
    public enum Table {
        DEBEZIUM("INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)"
            + " SELECT coalesce(e.id, outbox.uuidv7()), e.aggregate, e.key, e.type, e.payload::jsonb"),
        /** The id is a bigserial; that of the event is not used. */
        EVENTS_OUTBOX("INSERT INTO events_outbox (aggregate_id, type, payload)"
            + " SELECT e.key, lower(e.aggregate) || '.' || e.type, e.payload::jsonb"),
        OUTBOX_EVENTS("INSERT INTO outbox_events (id, aggregate_id, event_type, payload)"
            + " SELECT coalesce(e.id, outbox.uuidv7()), e.key, lower(e.aggregate) || '.' || e.type, e.payload::jsonb"),
        OUTBOX("INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)"
            + " SELECT coalesce(e.id, outbox.uuidv7()), e.aggregate, e.key, e.type, e.payload::jsonb"),
        MESSAGE("SELECT outbox.emit(aggregate => e.aggregate, key => e.key, type => e.type,"
            + " payload => e.payload::jsonb, id => coalesce(e.id, outbox.uuidv7()))");

        final String sql;

        Table(String sql) {
            this.sql = sql + " FROM (SELECT ?::uuid AS id, ?::text AS aggregate, ?::text AS key, ?::text AS type,"
                + " ?::text AS payload) AS e" + CHANGED;
        }
    }

    /**
     * An event.
     *
     * @param id made by the database if it is null
     * @param payload JSON, serialised once by the caller; a jsonb column normalises it
     */
    public record Event(UUID id, String aggregate, String key, String type, String payload) {}

    /** The event would not be committed together with a change. */
    public static final class NotInTransaction extends IllegalStateException {
        NotInTransaction(String message) {
            super(message);
        }
    }

    private Outbox() {}

    /** Writes an event by the connection that has changed the data, in its open transaction. */
    public static void emit(Connection connection, Table table, Event event) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(table.sql)) {
            statement.setObject(1, event.id());
            statement.setString(2, event.aggregate());
            statement.setString(3, event.key());
            statement.setString(4, event.type());
            statement.setString(5, event.payload());
            write(connection, statement);
        }
    }

    /**
     * Writes several events as one message in the log, by outbox.emit_all: no table, one request. They keep
     * their order.
     */
    public static void emitAll(Connection connection, List<Event> events) throws SQLException {
        // The database makes the JSON, so that this file needs no library for it.
        String row = "(?, ?::uuid, ?, ?, ?, ?::jsonb)";
        String sql = "SELECT outbox.emit_all(jsonb_agg(jsonb_build_object('id', e.id, 'aggregate', e.aggregate,"
            + " 'key', e.key, 'type', e.type, 'payload', e.payload) ORDER BY e.number)) FROM (VALUES "
            + String.join(", ", Collections.nCopies(events.size(), row))
            + ") AS e (number, id, aggregate, key, type, payload)"
            + " HAVING pg_current_xact_id_if_assigned() IS NOT NULL";
        if (events.isEmpty()) {
            return;
        }
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            int place = 0;
            for (int number = 0; number < events.size(); number++) {
                Event event = events.get(number);
                statement.setInt(++place, number);
                statement.setObject(++place, event.id());
                statement.setString(++place, event.aggregate());
                statement.setString(++place, event.key());
                statement.setString(++place, event.type());
                statement.setString(++place, event.payload());
            }
            write(connection, statement);
        }
    }

    private static void write(Connection connection, PreparedStatement statement) throws SQLException {
        if (connection.getAutoCommit()) {
            throw new NotInTransaction("an event is written in the transaction of its change: setAutoCommit(false)");
        }
        boolean written;
        if (statement.execute()) {
            written = statement.getResultSet().next();
        } else {
            written = statement.getUpdateCount() == 1;
        }
        if (!written) {
            throw new NotInTransaction("the transaction has changed nothing yet: change the data first");
        }
    }
}
