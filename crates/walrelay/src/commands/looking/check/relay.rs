//! The checks of a running relay, by its own HTTP endpoint.

use walrelay_observe::StatusReport;
use walrelay_sink::check::shortened;

use super::item::{Check, Checks, Item};
use crate::cli::Exit;
use crate::commands::looking::status::fetch_status;
use crate::config::Http;

/// Number of brokers that a finding names at most.
const NAMED: usize = 3;

/// The results of the checks of a running relay.
pub(super) struct RelayChecks {
    pub(super) checks: Checks,
    /// Topics that the relay has sent records to.
    pub(super) topics: Vec<String>,
}

/// Asks the relay of this configuration on this machine for its state and its topics.
pub(super) fn check(http: &Http, slot: &str) -> RelayChecks {
    match fetch_status(http) {
        Ok(relay) => of_relay(&relay, slot),
        Err(why) => RelayChecks {
            checks: vec![(Item::Relay, Check::pass(format!("none was asked: {why}")))],
            topics: Vec::new(),
        },
    }
}

fn of_relay(relay: &StatusReport, slot: &str) -> RelayChecks {
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
    checks.extend(servers(relay).map(|check| (Item::RelayServers, check)));
    RelayChecks { checks, topics }
}

/// Returns what the relay does, or waits for.
fn state(relay: &StatusReport) -> Check {
    let pipeline = &relay.pipeline;
    if let Some(reason) = &relay.not_ready {
        let remedy = pipeline.remedy.as_deref();
        return Check::fail(
            ("not-ready", Exit::Temporary),
            format!("the relay is not ready: {reason}"),
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

/// Returns the servers of the sink as the relay sees them; `None` if it has none.
fn servers(relay: &StatusReport) -> Option<Check> {
    let kafka = relay.kafka.as_ref()?;
    let (brokers, leaderless) = (&kafka.brokers, kafka.leaderless_partitions);
    let lost = brokers.iter().filter(|broker| broker.state != "UP");
    let lost = lost.map(|broker| format!("{} is {}", broker.name, broker.state));
    let mut found = shortened(lost.collect(), NAMED);
    if leaderless > 0 {
        let named = kafka.leaderless.iter().take(NAMED).cloned();
        let named: Vec<String> = named.collect();
        let named = named.join(", ");
        found.push(format!("{leaderless} partition(s) have no leader: {named}"));
    }
    let up = brokers.iter().filter(|broker| broker.state == "UP").count();
    let finding = format!("{up} of {} brokers up", brokers.len());
    if found.is_empty() {
        return Some(Check::pass(finding));
    }
    Some(Check::warn(
        format!("{finding}: {}", found.join("; ")),
        "start these brokers, or see what is between them and the relay: events wait for partitions without a leader",
    ))
}
