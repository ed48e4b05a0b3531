use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use walrelay_lsn::Lsn;

use crate::{
    Db, Delivered, LoggedRow,
    threads::{lock, spawn},
};

/// Between two looks at the slot.
const LOOK: Duration = Duration::from_millis(5);

/// Where a slot was seen to stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// When the answer was there, in milliseconds since 1970.
    pub at: i64,
    /// Its `confirmed_flush_lsn`.
    pub confirmed: Lsn,
}

/// A row that a slot stood behind before the broker had its record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct TooEarly {
    pub id: String,
    /// Where its commit begins.
    pub commit: Lsn,
    pub seen: Sighting,
    /// When the broker appended the row's first record, if ever.
    pub appended: Option<i64>,
}

/// Looks at a slot every few milliseconds for as long as a test runs, over a connection that it
/// makes again when it is lost. Dropped, it ends.
#[derive(Debug)]
pub struct EarlyWatch {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Sighting>>>,
    thread: Option<JoinHandle<()>>,
}

impl EarlyWatch {
    /// Begins. The slot need not be there yet.
    pub fn start(url: &str, slot: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let thread = spawn("early", {
            let (stop, seen) = (Arc::clone(&stop), Arc::clone(&seen));
            let (url, slot) = (url.to_owned(), slot.to_owned());
            move || watch(&url, &slot, &stop, &seen)
        });
        Self {
            stop,
            seen,
            thread: Some(thread),
        }
    }

    /// What was seen so far: each advance of the slot, in order.
    pub fn sightings(&self) -> Vec<Sighting> {
        lock(&self.seen).clone()
    }
}

impl Drop for EarlyWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(url: &str, slot: &str, stop: &AtomicBool, seen: &Mutex<Vec<Sighting>>) {
    let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
    let mut db: Option<Db> = None;
    while !stop.load(Ordering::SeqCst) {
        if db.is_none() {
            db = Db::try_connect(url).ok();
        }
        match db.as_ref().map(|db| db.try_query(sql, &[&slot])) {
            Some(Ok(rows)) => {
                let text: Option<String> = rows.first().and_then(|row| row.get(0));
                if let Some(text) = text {
                    let confirmed = text.parse().expect("the server writes LSNs well");
                    let mut seen = lock(seen);
                    // A slot may step back when its server crashes: no harm, and no news.
                    if seen.last().is_none_or(|last| last.confirmed < confirmed) {
                        let at = millis_now();
                        seen.push(Sighting { at, confirmed });
                    }
                }
            }
            // The server is away: it may come back.
            Some(Err(_)) => db = None,
            None => {}
        }
        thread::sleep(LOOK);
    }
}

/// Milliseconds since 1970.
pub fn millis_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

/// The rows that the slot was seen to stand behind **before** the broker had appended their records.
///
/// The broker stamps a record, acknowledges it, the relay confirms, the server shows the position, and
/// the sighting is stamped, in this order, by one machine's clock, in whole milliseconds. So a relay that
/// confirms late enough never shows here, without any tolerance.
///
/// # What it cannot see
/// - A position that was confirmed too early by less than the time to the next look (some milliseconds).
///   A fault that holds the broker back for seconds makes it show.
/// - Anything, across a step of the machine's clock, or with a broker on another machine.
/// - Records that the broker acknowledged and forgot: [`check`](crate::check) reports them as lost.
pub fn confirmed_early(
    commits: &[LoggedRow],
    sightings: &[Sighting],
    records: &[Delivered],
) -> Vec<TooEarly> {
    let mut appended: HashMap<&str, i64> = HashMap::new();
    for record in records {
        if let (Some(id), Some(at)) = (record.id.as_deref(), record.appended) {
            let first = appended.entry(id).or_insert(at);
            *first = at.min(*first);
        }
    }
    commits
        .iter()
        .filter_map(|row| {
            let behind = sightings.partition_point(|seen| seen.confirmed <= row.commit);
            let seen = *sightings.get(behind)?;
            let appended = appended.get(row.id.as_str()).copied();
            appended.is_none_or(|at| at > seen.at).then(|| TooEarly {
                id: row.id.clone(),
                commit: row.commit,
                seen,
                appended,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn row(commit: u64) -> LoggedRow {
        LoggedRow {
            commit: Lsn::new(commit),
            id: commit.to_string(),
            columns: BTreeMap::new(),
        }
    }

    fn record(id: &str, appended: i64) -> Delivered {
        Delivered {
            id: Some(id.into()),
            topic: "t".into(),
            partition: 0,
            offset: 0,
            key: None,
            headers: Vec::new(),
            payload: None,
            appended: Some(appended),
            created: None,
        }
    }

    fn early(seen: &[(i64, u64)], records: &[(&str, i64)]) -> Vec<String> {
        let commits = [row(10), row(20), row(30)];
        let seen: Vec<Sighting> = seen
            .iter()
            .map(|&(at, confirmed)| Sighting {
                at,
                confirmed: Lsn::new(confirmed),
            })
            .collect();
        let records: Vec<Delivered> = records.iter().map(|&(id, at)| record(id, at)).collect();
        let early = confirmed_early(&commits, &seen, &records);
        early.into_iter().map(|early| early.id).collect()
    }

    #[test]
    fn a_record_that_was_there_when_the_slot_was_seen_behind_it_is_in_time() {
        let seen = [(100, 5), (200, 15), (300, 35)];
        let records = [("10", 200), ("20", 250), ("30", 300)];
        assert!(early(&seen, &records).is_empty());
    }

    #[test]
    fn one_that_came_later_or_never_is_early() {
        let seen = [(100, 5), (200, 15), (300, 35)];
        assert_eq!(early(&seen, &[("10", 201), ("20", 250)]), ["10", "30"]);
        // The first record counts, not its repeat.
        let records = [("10", 900), ("10", 150), ("20", 250), ("30", 290)];
        assert!(early(&seen, &records).is_empty());
    }

    #[test]
    fn a_slot_at_the_commit_is_not_behind_it() {
        assert!(early(&[(100, 10)], &[]).is_empty());
        assert_eq!(early(&[(100, 11)], &[]), ["10"]);
    }

    #[test]
    fn the_first_sighting_counts() {
        // A server that crashed shows an older position; the watch keeps what it saw before.
        assert_eq!(early(&[(100, 15), (400, 16)], &[("10", 300)]), ["10"]);
    }
}
