use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use super::*;

/// Answers as told, then says that the topic is there.
struct Scripted {
    answers: VecDeque<Attempt>,
    calls: Arc<AtomicU64>,
}

impl CreateTopics for Scripted {
    fn create(&mut self, names: &[Arc<str>], _: &Requests) -> Vec<Attempt> {
        self.calls.fetch_add(1, SeqCst);
        names
            .iter()
            .map(|_| self.answers.pop_front().unwrap_or(Attempt::There))
            .collect()
    }
}

/// Waits for an admin call that is never answered.
struct Stuck(Arc<AtomicU64>);

impl CreateTopics for Stuck {
    fn create(&mut self, names: &[Arc<str>], stop: &Requests) -> Vec<Attempt> {
        self.0.fetch_add(1, SeqCst);
        let never = std::future::pending::<()>();
        assert_eq!(stop.unless_stopped(never), None);
        vec![Attempt::Later("closed".to_owned()); names.len()]
    }
}

#[derive(Default)]
struct Wakeups(Mutex<u64>, Condvar);

impl Wakeups {
    fn wait_for(&self, count: u64) {
        let (_count, timeout) = self
            .1
            .wait_timeout_while(self.0.lock().unwrap(), Duration::from_secs(20), |n| {
                *n < count
            })
            .unwrap();
        assert!(!timeout.timed_out());
    }
}

impl Deliveries for Wakeups {
    fn delivered(&self, _: u64) {}
    fn failed(&self, _: u64, _: DeliveryError) {}
    fn capacity(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_all();
    }
}

fn start(answers: &[Attempt]) -> (TopicCreator, Arc<Wakeups>, Arc<AtomicU64>) {
    let wakeups = Arc::new(Wakeups::default());
    let calls = Arc::new(AtomicU64::new(0));
    let scripted = Scripted {
        answers: answers.iter().cloned().collect(),
        calls: Arc::clone(&calls),
    };
    let deliveries: Arc<dyn Deliveries> = Arc::clone(&wakeups) as _;
    let creator = TopicCreator::start_with(scripted, deliveries).unwrap();
    (creator, wakeups, calls)
}

fn denied() -> DeliveryError {
    DeliveryError {
        topic: Arc::from("t"),
        reason: "no".to_owned(),
        disposition: Disposition::Retryable,
        poison: Some(walrelay_sink::Poison::Rejected),
    }
}

#[test]
fn a_topic_is_pending_then_there() {
    let (creator, wakeups, calls) = start(&[]);
    assert_eq!(creator.status("t"), TopicStatus::Pending);
    wakeups.wait_for(1);
    assert_eq!(creator.status("t"), TopicStatus::There);
    assert_eq!(calls.load(SeqCst), 1);
}

#[test]
fn failures_are_retried_until_it_is_there() {
    let later = Attempt::Later("no controller".to_owned());
    let (creator, wakeups, calls) = start(&[later.clone(), later]);
    assert_eq!(creator.status("t"), TopicStatus::Pending);
    wakeups.wait_for(1);
    assert_eq!(creator.status("t"), TopicStatus::There);
    assert_eq!(calls.load(SeqCst), 3);
}

#[test]
fn a_denial_is_told_once_and_the_next_question_asks_again() {
    let (creator, wakeups, _) = start(&[Attempt::Denied(denied())]);
    assert_eq!(creator.status("t"), TopicStatus::Pending);
    wakeups.wait_for(1);
    assert_eq!(creator.status("t"), TopicStatus::Denied(denied()));
    assert_eq!(creator.status("t"), TopicStatus::Pending);
    wakeups.wait_for(2);
    assert_eq!(creator.status("t"), TopicStatus::There);
}

#[test]
fn dropping_it_ends_an_unanswered_call() {
    let calls = Arc::new(AtomicU64::new(0));
    let deliveries: Arc<dyn Deliveries> = Arc::new(Wakeups::default());
    let creator = TopicCreator::start_with(Stuck(Arc::clone(&calls)), deliveries).unwrap();
    assert_eq!(creator.status("t"), TopicStatus::Pending);
    while calls.load(SeqCst) == 0 {
        thread::yield_now();
    }
    drop(creator);
    assert_eq!(calls.load(SeqCst), 1);
}

#[test]
fn the_brokers_answers_are_judged() {
    use RDKafkaErrorCode as Code;
    let judge = |outcome| judge("t", outcome);
    let disposition = |attempt| match attempt {
        Attempt::Denied(error) => error.disposition,
        other => panic!("{other:?}"),
    };
    assert_eq!(judge(Ok(())), Attempt::There);
    assert_eq!(judge(Err(Code::TopicAlreadyExists)), Attempt::There);
    for denied in [
        Code::TopicAuthorizationFailed,
        Code::ClusterAuthorizationFailed,
        Code::PolicyViolation,
        Code::InvalidConfig,
        Code::UnsupportedFeature,
    ] {
        assert_eq!(disposition(judge(Err(denied))), Disposition::Retryable);
    }
    assert_eq!(
        disposition(judge(Err(Code::InvalidTopic))),
        Disposition::Fatal
    );
    for passing in [
        Code::InvalidReplicationFactor,
        Code::OperationTimedOut,
        Code::NotController,
        Code::BrokerTransportFailure,
    ] {
        assert!(matches!(judge(Err(passing)), Attempt::Later(_)));
    }
}

/// Nothing listens on port 1.
#[test]
fn a_client_that_reaches_nobody_is_replaced_in_the_end() {
    let properties = [("bootstrap.servers".to_owned(), "127.0.0.1:1".to_owned())];
    let mut admin = KafkaAdmin {
        config: KafkaConfig::new(properties.into(), crate::KafkaOptions::default()).unwrap(),
        topics: TopicCreation {
            partitions: 1,
            replication_factor: 1,
            properties: BTreeMap::new(),
        },
        connection: None,
    };
    let requests = Requests::default();
    let kept: Vec<bool> = (0..=FAILURES)
        .map(|_| {
            let attempts = admin.create(&[Arc::from("t")], &requests);
            assert!(matches!(attempts[..], [Attempt::Later(_)]), "{attempts:?}");
            admin.connection.is_some()
        })
        .collect();
    assert_eq!(kept, [true, true, true, true, false, true]);
}
