//! Asks a broker whether topics may be written to, on the thread `kafka-topics`, before the first
//! record is sent to them.
//!
//! librdkafka keeps a record of a topic that it does not know, and fails it after
//! `topic.metadata.propagation.max.ms`. A record that fails ends the producer, so its topic is asked
//! for first (docs/adr/0060-a-missing-topic-holds-itself.md). The answer also tells librdkafka the
//! partitions of the topic, so that the record is placed at once.
//!
//! # Bounds
//! One request at a time. A topic that may not be written to is asked for again at growing intervals,
//! by its name; if there are many, with all topics in use in one request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::types::RDKafkaErrorCode as Code;
use walrelay_sink_client::Patience;

use crate::answers::TopicState;
use crate::error::KafkaError;
use crate::ffi;
use crate::producer::context::Context;
use crate::sync::lock;
use crate::worker::spawn;

/// The timeout of a request, and the longest that closing a sink waits for the thread.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The most topics that are requested by their names. If more are due, all topics in use are requested.
const MAX_SINGLE: usize = 8;

/// The status of a topic, as a broker reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Records may be sent to it.
    Writable,
    /// It does not exist or may not be written to. It is asked for again.
    Refused(Code),
    /// It was refused for the whole patience, and is not asked for again.
    GivenUp(Code),
}

/// A topic with what a broker said: it exists, or why it is refused; `None` if no broker said either.
type Said = (Box<str>, Option<Result<(), Code>>);

/// A handle of the thread `kafka-topics`. Dropping it stops and joins the thread, which holds a
/// reference to the producer.
pub(crate) struct TopicChecks {
    requests: Arc<Requests>,
    thread: Option<JoinHandle<()>>,
}

/// The topics that the thread is to ask for, and the answers.
#[derive(Default)]
struct Requests {
    state: Mutex<CheckState>,
    changed: Condvar,
    /// Whether `answers` has any.
    has_answers: AtomicBool,
}

#[derive(Default)]
struct CheckState {
    topics: BTreeMap<Box<str>, Due>,
    answers: Vec<(Box<str>, Answer)>,
    stop: bool,
}

/// The time at which a topic is asked for, and the pause after that.
struct Due {
    at: Instant,
    pause: Duration,
}

impl TopicChecks {
    pub(crate) fn start(
        client: Arc<BaseProducer<Context>>,
        patience: Patience,
    ) -> Result<Self, KafkaError> {
        let requests = Arc::new(Requests::default());
        let thread = spawn("kafka-topics", {
            let requests = Arc::clone(&requests);
            move || run(&client, &requests, &patience)
        })?;
        Ok(Self {
            requests,
            thread: Some(thread),
        })
    }

    /// Requests a topic whose handle the producer has. Answers follow until it may be written to or is
    /// given up, and each wakes the sender.
    pub(crate) fn request(&self, topic: &str) {
        self.request_at(topic, Instant::now());
    }

    /// Requests a topic after a pause, because librdkafka refused it although it may be written to.
    pub(crate) fn request_later(&self, topic: &str) {
        self.request_at(topic, Instant::now() + 4 * FIRST_PAUSE);
    }

    fn request_at(&self, topic: &str, at: Instant) {
        let pause = FIRST_PAUSE;
        let due = Due { at, pause };
        lock(&self.requests.state)
            .topics
            .insert(Box::from(topic), due);
        self.requests.changed.notify_all();
    }

    /// Returns true if there are answers to take.
    pub(crate) fn has_answers(&self) -> bool {
        self.requests.has_answers.load(SeqCst)
    }

    /// Takes the answers since the last call, in their order.
    pub(crate) fn take_answers(&self) -> Vec<(Box<str>, Answer)> {
        let mut state = lock(&self.requests.state);
        self.requests.has_answers.store(false, SeqCst);
        std::mem::take(&mut state.answers)
    }

    /// Waits for an answer. **Blocks** for `timeout` at most.
    pub(crate) fn wait(&self, timeout: Duration) {
        let waiting = |state: &mut CheckState| state.answers.is_empty();
        let state = lock(&self.requests.state);
        drop(
            self.requests
                .changed
                .wait_timeout_while(state, timeout, waiting),
        );
    }

    /// Stops and joins the thread. **Blocks** for [`REQUEST_TIMEOUT`] at most.
    pub(crate) fn stop(&mut self) {
        lock(&self.requests.state).stop = true;
        self.requests.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that asks for topics panicked");
        }
    }
}

impl Drop for TopicChecks {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Requests {
    /// Waits for topics that are due; `None`: the thread must stop.
    fn next(&self) -> Option<Vec<Box<str>>> {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return None;
            }
            let now = Instant::now();
            let due = state.topics.iter().filter(|(_, due)| due.at <= now);
            let due: Vec<Box<str>> = due.map(|(name, _)| name.clone()).collect();
            if !due.is_empty() {
                return Some(due);
            }
            let next = state.topics.values().map(|due| due.at).min();
            state = match next {
                None => self.changed.wait(state),
                Some(at) => self
                    .changed
                    .wait_timeout(state, at - now)
                    .map(|(state, _)| state)
                    .map_err(|poisoned| PoisonError::new(poisoned.into_inner().0)),
            }
            .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Enters what was said of topics. Returns true if the sender must be woken.
    fn enter(&self, results: Vec<Said>, patience: &Patience) -> bool {
        let now = Instant::now();
        let mut state = lock(&self.state);
        for (name, result) in results {
            let answer = match result {
                Some(Ok(())) => Some(Answer::Writable),
                Some(Err(code)) if patience.is_over(name.as_bytes(), now, now) => {
                    Some(Answer::GivenUp(code))
                }
                Some(Err(code)) => Some(Answer::Refused(code)),
                None => None,
            };
            match answer {
                Some(Answer::Writable | Answer::GivenUp(_)) => {
                    state.topics.remove(&name);
                }
                Some(Answer::Refused(_)) | None => {
                    if let Some(due) = state.topics.get_mut(&name) {
                        due.at = now + due.pause;
                        due.pause = (due.pause * 2).min(LONGEST_PAUSE);
                    }
                }
            }
            state.answers.extend(answer.map(|answer| (name, answer)));
        }
        let has_news = !state.answers.is_empty();
        self.has_answers.store(has_news, SeqCst);
        drop(state);
        self.changed.notify_all();
        has_news
    }
}

fn run(client: &Arc<BaseProducer<Context>>, requests: &Requests, patience: &Patience) {
    while let Some(names) = requests.next() {
        let results = ask(client, names);
        if requests.enter(results, patience) {
            client.context().shared.wake_sender();
        }
    }
}

/// Asks whether these topics may be written to.
fn ask(client: &Arc<BaseProducer<Context>>, names: Vec<Box<str>>) -> Vec<Said> {
    let states = if names.len() > MAX_SINGLE {
        ffi::topic_states(client, REQUEST_TIMEOUT).unwrap_or_default()
    } else {
        let limit = REQUEST_TIMEOUT / names.len().max(1) as u32;
        let states = names.iter();
        let states = states.map(|name| ffi::topic_state(client, name, limit).unwrap_or_default());
        states.flatten().collect()
    };
    let states: BTreeMap<&str, &TopicState> =
        states.iter().map(|state| (&*state.name, state)).collect();
    let results = names.into_iter().map(|name| {
        let result = states.get(&*name).and_then(|state| match state.error {
            None => Some(Ok(())),
            Some(code) => is_refusal(code).then_some(Err(code)),
        });
        (name, result)
    });
    results.collect()
}

/// Returns true if a broker refuses records of this topic, and those of other topics not. Another error
/// is about the brokers, such as a leader that is being elected.
pub(crate) fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::UnknownTopicId
            | Code::InvalidTopic
            | Code::TopicAuthorizationFailed
    )
}
