//! Creates missing topics before the first record is sent to them, on the thread `kafka-admin`.

use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::admin::NewTopic;
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::{Deliveries, DeliveryError, Disposition, Obstacle, Poison};

use super::topic_name::collides;
use super::{Client, client, new_topic, options};
use crate::client_log::KindThrottle;
use crate::config::{KafkaConfig, TopicCreation};
use crate::error::KafkaError;
use crate::outcome::delivery_error;
use crate::sync::lock;
use crate::worker::spawn;

const CREATE: &str = "create the topic by hand, or allow the principal CREATE on it and see that the controller \
     answers: the relay goes on by itself";
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The request for metadata cannot be interrupted: closing a sink waits this long for it at most.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);
/// An unused connection to the controller is closed after this time.
const IDLE: Duration = Duration::from_secs(10);
/// A client is replaced after this many failures in a row: librdkafka can lose all brokers for good
/// (`rebootstrap.rs`).
const FAILURES: u32 = 5;

/// The status of a requested topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TopicStatus {
    /// The topic exists, or did a moment ago.
    Exists,
    /// The topic is being created; [`Deliveries::capacity`] is called when the status changes.
    Pending,
    /// The topic does not exist and cannot be created.
    Denied(DeliveryError),
}

/// The result of an attempt to create one topic: its new status, never
/// [`TopicStatus::Pending`], or why to try again.
type Attempt = Result<TopicStatus, String>;

/// Creates topics; replaced in tests.
trait CreateTopics: Send + 'static {
    /// Creates the topics; one result for each of `names`, in their order. Returns early when
    /// `stop` is set.
    fn create(&mut self, names: &[Arc<str>], stop: &Requests) -> Vec<Attempt>;
    /// Ends the client when no topic was requested for [`IDLE`].
    fn idle(&mut self) {}
}

/// A handle of the thread `kafka-admin`. Dropping it stops and joins the thread.
pub(crate) struct TopicCreator {
    requests: Arc<Requests>,
    thread: Option<JoinHandle<()>>,
}

/// The topics that the sink requests from the thread.
#[derive(Default)]
struct Requests {
    state: Mutex<CreatorState>,
    changed: Condvar,
}

#[derive(Default)]
struct CreatorState {
    topics: HashMap<Arc<str>, TopicStatus>,
    /// Why the last attempt did not create a pending topic.
    obstacle: Option<Obstacle>,
    stop: bool,
    /// The waker of the admin call that the thread waits for.
    waker: Option<Waker>,
}

impl TopicCreator {
    /// Starts the thread. The client is created when the first topic is requested.
    pub(crate) fn start(
        config: &KafkaConfig,
        topics: &TopicCreation,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<Self, KafkaError> {
        let admin = KafkaAdmin {
            config: config.clone(),
            topics: topics.clone(),
            connection: None,
        };
        Self::start_with(admin, deliveries)
    }

    fn start_with(
        mut admin: impl CreateTopics,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<Self, KafkaError> {
        let requests = Arc::new(Requests::default());
        let thread = spawn("kafka-admin", {
            let requests = Arc::clone(&requests);
            move || run(&mut admin, &requests, &*deliveries)
        })?;
        Ok(Self {
            requests,
            thread: Some(thread),
        })
    }

    /// Returns the status of the topic; the first call requests it. A status other than `Pending`
    /// is returned once: the sink remembers that a topic exists, and a denied topic is tried again
    /// at the next call.
    pub(crate) fn status(&self, name: &str) -> TopicStatus {
        let mut state = lock(&self.requests.state);
        match state.topics.get(name) {
            Some(TopicStatus::Pending) => return TopicStatus::Pending,
            Some(_) => {}
            None => {
                state.topics.insert(Arc::from(name), TopicStatus::Pending);
                self.requests.changed.notify_all();
                return TopicStatus::Pending;
            }
        }
        state.topics.remove(name).unwrap_or(TopicStatus::Pending)
    }

    /// Returns why a requested topic is still pending. `None` before the first attempt.
    pub(crate) fn waiting_for(&self) -> Option<Obstacle> {
        lock(&self.requests.state).obstacle.clone()
    }
}

impl Drop for TopicCreator {
    fn drop(&mut self) {
        self.requests.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that creates topics panicked");
        }
    }
}

impl Requests {
    fn stop(&self) {
        let waker = {
            let mut state = lock(&self.state);
            state.stop = true;
            state.waker.take()
        };
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn stopped(&self) -> bool {
        lock(&self.state).stop
    }

    /// Waits for `future` or for [`stop`](Self::stop), whichever is first.
    fn unless_stopped<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        futures_executor::block_on(poll_fn(|context| {
            {
                let mut state = lock(&self.state);
                if state.stop {
                    return Poll::Ready(None);
                }
                state.waker = Some(context.waker().clone());
            }
            future.as_mut().poll(context).map(Some)
        }))
    }

    /// Waits for pending topics; returns an empty list after `wait`, and `None` if the thread must
    /// stop.
    fn next(&self, wait: Duration) -> Option<Vec<Arc<str>>> {
        let pending = |state: &CreatorState| -> Vec<Arc<str>> {
            let pending = |(name, status): (&Arc<str>, &TopicStatus)| {
                (*status == TopicStatus::Pending).then(|| Arc::clone(name))
            };
            state.topics.iter().filter_map(pending).collect()
        };
        let (state, _) = self
            .changed
            .wait_timeout_while(lock(&self.state), wait, |state| {
                !state.stop && pending(state).is_empty()
            })
            .unwrap_or_else(PoisonError::into_inner);
        (!state.stop).then(|| pending(&state))
    }

    /// Waits for `pause`; returns false if the thread must stop.
    fn pause(&self, pause: Duration) -> bool {
        let (state, _) = self
            .changed
            .wait_timeout_while(lock(&self.state), pause, |state| !state.stop)
            .unwrap_or_else(PoisonError::into_inner);
        !state.stop
    }
}

fn run(admin: &mut impl CreateTopics, requests: &Requests, deliveries: &dyn Deliveries) {
    let mut pause = FIRST_PAUSE;
    let throttle = KindThrottle::default();
    while let Some(names) = requests.next(IDLE) {
        if names.is_empty() {
            admin.idle();
            continue;
        }
        let attempts = admin.create(&names, requests);
        if requests.stopped() {
            return;
        }
        let mut retry = None;
        let mut settled = false;
        {
            let mut state = lock(&requests.state);
            for (name, attempt) in names.into_iter().zip(attempts) {
                match attempt {
                    Ok(status) => {
                        settled = true;
                        state.topics.insert(name, status);
                    }
                    Err(reason) => retry = Some((name, reason)),
                }
            }
            state.obstacle = retry.as_ref().map(|(topic, reason)| Obstacle {
                what: format!("topic {topic:?} could not be created: {reason}"),
                disposition: Disposition::Retryable,
                remedy: Some(CREATE),
            });
        }
        if settled {
            deliveries.capacity();
        }
        match retry {
            None => pause = FIRST_PAUSE,
            Some((topic, reason)) => {
                if let Some(suppressed) = throttle.pass(&reason) {
                    tracing::warn!(
                        %topic,
                        retry_in = ?pause,
                        suppressed = suppressed.shown(),
                        "the topic could not be created: {reason}"
                    );
                }
                if !requests.pause(pause) {
                    return;
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Creates topics by an admin client.
struct KafkaAdmin {
    config: KafkaConfig,
    topics: TopicCreation,
    connection: Option<Connection>,
}

struct Connection {
    client: Client,
    /// The topics in the metadata when the connection was new. They are not requested: a principal
    /// that may write but not create would be refused.
    existing: Option<HashSet<String>>,
    /// Failures in a row.
    failures: u32,
}

impl KafkaAdmin {
    fn try_create(&mut self, names: &[Arc<str>], stop: &Requests) -> Result<Vec<Attempt>, String> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection {
                client: client(&self.config)
                    .map_err(|error| self.config.creation_reason(&error))?,
                existing: None,
                failures: 0,
            },
        };
        // No thread serves this client's events, so the token is set here.
        self.config.authorise(connection.client.inner())?;
        let attempts = connection.create(names, &self.topics, stop);
        let failed = attempts
            .as_ref()
            .map_or(true, |attempts| attempts.iter().all(Result::is_err));
        connection.failures = if failed { connection.failures + 1 } else { 0 };
        // The connection is kept also if no broker was reached: it may still be connecting.
        if connection.failures < FAILURES {
            self.connection = Some(connection);
        }
        attempts
    }
}

impl Connection {
    fn create(
        &mut self,
        names: &[Arc<str>],
        creation: &TopicCreation,
        stop: &Requests,
    ) -> Result<Vec<Attempt>, String> {
        let existing = match &mut self.existing {
            Some(existing) => existing,
            unknown => unknown.insert(list(&self.client)?),
        };
        let missing = || names.iter().filter(|name| !existing.contains(&***name));
        let mut outcomes = HashMap::new();
        if missing().next().is_some() {
            let new: Vec<NewTopic<'_>> = missing().map(|name| new_topic(name, creation)).collect();
            let options = options(REQUEST_TIMEOUT);
            let Some(results) = stop.unless_stopped(self.client.create_topics(&new, &options))
            else {
                return Err("the sink was closed".to_owned());
            };
            let results = results.map_err(|error| error.to_string())?;
            outcomes.extend(results.into_iter().map(|result| match result {
                Ok(name) => (name, Ok(())),
                Err((name, code)) => (name, Err(code)),
            }));
            // Finds the topic that the name collides with, which may be new.
            if outcomes
                .values()
                .any(|r| *r == Err(RDKafkaErrorCode::InvalidTopic))
                && let Ok(now) = list(&self.client)
            {
                *existing = now;
            }
        }
        Ok(names
            .iter()
            .map(|name| match outcomes.get(&**name) {
                _ if existing.contains(&**name) => Ok(TopicStatus::Exists),
                None => Err("the broker did not report the result".to_owned()),
                Some(outcome) => {
                    if outcome.is_ok() {
                        // -1 is the broker's default, which is not known here.
                        let given = |number: i32| (number > 0).then_some(number);
                        tracing::info!(
                            topic = %name,
                            partitions = given(creation.partitions),
                            replication_factor = given(creation.replication_factor),
                            "created a topic"
                        );
                    }
                    interpret(name, *outcome, existing)
                }
            })
            .collect())
    }
}

impl CreateTopics for KafkaAdmin {
    fn create(&mut self, names: &[Arc<str>], stop: &Requests) -> Vec<Attempt> {
        self.try_create(names, stop)
            .unwrap_or_else(|reason| vec![Err(reason); names.len()])
    }

    fn idle(&mut self) {
        self.connection = None;
    }
}

/// Returns all topics that the principal may see. A request for a single topic could create it.
fn list(client: &Client) -> Result<HashSet<String>, String> {
    let metadata = client
        .inner()
        .fetch_metadata(None, METADATA_TIMEOUT)
        .map_err(|error| error.to_string())?;
    Ok(metadata
        .topics()
        .iter()
        .filter(|topic| topic.error().is_none())
        .map(|topic| topic.name().to_owned())
        .collect())
}

/// Interprets the broker's response for a topic. `existing`: the names of topics.
fn interpret(
    name: &str,
    outcome: Result<(), RDKafkaErrorCode>,
    existing: &HashSet<String>,
) -> Attempt {
    use RDKafkaErrorCode as Code;
    let code = match outcome {
        Ok(()) | Err(Code::TopicAlreadyExists) => return Ok(TopicStatus::Exists),
        Err(code) => code,
    };
    let advice = match code {
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
            "allow the principal CREATE on the topic or the cluster, and DESCRIBE so that it sees \
             the topics that exist, or create it by hand"
        }
        Code::PolicyViolation => {
            "a policy of the cluster forbids topics like this one; create it by hand"
        }
        Code::InvalidConfig | Code::InvalidPartitions => {
            "the broker does not accept the partitions or the properties configured for new topics"
        }
        Code::UnsupportedFeature | Code::UnsupportedVersion => {
            "this broker cannot create topics by request; turn the creation of topics off"
        }
        Code::InvalidTopic => {
            let mut error = delivery_error(name, code);
            // rdkafka does not return the broker's message.
            if let Some(other) = existing.iter().find(|other| collides(name, other)) {
                error.reason = format!(
                    "{code}; the name collides with that of topic {other:?}, which differs only in . \
                     and _: Kafka allows one of the two; route the event to another name"
                );
            }
            return Ok(TopicStatus::Denied(error));
        }
        Code::ThrottlingQuotaExceeded => {
            return Err(format!(
                "{code}; a quota limits how many topics this principal or client.id may create in a \
                 time: raise its controller_mutation_rate, or create the topics beforehand"
            ));
        }
        // Includes a replication factor that is too large: brokers may be down.
        code => return Err(code.to_string()),
    };
    // Retryable, as a missing topic is: an operator may allow or create it without a restart.
    Ok(TopicStatus::Denied(DeliveryError {
        topic: Arc::from(name),
        reason: format!("the topic is missing and could not be created: {code}; {advice}"),
        disposition: Disposition::Retryable,
        poison: Some(Poison::Rejected),
    }))
}

#[cfg(test)]
mod tests;
