//! A sans-I/O decoder of Postgres' pgoutput logical replication messages.
