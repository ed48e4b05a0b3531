use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use tracing::field::Field;
use tracing::span::{self, Attributes, Id};
use tracing::{Event, Level, Metadata, Subscriber};
use walrelay_testkit::Reports;

use super::*;
use crate::KafkaOptions;
use crate::testing::config_at;

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

/// The messages of all warnings.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut |field: &Field, value: &dyn fmt::Debug| {
            if field.name() == "message" {
                lock(&self.0).push(format!("{value:?}"));
            }
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
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
    let interpret = |outcome| interpret("t", outcome, &HashSet::new());
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

#[test]
fn a_name_that_collides_with_another_topics_is_named() {
    let reason = |existing: &[&str]| {
        let existing = existing.iter().map(ToString::to_string).collect();
        match interpret("my.topic", Err(RDKafkaErrorCode::InvalidTopic), &existing) {
            Ok(TopicStatus::Denied(error)) => {
                assert_eq!(error.poison, Some(Poison::Unroutable));
                error.reason
            }
            other => panic!("{other:?}"),
        }
    };
    let found = reason(&["other", "my_topic"]);
    assert!(
        found.contains("collides with that of topic \"my_topic\""),
        "{found}"
    );
    // The principal may not see the other topic.
    let unknown = reason(&["other"]);
    assert!(
        unknown.contains("differs from it only in . and _"),
        "{unknown}"
    );
}

#[test]
fn a_quota_for_the_creation_of_topics_is_named() {
    let quota = Err(RDKafkaErrorCode::ThrottlingQuotaExceeded);
    let reason = interpret("t", quota, &HashSet::new()).expect_err("it is tried again");
    assert!(reason.contains("controller_mutation_rate"), "{reason}");
}

/// The creation of many topics fails often, each time for the same reason.
#[test]
fn the_same_reason_is_logged_once() {
    let log = Log::default();
    let quota = Err("a quota".to_owned());
    let answers = [
        quota.clone(),
        quota.clone(),
        quota,
        Err("another".to_owned()),
    ];
    tracing::subscriber::with_default(log.clone(), || {
        let mut scripted = Scripted {
            answers: answers.into_iter().collect(),
            calls: Arc::default(),
        };
        let requests = Requests::default();
        let state = || lock(&requests.state);
        state().topics.insert(Arc::from("t"), TopicStatus::Pending);
        let reports = Reports::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                reports.wait(|state| state.capacity >= 1);
                requests.stop();
            });
            run(&mut scripted, &requests, &reports);
        });
    });
    let logged = lock(&log.0).clone();
    let expected = ["a quota", "another"].map(|r| format!("the topic could not be created: {r}"));
    assert_eq!(logged, expected);
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
