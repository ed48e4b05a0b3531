package example;

import org.apache.kafka.common.TopicPartition;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.dao.NonTransientDataAccessResourceException;
import org.springframework.dao.RecoverableDataAccessException;
import org.springframework.dao.TransientDataAccessException;
import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.kafka.core.KafkaOperations;
import org.springframework.kafka.listener.CommonErrorHandler;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.kafka.support.ExponentialBackOffWithMaxRetries;
import org.springframework.transaction.CannotCreateTransactionException;
import org.springframework.transaction.TransactionSystemException;
import org.springframework.util.backoff.ExponentialBackOff;

/** What happens to an event whose effect fails. */
@Configuration
class Errors {
    /**
     * Later events of the partition wait while one is tried again. It goes to the dead letters after five attempts; a
     * database that is away is no event's fault, and is waited for.
     */
    @Bean
    CommonErrorHandler errorHandler(KafkaOperations<?, ?> kafka, @Value("${example.pause}") long pause) {
        var deadLetters = new DeadLetterPublishingRecoverer(
            kafka, (record, error) -> new TopicPartition(record.topic() + ".dead", -1));
        deadLetters.setFailIfSendResultIsError(true);
        var attempts = new ExponentialBackOffWithMaxRetries(4);
        attempts.setInitialInterval(pause);
        attempts.setMaxInterval(30_000);
        var handler = new DefaultErrorHandler(deadLetters, attempts);
        var patience = new ExponentialBackOff(500, 2);
        patience.setMaxInterval(30_000);
        handler.setBackOffFunction((record, error) -> isOfTheDatabase(error) ? patience : attempts);
        return handler;
    }

    private static boolean isOfTheDatabase(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof CannotCreateTransactionException || cause instanceof TransactionSystemException
                || cause instanceof NonTransientDataAccessResourceException
                || cause instanceof RecoverableDataAccessException || cause instanceof TransientDataAccessException) {
                return true;
            }
        }
        return false;
    }

    /** The table of the example's effect, with a lock: two processes may start at once. */
    @Bean
    Object received(JdbcClient database) {
        database.sql("""
            DO $$ BEGIN
                PERFORM pg_advisory_xact_lock(59);
                CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text);
            END $$""").update();
        return "received";
    }
}
