//! Problems of events: silence, lateness, refusals, dead letters, and sent rows that stay.

use super::list::{DEAD_LETTERS, Problems, RETRYING, SLO, counted};
use super::source::waits_for_standbys;
use crate::report::StatusReport;

/// Adds silence, events that were not delivered, and rows that stay.
pub(super) fn add_events_problems(found: &mut Problems, report: &StatusReport) {
    let (delivery, dead) = (&report.delivery, &report.dead_letters);
    if let (true, Some(expected)) = (delivery.silent, delivery.expected_event_seconds)
        && waits_for_standbys(report).is_none()
    {
        let title = "No event for longer than expected";
        let problem = found.alert("warn", "WalrelaySilent", title);
        problem
            .reason(format!("an event is expected every {expected} s"))
            .remedy(
                "see whether the application writes events, and into a table of [source] tables",
            );
        let last = delivery.acknowledged_at_ms;
        problem.since_ms = Some(last.unwrap_or(report.started_ms));
    }
    if let Some(slo) = report
        .slo
        .as_ref()
        .filter(|slo| slo.budget_left_percent <= 0.0)
    {
        let title = "Events were late for longer than the budget of [slo] allows";
        found
            .add("warn", SLO, title)
            .reason(format!(
                "{} s of this run were later than {} s, with a target of {} %",
                slo.missed_seconds, slo.commit_to_ack_seconds, slo.target_percent
            ))
            .remedy("see what delayed them: the history of the page has lag and latency of the last hours");
    }
    if let Some(retrying) = &delivery.retrying {
        let title = "Keys wait because an event of theirs is refused";
        let problem = if 2 * retrying.most > retrying.limit {
            found.alert("warn", "WalrelayKeysRetrying", title)
        } else {
            found.add("warn", RETRYING, title)
        };
        problem.reason(retrying.text()).remedy(
            "the log has the destination's answer: repair it; [poison] decides about events \
             that it refuses for retry_for",
        );
    }
    if let Some(obstacle) = &dead.obstacle {
        found
            .alert(
                "warn",
                "WalrelayDeadLetterTopic",
                "No dead letter can be written: the relay stops at the first one",
            )
            .reason(obstacle.clone())
            .remedy("create the topic, or allow the relay to write to it");
    }
    if dead.parked_keys > 0 {
        found
            .add("warn", DEAD_LETTERS, "Keys are parked behind dead letters")
            .reason(format!("{} keys", dead.parked_keys))
            .remedy("walrelay dlq list shows them: redrive or drop them");
    }
    for (counts, alert, title, remedy) in [
        (
            &dead.written,
            "WalrelayDeadLetters",
            "Events became dead letters since the start",
            "walrelay dlq list has the cause of each: remove it, then walrelay dlq redrive",
        ),
        (
            &dead.skipped,
            "WalrelayEventsSkipped",
            "Events were skipped since the start, and relayed nowhere",
            "the log has the id of each; remove the cause, then publish the rows again",
        ),
    ] {
        let counts = counted(counts);
        if !counts.is_empty() {
            let problem = found.alert("note", alert, title);
            problem.reason(counts).remedy(remedy);
        }
    }
    for (work, obstacle) in &delivery.row_changes {
        if let Some(obstacle) = obstacle {
            let done = if work == "prune" { "deleted" } else { "marked" };
            found
                .alert("warn", "WalrelayRowsStay", format!("Sent rows are not {done}"))
                .reason(obstacle.clone())
                .remedy("see walrelay check: usually the publication or a right was changed. Events are relayed");
        }
    }
}
