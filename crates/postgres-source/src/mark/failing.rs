//! Tables whose rows could not be marked: each is left alone for a while, and holds up no other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use walrelay_relay::TableName;

/// The time for which a table is left alone: each attempt that fails leaves dead rows.
const PAUSE: Duration = Duration::from_secs(10);

/// Tables whose rows could not be marked, by the names that their keys have.
#[derive(Debug, Default)]
pub(super) struct FailingTables {
    tables: BTreeMap<TableName, Failing>,
}

#[derive(Debug)]
struct Failing {
    failure: Failure,
    /// The end of the pause of rows that were sent just now.
    until: Instant,
    /// The end of the pause of stored keys. Rows that were sent just now are attempted first, and one that fails each
    /// time would pause these for ever.
    stored_until: Instant,
    reason: String,
}

/// The keys by which rows were to be marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempted {
    /// Those of rows that were sent just now.
    Queued,
    /// Stored ones, or all.
    Stored,
}

/// The failure of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// Some rows cannot be marked, and others can.
    Rows,
    /// No row was marked.
    Statement,
    /// No row can be marked in the life of this process.
    InVain,
}

impl FailingTables {
    /// Notes that rows of a table could not be marked.
    pub(super) fn fail(
        &mut self,
        table: &TableName,
        attempted: Attempted,
        failure: Failure,
        reason: String,
    ) {
        let until = Instant::now() + PAUSE;
        let former = self.tables.get(table).map(|failing| failing.stored_until);
        let stored_until = match attempted {
            Attempted::Queued => former.unwrap_or_else(Instant::now),
            Attempted::Stored => until,
        };
        let failing = Failing {
            failure,
            until,
            stored_until,
            reason,
        };
        self.tables.insert(table.clone(), failing);
    }

    /// Forgets a table whose rows could be marked, unless its stored keys are left alone.
    pub(super) fn succeed(&mut self, table: &TableName) {
        if self
            .tables
            .get(table)
            .is_some_and(|failing| !failing.pauses_stored())
        {
            self.tables.remove(table);
        }
    }

    /// Returns true if no row of the table is to be marked now.
    pub(super) fn pauses(&self, table: &TableName) -> bool {
        let failing = self.tables.get(table);
        failing.is_some_and(|failing| failing.failure != Failure::Rows && failing.pauses())
    }

    /// Returns the tables whose stored keys are left alone now.
    pub(super) fn paused(&self) -> Vec<TableName> {
        let paused = self
            .tables
            .iter()
            .filter(|(_, failing)| failing.pauses_stored());
        paused.map(|(table, _)| table.clone()).collect()
    }

    /// Forgets the tables that are not left alone now, but those that stay: every row of the others was attempted.
    pub(super) fn forget_others(&mut self, stays: impl Fn(&TableName) -> bool) {
        self.tables
            .retain(|table, failing| failing.pauses() || failing.pauses_stored() || stays(table));
    }

    /// Returns why rows of these tables are not marked; `None` if there are none.
    pub(super) fn problem(&self) -> Option<String> {
        let reasons = self.tables.values().map(|failing| &*failing.reason);
        let reasons: BTreeSet<&str> = reasons.collect();
        let reasons: Vec<&str> = reasons.into_iter().collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

impl Failing {
    fn pauses(&self) -> bool {
        self.failure == Failure::InVain || Instant::now() < self.until
    }

    fn pauses_stored(&self) -> bool {
        self.failure == Failure::InVain || Instant::now() < self.stored_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_table_is_left_alone_for_a_while_and_no_other_is() {
        let [one, other, vain] = ["one", "other", "vain"].map(|name| TableName::new("s", name));
        let mut failing = FailingTables::default();
        let mut fail = |table, failure, reason: &str| {
            failing.fail(table, Attempted::Stored, failure, reason.to_owned());
        };
        fail(&one, Failure::Statement, "no column");
        fail(&vain, Failure::InVain, "no column");
        fail(&other, Failure::Rows, "a row");
        assert!(failing.pauses(&one) && !failing.pauses(&other));
        // Its stored keys are left alone, also if another row is marked.
        failing.succeed(&other);
        assert_eq!(failing.paused(), [one, other.clone(), vain.clone()]);
        tokio::time::advance(PAUSE).await;
        assert_eq!(failing.paused(), std::slice::from_ref(&vain));
        assert_eq!(failing.problem().as_deref(), Some("a row; no column"));
        let trigger = || "a trigger".to_owned();
        failing.fail(&other, Attempted::Stored, Failure::Statement, trigger());
        failing.forget_others(|_| false);
        assert_eq!(failing.paused(), [other.clone(), vain]);
        assert_eq!(failing.problem().as_deref(), Some("a trigger; no column"));
        tokio::time::advance(PAUSE).await;
        failing.forget_others(|table| *table == other);
        assert!(
            failing
                .problem()
                .is_some_and(|why| why.contains("a trigger"))
        );
        failing.succeed(&other);
        assert_eq!(failing.problem().as_deref(), Some("no column"));
    }

    #[tokio::test(start_paused = true)]
    async fn rows_that_were_sent_just_now_do_not_pause_stored_keys() {
        // Each batch of the table has a row that fails, and is attempted before the stored keys.
        let table = TableName::new("s", "one");
        let mut failing = FailingTables::default();
        let trigger = || "a trigger".to_owned();
        for failure in [Failure::Statement, Failure::Rows] {
            failing.fail(&table, Attempted::Queued, failure, trigger());
            assert_eq!(failing.pauses(&table), failure == Failure::Statement);
            assert!(failing.paused().is_empty());
            failing.forget_others(|_| false);
            assert!(failing.problem().is_some());
        }
        failing.fail(&table, Attempted::Stored, Failure::Statement, trigger());
        tokio::time::advance(PAUSE / 2).await;
        failing.fail(&table, Attempted::Queued, Failure::Statement, trigger());
        assert_eq!(failing.paused(), std::slice::from_ref(&table));
        tokio::time::advance(PAUSE / 2).await;
        assert!(failing.pauses(&table) && failing.paused().is_empty());
    }
}
