//! Asks the brokers, on a thread of its own, what unacknowledged records wait for.
//!
//! librdkafka gives a record up that has no topic after `topic.metadata.propagation.max.ms` (30 s), and one
//! that has no leader or no broker never. Until then it says nothing of the record. So while the oldest
//! record is not acknowledged, a broker is asked for metadata of the topics in use.
//!
//! # Bounds
//! One request at a time, one thread at a time, at intervals that grow. A request blocks its thread and no
//! other: delivery reports go on. It names all topics in use, so a topic that was deleted while none of its
//! records was in flight may be named, too.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::types::RDKafkaErrorCode as Code;
use walrelay_sink::{Disposition, Obstacle};

use crate::answers::TopicState;
use crate::ffi;
use crate::producer::context::Context;
use crate::producer::producers::Producer;
use crate::sync::lock;

/// How long the brokers may take, by all producers. Longer than a round trip to any broker, and the longest that
/// closing a sink waits for the thread.
const ANSWER: Duration = Duration::from_secs(1);
/// The interval between the first two requests. Each is twice as long as the one before.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
/// An answer is of no use for other records: after so long without a question, everything begins anew.
const FORGOTTEN: Duration = Duration::from_secs(3);
/// How many topics or partitions are named.
const NAMED: usize = 3;

/// Asks what records wait for. Belongs to one sink.
#[derive(Debug, Default)]
pub(crate) struct Inquiry {
    answer: Arc<Mutex<Option<Obstacle>>>,
    thread: Option<JoinHandle<()>>,
    schedule: Schedule,
}

/// When to ask.
#[derive(Debug, Default)]
struct Schedule {
    /// When the last question came, when the next request is due, and how long after the one before.
    next: Option<(Instant, Instant, Duration)>,
}

/// What is to be done about a question.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    /// The first one of its kind: earlier answers are of no use.
    Anew,
    Again,
    NotYet,
}

impl Schedule {
    fn question(&mut self, now: Instant) -> Due {
        let known = self.next.filter(|(last, ..)| now < *last + FORGOTTEN);
        let (due, next, interval) = match known {
            None => (Due::Anew, now + FIRST, FIRST),
            Some((_, next, interval)) if now < next => (Due::NotYet, next, interval),
            Some((.., interval)) => {
                let interval = (interval * 2).min(LONGEST);
                (Due::Again, now + interval, interval)
            }
        };
        self.next = Some((now, next, interval));
        due
    }
}

impl Inquiry {
    /// The last answer, and a new request where one is due. The answer to it wakes the sender.
    pub(crate) fn answer(&mut self, producers: &[Producer]) -> Option<Obstacle> {
        // One that is still under way is asked for again by the next question.
        let idle = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        if idle {
            match self.schedule.question(Instant::now()) {
                Due::NotYet => {}
                due => {
                    self.end();
                    if due == Due::Anew {
                        *lock(&self.answer) = None;
                    }
                    self.ask(producers);
                }
            }
        }
        lock(&self.answer).clone()
    }

    /// Asks by each producer that has records in flight: each knows its own topics.
    fn ask(&mut self, producers: &[Producer]) {
        let busy = producers.iter().map(|producer| &producer.client);
        let busy: Vec<Arc<BaseProducer<Context>>> = busy
            .filter(|client| client.in_flight_count() > 0)
            .cloned()
            .collect();
        let Some(first) = busy.first().cloned() else {
            return;
        };
        let answer = Arc::clone(&self.answer);
        let thread = thread::Builder::new().name("kafka-inquiry".to_owned());
        let thread = thread.spawn(move || {
            let limit = ANSWER / u32::try_from(busy.len()).unwrap_or(1);
            let states: Result<Vec<_>, Code> = busy
                .iter()
                .map(|client| ffi::topic_states(client, limit))
                .collect();
            let context = first.context();
            let states = states.map(|states| states.concat());
            let found = obstacle(states, context.bootstrap_servers());
            let news = found != *lock(&answer);
            *lock(&answer) = found;
            if news {
                context.shared.wake_sender();
            }
        });
        match thread {
            Ok(thread) => self.thread = Some(thread),
            // Asked for again at the next interval.
            Err(error) => tracing::debug!(%error, "no thread to ask the brokers with"),
        }
    }

    /// Waits for the thread, which holds references to the producers. **Blocks** for a second at most.
    pub(crate) fn end(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that asks what records wait for panicked");
        }
    }
}

/// What keeps records of these topics from being acknowledged, if that can be seen there.
fn obstacle(answer: Result<Vec<TopicState>, Code>, brokers: &str) -> Option<Obstacle> {
    let topics = match answer {
        Ok(topics) => topics,
        Err(Code::BrokerTransportFailure | Code::OperationTimedOut | Code::AllBrokersDown) => {
            return Some(Obstacle {
                what: format!("no broker answers: {brokers}"),
                disposition: Disposition::Retryable,
            });
        }
        Err(code) => {
            return Some(Obstacle {
                what: format!("the broker tells nothing of its topics: {code}"),
                disposition: Disposition::Retryable,
            });
        }
    };
    let mut found: Vec<(Disposition, String)> = topics.iter().flat_map(problems).collect();
    // What needs somebody comes first.
    found.sort_by_key(|(disposition, _)| *disposition == Disposition::Retryable);
    // Two producers may say the same of a topic.
    let mut said = HashSet::new();
    found.retain(|(_, what)| said.insert(what.clone()));
    let disposition = found.first()?.0;
    let more = found.len().saturating_sub(NAMED);
    let mut named: Vec<String> = found
        .into_iter()
        .take(NAMED)
        .map(|(_, what)| what)
        .collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    Some(Obstacle {
        what: named.join(", "),
        disposition,
    })
}

fn problems(topic: &TopicState) -> Vec<(Disposition, String)> {
    let name = &topic.name;
    let one = |disposition, what: &str| vec![(disposition, format!("topic {name:?} {what}"))];
    match topic.error {
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => {
            one(Disposition::Configuration, "does not exist")
        }
        Some(Code::TopicAuthorizationFailed) => one(
            Disposition::Configuration,
            "is not authorised: allow the principal WRITE and DESCRIBE on it",
        ),
        Some(Code::LeaderNotAvailable) => one(Disposition::Retryable, "has no leader"),
        Some(code) => one(Disposition::Retryable, &format!("is not available: {code}")),
        None => topic
            .leaderless
            .iter()
            .map(|partition| {
                let what = format!("partition {partition} of topic {name:?} has no leader");
                (Disposition::Retryable, what)
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
        let of = |answer| obstacle(answer, "b1:9092,b2:9092").map(|o| (o.what, o.disposition));
        let some = |what: &str, disposition| Some((what.to_owned(), disposition));
        assert_eq!(of(Ok(vec![topic("orders", None, &[])])), None);
        assert_eq!(
            of(Err(Code::BrokerTransportFailure)),
            some("no broker answers: b1:9092,b2:9092", Disposition::Retryable)
        );
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
    fn no_more_than_a_few_are_named() {
        let topics = vec![topic("orders", None, &[0, 1, 2, 3, 4])];
        let what = obstacle(Ok(topics), "b").expect("an obstacle").what;
        assert!(what.ends_with("has no leader, and 2 more"), "{what}");
        let missing = topic("users", Some(Code::UnknownTopicOrPartition), &[]);
        let by_both = obstacle(Ok(vec![missing.clone(), missing]), "b");
        let what = by_both.expect("an obstacle").what;
        assert_eq!(what, "topic \"users\" does not exist");
    }

    #[test]
    fn requests_become_ever_more_seldom_and_begin_anew_with_other_records() {
        let mut schedule = Schedule::default();
        let start = Instant::now();
        let at = |fifths: u64| start + Duration::from_millis(fifths * 200);
        let asked: Vec<u64> = (0..=5 * 100)
            .filter(|fifths| schedule.question(at(*fifths)) != Due::NotYet)
            .map(|fifths| fifths / 5)
            .collect();
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 61, 91]);
        let later = at(5 * 100) + FORGOTTEN;
        assert_eq!(schedule.question(later), Due::Anew);
        assert_eq!(schedule.question(later + FIRST / 2), Due::NotYet);
        assert_eq!(schedule.question(later + FIRST), Due::Again);
    }
}
