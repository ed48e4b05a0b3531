//! Keeps the proof that the slot is still read by this process: the lease, and the slot checks that renew it.

use std::future::ready;

use tokio::time::Instant;
use tracing::{debug, info, warn};
use walrelay_lsn::RelationId;
use walrelay_sink::SinkFactory;

use super::{LoopState, Streaming};
use crate::core::{CoreError, Placement};
use crate::interface::observer::Observer;
use crate::interface::source::{SlotCheck, SlotOwner, Source, TablePlace, WalStream as _};
use crate::pipeline::error::{Chain, PipelineError, PipelineResult};

impl<S: Source, F: SinkFactory, W: Observer> Streaming<'_, S, F, W> {
    /// Returns an error if the lease has expired: another relay may have sent the events that are
    /// still in the buffers.
    pub(super) async fn check_lease(&mut self, state: &mut LoopState) -> PipelineResult<(), S, F> {
        if self.lease.expired(Instant::now()).is_none() {
            return Ok(());
        }
        // This task may have been too slow to take an answer that proves the slot.
        tokio::select! {
            biased;
            check = self.source.slot_checked(false) => self.slot_checked(state, check)?,
            () = ready(()) => {}
        }
        let Some(unproven) = self.lease.expired(Instant::now()) else {
            return Ok(());
        };
        if !state.phase.reads() || self.stream.is_snapshot() {
            return Err(PipelineError::Displaced { unproven });
        }
        self.failed_attempts.silence.given_up();
        Err(PipelineError::Silent {
            silent_for: unproven,
        })
    }

    /// Starts a slot check if one is due. Returns the time when the next one is due.
    pub(super) fn start_slot_check(
        &mut self,
        state: &mut LoopState,
        now: Instant,
    ) -> Option<Instant> {
        let regular = !state.phase.is_draining();
        // While the socket is not read, only a slot check proves that the slot is still ours.
        let prove_at = self.lease.prove_at();
        let unresolved = self.session.core.unresolved();
        let due = state
            .slot_checks
            .due(regular, prove_at, unresolved.is_some());
        if regular {
            let updates = self.session.core.counts().updates;
            state.log.updates(updates, self.settings.on_update, now);
        }
        if due.is_some_and(|at| now >= at) {
            self.source.check_slot(unresolved);
            state.slot_checks.started(now);
            // Nothing is due while a check is under way.
            return None;
        }
        due
    }

    pub(super) fn slot_checked(
        &mut self,
        state: &mut LoopState,
        check: Result<SlotCheck, S::Error>,
    ) -> PipelineResult<(), S, F> {
        let check = match check {
            Ok(check) => check,
            // During a drain the error is ignored: records in flight can still be confirmed.
            Err(error) if state.phase.is_draining() => SlotCheck::Failed {
                reason: Chain(&error).to_string(),
            },
            Err(error) => return Err(PipelineError::Source(error)),
        };
        state.slot_checks.ended(&check, Instant::now());
        self.check_slot_owner(&check)?;
        // Another server than that of the stream may not have the table yet.
        if let SlotCheck::Answered {
            owner: SlotOwner::Ours,
            place: Some((id, place)),
            ..
        } = check
        {
            self.place(id, place)?;
        }
        Ok(())
    }

    /// Passes the place of a table to the core.
    fn place(&mut self, id: RelationId, place: TablePlace) -> Result<(), CoreError> {
        match self.session.core.place(id, place)? {
            Some(Placement::PassedOver(table)) if self.passed_over.insert(table.clone()) => {
                warn!(
                    %table,
                    "rows of this table are passed over: the publication carries it, or did, and it is no outbox \
                     of this configuration"
                );
            }
            Some(Placement::Outbox(table)) => {
                debug!(id = id.get(), %table, "the table of the log is this outbox under another name");
            }
            Some(Placement::PassedOver(_)) | None => {}
        }
        Ok(())
    }

    /// Renews the lease if a slot check shows our walsender at the slot. Returns an error if another
    /// process reads the slot.
    fn check_slot_owner(&mut self, check: &SlotCheck) -> PipelineResult<(), S, F> {
        let SlotCheck::Answered {
            asked_at,
            owner,
            timeline,
            ..
        } = check
        else {
            return Ok(());
        };
        match owner {
            SlotOwner::Ours => {
                self.lease.renew(*asked_at);
                if let Some(timeline) = timeline
                    && timeline != self.timeline
                {
                    info!(
                        from = self.timeline,
                        to = timeline,
                        "the server was promoted under the stream"
                    );
                    *self.timeline = *timeline;
                }
            }
            // The check was of another server, or of a slot whose walsender is about to start: no
            // proof.
            SlotOwner::Nobody => {}
            SlotOwner::Other { .. } => {
                let unproven = self.lease.age(Instant::now());
                return Err(PipelineError::Displaced { unproven });
            }
        }
        Ok(())
    }
}
