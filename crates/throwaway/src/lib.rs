//! A Postgres server for one demonstration or one test, gone with its owner.
