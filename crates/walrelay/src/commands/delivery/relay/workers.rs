//! The threads that work on the database alongside a relay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use walrelay_failure::{Exit, Failure};
use walrelay_observe::Background;
use walrelay_postgres_source::{
    Audit, DeadMarking, PostgresSource, ROLLING, SentMarker, bookmark_slot,
};

use super::Relay;
use crate::commands::assembly::{dead_letters, marking, no_runtime};
use crate::commands::database::prune::pruning;
use crate::commands::delivery::outbox::audit_watch;
use crate::workers::{AuditWorker, Keep, Keeping, MarkWorker, RowWorker, keep_bookmark};

impl Relay<'_> {
    /// Starts the threads that keep the rolling bookmark, delete confirmed rows and mark them as sent,
    /// where these are configured. Dropping them stops the threads.
    pub(super) fn start_workers(
        &self,
        source: &PostgresSource,
        diverted: &Arc<AtomicU64>,
    ) -> Result<Vec<Background>, Failure> {
        let (config, info, telemetry) = (self.config, &self.info, &self.telemetry);
        let slot = &config.source.slot;
        let mut workers = Vec::new();
        // The relay of `cutover switch` is followed by that of `run`, whose first start is the first.
        if !self.switches {
            let _ = self.run_keeper.walsender.set(source.walsender());
            let keeper = Arc::clone(&self.run_keeper);
            let started = Background::start("run-note", move || keeper.run());
            workers.push(started.map_err(no_runtime)?);
        }
        if let Some(retention) = config.retention {
            let bookmark = bookmark_slot(slot, ROLLING).map_err(|why| {
                Failure::new("bookmark-name", Exit::Config, why)
                    .remedy("choose a shorter name for [source] slot")
            })?;
            let keeping = Keeping {
                info: info.clone(),
                slot: slot.clone(),
                bookmark,
                keep: Keep {
                    time: retention.keep,
                    max_wal: retention.max_wal,
                },
                state_file: config.source.state_file.clone(),
                walsender: source.walsender(),
                telemetry: telemetry.clone(),
            };
            workers.push(keep_bookmark(keeping).map_err(no_runtime)?);
        }
        // A dead letter is written by this process, or was written by another one that read the slot
        // before this process' walsender.
        let unsent = || {
            let (walsender, diverted) = (source.walsender(), Arc::clone(diverted));
            let epoch = move || {
                let walsender = walsender.load(Ordering::Acquire);
                Some((walsender, diverted.load(Ordering::Acquire)))
            };
            dead_letters(config, epoch)
        };
        let keep = config.prune.as_ref().and_then(|prune| prune.keep);
        let prune = keep.map(|keep| pruning(config, info.clone(), Some(keep), unsent()?));
        let prune = prune.transpose()?;
        if let Some(pruning) = prune {
            let worker = RowWorker {
                info: info.clone(),
                slot: slot.clone(),
                pruning,
                walsender: source.walsender(),
                telemetry: telemetry.clone(),
            };
            workers.push(worker.start().map_err(no_runtime)?);
        }
        if let Some(settings) = config.audit.filter(|_| self.sent_rows.is_some()) {
            let worker = AuditWorker {
                info: info.clone(),
                slot: slot.clone(),
                audit: Audit::new(audit_watch(config, unsent()?)?, settings),
                every: settings.every,
                walsender: source.walsender(),
                telemetry: telemetry.clone(),
            };
            workers.push(worker.start().map_err(no_runtime)?);
        }
        if let Some(sent) = &self.sent_rows {
            let dead = config.source.mark_dead.clone();
            let dead = dead.map(|set| Ok::<_, Failure>(DeadMarking::new(set, unsent()?)));
            let worker = MarkWorker {
                info: info.clone(),
                slot: slot.clone(),
                sent: Arc::clone(sent),
                marker: SentMarker::new(marking(config), Arc::clone(sent))
                    .marking_dead(dead.transpose()?),
                walsender: source.walsender(),
                telemetry: telemetry.clone(),
            };
            workers.push(worker.start().map_err(no_runtime)?);
        }
        Ok(workers)
    }
}
