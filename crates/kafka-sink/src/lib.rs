//! A Kafka producer behind the sink trait: idempotent, acks=all, back-pressured.
