use std::time::{Duration, Instant};

use walrelay_lsn::Lsn;

use crate::{
    Db,
    wait::{eventually, eventually_some},
};

/// What the server says of a slot. <https://www.postgresql.org/docs/current/view-pg-replication-slots.html>
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    /// Up to where the relay has confirmed.
    pub confirmed_flush: Lsn,
    /// From where the server keeps WAL for the slot.
    pub restart: Lsn,
    /// The walsender that streams from it.
    pub active_pid: Option<i32>,
}

/// Reads a slot's positions as the server reports them.
#[derive(Debug)]
pub struct SlotWatch {
    db: Db,
    slot: String,
}

impl SlotWatch {
    /// Over a connection of its own.
    #[track_caller]
    pub fn new(url: &str, slot: &str) -> Self {
        Self {
            db: Db::connect(url),
            slot: slot.to_owned(),
        }
    }

    /// The slot's state; `None` if there is no such slot or it has no positions (any more).
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

    /// The end of the WAL that is flushed at this moment.
    #[track_caller]
    pub fn wal_end(&self) -> Lsn {
        let text = self.db.text("SELECT pg_current_wal_flush_lsn()::text");
        text.expect("a primary has WAL")
            .parse()
            .expect("the server writes LSNs well")
    }

    /// Waits until the slot is confirmed up to `lsn` or beyond, and says how long that took.
    #[track_caller]
    pub fn wait_until(&self, lsn: Lsn, limit: Duration) -> Duration {
        let begun = Instant::now();
        loop {
            let state = self.read();
            if state.as_ref().map(|state| state.confirmed_flush) >= Some(lsn) {
                return begun.elapsed();
            }
            assert!(
                begun.elapsed() < limit,
                "slot {:?} was not confirmed up to {lsn} within {limit:?}: {state:?}",
                self.slot
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a walsender streams from the slot, and gives its process id.
    #[track_caller]
    pub fn wait_active(&self, limit: Duration) -> i32 {
        eventually_some(limit, || self.read().and_then(|state| state.active_pid))
    }

    /// Waits until no walsender has the slot: one whose relay is gone finds out when it sends.
    #[track_caller]
    pub fn wait_inactive(&self, limit: Duration) {
        eventually(limit, || {
            self.read().is_some_and(|state| state.active_pid.is_none())
        });
    }
}
