//! The Postgres server that a configuration names, for commands that work on its slots or rows.

use std::time::Duration;

use walrelay_failure::Failure;
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_postgres_source::{Original, PostgresError, SlotRow, first_commit, slots};
use walrelay_walsender::{ConnInfo, Session, SessionKind, SystemIdentity};

use crate::cli::ConfigArgs;
use crate::commands::assembly::{conn_info, sql_session};
use crate::commands::{EnvVars, load};
use crate::config::{Config, PipelineConfig, ProcessConfig};

/// A configuration and the server of its `[source] url`.
pub(crate) struct Server {
    pub(crate) config: PipelineConfig,
    pub(crate) process: ProcessConfig,
    pub(crate) info: ConnInfo,
}

impl Server {
    pub(crate) fn load(args: &ConfigArgs, env: EnvVars<'_>) -> Result<Self, Vec<Failure>> {
        let Config { pipeline, process } = load(args, env)?;
        let info = conn_info(&pipeline.source, env)?;
        Ok(Self {
            config: pipeline,
            process,
            info,
        })
    }

    /// Returns the name of the configured slot.
    pub(crate) fn slot(&self) -> &str {
        &self.config.source.slot
    }

    /// Returns the kind of the configured sink as texts name it.
    pub(crate) fn sink_title(&self) -> &'static str {
        self.config.sink.description().title
    }

    pub(crate) async fn connect(&self) -> Result<Session, Failure> {
        sql_session(&self.info).await
    }

    /// Queries the configured slot; `None` if it does not exist.
    pub(crate) async fn find_slot(
        &self,
        session: &mut Session,
    ) -> Result<Option<SlotRow>, walrelay_walsender::Error> {
        let all = slots(session).await?;
        Ok(all.into_iter().find(|slot| slot.name == self.slot()))
    }

    /// Queries the identity of the server and the end of its WAL (`IDENTIFY_SYSTEM`).
    pub(crate) async fn identify(&self) -> Result<SystemIdentity, Failure> {
        let session = Session::connect(&self.info, SessionKind::Replication, &[]).await;
        let mut session = session.map_err(failure)?;
        let system = session.identify_system().await.map_err(failure)?;
        session.close().await;
        Ok(system)
    }

    /// Reads the commit time of the first transaction after a slot's position; `None` if there is
    /// none before `end`.
    pub(crate) async fn first_commit(
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
            // The server may decode for long, and no status update is sent meanwhile.
            wal_sender_timeout: Duration::from_secs(3600),
        };
        let name = format!("walrelay_look_{:08x}", fastrand::u32(..));
        first_commit(original, &name, end).await.map_err(failure)
    }
}

pub(crate) fn failure(error: impl Into<PostgresError>) -> Failure {
    Failure::from(error.into())
}
