//! Creates missing topics before the first record to them, on a thread of its own.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::admin::NewTopic;
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::{Deliveries, DeliveryError, Disposition, Obstacle};

use super::{Client, client, new_topic, options};
use crate::config::{KafkaConfig, TopicCreation};
use crate::error::KafkaError;
use crate::producer::outcome::{delivery_error, poison};
use crate::sync::lock;
use crate::worker::spawn;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Metadata is asked for in a blocking call that cannot be interrupted: this is the longest that
/// closing a sink waits for it.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);
/// An unused connection to the controller is not kept longer.
const IDLE: Duration = Duration::from_secs(10);
/// A client that has failed so often in a row is replaced: librdkafka can forget all brokers for good
/// (`rebootstrap.rs`).
const FAILURES: u32 = 5;

/// What is known of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TopicStatus {
    /// It exists, or did a moment ago.
    There,
    /// It is being seen to; [`Deliveries::capacity`] is called when that is over.
    Pending,
    /// It is not there and cannot be created.
    Denied(DeliveryError),
}

/// What came of an attempt to create one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Attempt {
    There,
    Denied(DeliveryError),
    Later(String),
}

/// Creates topics; replaced in tests.
trait CreateTopics: Send + 'static {
    /// One outcome for each of `names`, in their order. Returns early when `stop` is raised.
    fn create(&mut self, names: &[Arc<str>], stop: &Requests) -> Vec<Attempt>;
    /// Nothing has been asked for a while.
    fn idle(&mut self) {}
}

/// The handle on the thread `kafka-admin`. Dropping it stops and joins the thread.
pub(crate) struct TopicCreator {
    requests: Arc<Requests>,
    thread: Option<JoinHandle<()>>,
}

/// What the sink asks of the thread.
#[derive(Default)]
struct Requests {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    topics: HashMap<Arc<str>, TopicStatus>,
    /// Why a topic that is pending was not created at the last attempt.
    obstacle: Option<Obstacle>,
    stop: bool,
    /// Of the admin call that the thread waits for.
    waker: Option<Waker>,
}

impl TopicCreator {
    /// Starts the thread; the client is made when the first topic is asked for.
    pub(crate) fn start(
        config: &KafkaConfig,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<Self, KafkaError> {
        let topics = config.options().topics.clone().unwrap_or(TopicCreation {
            partitions: -1,
            replication_factor: -1,
            properties: BTreeMap::new(),
        });
        Self::start_with(
            KafkaAdmin {
                config: config.clone(),
                topics,
                connection: None,
            },
            deliveries,
        )
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

    /// What is known of the topic; asks for it when nothing is. An answer other than `Pending` is
    /// given once: the sink remembers that a topic is there, and a denied one is tried anew when it
    /// is asked for again.
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

    /// Why a topic that was asked for is neither there nor denied. `None` before the first attempt.
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

    /// The topics to see to; empty when `wait` passed without any. `None`: stop.
    fn next(&self, wait: Duration) -> Option<Vec<Arc<str>>> {
        let pending = |state: &State| -> Vec<Arc<str>> {
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

    /// Waits until `pause` is over. False: stop.
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
    while let Some(names) = requests.next(IDLE) {
        if names.is_empty() {
            admin.idle();
            continue;
        }
        let attempts = admin.create(&names, requests);
        if requests.stopped() {
            return;
        }
        let mut later = None;
        let mut settled = false;
        {
            let mut state = lock(&requests.state);
            for (name, attempt) in names.into_iter().zip(attempts) {
                let status = match attempt {
                    Attempt::There => TopicStatus::There,
                    Attempt::Denied(error) => TopicStatus::Denied(error),
                    Attempt::Later(reason) => {
                        later = Some((name, reason));
                        continue;
                    }
                };
                settled = true;
                state.topics.insert(name, status);
            }
            state.obstacle = later.as_ref().map(|(topic, reason)| Obstacle {
                what: format!("topic {topic:?} could not be created: {reason}"),
                disposition: Disposition::Retryable,
            });
        }
        if settled {
            deliveries.capacity();
        }
        match later {
            None => pause = FIRST_PAUSE,
            Some((topic, reason)) => {
                tracing::warn!(
                    %topic,
                    retry_in = ?pause,
                    "the topic could not be created: {reason}"
                );
                if !requests.pause(pause) {
                    return;
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// The real thing.
struct KafkaAdmin {
    config: KafkaConfig,
    topics: TopicCreation,
    connection: Option<Connection>,
}

struct Connection {
    client: Client,
    /// The topics that metadata listed when the connection was new. They need no request, which a
    /// principal that may write but not create would be refused.
    existing: Option<HashSet<String>>,
    /// In a row.
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
        // Nobody serves this client's events.
        self.config.authorise(connection.client.inner())?;
        let attempts = connection.create(names, &self.topics, stop);
        let later = |attempt: &Attempt| matches!(attempt, Attempt::Later(_));
        let failed = attempts
            .as_ref()
            .map_or(true, |attempts| attempts.iter().all(later));
        connection.failures = if failed { connection.failures + 1 } else { 0 };
        // Kept also when the brokers could not be reached: it may just be connecting.
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
            for result in results.map_err(|error| error.to_string())? {
                let (name, outcome) = match result {
                    Ok(name) => (name, Ok(())),
                    Err((name, code)) => (name, Err(code)),
                };
                outcomes.insert(name, outcome);
            }
        }
        Ok(names
            .iter()
            .map(|name| match outcomes.get(&**name) {
                _ if existing.contains(&**name) => Attempt::There,
                None => Attempt::Later("the broker did not say what became of it".to_owned()),
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
                    judge(name, *outcome)
                }
            })
            .collect())
    }
}

impl CreateTopics for KafkaAdmin {
    fn create(&mut self, names: &[Arc<str>], stop: &Requests) -> Vec<Attempt> {
        self.try_create(names, stop)
            .unwrap_or_else(|reason| vec![Attempt::Later(reason); names.len()])
    }

    fn idle(&mut self) {
        self.connection = None;
    }
}

/// All topics that may be seen. Not one by one: asking for a single one can create it.
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

/// What the broker's answer means.
fn judge(name: &str, outcome: Result<(), RDKafkaErrorCode>) -> Attempt {
    use RDKafkaErrorCode as Code;
    let code = match outcome {
        Ok(()) | Err(Code::TopicAlreadyExists) => return Attempt::There,
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
            "the broker does not take the partitions or the properties configured for new topics"
        }
        Code::UnsupportedFeature | Code::UnsupportedVersion => {
            "this broker cannot create topics by request; turn the creation of topics off"
        }
        Code::InvalidTopic => return Attempt::Denied(delivery_error(name, code)),
        // Also a replication factor that is too large: brokers may be down.
        code => return Attempt::Later(code.to_string()),
    };
    // As for a topic that is missing: somebody may allow it, or create it by hand, without our restart.
    Attempt::Denied(DeliveryError {
        topic: Arc::from(name),
        reason: format!("the topic is missing and could not be created: {code}; {advice}"),
        disposition: Disposition::Retryable,
        poison: poison(Code::UnknownTopic),
    })
}

#[cfg(test)]
mod tests;
