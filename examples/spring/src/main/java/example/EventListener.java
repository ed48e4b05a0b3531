package example;

import java.nio.charset.StandardCharsets;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Transactional;

/**
 * Consumes events: each one has its effect in Postgres once. The table processed_events comes from {@code walrelay init
 * --consumer}.
 *
 * <p>{@code @Transactional} is of the database, and is committed before the container commits the offset. The effect
 * here keeps each event in the table received; write yours instead.
 */
@Component
public class EventListener {
    private final JdbcClient database;
    private final String group;
    private final String idHeader;

    EventListener(
        JdbcClient database, @Value("${spring.kafka.consumer.group-id}") String group,
        @Value("${example.id-header}") String idHeader) {
        this.database = database;
        this.group = group;
        this.idHeader = idHeader;
    }

    @KafkaListener(topics = "${example.topic}")
    @Transactional
    public void receive(ConsumerRecord<String, String> record) {
        var id = record.headers().lastHeader(idHeader);
        if (id == null) {
            throw new IllegalArgumentException("a record without the header " + idHeader);
        }
        // A concurrent claim of the same event is waited for.
        int claimed = database.sql("INSERT INTO processed_events (consumer, event_id) VALUES (?, ?) ON CONFLICT DO NOTHING")
            .params(group, new String(id.value(), StandardCharsets.UTF_8))
            .update();
        if (claimed == 1) {
            database.sql("INSERT INTO received (consumer, topic, key, value) VALUES (?, ?, ?, ?)")
                .params(group, record.topic(), record.key(), record.value())
                .update();
            // Fails if the effect has hidden an error: then COMMIT would roll back, and say nothing.
            database.sql("SELECT 1").query().singleRow();
        }
    }
}
