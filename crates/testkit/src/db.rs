use std::{sync::mpsc, time::Duration};

use futures_executor::block_on;
use tokio_postgres::{Client, Error, NoTls, Row, types::ToSql};

use crate::threads::{run, spawn};

/// A connection to Postgres for tests, blocking, and usable inside an async runtime too: a thread of
/// its own drives it.
#[derive(Debug)]
pub struct Db {
    client: Client,
}

impl Db {
    /// Connects.
    #[track_caller]
    pub fn connect(url: &str) -> Self {
        match Self::try_connect(url) {
            Ok(db) => db,
            Err(error) => panic!("cannot connect to the test's Postgres: {error:?}"),
        }
    }

    /// Connects, if it can within ten seconds.
    ///
    /// # Errors
    /// What tokio-postgres says.
    pub fn try_connect(url: &str) -> Result<Self, Error> {
        let mut config: tokio_postgres::Config = url.parse()?;
        config.connect_timeout(Duration::from_secs(10));
        let (made, client) = mpsc::sync_channel(1);
        spawn("db", move || {
            run(async {
                match config.connect(NoTls).await {
                    Ok((client, connection)) => {
                        let _ = made.send(Ok(client));
                        let _ = connection.await; // its end is seen by whoever uses the client
                    }
                    Err(error) => drop(made.send(Err(error))),
                }
            });
        });
        let client = client.recv().expect("the thread says how connecting went");
        Ok(Self { client: client? })
    }

    /// Runs statements separated by semicolons.
    #[track_caller]
    pub fn batch(&self, sql: &str) {
        if let Err(error) = self.try_batch(sql) {
            panic!("{sql}: {error:?}");
        }
    }

    /// Runs statements separated by semicolons.
    ///
    /// # Errors
    /// What the server says.
    pub fn try_batch(&self, sql: &str) -> Result<(), Error> {
        block_on(self.client.batch_execute(sql))
    }

    /// Runs a statement and gives its rows.
    #[track_caller]
    pub fn query(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        match self.try_query(sql, parameters) {
            Ok(rows) => rows,
            Err(error) => panic!("{sql}: {error:?}"),
        }
    }

    /// Runs a statement and gives its rows.
    ///
    /// # Errors
    /// What the server says.
    pub fn try_query(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        block_on(self.client.query(sql, parameters))
    }

    /// The first column of the only row, as text in the server's words; `None` for NULL or no row.
    #[track_caller]
    pub fn text(&self, sql: &str) -> Option<String> {
        self.query(sql, &[]).first().and_then(|row| row.get(0))
    }

    /// The client below.
    pub fn client(&self) -> &Client {
        &self.client
    }
}
