//! The checks of a running relay, by its own HTTP endpoint.

use walrelay_failure::Exit;
use walrelay_observe::{ProblemReport, ProcessReport, SinkReport, StatusReport};
use walrelay_sink::EndpointStats;
use walrelay_sink_kind::check::shortened;

use super::item::{Check, Checks, Item};
use crate::commands::inspect::endpoint::{SILENT_REMEDY, fetch_status};
use crate::config::Http;

/// Number of endpoints that a finding names at most.
const NAMED: usize = 3;

/// The results of the checks of a running relay.
pub(super) struct RelayChecks {
    pub(super) checks: Checks,
    /// Topics that the relay has sent records to.
    pub(super) topics: Vec<String>,
}

/// Asks the relay of this configuration on this machine for its state and its topics. `reader`: the process that
/// reads the slot.
pub(super) fn check(http: &Http, slot: &str, reader: Option<&str>) -> RelayChecks {
    let check = match fetch_status(http) {
        Ok(relay) => return check_relay(&relay, slot),
        Err(reason) if reason.is_silent => Check::fail(
            ("relay-silent", Exit::Unavailable),
            silent(&reason.to_string(), slot, reader),
            SILENT_REMEDY,
        ),
        Err(reason) => Check::pass(format!("none was asked: {reason}")),
    };
    RelayChecks {
        checks: vec![(Item::Relay, check)],
        topics: Vec::new(),
    }
}

/// Describes a relay that has its port and does not answer.
fn silent(reason: &str, slot: &str, reader: Option<&str>) -> String {
    let held = match reader {
        Some(reader) => format!("slot {slot} is held by {reader}"),
        None => format!("slot {slot} is not read"),
    };
    format!("a relay listens and does not answer ({reason}), and {held}")
}

fn check_relay(relay: &StatusReport, slot: &str) -> RelayChecks {
    if relay.pipeline.slot != slot {
        let finding = format!(
            "the relay that answers reads slot {}, and this configuration slot {slot}",
            relay.pipeline.slot
        );
        let remedy = "give each relay of this machine its own [http] listen";
        return RelayChecks {
            checks: vec![(Item::Relay, Check::warn(finding, remedy))],
            topics: Vec::new(),
        };
    }
    let topics = relay.delivery.topics.iter().map(|of| of.topic.clone());
    let topics: Vec<String> = topics.filter(|topic| topic != "*").collect();
    let mut checks = vec![(Item::Relay, state(relay))];
    checks.extend(servers(&relay.sink).map(|check| (Item::RelayServers, check)));
    checks.extend(problems(relay).map(|check| (Item::RelayProblems, check)));
    checks.extend(process(&relay.process).map(|check| (Item::RelayProcess, check)));
    RelayChecks { checks, topics }
}

/// Returns what the relay does, or waits for.
fn state(relay: &StatusReport) -> Check {
    let pipeline = &relay.pipeline;
    if let Some(reason) = &relay.not_ready {
        let remedy = pipeline.remedy.as_deref();
        let of_state = relay.problems.iter().find(|problem| problem.is_state);
        let alert = of_state.and_then(ProblemReport::alert_text);
        let alert = alert.map_or_else(String::new, |alert| format!(" (alert {alert})"));
        return Check::fail(
            ("not-ready", Exit::Temporary),
            format!("the relay is not ready: {reason}{alert}"),
            remedy.unwrap_or("see its log, or walrelay status"),
        );
    }
    let reason = pipeline.reason.as_ref();
    let reason = reason.map_or_else(String::new, |reason| format!(", {reason}"));
    let delivery = &relay.delivery;
    Check::pass(format!(
        "{}{reason}; {} records acknowledged, {} in flight",
        pipeline.state, delivery.acknowledged, delivery.in_flight_records
    ))
}

/// Returns what else is wrong with the relay, by its own report.
fn problems(relay: &StatusReport) -> impl Iterator<Item = Check> {
    let others = relay.problems.iter().filter(|problem| !problem.is_state);
    others.map(|problem| {
        let mut finding = problem.finding();
        if let Some(alert) = problem.alert_text() {
            finding = format!("{finding} (alert {alert})");
        }
        let remedy = problem.remedy.as_deref();
        Check::warn(finding, remedy.unwrap_or("see the runbook"))
    })
}

/// Returns what an attacker could use of the process, which has passwords and rows in its memory; `None` where
/// the system does not tell.
fn process(process: &ProcessReport) -> Option<Check> {
    let (is_root, may_dump_core) = process.is_root.zip(process.may_dump_core)?;
    let mut risks = Vec::new();
    let mut remedies = Vec::new();
    if is_root {
        risks.push("it runs as root");
        remedies.push("give it its own user: User= of the unit");
    }
    if may_dump_core {
        risks.push("a crash writes its memory, with passwords and rows, to a file");
        remedies.push("set LimitCORE=0 in the unit, or ulimit -c 0");
    }
    if risks.is_empty() {
        return Some(Check::pass(
            "it does not run as root, and writes no core file",
        ));
    }
    Some(Check::warn(risks.join("; "), remedies.join("; ")))
}

/// Returns the servers of the sink as the relay sees them; `None` if it has none.
fn servers(sink: &SinkReport) -> Option<Check> {
    sink.servers.as_ref()?;
    let (endpoints, term) = (&sink.endpoints, &sink.endpoint_term);
    let (up, lost): (Vec<_>, Vec<_>) = endpoints
        .iter()
        .partition(|endpoint| endpoint.state == EndpointStats::UP);
    let lost = lost.into_iter();
    let lost = lost.map(|endpoint| format!("{} is {}", endpoint.name, endpoint.state));
    let mut faults = shortened(lost.collect(), NAMED);
    if sink.unavailable_count > 0 {
        let named = sink.unavailable.iter().take(NAMED).cloned();
        let named: Vec<String> = named.collect();
        let (count, what) = (sink.unavailable_count, &sink.unavailable_term);
        faults.push(format!("{count} {what}: {}", named.join(", ")));
    }
    let finding = format!("{} of {} {term}s up", up.len(), endpoints.len());
    if faults.is_empty() {
        return Some(Check::pass(finding));
    }
    let start = || {
        format!(
            "start these {term}s, or check the network between them and the relay: events wait for \
             {}",
            sink.unavailable_term
        )
    };
    let remedy = sink.failure.as_ref().map(|failure| failure.remedy.clone());
    Some(Check::warn(
        format!("{finding}: {}", faults.join("; ")),
        remedy.unwrap_or_else(start),
    ))
}

#[cfg(test)]
mod tests {
    use walrelay_observe::EndpointReport;
    use walrelay_sink_kind::SinkTerms;
    use walrelay_sink_kind::check::Verdict;

    use super::*;

    #[test]
    fn servers_are_named_by_the_terms_of_their_sink() {
        let terms = SinkTerms::default();
        let endpoint = |name: &str, state: &str| EndpointReport {
            name: name.to_owned(),
            state: state.to_owned(),
            rtt_avg_ms: None,
            rtt_p99_ms: None,
            queued: 0,
            retries: 0,
        };
        let mut sink = SinkReport {
            endpoint_term: terms.endpoint.to_owned(),
            unavailable_term: terms.unavailable.to_owned(),
            endpoints: vec![endpoint("https://a", EndpointStats::UP)],
            ..SinkReport::default()
        };
        assert!(servers(&sink).is_none(), "a sink without servers");
        sink.servers = Some("https://{topic}".to_owned());
        let check = servers(&sink).expect("a check");
        assert!(matches!(check.verdict, Verdict::Pass));
        assert_eq!(check.finding, "1 of 1 endpoints up");
        sink.endpoints
            .push(endpoint("https://b", EndpointStats::DOWN));
        let check = servers(&sink).expect("a check");
        assert!(matches!(check.verdict, Verdict::Warn));
        assert_eq!(check.finding, "1 of 2 endpoints up: https://b is DOWN");
        let remedy = check.remedy.expect("a remedy");
        assert!(remedy.starts_with("start these endpoints, "), "{remedy}");
    }
}
