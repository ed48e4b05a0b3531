//! Judges the answers of the server: the verdicts of `walrelay check`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use walrelay_failure::Exit;
use walrelay_sink_kind::check::{Check, shortened};

use crate::client::Connection;
use crate::losses::{Content, Loss};

/// Names that a finding lists, at most.
const LISTED: usize = 5;
/// The default of a stream's duplicate window in nanoseconds, which is the least that outlives the
/// restart of a relay.
const TWO_MINUTES: u64 = 120_000_000_000;

/// The configurations of streams by their names; `None`: the user may not see it.
pub(super) type Streams = BTreeMap<String, Option<Value>>;

/// Compares the limit of the configuration with that of the server.
pub(super) fn server(connection: &Connection, max_message: u64) -> Check {
    let info = &connection.info;
    if info.max_payload < max_message {
        let finding = format!(
            "max_message_size is {max_message}, and the server's max_payload is {}",
            info.max_payload
        );
        return Check::warn(
            finding,
            "lower max_message_size in [sink.nats], or raise max_payload of the server",
        );
    }
    Check::pass(format!(
        "NATS {}, max_payload is {}",
        info.version, info.max_payload
    ))
}

pub(super) fn not_seen(what: &str) -> Check {
    Check::warn(
        format!("JetStream does not say {what}"),
        "see that JetStream is on, and let the user publish to $JS.API.STREAM.NAMES and \
         $JS.API.STREAM.INFO.*",
    )
}

fn listed(names: Vec<String>) -> String {
    shortened(names, LISTED).join(", ")
}

pub(super) fn subjects(
    count: usize,
    without: Vec<String>,
    names: &BTreeSet<String>,
    is_seen: bool,
) -> Check {
    if !without.is_empty() {
        return Check::fail(
            ("nats-no-stream", Exit::Config),
            format!(
                "no stream has the subject of the newest rows: {}",
                listed(without)
            ),
            "create a stream with these subjects, or correct subject in [sink.nats]",
        );
    }
    if !is_seen {
        return not_seen("which streams have the subjects of the newest rows");
    }
    if count == 0 {
        return Check::pass("no subject is known before the first event");
    }
    let names = listed(names.iter().cloned().collect());
    Check::pass(format!(
        "the subjects of the newest rows are those of {names}"
    ))
}

/// Compares the streams of the newest rows with the one that only the relay writes to.
pub(super) fn exclusively(exclusive: &str, streams: &Streams) -> Check {
    let others = streams.keys().filter(|name| *name != exclusive);
    let others: Vec<String> = others.cloned().collect();
    if !others.is_empty() {
        return Check::fail(
            ("nats-other-stream", Exit::Config),
            format!(
                "exclusive_stream is {exclusive}, and subjects of the newest rows are those of {}",
                listed(others)
            ),
            "give the subjects to the stream, or correct exclusive_stream in [sink.nats]",
        );
    }
    let config = streams.get(exclusive).and_then(Option::as_ref);
    match config.map(|config| &config["retention"]) {
        None => not_seen(&format!(
            "anything of {exclusive}, which exclusive_stream names"
        )),
        Some(retention) if retention == "limits" => Check::pass(format!(
            "the subjects of the newest rows are those of {exclusive}"
        )),
        Some(_) => Check::warn(
            format!(
                "{exclusive} deletes consumed messages, so the relay cannot find them, and repeats \
                 them after a lost acknowledgement"
            ),
            "set retention to limits, or let consumers drop repeats",
        ),
    }
}

/// Returns the streams for whose configuration this is true.
fn matching(streams: &Streams, is: impl Fn(&Value) -> bool) -> Vec<String> {
    let matching = streams
        .iter()
        .filter(|(_, config)| config.as_ref().is_some_and(&is));
    matching.map(|(name, _)| name.clone()).collect()
}

fn unseen(streams: &Streams, what: &str) -> Option<Check> {
    let hidden = streams.iter().filter(|(_, config)| config.is_none());
    let hidden: Vec<String> = hidden.map(|(name, _)| name.clone()).collect();
    (!hidden.is_empty()).then(|| not_seen(&format!("{what} of {}", listed(hidden))))
}

pub(super) fn durability(streams: &Streams) -> Check {
    let memory = matching(streams, |config| config["storage"] == "memory");
    if !memory.is_empty() {
        return Check::warn(
            format!(
                "streams in memory lose all events with their server: {}",
                listed(memory)
            ),
            "recreate them with storage file",
        );
    }
    let single = matching(streams, |config| config["num_replicas"].as_u64() < Some(2));
    if !single.is_empty() {
        return Check::warn(
            format!(
                "streams of one replica: {}. An acknowledged event may be lost with the machine, as a \
                 server writes to its disk every 2 minutes by default (sync_interval, which is not seen)",
                listed(single)
            ),
            "use 3 replicas, or sync_interval: always in the server's configuration of jetstream",
        );
    }
    unseen(streams, "the replicas")
        .unwrap_or_else(|| Check::pass("all streams are in files with several replicas"))
}

/// Returns a warning of each setting by which some of the streams lose events.
pub(super) fn losses(streams: &Streams, is_wanted: fn(&Loss) -> bool) -> Vec<Check> {
    let wanted = Loss::about(Content::Events).filter(|loss| is_wanted(loss));
    let warnings = wanted.filter_map(|loss| {
        let names = matching(streams, loss.is_set);
        (!names.is_empty())
            .then(|| Check::warn(format!("{} {}", listed(names), loss.does), loss.remedy))
    });
    warnings.collect()
}

pub(super) fn discard(streams: &Streams) -> Check {
    let losses = losses(streams, |_| true).into_iter();
    let (findings, remedies): (Vec<String>, Vec<Option<String>>) =
        losses.map(|check| (check.finding, check.remedy)).unzip();
    if !findings.is_empty() {
        let remedies: Vec<String> = remedies.into_iter().flatten().collect();
        return Check::warn(findings.join("; "), remedies.join("; "));
    }
    unseen(streams, "the limits")
        .unwrap_or_else(|| Check::pass("no stream deletes its oldest messages to make room"))
}

/// Compares the limit of the configuration with those of the streams.
pub(super) fn sizes(streams: &Streams, max_message: u64) -> Option<Check> {
    let limit = |config: &Value| config["max_msg_size"].as_u64();
    let small = matching(streams, |config| {
        limit(config).is_some_and(|limit| limit < max_message)
    });
    let least = streams.values().flatten().filter_map(limit).min()?;
    (!small.is_empty()).then(|| {
        Check::warn(
            format!(
                "max_message_size is {max_message}, and max_msg_size of {} is {least} or more",
                listed(small)
            ),
            "lower max_message_size in [sink.nats], or raise max_msg_size of the streams",
        )
    })
}

pub(super) fn window(streams: &Streams) -> Check {
    let short = matching(streams, |config| {
        config["duplicate_window"].as_u64() < Some(TWO_MINUTES)
    });
    if !short.is_empty() {
        return Check::warn(
            format!(
                "streams with a duplicate window below 2 minutes: {}. Events that a relay repeats after \
                 a longer outage are stored twice",
                listed(short)
            ),
            "raise duplicate_window to the longest outage that you expect",
        );
    }
    unseen(streams, "the duplicate windows").unwrap_or_else(|| {
        let seconds = streams.values().flatten();
        let seconds = seconds.filter_map(|config| config["duplicate_window"].as_u64());
        let least = seconds.min().unwrap_or_default() / 1_000_000_000;
        Check::pass(format!("the shortest duplicate window is {least} s"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use walrelay_sink_kind::check::Verdict;

    use super::*;

    fn streams(config: Option<Value>) -> Streams {
        Streams::from([("S".to_owned(), config)])
    }

    #[test]
    fn the_exclusive_stream_has_all_subjects_and_keeps_what_was_consumed() {
        let with = |name: &str, config| Streams::from([(name.to_owned(), config)]);
        let good = || Some(json!({"retention": "limits"}));
        for (streams, verdict, words) in [
            (with("S", good()), Verdict::Pass, "of S"),
            (with("S", None), Verdict::Warn, "does not say"),
            (
                with("S", Some(json!({"retention": "workqueue"}))),
                Verdict::Warn,
                "consumed",
            ),
        ] {
            let check = exclusively("S", &streams);
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert!(check.finding.contains(words), "{check:?}");
        }
        let mut both = with("S", good());
        both.extend(with("T", good()));
        let check = exclusively("S", &both);
        assert!(matches!(check.verdict, Verdict::Fail { .. }), "{check:?}");
    }

    #[test]
    fn a_stream_that_takes_less_than_the_configuration_allows_is_warned_of() {
        let small = |limit: i64| sizes(&streams(Some(json!({"max_msg_size": limit}))), 1_000);
        assert!(small(-1).is_none() && small(1_000).is_none());
        let finding = small(999).expect("it is smaller").finding;
        assert!(finding.contains("max_msg_size of S is 999"), "{finding}");
    }

    #[test]
    fn a_limit_by_subject_deletes_unless_it_refuses() {
        let mut config = json!({"discard": "new", "max_msgs_per_subject": 2});
        let check = discard(&streams(Some(config.clone())));
        assert_eq!(check.verdict, Verdict::Warn, "{check:?}");
        config["discard_new_per_subject"] = json!(true);
        let check = discard(&streams(Some(config)));
        assert_eq!(check.verdict, Verdict::Pass, "{check:?}");
    }

    #[test]
    fn a_stream_that_may_lose_or_repeat_events_is_warned_of() {
        let good = json!({
            "storage": "file", "num_replicas": 3, "discard": "old", "max_msgs": -1, "max_bytes": -1,
            "max_age": 0, "max_msgs_per_subject": -1, "duplicate_window": 600_000_000_000_u64,
        });
        let checks = [durability, discard, window];
        for check in checks {
            let check = check(&streams(Some(good.clone())));
            assert_eq!(check.verdict, Verdict::Pass, "{check:?}");
        }
        for (at, name, value, words) in [
            (0, "storage", json!("memory"), "in memory"),
            (0, "num_replicas", json!(1), "sync_interval"),
            (1, "max_bytes", json!(1_000), "oldest"),
            (1, "max_msgs_per_subject", json!(2), "oldest"),
            (1, "retention", json!("interest"), "without a consumer"),
            (1, "no_ack", json!(true), "nothing"),
            (1, "max_age", json!(60_000_000_000_u64), "within a day"),
            (
                2,
                "duplicate_window",
                json!(1_000_000_000),
                "below 2 minutes",
            ),
        ] {
            let mut config = good.clone();
            config[name] = value;
            let check = checks[at](&streams(Some(config)));
            assert_eq!(check.verdict, Verdict::Warn, "{check:?}");
            assert!(check.finding.contains(words), "{check:?}");
        }
        for check in checks {
            let check = check(&streams(None));
            assert!(check.finding.contains("does not say"), "{check:?}");
        }
    }
}
