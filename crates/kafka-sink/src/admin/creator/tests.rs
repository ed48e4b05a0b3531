use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use super::*;
use crate::KafkaOptions;
use crate::testing::{Reports, config_at};

/// Returns the given results, then that the topic exists.
struct Scripted {
    answers: VecDeque<Attempt>,
    calls: Arc<AtomicU64>,
}

impl CreateTopics for Scripted {
    fn create(&mut self, names: &[Arc<str>], _: &Requests) -> Vec<Attempt> {
        self.calls.fetch_add(1, SeqCst);
        names
            .iter()
            .map(|_| self.answers.pop_front().unwrap_or(Ok(TopicStatus::Exists)))
            .collect()
    }
}

/// Waits for an admin call that never ends.
struct Stuck(Arc<AtomicU64>);

impl CreateTopics for Stuck {
    fn create(&mut self, names: &[Arc<str>], stop: &Requests) -> Vec<Attempt> {
        self.0.fetch_add(1, SeqCst);
        let never = std::future::pending::<()>();
        assert_eq!(stop.unless_stopped(never), None);
        vec![Err("closed".to_owned()); names.len()]
    }
}

fn start(answers: &[Attempt]) -> (TopicCreator, Arc<Reports>, Arc<AtomicU64>) {
    let reports = Arc::new(Reports::default());
    let calls = Arc::new(AtomicU64::new(0));
    let scripted = Scripted {
        answers: answers.iter().cloned().collect(),
        calls: Arc::clone(&calls),
    };
    let creator = TopicCreator::start_with(scripted, Arc::clone(&reports) as _).unwrap();
    (creator, reports, calls)
}

fn denied() -> DeliveryError {
    DeliveryError {
        topic: Arc::from("t"),
        reason: "no".to_owned(),
        disposition: Disposition::Retryable,
        poison: Some(Poison::Rejected),
    }
}

#[test]
fn a_topic_is_pending_then_there() {
    let (creator, reports, calls) = start(&[]);
    assert_eq!(creator.status("t"), TopicStatus::Pending);
    reports.wait(|state| state.capacity >= 1);
    assert_eq!(creator.status("t"), TopicStatus::Exists);
    assert_eq!(calls.load(SeqCst), 1);
}

#[test]
fn failures_are_retried_until_the_topic_exists() {
    let retry = Err("no controller".to_owned());
    let (creator, reports, calls) = start(&[retry.clone(), retry]);
    assert_eq!(creator.status("t"), TopicStatus::Pending);
    reports.wait(|state| state.capacity >= 1);
    assert_eq!(creator.status("t"), TopicStatus::Exists);
    assert_eq!(calls.load(SeqCst), 3);
}

#[test]
fn a_denial_is_returned_once_and_the_next_call_requests_the_topic_again() {
    let (creator, reports, _) = start(&[Ok(TopicStatus::Denied(denied()))]);
    assert_eq!(creator.status("t"), TopicStatus::Pending);
    reports.wait(|state| state.capacity >= 1);
    assert_eq!(creator.status("t"), TopicStatus::Denied(denied()));
    assert_eq!(creator.status("t"), TopicStatus::Pending);
    reports.wait(|state| state.capacity >= 2);
    assert_eq!(creator.status("t"), TopicStatus::Exists);
}

#[test]
fn dropping_the_creator_ends_an_unanswered_call() {
    let calls = Arc::new(AtomicU64::new(0));
    let reports: Arc<Reports> = Arc::default();
    let creator = TopicCreator::start_with(Stuck(Arc::clone(&calls)), reports).unwrap();
    assert_eq!(creator.status("t"), TopicStatus::Pending);
    while calls.load(SeqCst) == 0 {
        thread::yield_now();
    }
    drop(creator);
    assert_eq!(calls.load(SeqCst), 1);
}

#[test]
fn the_brokers_responses_are_interpreted() {
    use RDKafkaErrorCode as Code;
    let interpret = |outcome| interpret("t", outcome);
    let disposition = |attempt| match attempt {
        Ok(TopicStatus::Denied(error)) => error.disposition,
        other => panic!("{other:?}"),
    };
    for there in [Ok(()), Err(Code::TopicAlreadyExists)] {
        assert_eq!(interpret(there), Ok(TopicStatus::Exists));
    }
    for denied in [
        Code::TopicAuthorizationFailed,
        Code::ClusterAuthorizationFailed,
        Code::PolicyViolation,
        Code::InvalidConfig,
        Code::UnsupportedFeature,
    ] {
        assert_eq!(disposition(interpret(Err(denied))), Disposition::Retryable);
    }
    assert_eq!(
        disposition(interpret(Err(Code::InvalidTopic))),
        Disposition::Fatal
    );
    for passing in [
        Code::InvalidReplicationFactor,
        Code::OperationTimedOut,
        Code::NotController,
        Code::BrokerTransportFailure,
    ] {
        assert!(interpret(Err(passing)).is_err());
    }
}

/// No process listens on port 1.
#[test]
fn a_client_that_reaches_no_broker_is_replaced_after_some_failures() {
    let mut admin = KafkaAdmin {
        config: config_at("127.0.0.1:1", KafkaOptions::default(), &[]),
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
            assert!(matches!(attempts[..], [Err(_)]), "{attempts:?}");
            admin.connection.is_some()
        })
        .collect();
    assert_eq!(kept, [true, true, true, true, false, true]);
}
