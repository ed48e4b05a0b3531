//! Outbox rows to broker records, by Debezium's rules.
