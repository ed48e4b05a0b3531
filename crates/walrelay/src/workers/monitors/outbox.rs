//! Reads sizes and ages of the outbox tables from the server, at a slow interval and over a connection of its
//! own: a statement that takes long must not delay what is known of the slot.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};
use walrelay_observe::{OutboxReport, Telemetry};
use walrelay_postgres_source::{Oldest, OutboxStats, OutboxWatch, outbox_stats};
use walrelay_relay::Chain;
use walrelay_walsender::ConnInfo;

/// Interval of the queries.
const INTERVAL: Duration = Duration::from_secs(30);
/// The longest time that one look at all tables may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Reports the state of the outbox tables to the telemetry.
#[derive(Debug)]
pub(crate) struct OutboxMonitor {
    info: ConnInfo,
    watch: OutboxWatch,
    /// `[prune] keep`.
    keep: Option<Duration>,
}

impl OutboxMonitor {
    /// Creates a monitor that connects when it is asked. `keep`: the age at which sent rows are deleted.
    pub(crate) fn new(info: ConnInfo, watch: OutboxWatch, keep: Option<Duration>) -> Self {
        Self { info, watch, keep }
    }

    /// Queries the tables at each interval. Never returns.
    pub(crate) async fn watch(self, telemetry: &Telemetry) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let stats = timeout(LIMIT, outbox_stats(&self.info, &self.watch)).await;
            telemetry.outbox(match stats {
                Ok(Ok(stats)) => Ok(stats
                    .into_iter()
                    .map(|one| report(one, self.keep))
                    .collect()),
                Ok(Err(error)) => Err(Chain(&error).to_string()),
                Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
            });
        }
    }
}

fn report(stats: OutboxStats, keep: Option<Duration>) -> OutboxReport {
    let unmarked = stats.oldest_unmarked.clone().unwrap_or_default();
    let overdue = keep
        .zip(stats.oldest.seconds)
        .map(|(keep, oldest)| (oldest - keep.as_secs_f64()).max(0.0));
    let why = |row: &str, oldest: &Oldest| {
        let why = oldest.unknown.as_ref()?;
        Some(format!("the oldest {row} is not known: {why}"))
    };
    let unknown = [why("row", &stats.oldest), why("unmarked row", &unmarked)];
    OutboxReport {
        table: stats.table,
        rows: stats.rows,
        bytes: stats.bytes,
        dead_rows: stats.dead_rows,
        vacuum_seconds: stats.vacuum_seconds,
        oldest_seconds: stats.oldest.seconds,
        oldest_unmarked_seconds: stats.oldest_unmarked.and_then(|unmarked| {
            // Without such a row, none is late.
            unmarked
                .seconds
                .or(unmarked.unknown.is_none().then_some(0.0))
        }),
        prune_overdue_seconds: overdue,
        unknown: unknown.into_iter().flatten().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_reported_as_far_as_they_are_known() {
        let stats = |oldest, unmarked| OutboxStats {
            table: "public.outbox".to_owned(),
            oldest: Oldest {
                seconds: oldest,
                unknown: None,
            },
            oldest_unmarked: unmarked,
            ..OutboxStats::default()
        };
        let keep = Some(Duration::from_secs(60));
        let late = report(stats(Some(100.0), Some(Oldest::default())), keep);
        assert_eq!(late.prune_overdue_seconds, Some(40.0));
        // All rows are marked.
        assert_eq!(late.oldest_unmarked_seconds, Some(0.0));
        let unknown = Oldest {
            seconds: None,
            unknown: Some("no index serves it".to_owned()),
        };
        let known = report(stats(Some(10.0), Some(unknown)), keep);
        assert_eq!(known.prune_overdue_seconds, Some(0.0));
        assert_eq!(known.oldest_unmarked_seconds, None);
        let text = "the oldest unmarked row is not known: no index serves it";
        assert_eq!(known.unknown, [text]);
        assert_eq!(report(stats(None, None), None).prune_overdue_seconds, None);
    }
}
