//! What a scenario that failed leaves in its directory.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use serde_json::json;
use walrelay_testkit::{Committed, Delivered, KafkaCluster, LoggedRow};

use super::Context;

impl Context {
    /// Saves what was committed and what arrived.
    pub(super) fn leave_history(
        &self,
        committed: &[Committed],
        records: &[Delivered],
        commits: &[LoggedRow],
    ) {
        let text = |bytes: &Option<Vec<u8>>| {
            let bytes = bytes.as_deref();
            bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        let at = commits.iter().map(|row| (&*row.id, row.commit.to_string()));
        let at: HashMap<&str, String> = at.collect();
        let mut lines = String::new();
        for row in committed {
            let line = json!({"row": row.id, "commit": at.get(&*row.id), "topic": row.topic,
                "key": text(&row.key), "number": row.number, "payload": text(&row.payload)});
            let _ = writeln!(lines, "{line}");
        }
        for record in records {
            let line = json!({"record": record.id, "topic": record.topic,
                "partition": record.partition, "offset": record.offset, "key": text(&record.key),
                "appended": record.appended, "payload": text(&record.payload)});
            let _ = writeln!(lines, "{line}");
        }
        fs::write(self.dir.join("history.jsonl"), lines).expect("the history is written");
    }

    /// Saves what can still be read after a scenario that failed.
    pub(crate) fn leave_evidence(&self) {
        let server = fs::read(self.postgres.log_path()).unwrap_or_default();
        let _ = fs::write(self.dir.join("postgres.log"), server);
        let _ = fs::write(self.dir.join("sink.log"), self.destination.log());
        if let Some(cluster) = &self.cluster {
            for broker in KafkaCluster::BROKERS {
                let path = self.dir.join(format!("broker-{broker}.log"));
                let _ = fs::write(path, cluster.log(broker));
            }
        }
        if self.dir.join("history.jsonl").exists() || self.commits.is_none() {
            return;
        }
        let committed = self.committed_by_the_log();
        let commits = self.commit_log().ids();
        let records = self.records_within(committed.len(), Duration::from_secs(5));
        self.leave_history(&committed, &records, &commits);
    }
}
