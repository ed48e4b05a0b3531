//! Reads the state of the slot, and locks of the outbox tables, from the server, on a connection of its
//! own: the page and the alerts need it most while the pipeline has no connection.

use std::time::Duration;

use tokio::time::{interval, timeout};
use tracing::warn;
use walrelay_observe::{ReplayReport, STANDBY_REMEDY, TableLockReport, Telemetry, wall_clock};
use walrelay_postgres_source::moves::{UnfinishedMove, find_unfinished_move};
use walrelay_postgres_source::{SlotStanding, TableLock, server_clock, slot_standing, table_locks};
use walrelay_relay::{Chain, TableName};
use walrelay_sink::clock_offset;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use crate::workers::source_facts::{move_report, slot_report};

/// Interval of the queries, and the timeout of one.
const INTERVAL: Duration = Duration::from_secs(5);

/// Reports the state of one slot to the telemetry.
#[derive(Debug)]
pub(crate) struct SlotMonitor {
    info: ConnInfo,
    slot: String,
    tables: Vec<TableName>,
    /// The locks of the tables at the last look.
    locks: Vec<TableLock>,
    /// The slots of standbys that the server waited for at the last look.
    standbys: Option<String>,
    has_logged_wait: bool,
}

/// The answer to one look.
struct Look {
    standing: SlotStanding,
    /// How far the server's clock is ahead of this machine's, at least.
    clock_offset: Option<f64>,
    locks: Vec<TableLock>,
    moved: Option<UnfinishedMove>,
}

impl SlotMonitor {
    /// Creates a monitor that connects when it is asked.
    pub(crate) fn new(info: ConnInfo, slot: String, tables: Vec<TableName>) -> Self {
        Self {
            info,
            slot,
            tables,
            locks: Vec::new(),
            standbys: None,
            has_logged_wait: false,
        }
    }

    /// Queries the slot at each interval. Never returns.
    pub(crate) async fn watch(mut self, telemetry: &Telemetry) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut session = None;
        loop {
            ticks.tick().await;
            let answer = match timeout(INTERVAL, self.ask(&mut session)).await {
                Ok(answer) => answer.map_err(|error| Chain(&error).to_string()),
                Err(_) => Err(format!("no answer within {} s", INTERVAL.as_secs())),
            };
            if answer.is_err() {
                session = None;
                // Who holds a lock now is not known.
                self.locks.clear();
                telemetry.table_lock(None);
                telemetry.replays(Vec::new());
            }
            telemetry.slot(answer.map(|look| {
                telemetry.clock(look.clock_offset);
                telemetry.moved(look.moved.as_ref().map(move_report));
                telemetry.table_lock(lock_report(&lasting(&look.locks, &self.locks)));
                self.locks = look.locks;
                let mut standing = look.standing;
                standing.waits_for_standbys = self.lasting_wait(standing.waits_for_standbys);
                let replays = std::mem::take(&mut standing.replays).into_iter();
                let replays = replays.map(|replay| ReplayReport {
                    pid: replay.pid,
                    copy: replay.copy,
                    position: replay.position,
                    behind_bytes: None,
                });
                telemetry.replays(replays.collect());
                let end = standing.server_end;
                (slot_report(standing), end)
            }));
        }
    }

    /// Returns the slots of standbys that the server waits for, if it also did at the last look: it waits
    /// for a moment with each commit. Logs each wait once.
    fn lasting_wait(&mut self, standbys: Option<String>) -> Option<String> {
        let before = std::mem::replace(&mut self.standbys, standbys);
        let lasting = self.standbys.clone().filter(|_| before.is_some());
        if let Some(slots) = &lasting
            && !std::mem::replace(&mut self.has_logged_wait, true)
        {
            warn!(
                slots,
                remedy = STANDBY_REMEDY,
                "Postgres sends nothing until a standby has the log"
            );
        }
        self.has_logged_wait &= self.standbys.is_some();
        lasting
    }

    /// Queries slot, clock, locks and the record of a move.
    async fn ask(&self, session: &mut Option<Session>) -> Result<Look, Error> {
        let session = match session {
            Some(session) => session,
            none => none.insert(Session::connect(&self.info, SessionKind::Sql, &[]).await?),
        };
        let standing = slot_standing(session, &self.slot).await?;
        let before = wall_clock().get();
        let server = server_clock(session).await?;
        let after = wall_clock().get();
        let clock_offset = server.map(|server| clock_offset(before, server.get(), after));
        let locks = table_locks(session, &self.tables).await?;
        let moved = find_unfinished_move(session, &self.slot).await?;
        Ok(Look {
            standing,
            clock_offset,
            locks,
            moved,
        })
    }
}

/// Returns the locks of processes that also locked a table at the last look. Detaching a partition, or
/// truncating the end of a table, takes a lock for a moment.
fn lasting(locks: &[TableLock], before: &[TableLock]) -> Vec<TableLock> {
    // A transaction may lock one table after another.
    let same =
        |a: &TableLock, b: &TableLock| a.pid == b.pid && (a.pid.is_some() || a.table == b.table);
    let lasting = locks
        .iter()
        .filter(|lock| before.iter().any(|known| same(lock, known)));
    lasting.cloned().collect()
}

/// Returns the report of locks; `None` if there are none.
fn lock_report(locks: &[TableLock]) -> Option<TableLockReport> {
    let join = |text: fn(&TableLock) -> String| {
        let texts: Vec<String> = locks.iter().map(text).collect();
        texts.join("; ")
    };
    Some(TableLockReport {
        remedy: TableLock::remedy(locks)?,
        text: join(TableLock::to_string),
        holder: join(TableLock::holder),
    })
}

#[cfg(test)]
mod tests {
    use walrelay_postgres_source::TableLock;

    use super::lasting;

    #[test]
    fn a_lock_counts_at_the_second_look() {
        let lock = |pid, held| TableLock {
            table: "public.outbox".to_owned(),
            pid: Some(pid),
            held,
            ..TableLock::default()
        };
        assert_eq!(lasting(&[lock(7, true)], &[]), []);
        assert_eq!(lasting(&[lock(7, true)], &[lock(8, true)]), []);
        let both = [lock(7, true), lock(9, false)];
        assert_eq!(lasting(&both, &[lock(7, false)]), [lock(7, true)]);
    }
}
