//! The state machine and the tasks of one pipeline from a replication slot to a sink.
