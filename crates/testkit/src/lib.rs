//! Real Postgres and Kafka servers, a chaos proxy and the history checker for walrelay's tests.
