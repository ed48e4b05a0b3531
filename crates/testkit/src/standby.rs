use std::time::Duration;

use walrelay_lab::servers::Postgres;
use walrelay_lsn::Lsn;

use crate::{ChaosProxy, Db, wait::eventually};

/// For a standby to do what it is told, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A hot standby of a [`Postgres`], which can be promoted.
///
/// Dropping it stops it and removes its directory.
#[derive(Debug)]
pub struct Standby {
    server: Postgres,
    link: ChaosProxy,
}

impl Standby {
    /// The physical slot it streams from, and its name for `synchronous_standby_names` and
    /// `synchronized_standby_slots`.
    pub const NAME: &str = "standby";

    /// Makes a standby of this server, with more settings than the server's own, and waits until it
    /// streams. **The server is restarted on the way.**
    #[track_caller]
    pub fn of(primary: &Postgres, settings: &[(&str, &str)]) -> Self {
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

    /// The server.
    pub fn server(&self) -> &Postgres {
        &self.server
    }

    /// The network between the two.
    pub fn link(&self) -> &ChaosProxy {
        &self.link
    }

    /// The server alone, for whom the link to a primary is of no more concern.
    pub fn into_server(self) -> Postgres {
        self.server
    }

    /// Waits until it has applied the log up to here.
    #[track_caller]
    pub fn wait_replayed(&self, lsn: Lsn) {
        let db = Db::connect(&self.server.url());
        let sql = "SELECT pg_last_wal_replay_lsn()::text";
        let replayed = || db.text(sql).map(|text| text.parse::<Lsn>());
        eventually(LIMIT, || {
            replayed().is_some_and(|at| at.expect("the server writes LSNs well") >= lsn)
        });
    }

    /// Waits until the standby has a copy of this logical slot that survives a promotion (Postgres 17
    /// and newer): synchronised, valid, and temporary no more.
    #[track_caller]
    pub fn wait_slot_synced(&self, slot: &str) {
        let db = Db::connect(&self.server.url());
        let sql = "SELECT FROM pg_replication_slots WHERE slot_name = $1 \
            AND synced AND NOT temporary AND invalidation_reason IS NULL";
        eventually(LIMIT, || db.query(sql, &[&slot]).len() == 1);
    }

    /// Makes it a primary, on a new timeline, waits until it is one, and says where its log and that of
    /// the former primary part. That must be gone for good, or there are two.
    #[track_caller]
    pub fn promote(&self) -> Lsn {
        let db = Db::connect(&self.server.url());
        let done: bool = db.query("SELECT pg_promote(true, 60)", &[])[0].get(0);
        assert!(done, "not promoted: {}", self.server.log_tail());
        // A line for each timeline before: its number, where it was left, why.
        let history = db.text(
            "SELECT pg_read_file('pg_wal/' || \
             substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '.history')",
        );
        let history = history.expect("a promoted server has a history");
        let last = history.lines().rfind(|line| !line.trim().is_empty());
        let left = last.and_then(|line| line.split_whitespace().nth(1));
        left.and_then(|lsn| lsn.parse().ok())
            .expect("the history says where the timelines part")
    }

    /// A URL for the superuser and this database that names both servers and asks for the one that
    /// takes writes.
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
