//! Problems of the destination: servers that are down, losses, and settings that risk one.

use walrelay_sink::{ACCEPT_LOSS, EndpointStats};

use super::list::{Problems, SINK_DOWN, SINK_LOSES};
use crate::report::{EndpointReport, SinkReport};

/// Adds servers that do not answer, and destinations that accept no record.
pub(super) fn add_sink_problems(found: &mut Problems, sink: &SinkReport) {
    let term = &sink.endpoint_term;
    if sink.all_down {
        if !found
            .0
            .iter()
            .any(|problem| problem.title == sink_is_down(sink))
        {
            let servers = sink.servers.as_deref().unwrap_or_default();
            let reach = || format!("see whether {servers} can be reached from here");
            let failure = sink.failure.as_ref();
            let remedy = sink.certificate_remedy.clone();
            let remedy = remedy.or_else(|| failure.map(|failure| failure.remedy.clone()));
            let remedy = remedy.unwrap_or_else(reach);
            found
                .alert("bad", "WalrelaySinkDown", sink_is_down(sink))
                .reason(failure.map(|failure| failure.cause.clone()))
                .remedy(&format!(
                    "{remedy}. Nothing is lost: Postgres keeps the log"
                ));
        }
    } else if sink.endpoints.iter().any(is_up) && sink.endpoints.iter().any(endpoint_is_down) {
        // If none is up, the attempts to connect decide what is down.
        let down = sink.endpoints.iter().filter(|one| endpoint_is_down(one));
        let down: Vec<&str> = down.map(|endpoint| &*endpoint.name).collect();
        found
            .add(
                "warn",
                SINK_DOWN,
                format!("{}: one {term} or more are down", sink.title),
            )
            .reason(down.join(", "))
            .remedy("start them; events that need them wait");
    }
    for loss in &sink.losses {
        let title = format!("{} has lost events that it had acknowledged", sink.title);
        let problem = found.alert("bad", "WalrelayDestinationLost", title);
        let remedy = format!("{}. {ACCEPT_LOSS}", loss.remedy);
        problem.reason(loss.text.clone()).remedy(&remedy);
        problem.since_ms = Some(loss.seen_ms);
    }
    if let Some(near) = &sink.near_limit {
        let title = format!("Events are almost as large as {} accepts", sink.title);
        let problem = found.alert("warn", "WalrelayEventsNearLimit", title);
        problem
            .reason(format!(
                "topic {:?}: an event has {} bytes, the limit is {}",
                near.topic, near.bytes, near.limit_bytes
            ))
            .remedy("raise the limit of server and relay, or make the events smaller: [poison] oversize decides about larger ones");
    }
    if sink.unavailable_count > 0 {
        found
            .alert(
                "warn",
                "WalrelayLeaderless",
                format!("Events wait for {}", sink.unavailable_term),
            )
            .reason(sink.unavailable.join(", "))
            .remedy("start the servers that have them: other events are delivered");
    }
}

/// Adds settings by which the servers may lose what they have acknowledged.
pub(super) fn add_risks(found: &mut Problems, sink: &SinkReport) {
    for risk in &sink.risks {
        let title = format!("{} may lose events that it has acknowledged", sink.title);
        let level = if risk.fails { "warn" } else { "note" };
        let problem = found.add(level, SINK_LOSES, title);
        problem.reason(risk.finding.clone());
        problem.remedy.clone_from(&risk.remedy);
    }
}

pub(super) fn sink_is_down(sink: &SinkReport) -> String {
    match (&sink.certificate_fault, &sink.failure) {
        (Some(fault), _) => format!("{} is down: {fault}", sink.title),
        (None, Some(failure)) if failure.needs_change => failure.what.clone(),
        _ => format!("{} is down: no {} answers", sink.title, sink.endpoint_term),
    }
}

fn is_up(endpoint: &EndpointReport) -> bool {
    endpoint.state == EndpointStats::UP
}

/// Returns true if an endpoint is down.
fn endpoint_is_down(endpoint: &EndpointReport) -> bool {
    !matches!(&*endpoint.state, EndpointStats::UP | EndpointStats::INIT)
}
