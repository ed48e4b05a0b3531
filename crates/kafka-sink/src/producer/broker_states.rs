//! [`Answers`]: librdkafka calls a broker `UP` until a request has waited for `socket.timeout.ms` (60
//! s). The relay calls it [`EndpointStats::NO_ANSWER`] after [`LIMIT`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use walrelay_sink::{ANSWER_LIMIT, EndpointStats};

use crate::producer::statistics::BrokerFigures;

/// The time without any response after which a broker counts as one that does not answer. A broker
/// answers the requests of a connection in their order, each before it reads the next.
pub(super) const LIMIT: Duration = ANSWER_LIMIT;

/// Since when the brokers of one client have answered nothing, by name, and the number of responses
/// until then.
#[derive(Debug, Default)]
pub(super) struct Answers(BTreeMap<String, (u64, Instant)>);

impl Answers {
    /// Sets the state of each broker that has answered nothing for [`LIMIT`] although a request
    /// waits. Not of one that `is_throttled`: it has a reason to wait.
    pub(super) fn judge(
        &mut self,
        brokers: &mut [BrokerFigures],
        is_throttled: impl Fn(&str) -> bool,
        now: Instant,
    ) {
        let former = std::mem::take(&mut self.0);
        for broker in brokers {
            let endpoint = &mut broker.endpoint;
            if broker.waiting == 0 || is_throttled(&endpoint.name) {
                continue;
            }
            let since = former
                .get(&endpoint.name)
                .filter(|(responses, _)| *responses == broker.responses)
                .map_or(now, |(_, since)| *since);
            if now >= since + LIMIT && endpoint.state == EndpointStats::UP {
                EndpointStats::NO_ANSWER.clone_into(&mut endpoint.state);
            }
            self.0
                .insert(endpoint.name.clone(), (broker.responses, since));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker(waiting: u64, responses: u64) -> BrokerFigures {
        BrokerFigures {
            node: Some(1),
            waiting,
            responses,
            endpoint: EndpointStats {
                name: "b:9092/1".to_owned(),
                state: EndpointStats::UP.to_owned(),
                ..EndpointStats::default()
            },
        }
    }

    #[test]
    fn only_a_broker_with_requests_open_and_no_response_for_long_does_not_answer() {
        let start = Instant::now();
        let mut answers = Answers::default();
        let mut state = |waiting, responses, throttled, after| {
            let mut brokers = [broker(waiting, responses)];
            answers.judge(&mut brokers, |_| throttled, start + after);
            brokers[0].endpoint.state.clone()
        };
        let second = Duration::from_secs(1);
        // Idle for long, then a request: the time begins with it.
        for (waiting, responses, throttled, after, expected) in [
            (0, 7, false, second * 100, "UP"),
            (1, 7, false, second * 101, "UP"),
            (1, 7, false, second * 105, "UP"),
            (1, 7, false, second * 106, "NO_ANSWER"),
            (3, 8, false, second * 107, "UP"),
            (3, 8, true, second * 120, "UP"),
            (3, 8, false, second * 121, "UP"),
            (3, 8, false, second * 126, "NO_ANSWER"),
            (0, 11, false, second * 127, "UP"),
        ] {
            assert_eq!(state(waiting, responses, throttled, after), expected);
        }
    }
}
