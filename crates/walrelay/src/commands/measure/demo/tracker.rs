//! Tracks committed, rolled back and arrived events.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use walrelay_observe::Latencies;
use walrelay_sink::lock;

use crate::commands::delivery::relay::CommitToAck;

/// The events that the writer committed or rolled back, and those that the viewer has read.
#[derive(Default)]
pub(super) struct EventTracker {
    events: Mutex<Events>,
    arrived: Condvar,
}

#[derive(Default)]
struct Events {
    /// The time when the commit of an event was sent to the server: an event may arrive before the
    /// server's answer to the commit.
    committed: HashMap<String, Instant>,
    rolled_back: HashSet<String>,
    transactions: u64,
    rolled_back_transactions: u64,
    arrived: HashSet<String>,
    repeats: u64,
    dead_letters: u64,
}

/// The relation of an event that arrives to the commits.
pub(super) enum Arrival {
    /// The event was committed and arrives for the first time. The duration is the time since its
    /// commit was sent.
    First(Duration),
    /// The event has arrived before.
    Repeat,
    /// The event was never committed.
    NotCommitted,
}

/// The totals of the viewer.
pub(super) struct ViewerTotals {
    /// Number of events by topic.
    pub(super) per_topic: BTreeMap<String, u64>,
    pub(super) not_committed: u64,
    pub(super) out_of_order: u64,
    pub(super) latencies: Latencies,
}

impl EventTracker {
    fn events(&self) -> MutexGuard<'_, Events> {
        lock(&self.events)
    }

    /// Records that the commit of a transaction with these events is about to be sent.
    pub(super) fn committing(&self, ids: &[String]) {
        let now = Instant::now();
        let mut events = self.events();
        events.transactions += 1;
        events
            .committed
            .extend(ids.iter().map(|id| (id.clone(), now)));
    }

    /// Records that a transaction with these events was rolled back.
    pub(super) fn rolled_back(&self, ids: &[String]) {
        let mut events = self.events();
        events.rolled_back_transactions += 1;
        events.rolled_back.extend(ids.iter().cloned());
    }

    /// Records that an event has arrived.
    pub(super) fn arrived(&self, id: &str) -> Arrival {
        let mut events = self.events();
        let Some(committed) = events.committed.get(id).copied() else {
            return Arrival::NotCommitted;
        };
        if events.arrived.insert(id.to_owned()) {
            self.arrived.notify_all();
            Arrival::First(committed.elapsed())
        } else {
            events.repeats += 1;
            Arrival::Repeat
        }
    }

    /// Records that the relay made a dead letter of a committed event.
    pub(super) fn dead_letter(&self) {
        self.events().dead_letters += 1;
    }

    pub(super) fn all_arrived(&self) -> bool {
        let events = self.events();
        events.arrived.len() == events.committed.len()
    }

    /// Waits for one more arrival, at most `limit`.
    pub(super) fn wait_for_arrival(&self, limit: Duration) {
        // The caller checks again, whether an event arrived or the time is over.
        drop(self.arrived.wait_timeout(self.events(), limit));
    }

    /// Returns whether each committed event has arrived, nothing else has, and the order per key
    /// was kept.
    pub(super) fn is_correct(&self, totals: &ViewerTotals) -> bool {
        self.all_arrived() && totals.not_committed == 0 && totals.out_of_order == 0
    }

    /// Returns the lines of the end. `acknowledged`: the words for the time until then.
    pub(super) fn summary(
        &self,
        totals: &ViewerTotals,
        acknowledged: &str,
        commit_to_ack: CommitToAck,
    ) -> String {
        let events = self.events();
        let lost = events.committed.len() - events.arrived.len();
        let mut lines = vec![
            String::new(),
            format!(
                "  committed     {} events in {} transactions",
                events.committed.len() as u64 + events.dead_letters,
                events.transactions + events.dead_letters
            ),
            format!(
                "  rolled back   {} events in {} transactions",
                events.rolled_back.len(),
                events.rolled_back_transactions
            ),
            format!(
                "  arrived       {} events, {} of them twice",
                events.arrived.len(),
                events.repeats
            ),
            format!("  dead letters  {}", events.dead_letters),
            format!("  lost          {lost}"),
            format!("  not committed {}", totals.not_committed),
            format!("  out of order  {}", totals.out_of_order),
        ];
        lines.extend(
            totals
                .per_topic
                .iter()
                .map(|(topic, count)| format!("  {topic:<24} {count}")),
        );
        let latencies = [
            (acknowledged, commit_to_ack),
            ("commit → consumer", totals.latencies.p50_p99_ms()),
        ];
        lines.extend(latencies.iter().filter_map(|(name, latency)| {
            latency.map(|(p50, p99)| format!("  {name:<24} p50 {p50:.2} ms, p99 {p99:.2} ms"))
        }));
        // Otherwise the relay's thread would have ended with an error.
        lines.push("  everything confirmed in the slot: yes".to_owned());
        lines.join("\n")
    }
}
