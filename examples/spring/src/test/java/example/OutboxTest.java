package example;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.transaction.IllegalTransactionStateException;
import org.springframework.transaction.support.TransactionOperations;

/** The producer against a real Postgres, whose address is in SPRING_DATASOURCE_URL. */
@SpringBootTest(properties = "spring.kafka.listener.auto-startup=false")
class OutboxTest {
    @Autowired
    private Outbox outbox;
    @Autowired
    private JdbcClient database;
    @Autowired
    private TransactionOperations transactions;

    @BeforeEach
    void tables() {
        database.sql("DROP TABLE IF EXISTS outbox, spring_orders").update();
        database.sql("CREATE TABLE spring_orders (id int PRIMARY KEY)").update();
        database.sql("CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text,"
            + " payload jsonb)").update();
    }

    private void place(int id) {
        database.sql("INSERT INTO spring_orders VALUES (?)").params(id).update();
        outbox.emit("Order", String.valueOf(id), "OrderPlaced", "{\"total\": 12.5}");
    }

    private long count(String table) {
        return database.sql("SELECT count(*) FROM " + table).query(Long.class).single();
    }

    @Test
    void anEventIsWrittenWithItsChangeOrNotAtAll() {
        transactions.executeWithoutResult(status -> place(1));
        transactions.executeWithoutResult(status -> {
            place(2);
            status.setRollbackOnly();
        });
        assertEquals(1, count("outbox"));
        assertEquals(1, count("spring_orders"));
    }

    @Test
    void anEventOutsideOfATransactionIsRefused() {
        assertThrows(IllegalTransactionStateException.class, () -> place(1));
        assertEquals(0, count("outbox"));
    }

    @Test
    void anEventWithoutAChangeIsRefused() {
        assertThrows(IllegalStateException.class,
            () -> transactions.executeWithoutResult(status -> outbox.emit("Order", "1", "OrderPlaced", "{}")));
        assertEquals(0, count("outbox"));
    }
}
