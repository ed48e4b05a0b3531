//! Checks that a stream continues the relayed log: by the state file, the noted position, and the publication.

use tracing::{info, warn};
use walrelay_relay::{Continuity, Opened, Resume};
use walrelay_walsender::{Error, Session};

use super::{PostgresSource, StartedSlot, Stream};
use crate::catalog::Facts;
use crate::deadline::bounded;
use crate::epoch::{find_epoch, raise_for_unknown_slot};
use crate::error::{PostgresError, SetupError, SlotSetupError};
use crate::position_note::{self, Access, Noted, Standing};
use crate::publication_note::{LastLook, check_noted};
use crate::state_file::Position;

impl PostgresSource {
    /// Checks that the stream continues the relayed log, writes its position into the state file, and sets the
    /// epoch of `opened`. Returns whether everything before the slot's position was relayed; `None` if the
    /// pipeline refuses the stream.
    pub(super) async fn continue_slot(
        &mut self,
        control: &mut Session,
        opened: &mut Opened<Stream>,
        started: &StartedSlot,
        resume: Option<&Resume>,
    ) -> Result<Option<bool>, PostgresError> {
        let accepted = self.accepted;
        let database = started.server.database.clone();
        self.continue_publication(&started.facts, &started.noted, opened, started.walsender)?;
        let (position, in_file) = self.continue_file(opened, database, control).await?;
        if resume.is_some_and(|resume| resume.continued_by(opened).is_err()) {
            // The pipeline stops at the slot's position: note and file stay as they are.
            return Ok(None);
        }
        let mut is_proved = started.by_itself || in_file || self.accepted != accepted;
        if !is_proved && !started.server.in_recovery {
            is_proved = self.continue_note(opened, &started.noted)?;
        }
        // Under the slot: a switch refuses while it is being read. Before the file has the slot's position.
        let epoch = self.continue_epoch(
            control,
            opened,
            &started.noted,
            started.by_itself || in_file,
        );
        opened.epoch = bounded("reading the epoch", epoch).await?;
        self.findings.former_run.set_epoch(opened.epoch);
        if let (Some(state_file), Some(position)) = (&mut self.state_file, position) {
            state_file.set(position).await?;
        }
        Ok(Some(is_proved))
    }

    /// Checks that the stream continues the position in the state file. Returns the position to write into
    /// the file before anything is streamed, and whether the file shows that everything before the slot's
    /// position was relayed.
    async fn continue_file(
        &mut self,
        opened: &Opened<Stream>,
        database: String,
        control: &mut Session,
    ) -> Result<(Option<Position>, bool), PostgresError> {
        let Some(state_file) = &self.state_file else {
            return Ok((None, false));
        };
        let mut is_proved = false;
        let here = Position {
            system_id: opened.system_id.clone(),
            timeline: opened.timeline,
            database,
            slot: self.wanted.slot.clone(),
            confirmed: opened.confirmed.lsn(),
            sink_cluster: state_file.kept().and_then(|kept| kept.sink_cluster.clone()),
        };
        let position = match state_file.kept() {
            None => here,
            Some(kept) => match kept.resume(self.server_start.clone()).continued_by(opened) {
                Ok(Continuity::Same) => {
                    is_proved = true;
                    Position {
                        timeline: opened.timeline,
                        ..kept.clone()
                    }
                }
                // If this process has streamed before, the pipeline logs it.
                Ok(Continuity::HandedOver { from, to, by }) => {
                    if !self.started {
                        info!(%from, %to, %by, "another relay has read the slot since the state file was written");
                    }
                    here
                }
                Ok(Continuity::Promoted { parted }) => {
                    is_proved = true;
                    // If this process has streamed before, the pipeline logs it.
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
                // If this process has streamed before, the pipeline logs it.
                // The switch has noted the position of the slot, so the note shows whether it was moved since.
                Ok(Continuity::Moved) => {
                    if !self.started {
                        info!(
                            former = kept.system_id,
                            now = opened.system_id,
                            "the outbox was moved to this server: its database shows that every event of the former \
                             one was delivered under a fence"
                        );
                    }
                    here
                }
                Err(error) if self.accept_gap => {
                    warn!(slot = self.wanted.slot, "accepted by --accept-gap: {error}");
                    position_note::forget(control, &self.wanted.slot).await?;
                    self.accepted = true;
                    here
                }
                Err(error) => return Err(error.into()),
            },
        };
        Ok((Some(position), is_proved))
    }

    /// Checks that the slot is not beyond the position that is noted of it. Returns whether everything
    /// before the slot's position was relayed, as far as the note shows. If it was not, and the gap is
    /// accepted, the first note of the stream records that.
    fn continue_note(
        &mut self,
        opened: &Opened<Stream>,
        noted: &Noted,
    ) -> Result<bool, PostgresError> {
        let slot = &self.wanted.slot;
        let to = opened.confirmed.lsn();
        match noted.compare(to, &opened.system_id, &opened.ancestors) {
            Standing::Continues if noted.position.is_none() && !self.started => {
                info!(slot, position = %to, "no position of the slot was noted before: it is read from where it is");
            }
            // Where the role may not write the note, nothing is compared.
            Standing::Continues if noted.access == Access::None => return Ok(false),
            Standing::Continues => {}
            Standing::OtherCluster => warn!(
                slot,
                position = %to,
                "the noted position is of another cluster: the slot is read from where it is, and \
                 changes before it are unknown"
            ),
            Standing::Promoted { from } => warn!(
                slot,
                %from,
                %to,
                "a standby was promoted that has the slot's position and not yet the note of it: \
                 changes committed in this range count as relayed from the former primary"
            ),
            Standing::PassedOver { from } => {
                let error = SetupError::Slot(SlotSetupError::PassedOver {
                    slot: slot.clone(),
                    from,
                    to,
                });
                if !self.accept_gap {
                    return Err(error.into());
                }
                warn!(slot, "accepted by --accept-gap: {error}");
                self.accepted = true;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the epoch of the slot's positions. `is_known`: this process or the state file shows that the slot is the
    /// one that relays have read. Otherwise the note must: another client may have dropped and created the slot, for a
    /// relay whose destination has positions of the highest epoch. A role that may write no note has none that shows it.
    async fn continue_epoch(
        &self,
        control: &mut Session,
        opened: &Opened<Stream>,
        noted: &Noted,
        is_known: bool,
    ) -> Result<u8, Error> {
        let (slot, at) = (&self.wanted.slot, opened.confirmed.lsn());
        let standing = noted.compare(at, &opened.system_id, &opened.ancestors);
        let is_noted = noted.position.is_some()
            && matches!(standing, Standing::Continues | Standing::Promoted { .. });
        if noted.access != Access::None
            && !is_known
            && !is_noted
            && raise_for_unknown_slot(control, slot, at).await?
        {
            warn!(
                slot,
                "nothing shows that this slot is the one that relays have read under its name: its positions get the \
                 highest epoch of the database"
            );
        }
        let epoch = find_epoch(control, slot).await?.number;
        if epoch > 0 && !self.started {
            info!(epoch, "positions are published with the epoch of a move");
        }
        Ok(epoch)
    }

    /// Checks that the publication is unchanged since the slot was read last.
    fn continue_publication(
        &mut self,
        facts: &Facts,
        noted: &Noted,
        opened: &Opened<Stream>,
        walsender: i32,
    ) -> Result<(), PostgresError> {
        // What another relay has read meanwhile, it has compared and noted.
        let last = self.last_look.as_ref();
        let mut same = match last.filter(|_| opened.predecessor.is_none()) {
            Some(last) => last.check(&self.wanted, facts),
            None => Ok(()),
        };
        // A standby cannot note that the change is accepted.
        if same.is_ok() && !facts.server.in_recovery {
            same = check_noted(&self.wanted, facts, noted, &opened.system_id);
        }
        match same {
            Err(error) if !self.accept_gap => return Err(error.into()),
            Err(error) => {
                warn!(slot = self.wanted.slot, "accepted by --accept-gap: {error}");
                self.accepted_publication = true;
            }
            Ok(()) => {}
        }
        if let Some(look) = LastLook::new(facts, walsender.into()) {
            self.last_look = Some(look);
        }
        Ok(())
    }
}
