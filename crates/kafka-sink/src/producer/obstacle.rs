//! Finds out why records are not acknowledged: requests metadata on the thread `kafka-inquiry`.
//!
//! librdkafka never gives up a record without a leader or a broker, and reports nothing about it.
//! So while the oldest record is not acknowledged, a broker is asked for the metadata of the topics
//! in use. A broker that throttles the client does not respond meanwhile, so the throttle times of
//! earlier responses are considered, too.
//!
//! # Bounds
//! One request and one thread at a time, at growing intervals. A request blocks only its own
//! thread; delivery reports continue. It covers all topics in use, so the result may include a
//! topic that was deleted while none of its records was in flight.
//!
//! # Topics that were made anew
//! The ids of topics are requested once records are acknowledged, and again while nothing is. If one
//! has changed meanwhile, librdkafka may send to the wrong broker for ever
//! ([`topic_ids`](super::topic_ids)), so the sink is broken, and the relay makes a new one.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::types::RDKafkaErrorCode as Code;
use walrelay_sink::{Disposition, Obstacle, in_current_span};

use crate::answers::TopicState;
use crate::error::REACH;
use crate::ffi;
use crate::producer::context::{Context, Unreachable};
use crate::producer::producers::Producer;
use crate::producer::topic_ids::TopicIds;
use crate::sync::lock;

/// Timeout of the requests of all producers together. Longer than a round trip to any broker, and
/// the longest that closing a sink waits for the thread.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between the first two requests. It doubles with each request.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// After this time without a call the schedule starts again: results are of no use for other
/// records.
const RESET_AFTER: Duration = Duration::from_secs(3);
/// The most topics or partitions in a description.
pub(crate) const MAX_NAMED: usize = 3;

/// A problem of a topic or broker: the reaction, what is wrong, what to do.
pub(crate) type Found = (Disposition, String, Option<&'static str>);

const CREATE: Option<&str> = Some(
    "create the topic (kafka-topics.sh --create), or correct the route that names it: the relay goes on by itself",
);
const LEAD: Option<&str> = Some(
    "start the brokers that hold the partition's replicas: kafka-topics.sh --describe --unavailable-partitions names \
     them",
);
const QUOTA: Option<&str> = Some(
    "raise the brokers' quota of this client: kafka-configs.sh --describe --entity-type users",
);

/// Finds out what records wait for. Belongs to one sink.
#[derive(Debug, Default)]
pub(crate) struct Inquiry {
    answer: Arc<Mutex<Option<Obstacle>>>,
    thread: Option<JoinHandle<()>>,
    schedule: Schedule,
    ids: Arc<Mutex<TopicIds>>,
    ids_schedule: Schedule,
}

/// The times at which requests are sent.
#[derive(Debug, Default)]
struct Schedule {
    /// The time of the last call, the time of the next request, and the interval before that
    /// request.
    next: Option<(Instant, Instant, Duration)>,
}

/// The request that is due, if one is.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    /// The first request of the schedule: discard earlier results.
    First,
    Again,
    NotYet,
}

impl Schedule {
    fn due(&mut self, now: Instant) -> Due {
        let known = self.next.filter(|(last, ..)| now < *last + RESET_AFTER);
        let (due, next, interval) = match known {
            None => (Due::First, now + FIRST_INTERVAL, FIRST_INTERVAL),
            Some((_, next, interval)) if now < next => (Due::NotYet, next, interval),
            Some((.., interval)) => {
                let interval = (interval * 2).min(MAX_INTERVAL);
                (Due::Again, now + interval, interval)
            }
        };
        self.next = Some((now, next, interval));
        due
    }
}

impl Inquiry {
    /// Returns the last result and starts a request if one is due. A new result wakes the sender.
    pub(crate) fn answer(&mut self, producers: &[Producer]) -> Option<Obstacle> {
        // While a request is running, the schedule is not advanced.
        if self.is_idle() {
            match self.schedule.due(Instant::now()) {
                Due::NotYet => {}
                due => {
                    self.join();
                    if due == Due::First {
                        *lock(&self.answer) = None;
                    }
                    self.request(producers);
                }
            }
        }
        lock(&self.answer).clone()
    }

    fn is_idle(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Requests the ids of those `topics` whose id is not known, if a request is due. Call it only
    /// when the brokers answer.
    pub(crate) fn learn_ids<'a>(
        &mut self,
        producers: &[Producer],
        topics: impl ExactSizeIterator<Item = &'a str>,
    ) {
        // Most calls end here.
        if !self.is_idle() || lock(&self.ids).len() >= topics.len() {
            return;
        }
        let Some(first) = producers.first() else {
            return;
        };
        if self.ids_schedule.due(Instant::now()) == Due::NotYet {
            return;
        }
        self.join();
        let client = Arc::clone(&first.client);
        let ids = Arc::clone(&self.ids);
        let known = lock(&self.ids);
        let unknown: Vec<String> = topics
            .filter(|topic| !known.knows(topic))
            .map(str::to_owned)
            .collect();
        drop(known);
        self.start(move || {
            match ffi::topic_ids(client.client(), &unknown, REQUEST_TIMEOUT) {
                Ok(now) => drop(lock(&ids).update(now)),
                // Retried after the next interval.
                Err(code) => tracing::debug!(%code, "the brokers tell no ids of topics"),
            }
        });
    }

    fn start(&mut self, request: impl FnOnce() + Send + 'static) {
        let thread = thread::Builder::new().name("kafka-inquiry".to_owned());
        match thread.spawn(in_current_span(request)) {
            Ok(thread) => self.thread = Some(thread),
            // Retried after the next interval.
            Err(error) => tracing::debug!(%error, "no thread to ask the brokers with"),
        }
    }

    /// Sends a request by each producer with records in flight, because each knows its own topics.
    fn request(&mut self, producers: &[Producer]) {
        let busy = producers.iter().map(|producer| &producer.client);
        let mut busy: Vec<Arc<BaseProducer<Context>>> = busy
            .filter(|client| client.in_flight_count() > 0)
            .cloned()
            .collect();
        if busy.is_empty() {
            // All records are held back.
            busy.extend(producers.first().map(|first| Arc::clone(&first.client)));
        }
        let Some(first) = busy.first().cloned() else {
            return;
        };
        let answer = Arc::clone(&self.answer);
        let ids = Arc::clone(&self.ids);
        self.start(move || {
            let limit = REQUEST_TIMEOUT / u32::try_from(busy.len()).unwrap_or(1);
            let states: Result<Vec<_>, Code> = busy
                .iter()
                .map(|client| ffi::topic_states(client, limit))
                .collect();
            let context = first.context();
            let states = states.map(|states| states.concat());
            let answered = states.is_ok();
            let now = Instant::now();
            let mut contexts = busy.iter().map(|client| client.context());
            let throttled = contexts.find_map(|context| context.throttled(now));
            let mut contexts = busy.iter().map(|client| client.context());
            let unreachable = contexts.find_map(|context| context.unreachable(now));
            let mut contexts = busy.iter().map(|client| client.context());
            let remedy = contexts.find_map(|context| context.remedy(now));
            let servers = context.bootstrap_servers();
            let found = obstacle(states, throttled, (unreachable, remedy), servers);
            let news = found != *lock(&answer);
            *lock(&answer) = found;
            if news {
                context.shared.wake_sender();
            }
            if answered {
                break_if_renewed(&first, &ids, limit);
            }
        });
    }

    /// Joins the thread, which holds references to the producers. **Blocks** for a second at most.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that asks why records wait panicked");
        }
    }
}

/// Breaks the sink if one of its topics was made anew. Called while nothing is acknowledged.
fn break_if_renewed(producer: &BaseProducer<Context>, ids: &Mutex<TopicIds>, timeout: Duration) {
    let topics = lock(ids).topics();
    if topics.is_empty() || producer.context().shared.broken() {
        return;
    }
    let renewed = match ffi::topic_ids(producer.client(), &topics, timeout) {
        Ok(now) => lock(ids).update(now),
        Err(_) => return,
    };
    if !renewed.is_empty() {
        tracing::warn!(
            topics = ?renewed,
            "Kafka: topics were deleted and recreated, and nothing is acknowledged: the producer is \
             replaced, because it may send to brokers that do not lead the new topics"
        );
        producer.context().shared.break_off();
    }
}

/// Returns why records of these topics are not acknowledged, if the metadata show it or if a broker
/// throttles the client. `unreachable`: the broker that cannot be used. `remedy`: what to do about the
/// last error of a connection, which counts if no broker answers.
fn obstacle(
    answer: Result<Vec<TopicState>, Code>,
    throttled: Option<String>,
    (unreachable, remedy): (Option<Unreachable>, Option<&'static str>),
    brokers: &str,
) -> Option<Obstacle> {
    let mut found: Vec<Found> = match answer {
        // A broker that throttles does not respond to this request either.
        Err(_) if throttled.is_some() => Vec::new(),
        Ok(topics) => {
            let found: Vec<_> = topics.iter().flat_map(problems).collect();
            match unreachable {
                // The metadata came from another broker.
                Some((what, remedy)) if found.is_empty() => {
                    vec![(Disposition::Retryable, what, remedy)]
                }
                _ => found,
            }
        }
        Err(Code::BrokerTransportFailure | Code::OperationTimedOut | Code::AllBrokersDown) => {
            let none = || (format!("no broker answers: {brokers}"), remedy.or(REACH));
            let (what, remedy) = unreachable.unwrap_or_else(none);
            vec![(Disposition::Retryable, what, remedy)]
        }
        Err(code) => {
            let what = format!("the broker tells nothing of its topics: {code}");
            vec![(Disposition::Retryable, what, remedy.or(REACH))]
        }
    };
    found.extend(throttled.map(|what| (Disposition::Retryable, what, QUOTA)));
    // Problems that need an operator come first.
    found.sort_by_key(|(disposition, ..)| *disposition == Disposition::Retryable);
    // Two producers may report the same problem.
    let mut seen = HashSet::new();
    found.retain(|(_, what, _)| seen.insert(what.clone()));
    let &(disposition, _, remedy) = found.first()?;
    let mut named: Vec<String> = found.into_iter().map(|(_, what, _)| what).collect();
    let more = named.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        named.truncate(MAX_NAMED);
        named.push(format!("and {more} more"));
    }
    Some(Obstacle {
        what: named.join(", "),
        disposition,
        remedy,
    })
}

pub(crate) fn problems(topic: &TopicState) -> Vec<Found> {
    let name = &topic.name;
    let one = |disposition, what: &str, remedy| {
        vec![(disposition, format!("topic {name:?} {what}"), remedy)]
    };
    match topic.error {
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => {
            one(Disposition::Configuration, "does not exist", CREATE)
        }
        Some(Code::TopicAuthorizationFailed) => one(
            Disposition::Configuration,
            "is not authorised: allow the principal WRITE and DESCRIBE on it",
            None,
        ),
        Some(Code::LeaderNotAvailable) => one(Disposition::Retryable, "has no leader", LEAD),
        Some(code) => one(
            Disposition::Retryable,
            &format!("is not available: {code}"),
            None,
        ),
        None => topic
            .leaderless
            .iter()
            .map(|partition| {
                let what = format!("partition {partition} of topic {name:?} has no leader");
                (Disposition::Retryable, what, LEAD)
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str, error: Option<Code>, leaderless: &[i32]) -> TopicState {
        TopicState {
            name: name.to_owned(),
            error,
            leaderless: leaderless.to_vec(),
        }
    }

    #[test]
    fn what_is_missing_is_named_and_what_needs_somebody_comes_first() {
        let of = |answer| {
            obstacle(answer, None, (None, None), "b1:9092,b2:9092").map(|o| (o.what, o.disposition))
        };
        let some = |what: &str, disposition| Some((what.to_owned(), disposition));
        assert_eq!(of(Ok(vec![topic("orders", None, &[])])), None);
        assert_eq!(
            of(Err(Code::BrokerTransportFailure)),
            some("no broker answers: b1:9092,b2:9092", Disposition::Retryable)
        );
        let remedy = |answer| obstacle(answer, None, (None, None), "b").and_then(|o| o.remedy);
        assert_eq!(remedy(Err(Code::BrokerTransportFailure)), REACH);
        let port = Some("another port");
        let answer = Err(Code::BrokerTransportFailure);
        let of_port = obstacle(answer, None, (None, port), "b").and_then(|o| o.remedy);
        assert_eq!(of_port, port);
        assert_eq!(remedy(Ok(vec![topic("orders", None, &[1])])), LEAD);
        assert_eq!(
            of(Ok(vec![topic("orders", None, &[1])])),
            some(
                "partition 1 of topic \"orders\" has no leader",
                Disposition::Retryable
            )
        );
        let missing = topic("users", Some(Code::UnknownTopicOrPartition), &[]);
        assert_eq!(
            of(Ok(vec![topic("orders", None, &[1]), missing])),
            some(
                "topic \"users\" does not exist, partition 1 of topic \"orders\" has no leader",
                Disposition::Configuration
            )
        );
        let denied = topic("users", Some(Code::TopicAuthorizationFailed), &[]);
        let (what, disposition) = of(Ok(vec![denied])).expect("an obstacle");
        assert!(what.contains("\"users\" is not authorised"), "{what}");
        assert_eq!(disposition, Disposition::Configuration);
    }

    #[test]
    fn a_broker_that_throttles_is_not_one_that_does_not_answer() {
        let throttled = || Some("broker b1 throttles".to_owned());
        let what = |answer| obstacle(answer, throttled(), (None, None), "b1:9092").map(|o| o.what);
        assert_eq!(what(Err(Code::OperationTimedOut)), throttled());
        assert_eq!(what(Ok(Vec::new())), throttled());
        let leaderless = what(Ok(vec![topic("orders", None, &[1])])).expect("an obstacle");
        assert!(
            leaderless.ends_with("has no leader, broker b1 throttles"),
            "{leaderless}"
        );
    }

    #[test]
    fn a_broker_that_cannot_be_reached_at_its_advertised_address_is_named() {
        let named = || "broker inner:9092 cannot be reached".to_owned();
        let unreachable = || Some((named(), Some("correct it")));
        let found = |answer| obstacle(answer, None, (unreachable(), REACH), "b1:9092");
        for answer in [
            Err(Code::BrokerTransportFailure),
            Ok(vec![topic("orders", None, &[])]),
        ] {
            let found = found(answer).expect("an obstacle");
            assert_eq!((found.what, found.remedy), (named(), Some("correct it")));
        }
        let leaderless = found(Ok(vec![topic("orders", None, &[1])])).expect("an obstacle");
        assert!(leaderless.what.ends_with("has no leader"), "{leaderless:?}");
    }

    #[test]
    fn no_more_than_a_few_are_named() {
        let topics = vec![topic("orders", None, &[0, 1, 2, 3, 4])];
        let what = obstacle(Ok(topics), None, (None, None), "b")
            .expect("an obstacle")
            .what;
        assert!(what.ends_with("has no leader, and 2 more"), "{what}");
        let missing = topic("users", Some(Code::UnknownTopicOrPartition), &[]);
        let by_both = obstacle(Ok(vec![missing.clone(), missing]), None, (None, None), "b");
        let what = by_both.expect("an obstacle").what;
        assert_eq!(what, "topic \"users\" does not exist");
    }

    #[test]
    fn intervals_grow_and_start_again_with_other_records() {
        let mut schedule = Schedule::default();
        let start = Instant::now();
        let at = |fifths: u64| start + Duration::from_millis(fifths * 200);
        let asked: Vec<u64> = (0..=5 * 100)
            .filter(|fifths| schedule.due(at(*fifths)) != Due::NotYet)
            .map(|fifths| fifths / 5)
            .collect();
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 61, 91]);
        let later = at(5 * 100) + RESET_AFTER;
        assert_eq!(schedule.due(later), Due::First);
        assert_eq!(schedule.due(later + FIRST_INTERVAL / 2), Due::NotYet);
        assert_eq!(schedule.due(later + FIRST_INTERVAL), Due::Again);
    }
}
