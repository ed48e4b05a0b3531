//! Opening the stream of a slot: both connections, the catalogs, START_REPLICATION, and the check
//! that the stream continues what was relayed.

mod busy_slot;
mod connecting;
mod continuity;
mod records;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::{debug, info, warn};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Ancestor, Opened, Predecessor, Resume, WalStream as _};
use walrelay_walsender::{
    ErrorClass, ReplicationStream, Session, StartReplication, StatusUpdate, SystemIdentity,
};

use super::PostgresSource;
use super::inspections::Inspections;
use super::stream::Stream;
use crate::catalog::{
    Facts, ServerFacts, SlotRow, describe, inspect, is_synchronous, is_walsender, slot, slot_reader,
};
use crate::deadline::bounded;
use crate::error::{Gap, PostgresError, SetupError, SlotSetupError};
use crate::position_note::Noted;
use crate::sent_keys::keep_time_zone;
use crate::setup::Moment;
use crate::snapshot::unread;

/// Both connections with the server's answers.
pub(super) struct Connected {
    pub(super) control: Session,
    pub(super) replication: Session,
    /// The facts of before the setup.
    pub(super) facts: Facts,
    pub(super) system: SystemIdentity,
    ancestors: Vec<Ancestor>,
    moment: Moment,
    /// True if there is no slot, and a snapshot is to be read first.
    snapshot: bool,
    /// The server that the outbox was moved from.
    former: Option<String>,
    /// The epoch of the slot's positions.
    pub(super) epoch: u8,
}

/// A slot whose stream this process has started, so that no other process can move it.
struct StartedSlot {
    /// The facts of the server of before the setup.
    server: ServerFacts,
    /// The facts of after the start.
    facts: Facts,
    noted: Noted,
    walsender: i32,
    /// The server counts this relay as a synchronous standby.
    is_synchronous: bool,
    /// This process has relayed everything before the slot's position.
    by_itself: bool,
}

impl PostgresSource {
    pub(super) async fn attempt(
        &mut self,
        resume: Option<&Resume>,
    ) -> Result<Opened<Stream>, PostgresError> {
        // Another relay that shares the file may have written it.
        let by_file = self.load_file().await?;
        let connected = self.connect(resume).await?;
        if connected.snapshot {
            return self.begin_snapshot(connected).await;
        }
        self.open_slot(connected, resume, by_file).await
    }

    /// Starts the stream of the slot. `by_file`: another relay has written the state file.
    async fn open_slot(
        &mut self,
        connected: Connected,
        resume: Option<&Resume>,
        mut by_file: bool,
    ) -> Result<Opened<Stream>, PostgresError> {
        let Connected {
            mut control,
            mut replication,
            facts: Facts { server, .. },
            system,
            moment,
            ..
        } = connected;
        let walsender = replication.backend_pid();
        let gap = Gap {
            from: moment.known(),
            to: server.wal_end,
        };
        let time_zone = match &self.sent_rows {
            Some(_) => bounded("reading a setting", keep_time_zone(&mut replication)).await?,
            None => String::new(),
        };
        let stream = self.start(replication, &mut control, gap).await?;
        if let Some(sent) = &self.sent_rows {
            sent.set_time_zone(&time_zone);
        }
        // Whatever fails from here on: the walsender that this process leaves is no other relay.
        self.readers.started(walsender);
        let slot = self.read_own_slot(&mut control, walsender).await?;
        // The slot's last reader may have written the file since.
        by_file |= self.load_file().await?;
        let confirmed = slot.confirmed.unwrap_or(Lsn::ZERO);
        debug!(slot = self.wanted.slot, %confirmed, host = %self.info.redacted(), "started");
        let is_synchronous = self.is_synchronous(&mut control).await?;
        self.warn_of_unread_snapshot(&mut control).await;
        self.watch_retention(&server, &slot);
        // The setup, or another relay, may have made the publication since.
        let facts = bounded("reading the catalogs", inspect(&mut control, &self.wanted)).await?;
        let described = describe(&mut control, &self.wanted.tables);
        let tables = bounded("reading the columns of the tables", described).await?;
        let mut opened = Opened {
            stream: Stream::from_slot(
                stream,
                &self.wanted.slot,
                Some(&self.wanted.publication),
                Arc::clone(&self.relayed),
            ),
            system_id: system.system_id,
            timeline: system.timeline,
            slot: Some(self.wanted.slot.clone()),
            server_start: server.start.clone(),
            ancestors: connected.ancestors,
            flushed: system.flushed,
            confirmed: CommitEnd::from_slot(confirmed),
            server_timeout: Some(self.wal_sender_timeout),
            tables,
            predecessor: self.readers.predecessor(),
            former: connected.former,
            epoch: connected.epoch,
        };
        // The setup, or another relay, may have noted a position since.
        let noted = Noted::find(&mut control, &self.wanted.slot, self.wanted.create);
        let noted = bounded("reading the noted position", noted).await?;
        let started = StartedSlot {
            server,
            facts,
            noted,
            walsender,
            is_synchronous,
            by_itself: matches!(moment, Moment::Relayed { upto } if confirmed <= upto),
        };
        match self
            .continue_slot(&mut control, &mut opened, &started, resume)
            .await
        {
            Ok(Some(is_proved)) if !started.server.in_recovery => {
                self.open_records(&mut control, &opened, &started, is_proved)
                    .await;
            }
            Ok(_) => self.stop_records(),
            Err(error) => {
                // The next relay would count a walsender that is left as the reader that moved the slot.
                let _ = bounded("ending the stream", opened.stream.finish()).await;
                return Err(error);
            }
        }
        self.find_records(&mut control, &opened).await;
        self.inspections = Inspections::over(control);
        if by_file && self.started {
            // The file's position covers the slot's, or `continue_file` would have failed.
            opened.predecessor.get_or_insert(Predecessor::StateFile);
        }
        self.set_streaming(&opened, walsender);
        // The server ends a stream of which it has heard nothing for `wal_sender_timeout`, and the queries
        // above took a part of that. If this fails, the stream says so.
        opened.stream.queue_status(StatusUpdate::NO_POSITION);
        let _ = bounded("the first status", opened.stream.flush()).await;
        Ok(opened)
    }

    /// Reads the slot again, which no other process can move now: the stream begins at its position.
    async fn read_own_slot(
        &mut self,
        control: &mut Session,
        walsender: i32,
    ) -> Result<SlotRow, PostgresError> {
        let slot = bounded("reading the slot", slot(control, &self.wanted.slot))
            .await?
            .ok_or_else(|| self.slot_gone())?;
        // With several hosts, or an address that moves, the two connections may reach different
        // servers. Then a position of one server would be confirmed to the other.
        if slot.active_pid != Some(i64::from(walsender)) {
            // A walsender that has failed already frees the slot and stays connected. Its error is
            // read from the stream.
            let here = is_walsender(control, walsender);
            if slot.active_pid.is_some() || !bounded("looking for the walsender", here).await? {
                return Err(PostgresError::TwoServers(self.wanted.slot.clone()));
            }
        }
        Ok(slot)
    }

    /// Returns true if the server counts this relay as a synchronous standby, and warns of it.
    async fn is_synchronous(&self, control: &mut Session) -> Result<bool, PostgresError> {
        let name = self.info.shown_application_name();
        let is_synchronous = is_synchronous(control, &name);
        let is_synchronous = bounded("reading a setting", is_synchronous).await?;
        if is_synchronous {
            warn!(
                "synchronous_standby_names makes this relay a synchronous standby: commits wait until it \
                 has confirmed them, and hang while no relay runs. Name the standbys there, without the \
                 relay's application_name"
            );
        }
        Ok(is_synchronous)
    }

    /// Warns if a snapshot is configured and was not read.
    async fn warn_of_unread_snapshot(&self, control: &mut Session) {
        // This process may have read the snapshot.
        if !self.started
            && !self.findings.snapshot.is_acknowledged()
            && let Ok(Some(unread)) = unread(control, &self.wanted).await
        {
            warn!(remedy = unread.remedy(), "{unread}");
        }
    }

    /// Records that this process streams, by this walsender.
    fn set_streaming(&mut self, opened: &Opened<Stream>, walsender: i32) {
        self.readers.streaming(walsender);
        self.walsender.store(walsender, Ordering::Relaxed);
        self.server_start = Some(opened.server_start.clone());
        let confirmed = opened.confirmed.lsn().get();
        self.relayed.fetch_max(confirmed, Ordering::Relaxed);
        let accepted = self.accepted || self.accepted_publication;
        if std::mem::take(&mut self.accept_gap) && !accepted {
            info!("there is no gap in the log: --accept-gap changes nothing");
        }
        self.started = true;
    }

    /// Starts the stream from the slot's position, over the replication session.
    ///
    /// `gap`: the range that is not relayed if the server has removed the slot's WAL.
    async fn start(
        &mut self,
        replication: Session,
        control: &mut Session,
        gap: Gap,
    ) -> Result<ReplicationStream, PostgresError> {
        let command = StartReplication {
            slot: self.wanted.slot.clone(),
            // Zero: the server starts at the slot's position. It would skip events up to a higher
            // position.
            start: Lsn::ZERO,
            publication: self.wanted.publication.clone(),
            messages: self.wanted.messages.is_some(),
        };
        let started = replication.start_replication(&command);
        match bounded("START_REPLICATION", started).await {
            Err(PostgresError::Wal(error)) if error.class() == ErrorClass::SlotInUse => {
                // The query for the reader may fail: the reader only completes the error's text.
                let found = slot_reader(control, &self.wanted.slot);
                let reader = bounded("reading the slot", found).await.ok().flatten();
                if let Some(reader) = &reader {
                    self.readers.record(reader);
                    self.forget_look_of(reader);
                }
                Err(self.slot_busy(reader, Some(error)))
            }
            Err(PostgresError::Wal(source)) if source.class() == ErrorClass::WalGone => {
                let slot = self.wanted.slot.clone();
                Err(PostgresError::WalGone { slot, gap, source })
            }
            started => started,
        }
    }

    /// Reads the state file, if one is configured. Returns whether its position is ahead of the
    /// known one.
    async fn load_file(&mut self) -> Result<bool, PostgresError> {
        match &mut self.state_file {
            Some(state_file) if !self.accepted => Ok(state_file.load().await?),
            _ => Ok(false),
        }
    }

    pub(super) fn slot_gone(&self) -> SetupError {
        SetupError::Slot(SlotSetupError::Gone {
            slot: self.wanted.slot.clone(),
            gap: Gap {
                from: Some(self.relayed()),
                to: None,
            },
        })
    }
}
