//! [`KnownBrokers`]: librdkafka forgets a broker that the metadata do not name any more, as those of
//! a cluster whose broker has died. The relay's list keeps it, as `DOWN`, until another broker has
//! its id or the relay ends. A client that has no metadata yet, such as that of the next attempt, has
//! tried none of them: they are `INIT`.

use std::collections::BTreeMap;
use std::sync::Mutex;

use walrelay_sink::EndpointStats;

use crate::sync::lock;

/// The brokers that any client of a configuration has known: names by id.
#[derive(Debug, Default)]
pub(crate) struct KnownBrokers(Mutex<BTreeMap<i64, String>>);

impl KnownBrokers {
    /// Notes the brokers of a client, each with its id, and returns them with those that the client
    /// does not know. Bootstrap servers, which have no id, are left out if any broker was known.
    pub(crate) fn complete(
        &self,
        brokers: Vec<(Option<i64>, EndpointStats)>,
    ) -> Vec<EndpointStats> {
        let mut known = lock(&self.0);
        for (id, broker) in &brokers {
            if let Some(id) = id {
                known.insert(*id, broker.name.clone());
            }
        }
        let is_missing = |id: &i64| {
            brokers
                .iter()
                .all(|(present, _)| present.as_ref() != Some(id))
        };
        let has_metadata = brokers.iter().any(|(id, _)| id.is_some());
        let state = if has_metadata {
            EndpointStats::DOWN
        } else {
            EndpointStats::INIT
        };
        let missing = known.iter().filter(|(id, _)| is_missing(id));
        let missing: Vec<_> = missing
            .map(|(_, name)| EndpointStats {
                name: name.clone(),
                state: state.to_owned(),
                ..EndpointStats::default()
            })
            .collect();
        let present = brokers
            .into_iter()
            .filter(|(id, _)| known.is_empty() || id.is_some());
        present.map(|(_, broker)| broker).chain(missing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_known_once_stays_until_another_one_has_its_id() {
        let known = KnownBrokers::default();
        let states = |brokers: &[(Option<i64>, &str)]| {
            let up = brokers.iter().map(|(id, name)| {
                let endpoint = EndpointStats {
                    name: (*name).to_owned(),
                    state: EndpointStats::UP.to_owned(),
                    ..EndpointStats::default()
                };
                (*id, endpoint)
            });
            let all = known.complete(up.collect());
            let all = all.iter().map(|b| format!("{} {}", b.name, b.state));
            all.collect::<Vec<_>>()
        };
        let bootstrap = [(None, "b:1/bootstrap")];
        assert_eq!(states(&bootstrap), ["b:1/bootstrap UP"]);
        let two = states(&[(Some(1), "b:1/1"), (Some(2), "b:2/2")]);
        assert_eq!(two, ["b:1/1 UP", "b:2/2 UP"]);
        assert_eq!(states(&[(Some(1), "b:1/1")]), ["b:1/1 UP", "b:2/2 DOWN"]);
        // A new client has tried none of them.
        assert_eq!(states(&bootstrap), ["b:1/1 INIT", "b:2/2 INIT"]);
        let moved = states(&[(Some(1), "b:1/1"), (Some(2), "c:2/2")]);
        assert_eq!(moved, ["b:1/1 UP", "c:2/2 UP"]);
    }
}
