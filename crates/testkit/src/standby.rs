use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_throwaway::{Postgres, Shutdown};

use crate::{Db, wait::eventually};

/// For a standby to do what it is told, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A hot standby of a [`Postgres`], which can be promoted.
///
/// Dropping it stops it and removes its directory.
#[derive(Debug)]
pub struct Standby {
    server: Postgres,
}

impl Standby {
    /// The physical slot it streams from, and its name for `synchronous_standby_names` and
    /// `synchronized_standby_slots`.
    pub const NAME: &str = "standby";

    /// Makes a standby of this server, with more settings than the server's own, and waits until it
    /// streams. **The server is restarted on the way.**
    ///
    /// # Panics
    /// If either does not start.
    #[track_caller]
    pub fn of(primary: &Postgres, settings: &[(&str, &str)]) -> Self {
        Db::connect(&primary.url()).query(
            "SELECT pg_create_physical_replication_slot($1, true)",
            &[&Self::NAME],
        );
        primary.stop(Shutdown::Fast).expect("the primary stops");
        let server = match primary.standby(Self::NAME, settings) {
            Ok(server) => server,
            Err(error) => panic!("the standby does not start: {error}"),
        };
        primary.start_again().expect("the primary starts again");
        let standby = Self { server };
        standby.wait_streaming(primary);
        standby
    }

    /// The server.
    pub fn server(&self) -> &Postgres {
        &self.server
    }

    /// Waits until it streams from this primary.
    ///
    /// # Panics
    /// If it does not within two minutes.
    #[track_caller]
    pub fn wait_streaming(&self, primary: &Postgres) {
        let db = Db::connect(&primary.url());
        eventually(LIMIT, || {
            db.query(
                "SELECT FROM pg_stat_replication WHERE application_name = $1 AND state = 'streaming'",
                &[&Self::NAME],
            )
            .len()
                == 1
        });
    }

    /// Waits until it has applied the log up to here.
    ///
    /// # Panics
    /// If it has not within two minutes.
    #[track_caller]
    pub fn wait_replayed(&self, lsn: Lsn) {
        let db = Db::connect(&self.server.url());
        eventually(LIMIT, || {
            let replayed = db.text("SELECT pg_last_wal_replay_lsn()::text");
            replayed.is_some_and(|text| {
                text.parse::<Lsn>().expect("the server writes LSNs well") >= lsn
            })
        });
    }

    /// Waits until the standby has a copy of this logical slot that survives a promotion (Postgres 17
    /// and newer): synchronised, valid, and temporary no more.
    ///
    /// # Panics
    /// If it has not within two minutes.
    #[track_caller]
    pub fn wait_slot_synced(&self, slot: &str) {
        let db = Db::connect(&self.server.url());
        eventually(LIMIT, || {
            db.query(
                "SELECT FROM pg_replication_slots WHERE slot_name = $1 \
                 AND synced AND NOT temporary AND invalidation_reason IS NULL",
                &[&slot],
            )
            .len()
                == 1
        });
    }

    /// Makes it a primary, on a new timeline, and waits until it is one. The former primary must be
    /// gone for good, or there are two.
    ///
    /// # Panics
    /// If it is no primary within a minute.
    #[track_caller]
    pub fn promote(&self) {
        let db = Db::connect(&self.server.url());
        let done: bool = db.query("SELECT pg_promote(true, 60)", &[])[0].get(0);
        assert!(done, "not promoted: {}", self.server.log_tail());
    }

    /// A URL for the superuser that names both servers and asks for the one that takes writes.
    ///
    /// # Panics
    /// If either does not listen at TCP.
    #[track_caller]
    pub fn url_of_both(&self, primary: &Postgres) -> String {
        format!(
            "postgresql://postgres:{}@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
            self.server.superuser_password(),
            primary.port(),
            self.server.port(),
        )
    }
}
