use std::{sync::mpsc, time::Duration};

use futures_executor::block_on;
use tokio_postgres::{
    Client, Error, NoTls, Row,
    types::{FromSqlOwned, ToSql},
};
use walrelay_lsn::Lsn;

use crate::threads::{run, spawn};

/// A blocking connection to Postgres for tests. A thread of its own drives it, so that it works
/// inside an async runtime too.
#[derive(Debug)]
pub struct Db {
    client: Client,
}

impl Db {
    /// Connects; panics if it cannot.
    #[track_caller]
    pub fn connect(url: &str) -> Self {
        Self::try_connect(url).expect("the test's Postgres can be reached")
    }

    /// Connects, if that is possible within ten seconds.
    ///
    /// # Errors
    /// The error of tokio-postgres.
    pub fn try_connect(url: &str) -> Result<Self, Error> {
        let mut config: tokio_postgres::Config = url.parse()?;
        config.connect_timeout(Duration::from_secs(10));
        let (made, client) = mpsc::sync_channel(1);
        spawn("db", move || {
            run(async {
                match config.connect(NoTls).await {
                    Ok((client, connection)) => {
                        let _ = made.send(Ok(client));
                        let _ = connection.await; // users of the client notice its end
                    }
                    Err(error) => drop(made.send(Err(error))),
                }
            });
        });
        let client = client.recv().expect("the thread says how connecting went");
        Ok(Self { client: client? })
    }

    /// Runs statements separated by semicolons; panics on an error.
    #[track_caller]
    pub fn batch(&self, sql: &str) {
        if let Err(error) = self.try_batch(sql) {
            panic!("{sql}: {error:?}");
        }
    }

    /// Runs statements separated by semicolons.
    ///
    /// # Errors
    /// The error of the server.
    pub fn try_batch(&self, sql: &str) -> Result<(), Error> {
        block_on(self.client.batch_execute(sql))
    }

    /// Runs a statement and returns its rows; panics on an error.
    #[track_caller]
    pub fn query(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        let rows = self.try_query(sql, parameters);
        rows.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// Runs a statement and returns its rows.
    ///
    /// # Errors
    /// The error of the server.
    pub fn try_query(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        block_on(self.client.query(sql, parameters))
    }

    /// Returns the first column of the first row, which must be text; `None` for NULL or without a
    /// row.
    #[track_caller]
    pub fn text(&self, sql: &str) -> Option<String> {
        self.query(sql, &[]).first().and_then(|row| row.get(0))
    }

    /// Returns the first column of all rows.
    #[track_caller]
    pub fn column<T: FromSqlOwned>(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<T> {
        let rows = self.query(sql, parameters);
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Returns the first column of the first row, which must exist.
    #[track_caller]
    pub fn value<T: FromSqlOwned>(&self, sql: &str) -> T {
        self.query(sql, &[])[0].get(0)
    }

    /// Returns the LSN that a query returns as text; `None` for NULL or without a row.
    #[track_caller]
    pub fn lsn(&self, sql: &str) -> Option<Lsn> {
        let text = self.text(sql)?;
        Some(text.parse().expect("the server writes LSNs well"))
    }

    /// Returns the end of the WAL that is written so far, flushed or not.
    #[track_caller]
    pub fn insert_lsn(&self) -> Lsn {
        let lsn = self.lsn("SELECT pg_current_wal_insert_lsn()::text");
        lsn.expect("a primary has WAL")
    }

    /// Returns the end of the flushed WAL.
    #[track_caller]
    pub fn flush_lsn(&self) -> Lsn {
        let lsn = self.lsn("SELECT pg_current_wal_flush_lsn()::text");
        lsn.expect("a primary has WAL")
    }

    /// Returns the asynchronous client.
    pub fn client(&self) -> &Client {
        &self.client
    }
}
