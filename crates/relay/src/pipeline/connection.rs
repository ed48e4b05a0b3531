//! One connection: opens it, checks that it continues the last one, and streams until it ends.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::{info, warn};
use walrelay_pgoutput::Begin;
use walrelay_sink::{SinkFactory, StreamStart};

use super::Pipeline;
use super::continuity::Continuity;
use super::error::{PipelineError, PipelineResult};
use super::lease::Lease;
use super::session::poll_while::poll_while;
use super::settings::Outcome;
use super::shutdown::Shutdown;
use super::streaming::Streaming;
use crate::interface::observer::{Observer, PipelineState};
use crate::interface::source::{Opened, Resume, Source, SourceError as _, WalStream as _};
use crate::table::TableName;

/// The longest time that the orderly end of a stream that is refused may take.
const REFUSAL_LIMIT: Duration = Duration::from_secs(10);

impl<S: Source, F: SinkFactory, W: Observer> Pipeline<S, F, W> {
    /// Opens a connection. `None`: a stop was requested.
    async fn open(
        &mut self,
        shutdown: &mut Shutdown<'_, impl Future<Output = ()>>,
    ) -> Result<Option<Opened<S::Stream>>, S::Error> {
        if !std::mem::take(&mut self.waits_for_slot) {
            self.observer.state(PipelineState::Connecting);
        }
        loop {
            self.discard_if_displaced(false).await;
            let open = self.source.open(self.resume.as_ref());
            let opened = tokio::select! {
                biased;
                () = shutdown.asked() => return Ok(None),
                opened = poll_while(&mut self.sessions.current, self.lease, open) => opened,
            };
            if let Some(opened) = opened {
                // The machine may have been suspended since the last look at the lease.
                self.discard_if_displaced(false).await;
                return opened.map(Some);
            }
        }
    }

    /// Opens one connection and streams until it ends.
    pub(super) async fn attempt(
        &mut self,
        shutdown: &mut Shutdown<'_, impl Future<Output = ()>>,
    ) -> PipelineResult<Outcome, S, F> {
        let Some(opened) = self.open(shutdown).await.map_err(PipelineError::Source)? else {
            return Ok(self.stopped_without_connection().await);
        };
        self.failed_attempts.admitted();
        if let Err(error) = self.check_continuity(&opened) {
            // The next relay would count a walsender that is left as the reader that moved the slot.
            let _ = timeout(REFUSAL_LIMIT, opened.stream.finish()).await;
            return Err(error);
        }
        let timeline_before = self.resume.as_ref().map(|resume| resume.timeline);
        self.forget_if_read_by_others(&opened).await;
        let Opened {
            stream,
            system_id,
            mut timeline,
            slot,
            server_start,
            flushed,
            confirmed,
            server_timeout,
            tables,
            epoch,
            ..
        } = opened;
        let is_new = stream.is_snapshot() || timeline_before.is_none();
        if is_new {
            // Positions of a snapshot are no positions of the WAL, and a condition that depends on the
            // time selects other rows the next time. Without `resume`, the last stream was a snapshot
            // that was not finished.
            self.sessions.forget_acknowledged();
        }
        let start = StreamStart {
            system_id,
            timeline,
            slot,
            confirmed,
            snapshot: stream.is_snapshot(),
        };
        let session = self
            .sessions
            .open(&self.settings, &start)
            .map_err(PipelineError::Sink)?;
        if let Err(error) = session.core.check_sink_position(flushed) {
            let _ = timeout(REFUSAL_LIMIT, stream.finish()).await;
            return Err(PipelineError::Core(error));
        }
        if is_new {
            session.core.forget_taken();
        }
        session.core.set_epoch(epoch);
        session.core.set_system(&start.system_id);
        session.core.connected(confirmed);
        session.core.describe(tables);
        report_start(&mut self.observer, &start);
        let lease = Lease::new(Instant::now(), server_timeout);
        let result = Streaming::<S, F, W> {
            stream,
            source: &mut self.source,
            server_timeout,
            lease: self.lease.insert(lease),
            timeline: &mut timeline,
            session,
            settings: &self.settings,
            observer: &mut self.observer,
            failed_attempts: &mut self.failed_attempts,
            schema_fetcher: &mut self.schema_fetcher,
            passed_over: &mut self.passed_over,
        }
        .run(shutdown)
        .await;
        session.core.advance();
        let open = session.core.open_behind_acknowledged();
        let tables = session.core.tables_of_next_row();
        session.core.disconnected();
        // A snapshot that is not confirmed counts as nothing relayed: another relay may read one and
        // make the slot.
        if !start.snapshot || session.core.acknowledged_position() > confirmed {
            self.resume = Some(Resume {
                system_id: start.system_id,
                timeline,
                server_start: Some(server_start),
                confirmed: session.core.acknowledged_position(),
                seen: session.core.seen(),
            });
        }
        match result {
            Err(PipelineError::Source(source)) if !start.snapshot && source.may_be_of_a_row() => {
                Err(self.failed_inside(source, open, tables))
            }
            result => result,
        }
    }

    /// Forgets what may not be trusted if another relay has read the slot since this one did.
    async fn forget_if_read_by_others(&mut self, opened: &Opened<S::Stream>) {
        // Also if the slot has not moved: the other relay may have sent records that it did not
        // confirm.
        let timeline_before = self.resume.as_ref().map(|resume| resume.timeline);
        if opened.predecessor.is_some() {
            self.discard_if_displaced(true).await;
            if timeline_before.is_some_and(|timeline| timeline != opened.timeline) {
                // Other events may have the known positions.
                self.sessions.forget_events();
            }
        }
        // A relay that read the slot before has written its dead letters by now.
        let was_free = std::mem::take(&mut self.was_free);
        let others = was_free || timeline_before.is_none() || opened.predecessor.is_some();
        if let Some(parking) = self.settings.poison.parking.as_ref().filter(|_| others) {
            parking.require_reading();
        }
    }

    /// Creates the error of a stream that the server ended inside the transaction `open`, after so
    /// many of its rows. Retryable the first time, and while a transaction before it is not
    /// acknowledged: a user who passes the transaction over must not pass over others.
    fn failed_inside(
        &mut self,
        source: S::Error,
        open: Option<(Begin, u64)>,
        tables: Vec<TableName>,
    ) -> PipelineError<S::Error, F::Error> {
        let commit = open.map(|(begin, _)| begin.final_lsn);
        let before = std::mem::replace(&mut self.failed_inside, commit);
        match open {
            Some((begin, rows)) if before == commit => PipelineError::Unsendable {
                xid: begin.xid,
                commit: begin.final_lsn,
                rows,
                tables,
                source,
            },
            _ => PipelineError::Source(source),
        }
    }

    /// Returns an error if the stream does not continue the WAL that this process has read so far.
    fn check_continuity(&mut self, opened: &Opened<S::Stream>) -> PipelineResult<(), S, F> {
        let Some(resume) = &self.resume else {
            return Ok(());
        };
        match resume.continued_by(opened)? {
            Continuity::Same => Ok(()),
            Continuity::HandedOver { from, to, by } => {
                warn!(
                    %from, %to, %by,
                    "another relay has read the slot meanwhile: going on from where the slot stands"
                );
                Ok(())
            }
            Continuity::Moved => {
                info!(
                    former = resume.system_id,
                    now = opened.system_id,
                    "the outbox was moved to this server after every event of the former one was delivered"
                );
                Err(self.start_over(opened))
            }
            Continuity::Promoted { parted } => {
                if parted < resume.seen.lsn() {
                    warn!(
                        from = %parted,
                        to = %resume.seen,
                        "the promoted server has not got all that was received from the old one: \
                         events of this range may be of transactions that it does not have"
                    );
                }
                Err(self.start_over(opened))
            }
        }
    }

    /// Starts over from the slot's position: beyond it, positions of two timelines or servers cannot be compared.
    fn start_over(&mut self, opened: &Opened<S::Stream>) -> PipelineError<S::Error, F::Error> {
        let before = self.resume.as_ref().map_or(0, |resume| resume.timeline);
        self.resume = Some(Resume {
            system_id: opened.system_id.clone(),
            timeline: opened.timeline,
            server_start: Some(opened.server_start.clone()),
            confirmed: opened.confirmed,
            seen: opened.confirmed,
        });
        PipelineError::OtherTimeline {
            before,
            now: opened.timeline,
        }
    }
}

/// Logs that a stream starts, and reports the state to the observer.
fn report_start(observer: &mut impl Observer, start: &StreamStart) {
    let StreamStart {
        system_id,
        timeline,
        confirmed,
        ..
    } = start;
    if start.snapshot {
        info!(system_id, timeline, "streaming the snapshot");
        observer.state(PipelineState::Snapshot);
    } else {
        info!(%confirmed, system_id, timeline, "streaming");
        observer.state(PipelineState::Streaming);
    }
}
