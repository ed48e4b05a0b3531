use std::time::{Duration, Instant};

use walrelay_lsn::Lsn;
use walrelay_throwaway::Pauses;

use crate::{
    Db,
    wait::{eventually, eventually_some},
};

/// State of a slot as the server reports it.
/// <https://www.postgresql.org/docs/current/view-pg-replication-slots.html>
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    /// The slot's `confirmed_flush_lsn`.
    pub confirmed_flush: Lsn,
    /// The slot's `restart_lsn`: the server keeps WAL from there.
    pub restart: Lsn,
    /// Process id of the walsender that streams from the slot.
    pub active_pid: Option<i32>,
}

/// Reads the state of a slot.
#[derive(Debug)]
pub struct SlotWatch {
    db: Db,
    slot: String,
}

impl SlotWatch {
    /// Opens a connection of its own.
    #[track_caller]
    pub fn new(url: &str, slot: &str) -> Self {
        Self {
            db: Db::connect(url),
            slot: slot.to_owned(),
        }
    }

    /// Returns the state of the slot; `None` if the slot does not exist or has no positions (any
    /// more).
    #[track_caller]
    pub fn read(&self) -> Option<SlotState> {
        let rows = self.db.query(
            "SELECT confirmed_flush_lsn::text, restart_lsn::text, active_pid \
             FROM pg_replication_slots WHERE slot_name = $1",
            &[&self.slot],
        );
        let row = rows.first()?;
        let lsn = |column: usize| -> Option<Lsn> {
            let text: Option<String> = row.get(column);
            Some(text?.parse().expect("the server writes LSNs well"))
        };
        Some(SlotState {
            confirmed_flush: lsn(0)?,
            restart: lsn(1)?,
            active_pid: row.get(2),
        })
    }

    /// Returns the slot's `confirmed_flush_lsn`; panics if the slot does not exist.
    #[track_caller]
    pub fn confirmed(&self) -> Lsn {
        self.read().expect("the slot").confirmed_flush
    }

    /// Returns the process id of the walsender that streams from the slot.
    #[track_caller]
    pub fn reader(&self) -> Option<i32> {
        self.read()?.active_pid
    }

    /// Returns the end of the flushed WAL at this moment.
    #[track_caller]
    pub fn wal_end(&self) -> Lsn {
        self.db.flush_lsn()
    }

    /// Waits until the slot is confirmed up to `lsn` or beyond; returns how long that took. Panics
    /// when the slot has not advanced for `limit`.
    #[track_caller]
    pub fn wait_until(&self, lsn: Lsn, limit: Duration) -> Duration {
        let begun = Instant::now();
        let (mut seen, mut moved_at) = (None, begun);
        let mut pauses = Pauses::new();
        loop {
            let state = self.read();
            let confirmed = state.as_ref().map(|state| state.confirmed_flush);
            if confirmed >= Some(lsn) {
                return begun.elapsed();
            }
            if confirmed != seen {
                (seen, moved_at) = (confirmed, Instant::now());
            }
            assert!(
                moved_at.elapsed() < limit,
                "slot {:?} was not confirmed up to {lsn}, and has not moved for {limit:?}: {state:?}",
                self.slot
            );
            pauses.pause();
        }
    }

    /// Waits until two status updates in a row, which its reader sends, have left the slot's
    /// `confirmed_flush_lsn` as it was; returns that position. For a time in which nothing more is
    /// acknowledged, to wait for what was confirmed before. Panics if the slot still moves after
    /// `limit`, or no update comes for so long.
    #[track_caller]
    pub fn wait_settled(&self, limit: Duration) -> Lsn {
        let sql = "SELECT extract(epoch FROM reply_time)::text FROM pg_stat_replication \
                   JOIN pg_replication_slots ON active_pid = pid WHERE slot_name = $1";
        // NULL before the first update.
        let update = || -> Option<String> {
            let rows = self.db.query(sql, &[&self.slot]);
            rows.first().and_then(|row| row.get(0))
        };
        let begun = Instant::now();
        loop {
            let confirmed = self.confirmed();
            assert!(
                begun.elapsed() < limit,
                "slot {:?} is still moved on, to {confirmed}",
                self.slot
            );
            for _ in 0..2 {
                let last = update();
                eventually(limit, || update().is_some_and(|new| Some(new) != last));
            }
            if self.confirmed() == confirmed {
                return confirmed;
            }
        }
    }

    /// Waits until a walsender streams from the slot; returns its process id.
    #[track_caller]
    pub fn wait_active(&self, limit: Duration) -> i32 {
        eventually_some(limit, || self.reader())
    }

    /// Waits until another walsender than `former` streams from the slot.
    #[track_caller]
    pub fn wait_other_reader(&self, former: i32, limit: Duration) {
        eventually(limit, || self.reader().is_some_and(|pid| pid != former));
    }

    /// Waits until no walsender uses the slot. A walsender whose relay is gone notices that only
    /// when it sends.
    #[track_caller]
    pub fn wait_inactive(&self, limit: Duration) {
        eventually(limit, || {
            self.read().is_some_and(|state| state.active_pid.is_none())
        });
    }
}
