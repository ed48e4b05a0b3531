//! Asks the server about the slot, beside the pipeline: what a page and an alert need most while it has no connection.

use std::time::Duration;

use tokio::time::{interval, timeout};
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Session, SessionKind};

use super::millis_now;
use super::observed::Telemetry;
use super::report::SlotReport;
use crate::postgres::{Retention, SlotStanding, slot_standing};

/// How often it asks, and how long an answer may take.
const INTERVAL: Duration = Duration::from_secs(5);

/// Watches one slot, over a connection of its own.
#[derive(Debug)]
pub(crate) struct SlotMonitor {
    info: ConnInfo,
    slot: String,
}

impl SlotMonitor {
    pub(crate) fn new(info: ConnInfo, slot: String) -> Self {
        Self { info, slot }
    }

    /// Never ends.
    pub(crate) async fn watch(self, telemetry: &Telemetry) {
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
            }
            telemetry.slot(answer.map(|standing| {
                let end = standing.server_end;
                (slot_report(standing), end)
            }));
        }
    }

    async fn ask(
        &self,
        session: &mut Option<Session>,
    ) -> Result<SlotStanding, walrelay_walsender::Error> {
        let session = match session {
            Some(session) => session,
            none => none.insert(Session::connect(&self.info, SessionKind::Sql, &[]).await?),
        };
        slot_standing(session, &self.slot).await
    }
}

/// What is shown of a slot; `None` if there is none.
pub(crate) fn slot_report(standing: SlotStanding) -> Option<SlotReport> {
    let SlotStanding {
        slot,
        retention,
        inactive_seconds,
        ..
    } = standing;
    let slot = slot?;
    let Retention {
        retained,
        safe,
        limit,
        wal_status,
        ..
    } = retention;
    Some(SlotReport {
        active: slot.active_pid.is_some(),
        active_pid: slot.active_pid,
        wal_status,
        retained_bytes: retained,
        safe_wal_bytes: safe,
        limit_bytes: limit,
        inactive_seconds,
        invalidation_reason: slot.invalidated,
        seen_ms: millis_now(),
    })
}
