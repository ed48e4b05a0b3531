//! [`ResendSource`]: selected rows of the current moment, without a slot.

use std::time::Duration;

use walrelay_lsn::{CommitEnd, Lsn, RelationId};
use walrelay_relay::{Opened, Resume, SlotCheck, Source};

use super::inspections::OwnSlotChecks;
use crate::error::PostgresError;
use crate::snapshot::{Anchor, Plan, RowStream};

/// The rows of one snapshot. After a lost connection the snapshot is read again if the server still
/// keeps it; otherwise a new snapshot is exported.
#[derive(Debug)]
pub struct ResendSource {
    plan: Plan,
    anchor: Option<Anchor>,
    slot_checks: OwnSlotChecks,
}

impl ResendSource {
    /// Creates a source of the rows that `plan` selects.
    pub fn new(plan: Plan) -> Self {
        Self {
            plan,
            anchor: None,
            slot_checks: OwnSlotChecks::default(),
        }
    }

    async fn anchor(&mut self) -> Result<&Anchor, PostgresError> {
        if self.anchor.is_none() {
            self.anchor = Some(Anchor::without_slot(self.plan.clone()).await?);
        }
        self.anchor.as_ref().ok_or(PostgresError::SnapshotLost)
    }

    /// Counts the rows of the snapshot. `limit`: the longest time of one statement; `None`: any.
    pub async fn count(&mut self, limit: Option<Duration>) -> Result<u64, PostgresError> {
        self.anchor().await?.count(limit).await
    }
}

impl Source for ResendSource {
    type Stream = RowStream;
    type Error = PostgresError;

    async fn open(&mut self, _: Option<&Resume>) -> Result<Opened<RowStream>, PostgresError> {
        let anchor = self.anchor().await?;
        let (point, epoch) = (anchor.point, anchor.epoch);
        let opened = anchor.open_rows().await;
        let (stream, tables) = opened.inspect_err(|_| self.anchor = None)?;
        Ok(Opened {
            former: None,
            stream: stream.without_successor(),
            // No WAL is read or confirmed.
            system_id: String::new(),
            timeline: 0,
            slot: None,
            server_start: String::new(),
            ancestors: Vec::new(),
            flushed: point,
            confirmed: CommitEnd::from_slot(Lsn::ZERO),
            server_timeout: None,
            tables,
            predecessor: None,
            epoch,
        })
    }

    fn check_slot(&mut self, _: Option<RelationId>) {
        self.slot_checks.request();
    }

    async fn slot_checked(&mut self, _: bool) -> Result<SlotCheck, PostgresError> {
        Ok(self.slot_checks.answer().await)
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, PostgresError> {
        let acknowledged = self.plan.progress.is_acknowledged();
        let point = self
            .anchor
            .as_ref()
            .map_or(Lsn::ZERO, |anchor| anchor.point);
        Ok(if acknowledged { point } else { Lsn::ZERO })
    }
}
