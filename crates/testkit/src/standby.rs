use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_throwaway::Postgres;

use crate::{ChaosProxy, Db, wait::eventually};

/// Limit of every wait for a standby, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A hot standby of a [`Postgres`] server, which can be promoted.
///
/// Dropping it stops it and removes its directory.
#[derive(Debug)]
pub struct Standby {
    /// The standby's server.
    pub server: Postgres,
    /// The network between primary and standby.
    pub link: ChaosProxy,
}

impl Standby {
    /// The physical slot that the standby streams from, and its name for
    /// `synchronous_standby_names` and `synchronized_standby_slots`.
    pub const NAME: &str = "standby";

    /// Creates a standby of this server, with these settings beyond the server's own, and waits
    /// until it streams. **The server is restarted meanwhile.**
    #[track_caller]
    pub fn start(primary: &Postgres, settings: &[(&str, &str)]) -> Self {
        Db::connect(&primary.url()).query(
            "SELECT pg_create_physical_replication_slot($1, true)",
            &[&Self::NAME],
        );
        let link = ChaosProxy::start(("127.0.0.1", primary.port()));
        let server = match primary.standby(Self::NAME, link.port(), settings) {
            Ok(server) => server,
            Err(error) => panic!("the standby does not start: {error}"),
        };
        let db = Db::connect(&primary.url());
        let sql = "SELECT FROM pg_stat_replication \
            WHERE application_name = $1 AND state = 'streaming'";
        eventually(LIMIT, || db.query(sql, &[&Self::NAME]).len() == 1);
        Self { server, link }
    }

    /// Waits until the standby has replayed the WAL up to `lsn`.
    #[track_caller]
    pub fn wait_replayed(&self, lsn: Lsn) {
        let db = Db::connect(&self.server.url());
        let sql = "SELECT pg_last_wal_replay_lsn()::text";
        eventually(LIMIT, || db.lsn(sql) >= Some(lsn));
    }

    /// Waits until the standby has a copy of this logical slot that survives a promotion (Postgres
    /// 17 and newer): synchronised, valid, and no longer temporary.
    #[track_caller]
    pub fn wait_slot_synced(&self, slot: &str) {
        let db = Db::connect(&self.server.url());
        let sql = "SELECT FROM pg_replication_slots WHERE slot_name = $1 \
            AND synced AND NOT temporary AND invalidation_reason IS NULL";
        eventually(LIMIT, || db.query(sql, &[&slot]).len() == 1);
    }

    /// Promotes the standby on a new timeline and waits until it is a primary. Returns the position
    /// at which its WAL departs from that of the former primary, which must be gone for good, or
    /// there are two primaries.
    #[track_caller]
    pub fn promote(&self) -> Lsn {
        let db = Db::connect(&self.server.url());
        let done: bool = db.value("SELECT pg_promote(true, 60)");
        assert!(done, "not promoted: {}", self.server.log_tail());
        // The history file has a line for each former timeline: its number, where it was left, why.
        let history: String = db.value(
            "SELECT pg_read_file('pg_wal/' || \
             substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '.history')",
        );
        let last = history.lines().rfind(|line| !line.trim().is_empty());
        let left = last.and_then(|line| line.split_whitespace().nth(1));
        left.and_then(|lsn| lsn.parse().ok())
            .expect("the history says where the timelines part")
    }

    /// Returns the URL of the superuser and this database that names both servers and asks for the
    /// writable one.
    #[track_caller]
    pub fn url_of_both(&self, primary: &Postgres, database: &str) -> String {
        format!(
            "postgresql://postgres:{}@127.0.0.1:{},127.0.0.1:{}/{database}?target_session_attrs=read-write",
            self.server.superuser_password(),
            primary.port(),
            self.server.port(),
        )
    }
}
