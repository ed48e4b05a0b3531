//! Reads the state of the slot from the server, on a connection of its own: the page and the alerts
//! need it most while the pipeline has no connection.

use std::time::Duration;

use tokio::time::{interval, timeout};
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Session, SessionKind};

use super::millis_now;
use super::observed::Telemetry;
use super::report::SlotReport;
use walrelay_postgres_source::{SlotStanding, slot_standing};

/// Interval of the queries, and the timeout of one.
const INTERVAL: Duration = Duration::from_secs(5);

/// Reports the state of one slot to the telemetry.
#[derive(Debug)]
pub struct SlotMonitor {
    info: ConnInfo,
    slot: String,
}

impl SlotMonitor {
    /// Creates a monitor that connects when it is asked.
    pub fn new(info: ConnInfo, slot: String) -> Self {
        Self { info, slot }
    }

    /// Queries the slot at each interval. Never returns.
    pub async fn watch(self, telemetry: &Telemetry) {
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

/// Returns the report of a slot; `None` if the slot does not exist.
pub fn slot_report(standing: SlotStanding) -> Option<SlotReport> {
    let slot = standing.slot?;
    let lost = slot.lost();
    let retention = standing.retention;
    Some(SlotReport {
        active: slot.active_pid.is_some(),
        active_pid: slot.active_pid,
        wal_status: retention.wal_status,
        retained_bytes: retention.retained,
        safe_wal_bytes: retention.safe,
        limit_bytes: retention.limit,
        inactive_seconds: standing.inactive_seconds,
        invalidation_reason: lost,
        seen_ms: millis_now(),
    })
}
