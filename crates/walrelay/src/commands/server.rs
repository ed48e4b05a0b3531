//! The server that a configuration names, for commands that look at its slots.

use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_walsender::{ConnInfo, Session, SessionKind, SystemIdentity};

use super::connect::conn_info;
use super::{Env, load};
use crate::cli::{ConfigArgs, Failure};
use crate::config::Config;
use crate::failures;
use crate::postgres::{Original, PostgresError, SlotRow, first_commit, slots};

/// The server of the configuration.
pub(super) struct Server {
    pub(super) config: Config,
    pub(super) info: ConnInfo,
}

impl Server {
    pub(super) fn of(args: &ConfigArgs, env: Env<'_>) -> Result<Self, Vec<Failure>> {
        let config = load(args, env)?;
        let info = conn_info(&config.source, env)?;
        Ok(Self { config, info })
    }

    /// The configured slot.
    pub(super) fn slot(&self) -> &str {
        &self.config.source.slot
    }

    pub(super) async fn connect(&self) -> Result<Session, Failure> {
        let connected = Session::connect(&self.info, SessionKind::Sql, &[]).await;
        connected.map_err(failure)
    }

    /// The configured slot, if there is one.
    pub(super) async fn find_slot(
        &self,
        session: &mut Session,
    ) -> Result<Option<SlotRow>, walrelay_walsender::Error> {
        let all = slots(session).await?;
        Ok(all.into_iter().find(|slot| slot.name == self.slot()))
    }

    /// Which server it is, and where its log ends.
    pub(super) async fn system(&self) -> Result<SystemIdentity, Failure> {
        let session = Session::connect(&self.info, SessionKind::Replication, &[]).await;
        let mut session = session.map_err(failure)?;
        let system = session.identify_system().await.map_err(failure)?;
        session.close().await;
        Ok(system)
    }

    /// When the first transaction behind the position of a slot was committed, if there is one before `end`.
    pub(super) async fn first_commit(
        &self,
        slot: &str,
        end: Lsn,
    ) -> Result<Option<PgTimestamp>, Failure> {
        let original = Original {
            info: self.info.clone(),
            slot: slot.to_owned(),
            publication: self.config.source.publication.clone(),
            tables: Vec::new(),
            messages: self.config.source.messages.is_some(),
            // The server decodes without a word from us.
            wal_sender_timeout: Duration::from_secs(3600),
        };
        let name = format!("walrelay_look_{:08x}", fastrand::u32(..));
        first_commit(original, &name, end).await.map_err(failure)
    }
}

pub(super) fn failure(error: impl Into<PostgresError>) -> Failure {
    failures::postgres(error.into())
}
