use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::commands::run::CommitToAck;
use crate::sync::lock;
use crate::telemetry::Latencies;

/// What was committed, what rolled back, and what has arrived.
#[derive(Default)]
pub(super) struct Ledger {
    books: Mutex<Books>,
    arrived: Condvar,
}

#[derive(Default)]
struct Books {
    /// When the commit of an event was sent to the server. An event may arrive before the server's
    /// answer to the commit does, so it is entered before and struck out if the commit fails.
    committed: HashMap<String, Instant>,
    rolled_back: HashSet<String>,
    transactions: u64,
    rolled_back_transactions: u64,
    arrived: HashSet<String>,
    repeats: u64,
}

/// What an arrival means.
pub(super) enum Arrival {
    /// The first of a committed event, so long after its commit was sent.
    First(Duration),
    /// It had arrived before.
    Repeat,
    /// It was never committed.
    Phantom,
}

/// What the viewer has counted.
pub(super) struct Seen {
    pub(super) per_topic: PerTopic,
    pub(super) phantoms: u64,
    pub(super) out_of_order: u64,
    pub(super) latencies: Latencies,
}

/// Counts per topic, in the order of their names.
pub(super) type PerTopic = BTreeMap<String, u64>;

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }

    pub(super) fn committing(&self, ids: &[String]) {
        let now = Instant::now();
        let mut books = self.books();
        books.transactions += 1;
        books
            .committed
            .extend(ids.iter().map(|id| (id.clone(), now)));
    }

    pub(super) fn rolled_back(&self, ids: &[String]) {
        let mut books = self.books();
        books.rolled_back_transactions += 1;
        books.rolled_back.extend(ids.iter().cloned());
    }

    pub(super) fn arrival(&self, id: &str) -> Arrival {
        let mut books = self.books();
        let Some(committed) = books.committed.get(id).copied() else {
            return Arrival::Phantom;
        };
        if books.arrived.insert(id.to_owned()) {
            self.arrived.notify_all();
            Arrival::First(committed.elapsed())
        } else {
            books.repeats += 1;
            Arrival::Repeat
        }
    }

    pub(super) fn all_arrived(&self) -> bool {
        let books = self.books();
        books.arrived.len() == books.committed.len()
    }

    /// Waits for one more arrival, at most `limit`.
    pub(super) fn wait_for_arrival(&self, limit: Duration) {
        let books = self.books();
        // A time-out or an arrival: the caller looks again in both cases.
        drop(self.arrived.wait_timeout(books, limit));
    }

    /// Whether each committed event arrived, nothing else did, and the order per key held.
    pub(super) fn verdict(&self, seen: &Seen) -> bool {
        self.all_arrived() && seen.phantoms == 0 && seen.out_of_order == 0
    }

    pub(super) fn summary(&self, seen: &Seen, commit_to_ack: CommitToAck) -> String {
        let books = self.books();
        let lost = books.committed.len() - books.arrived.len();
        let mut lines = vec![
            String::new(),
            format!(
                "  committed     {} events in {} transactions",
                books.committed.len(),
                books.transactions
            ),
            format!(
                "  rolled back   {} events in {} transactions",
                books.rolled_back.len(),
                books.rolled_back_transactions
            ),
            format!(
                "  arrived       {} events, {} of them twice",
                books.arrived.len(),
                books.repeats
            ),
            format!("  lost          {lost}"),
            format!("  not committed {}", seen.phantoms),
            format!("  out of order  {}", seen.out_of_order),
        ];
        lines.extend(
            seen.per_topic
                .iter()
                .map(|(topic, count)| format!("  {topic:<24} {count}")),
        );
        let latencies = [
            ("commit → broker's ack", commit_to_ack),
            ("commit → consumer", quantiles(&seen.latencies)),
        ];
        lines.extend(latencies.iter().filter_map(|(name, latency)| {
            latency.map(|(p50, p99)| format!("  {name:<24} p50 {p50:.2} ms, p99 {p99:.2} ms"))
        }));
        // The relay's thread ends with an error otherwise.
        lines.push("  everything confirmed in the slot: yes".to_owned());
        lines.join("\n")
    }
}

fn quantiles(latencies: &Latencies) -> CommitToAck {
    latencies.millis(0.5).zip(latencies.millis(0.99))
}
