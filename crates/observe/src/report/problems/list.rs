//! The list under construction: each problem with its alert, and with its heading of the runbook.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::report::ProblemReport;

/// The alerts that users install; their times are shown.
const ALERTS: &str = include_str!("../../../shipped/alerts.yml");

// Headings of the runbook, docs/operate, that are not those of the problem's alert, as anchors.
pub(super) const NOT_READY: &str = "walrelaynotready";
pub(super) const SINK_DOWN: &str = "walrelaysinkdown";
pub(super) const SLOT_LOST: &str = "the-slot-is-lost";
pub(super) const SCHEMA_REGISTRY: &str = "the-schema-registry";
pub(super) const HALTED: &str = "when-something-is-wrong";
pub(super) const ENDED: &str = "the-relay-has-ended";
pub(super) const WATCHING: &str = "watching-the-slot";
pub(super) const DEAD_LETTERS: &str = "dead-letters";
pub(super) const OPENTELEMETRY: &str = "opentelemetry";
pub(super) const SINK_LOSES: &str = "the-destination-may-lose-events";
pub(super) const SLO: &str = "the-budget-of-the-slo";
pub(super) const MOVE: &str = "a-move-is-not-finished";
pub(super) const RETRYING: &str = "walrelaykeysretrying";
pub(super) const RESTARTS: &str = "walrelayrestarts";

/// Returns the anchors of all headings that a problem may lead to.
#[cfg(test)]
pub(crate) fn headings() -> Vec<String> {
    let others = [
        NOT_READY,
        SINK_DOWN,
        SLOT_LOST,
        SCHEMA_REGISTRY,
        HALTED,
        ENDED,
        WATCHING,
        DEAD_LETTERS,
        SINK_LOSES,
        SLO,
        MOVE,
    ];
    let of_alerts = TIMES.keys().map(|alert| alert.to_lowercase());
    of_alerts.chain(others.map(str::to_owned)).collect()
}

/// The time of each alert, by its name.
pub(super) static TIMES: LazyLock<BTreeMap<&str, Option<&str>>> = LazyLock::new(|| {
    let mut times = BTreeMap::new();
    let mut alert = "";
    for line in ALERTS.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            alert = name;
            times.insert(alert, None);
        } else if let Some(time) = line.strip_prefix("for: ") {
            times.insert(alert, Some(time));
        }
    }
    times
});

/// The list under construction.
pub(super) struct Problems(pub(super) Vec<ProblemReport>);

impl Problems {
    /// Adds a problem for which an alert exists, whose heading of the runbook has its name.
    pub(super) fn alert(
        &mut self,
        level: &str,
        alert: &str,
        title: impl Into<String>,
    ) -> &mut ProblemReport {
        let after = TIMES.get(alert).copied().flatten();
        let problem = self.add(level, &alert.to_lowercase(), title);
        problem.alert = Some(alert.to_owned());
        problem.alert_after = after.map(str::to_owned);
        problem
    }

    /// Adds a problem with this heading of the runbook.
    pub(super) fn add(
        &mut self,
        level: &str,
        runbook: &str,
        title: impl Into<String>,
    ) -> &mut ProblemReport {
        let at = self.0.len();
        self.0.push(ProblemReport {
            level: level.to_owned(),
            title: title.into(),
            reason: None,
            remedy: None,
            alert: None,
            alert_after: None,
            runbook: runbook.to_owned(),
            since_ms: None,
            is_state: false,
        });
        &mut self.0[at]
    }
}

impl ProblemReport {
    pub(super) fn reason(&mut self, reason: impl Into<Option<String>>) -> &mut Self {
        self.reason = reason.into();
        self
    }

    pub(super) fn remedy(&mut self, remedy: &str) -> &mut Self {
        self.remedy = Some(remedy.to_owned());
        self
    }
}

/// Writes each name with its count, but those of 0.
pub(super) fn counted(counts: &BTreeMap<String, u64>) -> String {
    let counts = counts.iter().filter(|(_, count)| **count > 0);
    let counts: Vec<String> = counts
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    counts.join(", ")
}
