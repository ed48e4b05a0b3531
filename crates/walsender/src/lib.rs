//! A client of Postgres' streaming replication protocol: TLS, authentication, framing, feedback.
