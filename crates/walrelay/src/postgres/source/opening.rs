//! How the stream of a slot is opened: both connections, what the catalogs say, the check against what was relayed, and
//! START_REPLICATION.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Ancestor, Continuity, Opened, Predecessor, Resume};
use walrelay_walsender::{
    Error, ErrorClass, ReplicationStream, Session, SessionKind, StartReplication, SystemIdentity,
};

use super::PostgresSource;
use super::inspections::Inspections;
use super::stream::Stream;
use crate::postgres::catalog::{ServerFacts, SlotReader, describe, inspect, reader, slot};
use crate::postgres::deadline::bounded;
use crate::postgres::error::{Gap, PostgresError, SetupError};
use crate::postgres::setup::{Moment, Prepared, prepare};
use crate::postgres::snapshot::settings as snapshot_settings;
use crate::postgres::state_file::Position;

/// How often a relay that waits for a busy slot queries its reader, and for how long before it tries to start
/// replication again.
const BUSY_INTERVAL: Duration = Duration::from_millis(200);
const BUSY_DEADLINE: Duration = Duration::from_secs(30);

/// Both connections, and the answers over them.
struct Connected {
    control: Session,
    replication: Session,
    server: ServerFacts,
    system: SystemIdentity,
    ancestors: Vec<Ancestor>,
    moment: Moment,
    /// There is no slot: a snapshot comes first.
    snapshot: bool,
}

impl PostgresSource {
    async fn connect(&mut self, resume: Option<&Resume>) -> Result<Connected, PostgresError> {
        let mut control = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
        self.until_free(&mut control).await?;
        let facts = bounded("reading the catalogs", inspect(&mut control, &self.wanted)).await?;
        if let Some(state_file) = &self.state_file {
            state_file.belongs_to(&self.wanted.slot, &facts.server.database)?;
        }
        let millis = self.wal_sender_timeout.as_millis().to_string();
        let mut settings = vec![("wal_sender_timeout", millis.as_str())];
        if self.wanted.snapshot.is_some() && facts.slot.is_none() {
            settings.extend(snapshot_settings(facts.server.major));
        }
        let mut replication =
            Session::connect(&self.info, SessionKind::Replication, &settings).await?;
        let system = bounded("IDENTIFY_SYSTEM", replication.identify_system()).await?;
        let ancestors = self
            .ancestors(&mut replication, system.timeline, resume)
            .await?;
        let moment = self.moment(resume, &ancestors);
        let prepared = prepare(&self.wanted, moment, &facts, &mut control, &mut replication);
        let Prepared { gap, snapshot } = prepared.await?;
        if gap.is_some() {
            self.accepted = true;
            // Its position is behind the new slot.
            if let Some(state_file) = &mut self.state_file {
                state_file.forget();
            }
        }
        Ok(Connected {
            control,
            replication,
            server: facts.server,
            system,
            ancestors,
            moment,
            snapshot,
        })
    }

    /// The moment, with positions that a server with these ancestors has.
    fn moment(&self, resume: Option<&Resume>, ancestors: &[Ancestor]) -> Moment {
        let in_common = |known: &Resume| known.in_common(ancestors).lsn();
        match resume {
            Some(resume) if self.started => Moment::Relayed {
                upto: in_common(resume),
            },
            // Of a snapshot that was not completed nothing counts.
            _ => Moment::Start {
                known: self.kept().map(|kept| in_common(&kept.resume(None))),
                accept_gap: self.accept_gap,
            },
        }
    }

    /// Queries the reader of the slot. If the slot was busy in the last attempt, waits until it is free, over
    /// this one connection: two new ones for each query would cost the primary more than the relay that
    /// reads. Stops waiting after a while, so that the server reports the reader itself, and at once if the
    /// reader is a new one, so that the pipeline learns of it.
    async fn until_free(&mut self, control: &mut Session) -> Result<(), PostgresError> {
        let until = Instant::now() + BUSY_DEADLINE;
        loop {
            let found = bounded("reading the slot", reader(control, &self.wanted.slot)).await?;
            let Some(reader) = found else {
                return Ok(());
            };
            let new = self.readers.saw(&reader);
            if !self.found_busy || Instant::now() >= until {
                return Ok(());
            }
            if new {
                return Err(self.busy(Some(reader), None));
            }
            sleep(BUSY_INTERVAL).await;
        }
    }

    fn busy(&self, reader: Option<SlotReader>, source: Option<Error>) -> PostgresError {
        PostgresError::SlotBusy {
            slot: self.wanted.slot.clone(),
            own: reader
                .as_ref()
                .is_some_and(|reader| self.readers.is_own(reader.pid)),
            reader,
            source,
        }
    }

    /// The ancestors of the server's timeline, if it is not the timeline of the last stream or state file.
    async fn ancestors(
        &self,
        replication: &mut Session,
        timeline: u32,
        resume: Option<&Resume>,
    ) -> Result<Vec<Ancestor>, PostgresError> {
        let of_process = resume.map(|resume| resume.timeline);
        let of_file = self.kept().map(|kept| kept.timeline);
        let promoted = [of_process, of_file]
            .into_iter()
            .flatten()
            .any(|known| known != timeline);
        if !promoted {
            return Ok(Vec::new());
        }
        let history = replication.timeline_history(timeline);
        let history = bounded("TIMELINE_HISTORY", history).await?;
        let ancestors = history.into_iter().map(|ancestor| Ancestor {
            timeline: ancestor.timeline,
            ended: ancestor.ended,
        });
        Ok(ancestors.collect())
    }

    /// Checks that the stream continues the state file, and writes the file: if that fails, nothing has
    /// been streamed.
    async fn continue_file(
        &mut self,
        opened: &Opened<Stream>,
        database: String,
    ) -> Result<(), PostgresError> {
        let Some(state_file) = &mut self.state_file else {
            return Ok(());
        };
        let here = Position {
            system_id: opened.system_id.clone(),
            timeline: opened.timeline,
            database,
            slot: self.wanted.slot.clone(),
            confirmed: opened.confirmed.lsn(),
        };
        let position = match state_file.kept() {
            None => here,
            Some(kept) => match kept.resume(self.server_start.clone()).continued_by(opened) {
                Ok(Continuity::Same) => Position {
                    timeline: opened.timeline,
                    ..kept.clone()
                },
                // If the process has streamed before, the pipeline logs this.
                Ok(Continuity::HandedOver { from, to, by }) => {
                    if !self.started {
                        info!(%from, %to, %by, "another relay has read the slot since the state file was written");
                    }
                    here
                }
                Ok(Continuity::Promoted { parted }) => {
                    // If the process has streamed before, the pipeline logs this.
                    if !self.started && parted < kept.confirmed {
                        warn!(
                            from = %parted,
                            to = %kept.confirmed,
                            "the promoted server has not got all that was relayed of the old one: \
                             events of this range may be of transactions that it does not have"
                        );
                    }
                    here
                }
                Err(error) if self.accept_gap => {
                    warn!(slot = self.wanted.slot, "accepted by --accept-gap: {error}");
                    self.accepted = true;
                    here
                }
                Err(error) => return Err(error.into()),
            },
        };
        Ok(state_file.set(position).await?)
    }

    pub(super) async fn attempt(
        &mut self,
        resume: Option<&Resume>,
    ) -> Result<Opened<Stream>, PostgresError> {
        // Another relay with the same file may have written it.
        let mut by_file = self.load_file().await?;
        let Connected {
            mut control,
            replication,
            server,
            system,
            ancestors,
            moment,
            snapshot,
        } = self.connect(resume).await?;
        if snapshot {
            let snapshot = self.begin_snapshot(control, replication, server, system);
            return snapshot.await;
        }
        let walsender = replication.backend_pid();
        let gap = Gap {
            from: moment.known(),
            to: server.wal_end,
        };
        let stream = self.start(replication, &mut control, gap).await?;
        // Again, now that no other process can move it: the stream begins here.
        let slot = bounded("reading the slot", slot(&mut control, &self.wanted.slot))
            .await?
            .ok_or_else(|| self.gone())?;
        // Several hosts, or an address that moves: both connections must see the same slot, or the
        // position of one server would be confirmed to another.
        if slot.active_pid != Some(i64::from(walsender)) {
            return Err(PostgresError::TwoServers(self.wanted.slot.clone()));
        }
        // The last reader of the slot may have written it since.
        by_file |= self.load_file().await?;
        let confirmed = slot.confirmed.unwrap_or(Lsn::ZERO);
        debug!(slot = self.wanted.slot, %confirmed, host = %self.info.redacted(), "started");
        self.watch_retention(&server, &slot);
        let described = describe(&mut control, &self.wanted.tables);
        let tables = bounded("reading the columns of the tables", described).await?;
        self.inspections = Inspections::over(Some(control));
        let mut opened = Opened {
            stream: Stream::of_slot(stream, &self.wanted.slot, Arc::clone(&self.relayed)),
            system_id: system.system_id,
            timeline: system.timeline,
            server_start: server.start,
            ancestors,
            flushed: system.flushed,
            confirmed: CommitEnd::from_slot(confirmed),
            server_timeout: Some(self.wal_sender_timeout),
            tables,
            predecessor: self.readers.predecessor(),
        };
        self.continue_file(&opened, server.database).await?;
        if by_file && self.started {
            // The file reaches the slot's position, or it would not have been continued.
            opened.predecessor.get_or_insert(Predecessor::StateFile);
        }
        self.readers.streaming(walsender);
        self.walsender.store(walsender, Ordering::Relaxed);
        self.server_start = Some(opened.server_start.clone());
        self.relayed.fetch_max(confirmed.get(), Ordering::Relaxed);
        if std::mem::take(&mut self.accept_gap) && !self.accepted {
            info!("there is no gap in the log: --accept-gap changes nothing");
        }
        self.started = true;
        Ok(opened)
    }

    /// Starts the stream from the slot's position. The replication session goes with it.
    ///
    /// `gap`: what is not relayed if the server has no log for the slot.
    async fn start(
        &mut self,
        replication: Session,
        control: &mut Session,
        gap: Gap,
    ) -> Result<ReplicationStream, PostgresError> {
        let command = StartReplication {
            slot: self.wanted.slot.clone(),
            // A position ahead of the slot's would be honoured, and what lies between would be skipped
            // for good.
            start: Lsn::ZERO,
            publications: vec![self.wanted.publication.clone()],
            messages: self.wanted.messages.is_some(),
            proto_version: 1,
        };
        let started = replication.start_replication(&command);
        match bounded("START_REPLICATION", started).await {
            Err(PostgresError::Wal(error)) if error.class() == ErrorClass::SlotInUse => {
                // The reader is an addition to the error.
                let found = reader(control, &self.wanted.slot);
                let reader = bounded("reading the slot", found).await.ok().flatten();
                if let Some(reader) = &reader {
                    self.readers.saw(reader);
                }
                Err(self.busy(reader, Some(error)))
            }
            Err(PostgresError::Wal(source)) if source.class() == ErrorClass::WalGone => {
                let slot = self.wanted.slot.clone();
                Err(PostgresError::WalGone { slot, gap, source })
            }
            started => started,
        }
    }

    /// Reads the state file, if one is kept. Returns whether it goes further than what was known here.
    async fn load_file(&mut self) -> Result<bool, PostgresError> {
        match &mut self.state_file {
            Some(state_file) if !self.accepted => Ok(state_file.load().await?),
            _ => Ok(false),
        }
    }

    pub(super) fn gone(&self) -> SetupError {
        SetupError::SlotGone {
            slot: self.wanted.slot.clone(),
            gap: Gap {
                from: Some(self.relayed()),
                to: None,
            },
        }
    }
}
