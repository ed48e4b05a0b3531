use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use walrelay_lsn::Lsn;

use crate::{
    Db, Delivered, LoggedRow,
    threads::{Background, lock},
};

/// Interval of the readings of a slot.
const READ_INTERVAL: Duration = Duration::from_millis(5);

/// A position of a slot, with the time at which it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// Time after the server's answer, in milliseconds since 1970.
    pub at: i64,
    /// The slot's `confirmed_flush_lsn`.
    pub confirmed: Lsn,
}

/// A row that the slot confirmed before the broker had its record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct TooEarly {
    pub id: String,
    /// Position at which the commit record begins.
    pub commit: Lsn,
    pub seen: Sighting,
    /// The time when the broker appended the row's first record, if it ever did.
    pub appended: Option<i64>,
}

/// Reads a slot every few milliseconds while a test runs, until it is dropped. It reconnects when
/// its connection is lost.
#[derive(Debug)]
pub struct EarlyWatch {
    seen: Arc<Mutex<Vec<Sighting>>>,
    _thread: Background<()>,
}

impl EarlyWatch {
    /// Starts to read the slot, which need not exist yet.
    pub fn start(url: &str, slot: &str) -> Self {
        let seen = Arc::<Mutex<Vec<Sighting>>>::default();
        let thread = Background::start("early", {
            let (url, slot, seen) = (url.to_owned(), slot.to_owned(), Arc::clone(&seen));
            move |stop| watch(&url, &slot, stop, &seen)
        });
        Self {
            seen,
            _thread: thread,
        }
    }

    /// Returns the sightings so far: one for each advance of the slot, in order.
    pub fn sightings(&self) -> Vec<Sighting> {
        lock(&self.seen).clone()
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
                    // A slot may go back when its server crashes. That is correct, and no advance.
                    if seen.last().is_none_or(|last| last.confirmed < confirmed) {
                        let at = millis_now();
                        seen.push(Sighting { at, confirmed });
                    }
                }
            }
            // The server is away and may come back.
            Some(Err(_)) => db = None,
            None => {}
        }
        thread::sleep(READ_INTERVAL);
    }
}

/// Returns the wall clock in milliseconds since 1970.
pub fn millis_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

/// Returns when the broker appended the first record of each id, in milliseconds since 1970.
pub fn first_appended(records: &[Delivered]) -> HashMap<&str, i64> {
    let mut appended: HashMap<&str, i64> = HashMap::new();
    for record in records {
        if let (Some(id), Some(at)) = (record.id.as_deref(), record.appended) {
            let first = appended.entry(id).or_insert(at);
            *first = at.min(*first);
        }
    }
    appended
}

/// Returns the rows that the slot had confirmed **before** the broker appended their records.
///
/// In this order the broker stamps a record and acknowledges it, the relay confirms, the server
/// shows the position, and the sighting is stamped: all by one machine's clock, in whole
/// milliseconds. So a correct relay is never reported, without any tolerance.
///
/// # Limits
/// - A position that was confirmed too early by less than the interval of the readings (some
///   milliseconds) is not detected. A fault that holds the broker back for seconds makes it show.
/// - Nothing is detected across a step of the machine's clock, or with a broker on another machine.
/// - Records that the broker acknowledged and lost are no matter of this function:
///   [`check`](crate::check) reports them as lost.
pub fn confirmed_early(
    commits: &[LoggedRow],
    sightings: &[Sighting],
    records: &[Delivered],
) -> Vec<TooEarly> {
    let appended = first_appended(records);
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
            appended: Some(appended),
            ..Delivered::default()
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
        // A server that crashed shows an older position; the watch keeps the position it read
        // before.
        assert_eq!(early(&[(100, 15), (400, 16)], &[("10", 300)]), ["10"]);
    }
}
