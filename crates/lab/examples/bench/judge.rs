//! Whether everything came, once and in order, and when: by what lies in the broker.

use std::time::Duration;

use walrelay_testkit::{Committed, Delivered, History, check};

use crate::rig::{BREAK_IN_RECORDS, Backlog, Rig};

/// Reading a million records takes some seconds.
const PATIENCE: Duration = Duration::from_secs(180);

/// The rows of a backlog, as they must arrive.
pub(crate) struct Judge {
    committed: Vec<Committed>,
    /// Without the prefix of a run.
    kinds: Vec<String>,
    topics: u32,
}

/// What the broker has of a run. Milliseconds since 1970 by its clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Appended {
    pub(crate) first: i64,
    /// The record with which half of them were there.
    pub(crate) half: i64,
    pub(crate) last: i64,
    pub(crate) duplicates: usize,
}

impl Appended {
    /// Records a second, of the second half of so many.
    pub(crate) fn second_half(&self, rows: u64) -> f64 {
        let millis = (self.last - self.half).max(1);
        (rows - rows / 2) as f64 * 1e3 / millis as f64
    }

    /// Seconds from the first to the last.
    pub(crate) fn seconds(&self) -> f64 {
        (self.last - self.first).max(1) as f64 / 1e3
    }
}

impl Judge {
    pub(crate) fn new(rig: &Rig, backlog: &Backlog) -> Self {
        let (first, last) = backlog.numbers;
        let sql = format!(
            "SELECT id::text, aggregatetype, aggregateid, seq, payload::text FROM {} \
             WHERE seq BETWEEN $1 AND $2",
            backlog.table
        );
        let rows = rig.db.query(&sql, &[&first, &last]);
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

    /// Reads the topics of this prefix from their beginning and holds every record against its row:
    /// completeness, topic, key, every byte of the value, order per key. The program ends with the
    /// report if anything is wrong. Duplicates are allowed, and counted.
    pub(crate) fn judge(&mut self, rig: &Rig, prefix: &str) -> Appended {
        for (row, kind) in self.committed.iter_mut().zip(&self.kinds) {
            row.topic = format!("{prefix}{kind}");
        }
        let brokers = rig.kafka.bootstrap_servers();
        let mut records: Vec<Delivered> = if self.topics == 1 {
            History::records(&brokers, prefix, self.committed.len(), PATIENCE)
        } else {
            // In parts, by the first digit of their number: a consumer of a thousand topics does not get
            // ready in time. All records are acknowledged, so a missing one is lost.
            let part = |digit| format!("{prefix}order-{digit}");
            let read = |digit| History::records(&brokers, &part(digit), 0, PATIENCE);
            (0..10).flat_map(read).collect()
        };
        // Without the records that broke the partitions in.
        records.retain(|record| record.id.is_some() || record.offset >= BREAK_IN_RECORDS);
        let verdict = check(&self.committed, &records);
        verdict.assert_clean();
        let appended = records.iter().filter_map(|record| record.appended);
        let mut appended: Vec<i64> = appended.collect();
        assert_eq!(appended.len(), records.len(), "times of the broker");
        appended.sort_unstable();
        Appended {
            first: appended[0],
            half: appended[appended.len() / 2],
            last: appended[appended.len() - 1],
            duplicates: verdict.duplicates,
        }
    }
}
