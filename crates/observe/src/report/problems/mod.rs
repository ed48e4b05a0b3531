//! [`ProblemReport`]: what is wrong with a relay. Page, `/readyz`, `walrelay status` and
//! `walrelay check` show the same list, so that each of them alone names reason, alert and remedy.

mod events;
mod list;
mod pipeline;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use super::{ProblemReport, StatusReport};
use events::add_events_problems;
#[cfg(test)]
pub(crate) use list::headings;
use list::{OPENTELEMETRY, Problems};
use pipeline::{add_former_run, add_last_error, add_state_problems};
use sink::{add_risks, add_sink_problems};
pub(crate) use source::RECONNECTS;
use source::{add_move, add_slot_problems, add_source_problems};

/// Returns the problems of a relay, the worst first.
pub(crate) fn problems(report: &StatusReport) -> Vec<ProblemReport> {
    let mut found = Problems(Vec::new());
    add_slot_problems(&mut found, report);
    add_state_problems(&mut found, report);
    add_source_problems(&mut found, report);
    add_sink_problems(&mut found, &report.sink);
    add_risks(&mut found, &report.sink);
    add_events_problems(&mut found, report);
    add_move(&mut found, report);
    add_last_error(&mut found, report);
    add_former_run(&mut found, report);
    if let Some(reason) = &report.otel_problem {
        let title = "The OpenTelemetry collector does not accept the metrics";
        let problem = found.add("warn", OPENTELEMETRY, title);
        let remedy = "see that the collector runs at [otel] endpoint and accepts the token; relaying is not affected";
        problem.reason(reason.clone()).remedy(remedy);
    }
    if let (Some(why), true) = (&report.not_ready, found.0.is_empty()) {
        let problem = found.alert("bad", "WalrelayNotReady", "The relay is not ready");
        problem.reason(why.clone()).is_state = true;
    }
    let mut found = found.0;
    let rank = |problem: &ProblemReport| {
        let levels = ["bad", "warn", "ok", "note"];
        levels.iter().position(|level| *level == problem.level)
    };
    found.sort_by_key(rank);
    found
}
