//! Chosen rows of this moment, without a slot.

use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Looked, Opened, Resume, Source};

use super::inspections::OwnLooks;
use crate::postgres::error::PostgresError;
use crate::postgres::snapshot::{Anchor, Plan, RowStream};

/// The rows of one moment; after a lost connection those of a later one, unless the first is kept still.
#[derive(Debug)]
pub(crate) struct ResendSource {
    plan: Plan,
    anchor: Option<Anchor>,
    looks: OwnLooks,
}

impl ResendSource {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            anchor: None,
            looks: OwnLooks::default(),
        }
    }

    async fn anchor(&mut self) -> Result<&Anchor, PostgresError> {
        if self.anchor.is_none() {
            self.anchor = Some(Anchor::of_now(self.plan.clone()).await?);
        }
        self.anchor.as_ref().ok_or(PostgresError::SnapshotLost)
    }

    /// How many rows these are.
    pub(crate) async fn count(&mut self) -> Result<u64, PostgresError> {
        self.anchor().await?.count().await
    }
}

impl Source for ResendSource {
    type Stream = RowStream;
    type Error = PostgresError;

    async fn open(&mut self, _: Option<&Resume>) -> Result<Opened<RowStream>, PostgresError> {
        let anchor = self.anchor().await?;
        let point = anchor.point();
        let opened = match anchor.read().await {
            Ok(opened) => opened,
            Err(error) => {
                self.anchor = None;
                return Err(error);
            }
        };
        Ok(Opened {
            stream: opened.stream.without_successor(),
            // Nothing of the log is read or confirmed.
            system_id: String::new(),
            timeline: 0,
            server_start: String::new(),
            ancestors: Vec::new(),
            flushed: point,
            confirmed: CommitEnd::from_slot(Lsn::ZERO),
            server_timeout: None,
            tables: opened.tables,
            predecessor: None,
        })
    }

    fn look(&mut self) {
        self.looks.ask();
    }

    async fn looked(&mut self, _: bool) -> Result<Looked, PostgresError> {
        Ok(self.looks.answer().await)
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, PostgresError> {
        let acknowledged = self.plan.progress.is_acknowledged();
        let point = self.anchor.as_ref().map_or(Lsn::ZERO, Anchor::point);
        Ok(if acknowledged { point } else { Lsn::ZERO })
    }
}
