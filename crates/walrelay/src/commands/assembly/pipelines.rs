//! The pipelines of commands that send events again or compare them, beside the relay's own in
//! `run`.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use walrelay_event_router::Router;
use walrelay_failure::Failure;
use walrelay_observe::wall_clock;
use walrelay_pgoutput::PgTimestamp;
use walrelay_postgres_source::{
    PostgresError, ResendSource, Selection, SnapshotPlan, SnapshotProgress,
};
use walrelay_relay::{Observer, Outcome, Pipeline, PoisonAction, Progress, Settings, Source};
use walrelay_sink::{AnySinkFactory, Record, lock};

use super::server::Server;
use super::{block_on, selection, stop_signal_or, wanted};
use crate::config::PipelineConfig;
use crate::failures;
use crate::sinks::Count;

/// A pipeline of a command beside `run`. Sink and observer are objects, so that the program has the
/// code of these pipelines once for each source: some 100 kB.
pub(crate) type CommandPipeline<'o, S> = Pipeline<S, AnySinkFactory, &'o mut dyn Observer>;

/// The observer of a pipeline: calls a function with the progress at each status update.
pub(crate) struct OnProgress<F>(pub(crate) F);

impl<F: FnMut(&Progress) + Send> Observer for OnProgress<F> {
    fn wall_clock(&self) -> PgTimestamp {
        wall_clock()
    }

    fn progress(&mut self, progress: &Progress) {
        (self.0)(progress);
    }
}

/// Makes the relay's router and settings, but with what `poison` makes of the relay's action for
/// each class of events that cannot be delivered. `registers`: schemas may be registered.
pub(crate) fn router_and_settings(
    config: &PipelineConfig,
    registers: bool,
    poison: fn(PoisonAction) -> PoisonAction,
) -> Result<(Router, Settings), Failure> {
    let (router, messages) = super::router(config)?;
    let schemas = if registers {
        super::schemas(config, None)?
    } else {
        super::schemas_without_registering(config)?
    };
    let mut settings = super::settings(config, messages, None, schemas);
    let policy = &mut settings.poison;
    for action in [
        &mut policy.unroutable,
        &mut policy.oversize,
        &mut policy.rejected,
        &mut policy.undecodable,
    ] {
        *action = poison(*action);
    }
    Ok((router, settings))
}

/// Skips events of which the relay makes dead letters.
pub(crate) fn without_dead_letters(action: PoisonAction) -> PoisonAction {
    match action {
        PoisonAction::DeadLetter => PoisonAction::Skip,
        PoisonAction::Halt | PoisonAction::Skip => action,
    }
}

/// Makes a source of the rows of the outbox tables that the SQL condition `filter` selects.
pub(crate) fn selected_rows(
    server: &Server,
    filter: String,
    progress: &Arc<SnapshotProgress>,
) -> ResendSource {
    let wanted = wanted(&server.config);
    ResendSource::new(SnapshotPlan {
        info: server.info.clone(),
        slot: wanted.slot,
        publication: wanted.publication,
        tables: wanted.tables,
        selection: Selection {
            unsent: false,
            filter: Some(filter),
            // Chosen rows are often single ones, and the user is asked first.
            unordered: true,
            ..selection(&server.config)
        },
        progress: Arc::clone(progress),
    })
}

/// Runs a pipeline until `ended` resolves or a signal asks to stop. Returns the pipeline's result.
///
/// # Errors
/// If it cannot be started.
pub(crate) fn run_until<S: Source<Error = PostgresError>>(
    pipeline: &mut CommandPipeline<'_, S>,
    ended: impl Future<Output = ()>,
) -> Result<Result<Outcome, Failure>, Failure> {
    block_on(async {
        let stop = stop_signal_or(ended)?;
        let result = Box::pin(pipeline.run(stop)).await;
        Ok(result.map_err(|error| failures::correct_for_copy(failures::pipeline(error))))
    })?
}

/// Counts records. A record that is sent again to a new sink counts again.
#[derive(Debug, Default)]
pub(crate) struct RecordCounts {
    acknowledged: AtomicU64,
    last_acknowledged: Mutex<Option<Instant>>,
    /// Number of records sent to each topic.
    topics: Mutex<BTreeMap<String, u64>>,
}

impl RecordCounts {
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Returns the time when the last acknowledgement arrived.
    pub(crate) fn last_acknowledged(&self) -> Option<Instant> {
        *lock(&self.last_acknowledged)
    }

    /// Returns the number of records sent to each topic.
    pub(crate) fn topics(&self) -> BTreeMap<String, u64> {
        lock(&self.topics).clone()
    }
}

impl Count for RecordCounts {
    fn sent(&self, record: &Record<'_>) {
        let mut topics = lock(&self.topics);
        match topics.get_mut(record.topic) {
            Some(count) => *count += 1,
            None => {
                topics.insert(record.topic.to_owned(), 1);
            }
        }
    }

    fn delivered(&self) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        *lock(&self.last_acknowledged) = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_by_topic() {
        let counts = RecordCounts::default();
        for topic in ["b", "a", "b", "b"] {
            counts.sent(&Record {
                topic,
                ..Record::default()
            });
        }
        let expected = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 3)]);
        assert_eq!(counts.topics(), expected);
        assert_eq!(counts.last_acknowledged(), None);
        counts.delivered();
        assert!(counts.acknowledged() == 1 && counts.last_acknowledged().is_some());
    }
}
