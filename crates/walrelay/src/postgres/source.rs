use std::time::Duration;

use tracing::{debug, info, warn};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Opened, Resume, Source, WalStream};
use walrelay_walsender::{
    ConnInfo, Error, ErrorClass, Frame, ReplicationStream, Session, SessionKind, SlotOptions,
    StartReplication, StatusUpdate,
};

use super::catalog::confirmed_flush;
use super::{Action, Facts, Plan, PostgresError, SetupError, Wanted, inspect, plan, script};

/// Opens the replication connection of one slot, with an ordinary control connection beside it.
#[derive(Debug)]
pub struct PostgresSource {
    info: ConnInfo,
    wanted: Wanted,
    /// `wal_sender_timeout` of the replication session, where it is to differ from the server's.
    wal_sender_timeout: Option<Duration>,
    /// For catalogs and for the slot's position; opened anew with each stream.
    control: Option<Session>,
}

impl PostgresSource {
    /// A source that has not connected yet.
    pub fn new(info: ConnInfo, wanted: Wanted, wal_sender_timeout: Option<Duration>) -> Self {
        Self {
            info,
            wanted,
            wal_sender_timeout,
            control: None,
        }
    }

    async fn create(
        &self,
        control: &mut Session,
        replication: &mut Session,
        action: Action,
    ) -> Result<(), Error> {
        let Wanted {
            slot,
            publication,
            tables,
            ..
        } = &self.wanted;
        match action {
            Action::CreatePublication => {
                control
                    .query(&script::create_publication(publication, tables))
                    .await?;
                info!(
                    publication,
                    "created the publication: inserts of the outbox tables only"
                );
            }
            Action::CreateSlot => {
                let options = SlotOptions {
                    failover: false,
                    temporary: false,
                };
                let created = replication.create_logical_slot(slot, options).await?;
                info!(
                    slot,
                    consistent_point = %created.consistent_point,
                    "created the slot: rows committed from here on are relayed, earlier ones are not"
                );
            }
        }
        Ok(())
    }

    /// The server lets one process read a slot: say which one does.
    async fn busy(&self, control: &mut Session, source: Error) -> PostgresError {
        let slot = self.wanted.slot.clone();
        match inspect(control, &self.wanted).await {
            Ok(Facts {
                slot: Some(facts), ..
            }) => PostgresError::SlotBusy {
                slot,
                pid: facts.active_pid,
                source,
            },
            Ok(_) | Err(_) => PostgresError::SlotBusy {
                slot,
                pid: None,
                source,
            },
        }
    }
}

impl Source for PostgresSource {
    type Stream = Stream;
    type Error = PostgresError;

    async fn open(&mut self, resume: Option<&Resume>) -> Result<Opened<Stream>, PostgresError> {
        self.control = None;
        let mut control = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
        let facts = inspect(&mut control, &self.wanted).await?;
        let Plan { actions, notes } = plan(&self.wanted, &facts, resume.is_some())?;
        for note in notes {
            warn!("{note}");
        }

        let timeout = self
            .wal_sender_timeout
            .map(|timeout| timeout.as_millis().to_string());
        let settings: Vec<(&str, &str)> = timeout
            .iter()
            .map(|millis| ("wal_sender_timeout", millis.as_str()))
            .collect();
        let mut replication =
            Session::connect(&self.info, SessionKind::Replication, &settings).await?;
        let system = replication.identify_system().await?;
        for action in actions {
            self.create(&mut control, &mut replication, action).await?;
        }

        let command = StartReplication {
            slot: self.wanted.slot.clone(),
            // From where the slot stands. An own position ahead of it would be honoured, and what
            // lies between would be skipped for good.
            start: Lsn::ZERO,
            publications: vec![self.wanted.publication.clone()],
            messages: false,
            proto_version: 1,
        };
        let stream = match replication.start_replication(&command).await {
            Ok(stream) => stream,
            Err(error) if error.class() == ErrorClass::SlotInUse => {
                return Err(self.busy(&mut control, error).await);
            }
            Err(error) => return Err(error.into()),
        };
        // Again, now that nobody else can move it: the stream begins here.
        let confirmed = confirmed_flush(&mut control, &self.wanted.slot)
            .await?
            .ok_or_else(|| SetupError::SlotGone {
                slot: self.wanted.slot.clone(),
            })?;
        debug!(slot = self.wanted.slot, %confirmed, host = %self.info.redacted(), "started");
        self.control = Some(control);
        Ok(Opened {
            stream: Stream(stream),
            system_id: system.system_id,
            timeline: system.timeline,
            confirmed: CommitEnd::from_slot(confirmed),
            server_timeout: self.wal_sender_timeout.or(facts.server.wal_sender_timeout),
        })
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, PostgresError> {
        let control = match &mut self.control {
            Some(control) => control,
            None => self
                .control
                .insert(Session::connect(&self.info, SessionKind::Sql, &[]).await?),
        };
        match confirmed_flush(control, &self.wanted.slot).await {
            Ok(Some(confirmed)) => Ok(confirmed),
            Ok(None) => Err(SetupError::SlotGone {
                slot: self.wanted.slot.clone(),
            }
            .into()),
            Err(error) => {
                self.control = None;
                Err(error.into())
            }
        }
    }
}

/// The walsender's stream, with this module's error.
#[derive(Debug)]
pub struct Stream(ReplicationStream);

impl WalStream for Stream {
    type Error = PostgresError;

    fn peek(&mut self) -> Result<Option<Frame<'_>>, PostgresError> {
        Ok(self.0.peek()?)
    }

    fn consume(&mut self) {
        self.0.consume();
    }

    async fn read(&mut self) -> Result<usize, PostgresError> {
        Ok(self.0.read().await?)
    }

    fn queue_status(&mut self, update: StatusUpdate) {
        self.0.queue_status(update);
    }

    async fn flush(&mut self) -> Result<(), PostgresError> {
        Ok(self.0.flush().await?)
    }

    async fn finish(self) -> Result<(), PostgresError> {
        Ok(self.0.finish().await?)
    }
}
