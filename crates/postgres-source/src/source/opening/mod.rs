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
use crate::catalog::{Facts, describe, inspect, is_synchronous, is_walsender, slot, slot_reader};
use crate::deadline::bounded;
use crate::error::{Gap, PostgresError, SetupError, SlotSetupError};
use crate::position_note::{Access, Noted};
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
            mut facts,
            system,
            ..
        } = connected;
        let server = facts.server.clone();
        let walsender = replication.backend_pid();
        let gap = Gap {
            from: connected.moment.known(),
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
        // Read the slot again: no other process can move it now, and the stream begins at its
        // position.
        let slot = bounded("reading the slot", slot(&mut control, &self.wanted.slot))
            .await?
            .ok_or_else(|| self.slot_gone())?;
        // With several hosts, or an address that moves, the two connections may reach different
        // servers. Then a position of one server would be confirmed to the other.
        if slot.active_pid != Some(i64::from(walsender)) {
            // A walsender that has failed already frees the slot and stays connected. Its error is
            // read from the stream.
            let here = is_walsender(&mut control, walsender);
            if slot.active_pid.is_some() || !bounded("looking for the walsender", here).await? {
                return Err(PostgresError::TwoServers(self.wanted.slot.clone()));
            }
        }
        // The slot's last reader may have written the file since.
        by_file |= self.load_file().await?;
        let confirmed = slot.confirmed.unwrap_or(Lsn::ZERO);
        debug!(slot = self.wanted.slot, %confirmed, host = %self.info.redacted(), "started");
        let name = self.info.shown_application_name();
        let is_synchronous = is_synchronous(&mut control, &name);
        let is_synchronous = bounded("reading a setting", is_synchronous).await?;
        if is_synchronous {
            warn!(
                "synchronous_standby_names makes this relay a synchronous standby: commits wait until it \
                 has confirmed them, and hang while no relay runs. Name the standbys there, without the \
                 relay's application_name"
            );
        }
        // This process may have read the snapshot.
        if !self.started
            && !self.findings.snapshot.is_acknowledged()
            && let Ok(Some(unread)) = unread(&mut control, &self.wanted).await
        {
            warn!(remedy = unread.remedy(), "{unread}");
        }
        self.watch_retention(&server, &slot);
        // The setup, or another relay, may have made the publication since.
        facts = bounded("reading the catalogs", inspect(&mut control, &self.wanted)).await?;
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
            server_start: server.start,
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
        let by_itself = matches!(connected.moment, Moment::Relayed { upto } if confirmed <= upto);
        let accepted = self.accepted;
        let continued = async {
            let database = server.database;
            self.continue_publication(&facts, &noted, &opened, walsender)?;
            let (position, in_file) = self.continue_file(&opened, database, &mut control).await?;
            if resume.is_some_and(|resume| resume.continued_by(&opened).is_err()) {
                // The pipeline stops at the slot's position: note and file stay as they are.
                return Ok(None);
            }
            let mut is_proved = by_itself || in_file || self.accepted != accepted;
            if !is_proved && !server.in_recovery {
                is_proved = self.continue_note(&opened, &noted)?;
            }
            // Under the slot: a switch refuses while it is being read. Before the file has the slot's position.
            let epoch = self.continue_epoch(&mut control, &opened, &noted, by_itself || in_file);
            opened.epoch = bounded("reading the epoch", epoch).await?;
            self.findings.former_run.set_epoch(opened.epoch);
            if let (Some(state_file), Some(position)) = (&mut self.state_file, position) {
                state_file.set(position).await?;
            }
            Ok(Some(is_proved))
        };
        match continued.await {
            Ok(Some(is_proved)) if !server.in_recovery => {
                if noted.access != Access::None {
                    self.open_account(&mut control, &opened.system_id).await;
                } else if let Some(account) = &self.account {
                    // Sums are written with the notes.
                    account.begin(None);
                }
                self.note_carried(&mut control, &noted).await;
                let host = control.host().clone();
                let notes = self.begin_notes(&opened, &noted, &host, is_synchronous, is_proved);
                notes.await;
            }
            Ok(_) => {
                self.notes.stop();
                if let Some(account) = &self.account {
                    account.begin(None);
                }
            }
            Err(error) => {
                // The next relay would count a walsender that is left as the reader that moved the slot.
                let _ = bounded("ending the stream", opened.stream.finish()).await;
                return Err(error);
            }
        }
        if !self.started {
            self.find_last_error(&mut control, confirmed).await;
        }
        if !self.started || opened.predecessor.is_some() {
            self.find_former_run(&mut control, confirmed).await;
        }
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
