//! The figures of brokers and partitions in librdkafka's statistics document (`STATISTICS.md` in its
//! sources).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use walrelay_sink::EndpointStats;

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    brokers: BTreeMap<String, Broker>,
    #[serde(default)]
    topics: BTreeMap<String, Topic>,
}

#[derive(Deserialize)]
struct Topic {
    topic: String,
    #[serde(default)]
    partitions: BTreeMap<i32, Partition>,
}

#[derive(Deserialize)]
struct Partition {
    /// -1 without a leader.
    leader: i32,
    /// The topic's metadata do not have the partition.
    #[serde(default)]
    unknown: bool,
}

#[derive(Deserialize)]
struct Broker {
    name: String,
    /// Negative for a bootstrap server and for a group's coordinator.
    nodeid: i64,
    state: String,
    outbuf_msg_cnt: i64,
    waitresp_msg_cnt: i64,
    /// Requests that wait for a response.
    #[serde(default)]
    waitresp_cnt: i64,
    /// All responses received.
    #[serde(default)]
    rx: u64,
    txretries: u64,
    rtt: Window,
    #[serde(default)]
    throttle: Throttle,
}

/// A rolling window of round-trip times, in microseconds.
#[derive(Deserialize)]
struct Window {
    avg: u64,
    p99: u64,
    cnt: u64,
}

/// The throttle times of the responses since the last document, in milliseconds.
#[derive(Default, Deserialize)]
struct Throttle {
    max: u64,
}

/// The figures of a document.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// The brokers; the bootstrap servers while no broker is known.
    pub(super) brokers: Vec<BrokerFigures>,
    /// The partitions in use without a leader, as `topic [partition]`.
    pub(super) leaderless: Vec<String>,
    /// The broker with the longest throttle time, if any response had one.
    pub(super) throttled: Option<(String, Duration)>,
}

/// The figures of one broker.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BrokerFigures {
    /// The broker's id; `None` for a bootstrap server.
    pub(super) node: Option<i64>,
    /// The number of requests that wait for a response.
    pub(super) waiting: u64,
    /// The number of all responses received.
    pub(super) responses: u64,
    pub(super) endpoint: EndpointStats,
}

pub(super) fn figures(document: &[u8]) -> Result<Figures, serde_json::Error> {
    let Document { brokers, topics } = serde_json::from_slice(document)?;
    let throttled = brokers.values().max_by_key(|broker| broker.throttle.max);
    let throttled = throttled
        .filter(|broker| broker.throttle.max > 0)
        .map(|broker| {
            let time = Duration::from_millis(broker.throttle.max);
            (broker.name.clone(), time)
        });
    let known = brokers.values().any(|broker| broker.nodeid >= 0);
    let brokers = brokers.into_values().filter(|broker| {
        // The group coordinator is another connection to one of the brokers.
        broker.nodeid >= 0 || (!known && broker.name != "GroupCoordinator")
    });
    let count = |records: i64| u64::try_from(records).unwrap_or(0);
    let seconds = |micros: u64| micros as f64 / 1e6;
    let brokers = brokers
        .map(|broker| BrokerFigures {
            node: (broker.nodeid >= 0).then_some(broker.nodeid),
            waiting: count(broker.waitresp_cnt),
            responses: broker.rx,
            endpoint: EndpointStats {
                rtt_mean: (broker.rtt.cnt > 0).then(|| seconds(broker.rtt.avg)),
                rtt_p99: (broker.rtt.cnt > 0).then(|| seconds(broker.rtt.p99)),
                queued: count(broker.outbuf_msg_cnt) + count(broker.waitresp_msg_cnt),
                retries: broker.txretries,
                name: broker.name,
                state: broker.state,
            },
        })
        .collect();
    let leaderless = topics.values().flat_map(|Topic { topic, partitions }| {
        // librdkafka counts records without a partition under -1.
        let leaderless = partitions
            .iter()
            .filter(|(id, partition)| **id >= 0 && partition.leader < 0 && !partition.unknown);
        leaderless.map(move |(id, _)| format!("{topic} [{id}]"))
    });
    Ok(Figures {
        brokers,
        leaderless: leaderless.collect(),
        throttled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOTSTRAP: &str = r#""b:9092/bootstrap":{"name":"b:9092/bootstrap","nodeid":-1,"state":"UP","outbuf_msg_cnt":0,
        "waitresp_msg_cnt":0,"txretries":0,"rtt":{"avg":0,"p99":0,"cnt":0}}"#;
    const BROKER: &str = r#""b:9092/1":{"name":"b:9092/1","nodeid":1,"state":"DOWN","outbuf_msg_cnt":3,
        "waitresp_msg_cnt":4,"waitresp_cnt":2,"rx":9,"txretries":5,"rtt":{"avg":1500,"p99":20000,"cnt":7},
        "throttle":{"max":1500}}"#;

    #[test]
    fn bootstrap_servers_are_shown_only_while_no_broker_is_known() {
        let document = format!(r#"{{"name":"x","brokers":{{{BOOTSTRAP},{BROKER}}}}}"#);
        let Figures {
            brokers: known,
            throttled,
            leaderless,
        } = figures(document.as_bytes()).unwrap();
        let expected = BrokerFigures {
            node: Some(1),
            waiting: 2,
            responses: 9,
            endpoint: EndpointStats {
                name: "b:9092/1".to_owned(),
                state: "DOWN".to_owned(),
                rtt_mean: Some(0.0015),
                rtt_p99: Some(0.02),
                queued: 7,
                retries: 5,
            },
        };
        assert_eq!(known, [expected]);
        assert!(leaderless.is_empty());
        let throttle_time = Duration::from_millis(1_500);
        assert_eq!(throttled, Some(("b:9092/1".to_owned(), throttle_time)));
        let document = format!(r#"{{"brokers":{{{BOOTSTRAP}}}}}"#);
        let bootstrap = figures(document.as_bytes()).unwrap();
        let known = &bootstrap.brokers[0];
        assert_eq!(known.node, None);
        let known = &known.endpoint;
        assert_eq!((&*known.name, known.rtt_p99), ("b:9092/bootstrap", None));
        assert_eq!(bootstrap.throttled, None);
        assert!(figures(b"{").is_err());
    }

    #[test]
    fn partitions_without_a_leader_are_named() {
        let document = br#"{"topics":{"t":{"topic":"t","partitions":{
            "0":{"leader":1},"1":{"leader":-1},"2":{"leader":-1,"unknown":true},"-1":{"leader":-1}}}}}"#;
        assert_eq!(figures(document).unwrap().leaderless, ["t [1]"]);
    }
}
