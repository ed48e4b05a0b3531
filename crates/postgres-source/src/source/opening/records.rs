//! Starts the notes of a stream in `walrelay_state`, and reads those of the runs before.

use tokio::time::timeout;
use tracing::{debug, info, warn};
use walrelay_lsn::Lsn;
use walrelay_relay::{Chain, Opened};
use walrelay_walsender::{Error, Host, Session};

use super::{PostgresSource, StartedSlot, Stream};
use crate::deadline::bounded;
use crate::position_note::{Access, Noted};
use crate::sent_rows::account::{self, OpenedAccount};
use crate::{last_error, publication_note, run_note};

impl PostgresSource {
    /// Begins the account of sent rows and the notes of the stream, on a primary.
    pub(super) async fn open_records(
        &mut self,
        control: &mut Session,
        opened: &Opened<Stream>,
        started: &StartedSlot,
        is_proved: bool,
    ) {
        let noted = &started.noted;
        if noted.access != Access::None {
            self.open_account(control, &opened.system_id).await;
        } else if let Some(account) = &self.account {
            // Sums are written with the notes.
            account.begin(None);
        }
        self.note_carried(control, noted).await;
        let is_synchronous = started.is_synchronous;
        self.begin_notes(opened, noted, control.host(), is_synchronous, is_proved)
            .await;
    }

    /// Ends notes and account: the server is a standby, or the pipeline refuses the stream.
    pub(super) fn stop_records(&mut self) {
        self.notes.stop();
        if let Some(account) = &self.account {
            account.begin(None);
        }
    }

    /// Notes the contents of the publication, if this role may.
    async fn note_carried(&self, control: &mut Session, noted: &Noted) {
        let Some(last) = &self.last_look else {
            return;
        };
        let note = publication_note::note(control, &self.wanted, noted, &last.carried);
        let reason = match timeout(publication_note::NOTE_LIMIT, note).await {
            Ok(Ok(true)) => return,
            // The warning about the position says it.
            Ok(Ok(false)) if noted.access == Access::None => return,
            Ok(Ok(false)) => "the role may not, or the slot's name is too long".to_owned(),
            Ok(Err(error)) => Chain(&error).to_string(),
            Err(_) => "no answer".to_owned(),
        };
        if !self.started {
            warn!(
                slot = self.wanted.slot,
                reason,
                "what the publication carries cannot be noted in walrelay_state: a change of it while no relay runs is not \
                 noticed. As a user who may: walrelay init --role ROLE of this version"
            );
        }
    }

    /// Begins the notes of the stream, if this role may note positions.
    async fn begin_notes(
        &mut self,
        opened: &Opened<Stream>,
        noted: &Noted,
        host: &Host,
        is_synchronous: bool,
        is_proved: bool,
    ) {
        let may = noted.access != Access::None;
        if !may {
            self.notes.stop();
            if !std::mem::replace(&mut self.logged_unnoted, true) {
                warn!(
                    slot = self.wanted.slot,
                    "this role may not note the slot's positions in walrelay_state: a slot that something else moves, or \
                     recreates, while no relay runs is not noticed. As a user who may: walrelay init --role ROLE"
                );
            }
            return;
        }
        // Where the role may not, the notes log why.
        let opening = self
            .notes
            .open(&self.info, host, opened, is_synchronous, is_proved);
        opening.await;
    }

    /// Begins or continues the account of sent rows. Without it the stream goes on, and its rows stay.
    async fn open_account(&mut self, control: &mut Session, system: &str) {
        let Some(account) = &self.account else {
            return;
        };
        let (slot, publication) = (&self.wanted.slot, &self.wanted.publication);
        let opened = async {
            if !account::ensure(control, self.wanted.create).await? {
                return Ok(None);
            }
            let opened = account::open(control, slot, system, publication).await?;
            Ok::<_, Error>(Some(opened))
        };
        let through = match bounded("reading the account of sent rows", opened).await {
            Ok(Some(OpenedAccount { through, opening })) => {
                self.notes.opening = opening;
                Some(through)
            }
            not_opened => {
                warn!(
                    slot,
                    error = not_opened.err().map(|error| Chain(&error).to_string()),
                    "sent rows cannot be accounted in walrelay_state: events go on, and rows that are sent until the \
                     next connection are not deleted. A role that may create nothing there needs walrelay init \
                     --role ROLE of this version"
                );
                None
            }
        };
        account.begin(through);
    }

    /// Looks for the records of the last run, and of a relay that has read the slot meanwhile.
    pub(super) async fn find_records(&self, control: &mut Session, opened: &Opened<Stream>) {
        let confirmed = opened.confirmed.lsn();
        if !self.started {
            self.find_last_error(control, confirmed).await;
        }
        if !self.started || opened.predecessor.is_some() {
            self.find_former_run(control, confirmed).await;
        }
    }

    /// Looks for the error with which the last run ended, so that views show it until the slot has moved.
    async fn find_last_error(&self, control: &mut Session, confirmed: Lsn) {
        let find = last_error::find(control, &self.wanted.slot, self.state_path.as_deref());
        match timeout(publication_note::NOTE_LIMIT, find).await {
            Ok(Ok(Some(error))) if !error.is_passed(Some(confirmed)) => {
                info!(remedy = error.remedy, "the last run {}", error.text());
                let _ = self.findings.last_error.set(error);
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => debug!(error = %Chain(&error), "the last error cannot be read"),
            Err(_) => debug!("the last error cannot be read: no answer"),
        }
    }

    /// Looks for the note of the run before, or of the relay that has read the slot meanwhile. The sink is made
    /// after it, so that it compares what its streams had with what they have before it writes.
    async fn find_former_run(&self, control: &mut Session, confirmed: Lsn) {
        let find = run_note::find(control, &self.wanted.slot, self.state_path.as_deref());
        match timeout(publication_note::NOTE_LIMIT, find).await {
            Ok(Ok(note)) => self.findings.former_run.found(note, confirmed),
            Ok(Err(error)) => {
                debug!(error = %Chain(&error), "the note of the run before cannot be read");
            }
            Err(_) => debug!("the note of the run before cannot be read: no answer"),
        }
    }
}
