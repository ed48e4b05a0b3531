//! The brokers in librdkafka's statistics document (`STATISTICS.md` in its sources).

use std::collections::BTreeMap;

use serde::Deserialize;
use walrelay_sink::BrokerStats;

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    brokers: BTreeMap<String, Broker>,
}

#[derive(Deserialize)]
struct Broker {
    name: String,
    /// Negative for a bootstrap server and for a group's coordinator.
    nodeid: i64,
    state: String,
    outbuf_msg_cnt: i64,
    waitresp_msg_cnt: i64,
    txretries: u64,
    rtt: Window,
}

/// A rolling window of round-trip times, in microseconds.
#[derive(Deserialize)]
struct Window {
    avg: u64,
    p99: u64,
    cnt: u64,
}

/// The brokers; the bootstrap servers while no broker is known.
pub(super) fn brokers(document: &[u8]) -> Result<Vec<BrokerStats>, serde_json::Error> {
    let Document { brokers } = serde_json::from_slice(document)?;
    let known = brokers.values().any(|broker| broker.nodeid >= 0);
    let brokers = brokers.into_values().filter(|broker| {
        // The group coordinator is another connection to one of the brokers.
        broker.nodeid >= 0 || (!known && broker.name != "GroupCoordinator")
    });
    let count = |records: i64| u64::try_from(records).unwrap_or(0);
    let seconds = |micros: u64| micros as f64 / 1e6;
    Ok(brokers
        .map(|broker| BrokerStats {
            rtt_mean: (broker.rtt.cnt > 0).then(|| seconds(broker.rtt.avg)),
            rtt_p99: (broker.rtt.cnt > 0).then(|| seconds(broker.rtt.p99)),
            queued: count(broker.outbuf_msg_cnt) + count(broker.waitresp_msg_cnt),
            retries: broker.txretries,
            name: broker.name,
            state: broker.state,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOTSTRAP: &str = r#""b:9092/bootstrap":{"name":"b:9092/bootstrap","nodeid":-1,"state":"UP","outbuf_msg_cnt":0,
        "waitresp_msg_cnt":0,"txretries":0,"rtt":{"avg":0,"p99":0,"cnt":0}}"#;
    const BROKER: &str = r#""b:9092/1":{"name":"b:9092/1","nodeid":1,"state":"DOWN","outbuf_msg_cnt":3,
        "waitresp_msg_cnt":4,"txretries":5,"rtt":{"avg":1500,"p99":20000,"cnt":7}}"#;

    #[test]
    fn bootstrap_servers_are_shown_only_while_no_broker_is_known() {
        let document = format!(r#"{{"name":"x","brokers":{{{BOOTSTRAP},{BROKER}}}}}"#);
        let known = brokers(document.as_bytes()).unwrap();
        let expected = BrokerStats {
            name: "b:9092/1".to_owned(),
            state: "DOWN".to_owned(),
            rtt_mean: Some(0.0015),
            rtt_p99: Some(0.02),
            queued: 7,
            retries: 5,
        };
        assert_eq!(known, [expected]);
        let document = format!(r#"{{"brokers":{{{BOOTSTRAP}}}}}"#);
        let known = brokers(document.as_bytes()).unwrap();
        assert_eq!(
            (&*known[0].name, known[0].rtt_p99),
            ("b:9092/bootstrap", None)
        );
        assert!(brokers(b"{").is_err());
    }
}
