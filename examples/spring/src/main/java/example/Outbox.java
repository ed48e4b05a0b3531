package example;

import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Propagation;
import org.springframework.transaction.annotation.Transactional;

/**
 * Writes an event in the transaction of the change that it tells of:
 *
 * <pre>{@code
 * @Transactional
 * public void place(Order order) {
 *     orders.save(order);
 *     outbox.emit("Order", order.id(), "OrderPlaced", json);
 * }
 * }</pre>
 *
 * With JPA, flush before: the event is refused if the transaction has changed nothing.
 */
@Component
public class Outbox {
    private static final String INSERT = """
        INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
        SELECT outbox.uuidv7(), ?, ?, ?, ?::jsonb WHERE pg_current_xact_id_if_assigned() IS NOT NULL""";

    private final JdbcClient database;

    Outbox(JdbcClient database) {
        this.database = database;
    }

    /**
     * Writes the event.
     *
     * @throws org.springframework.transaction.IllegalTransactionStateException if no transaction is open
     * @throws IllegalStateException if the transaction has changed nothing
     */
    @Transactional(propagation = Propagation.MANDATORY)
    public void emit(String aggregate, String key, String type, String payload) {
        if (database.sql(INSERT).params(aggregate, key, type, payload).update() != 1) {
            throw new IllegalStateException("the transaction has changed nothing yet: change the data first");
        }
    }
}
