//! Checks what a run wrote to Kafka: complete, in order, how often repeated, and when appended.

use std::time::Duration;

use walrelay_testkit::{Committed, Delivered, History, check};

use crate::harness::{Backlog, Harness, WARM_UP_RECORDS};

/// Limit for reading the topics. A million records take some seconds.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The rows of a backlog as they must arrive in Kafka.
pub(crate) struct Checker {
    committed: Vec<Committed>,
    /// Aggregate type of each row: the topic without the run's prefix.
    kinds: Vec<String>,
    topics: u32,
}

/// The times when the broker appended the records of a run, in milliseconds since 1970 by its
/// clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Appended {
    pub(crate) first: i64,
    /// Time of the record that completed the first half.
    pub(crate) half: i64,
    pub(crate) last: i64,
    pub(crate) duplicates: usize,
}

impl Appended {
    /// Returns the records per second over the second half of `rows`.
    pub(crate) fn second_half(&self, rows: u64) -> f64 {
        let millis = (self.last - self.half).max(1);
        (rows - rows / 2) as f64 * 1e3 / millis as f64
    }

    /// Returns the seconds from the first to the last record.
    pub(crate) fn seconds(&self) -> f64 {
        (self.last - self.first).max(1) as f64 / 1e3
    }
}

impl Checker {
    pub(crate) fn new(harness: &Harness, backlog: &Backlog) -> Self {
        let (first, last) = backlog.numbers;
        let sql = format!(
            "SELECT id::text, aggregatetype, aggregateid, seq, payload::text FROM {} \
             WHERE seq BETWEEN $1 AND $2",
            backlog.table
        );
        let rows = harness.db.query(&sql, &[&first, &last]);
        let kinds = rows.iter().map(|row| row.get(1)).collect();
        let committed = rows.iter().map(|row| Committed {
            id: row.get(0),
            topic: String::new(),
            key: row.get::<_, Option<&str>>(2).map(Into::into),
            number: row.get(3),
            payload: row.get::<_, Option<&str>>(4).map(Into::into),
        });
        Self {
            committed: committed.collect(),
            kinds,
            topics: backlog.load.topics,
        }
    }

    /// Reads the topics with this prefix from the beginning and compares each record with its row:
    /// completeness, topic, key, every byte of the value, order per key. Panics with the report if
    /// anything is wrong. Duplicates are allowed, and counted.
    pub(crate) fn check_records(&mut self, harness: &Harness, prefix: &str) -> Appended {
        let brokers = harness.kafka.bootstrap_servers();
        let mut records: Vec<Delivered> = if self.topics == 1 {
            History::records(&brokers, prefix, self.committed.len(), TIMEOUT)
        } else {
            // A consumer of a thousand topics is not ready in time, so read them in ten groups by
            // the first digit of their number. All records are acknowledged already, so a missing
            // one is lost.
            let part = |digit| format!("{prefix}order-{digit}");
            let read = |digit| History::records(&brokers, &part(digit), 0, TIMEOUT);
            (0..10).flat_map(read).collect()
        };
        // Drop the warm-up records of the partitions.
        records.retain(|record| record.id.is_some() || record.offset >= WARM_UP_RECORDS);
        let duplicates = self.check(prefix, &records);
        let appended = records.iter().filter_map(|record| record.appended);
        let mut appended: Vec<i64> = appended.collect();
        assert_eq!(appended.len(), records.len(), "times of the broker");
        appended.sort_unstable();
        Appended {
            first: appended[0],
            half: appended[appended.len() / 2],
            last: appended[appended.len() - 1],
            duplicates,
        }
    }

    /// Compares records with the rows, whose topics have this prefix. Panics with the report if
    /// anything is wrong. Returns the number of duplicates.
    pub(crate) fn check(&mut self, prefix: &str, records: &[Delivered]) -> usize {
        for (row, kind) in self.committed.iter_mut().zip(&self.kinds) {
            row.topic = format!("{prefix}{kind}");
        }
        let verdict = check(&self.committed, records);
        verdict.assert_clean();
        verdict.duplicates
    }
}
