//! Requests the schema that the core waits for, with retries until a time limit.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use walrelay_event_router::ValueSchema;

use super::attempts::Backoff;
use super::log_throttle::{LogThrottle, Throttled};
use crate::interface::schemas::{PendingSchema, SchemaAnswer, SchemaError, SchemaFailure, Schemas};

/// The result of a request for a schema.
#[derive(Debug)]
pub(crate) enum FetchOutcome {
    /// Subject and schema.
    Schema(String, ValueSchema),
    /// The request failed and is repeated. With a warning to log, unless it is throttled.
    Later(SchemaError, Option<Throttled>),
    /// The request failed and is not repeated. With the subject.
    Nothing(String, SchemaError),
}

/// Requests one schema at a time, and repeats a failed request for `retry_for`.
pub(crate) struct SchemaFetcher {
    schemas: Option<Arc<dyn Schemas>>,
    retry_for: Duration,
    request: Option<Request>,
    backoff: Backoff,
    throttle: LogThrottle,
}

struct Request {
    pending: PendingSchema,
    since: Instant,
    answer: Option<SchemaAnswer>,
    /// The time when to send the next request, while no answer is under way.
    next: Instant,
}

impl fmt::Debug for SchemaFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.request.as_ref().map(|request| &request.pending);
        f.debug_struct("SchemaFetcher")
            .field("schemas", &self.schemas)
            .field("pending", &pending)
            .finish_non_exhaustive()
    }
}

impl SchemaFetcher {
    pub(crate) fn new(
        schemas: Option<Arc<dyn Schemas>>,
        retry_for: Duration,
        backoff: Backoff,
    ) -> Self {
        Self {
            schemas,
            retry_for,
            request: None,
            backoff,
            throttle: LogThrottle::default(),
        }
    }

    /// Requests this schema from now on, and drops a request for another one.
    pub(crate) fn request(&mut self, pending: Option<&PendingSchema>) {
        let requested = self.request.as_ref().map(|request| &request.pending);
        if requested == pending {
            return;
        }
        let now = Instant::now();
        self.backoff.reset();
        self.throttle.over(now);
        self.request = pending.map(|pending| Request {
            pending: pending.clone(),
            since: now,
            answer: None,
            next: now,
        });
    }

    /// Waits for the result of the request; pending for ever while there is none. Cancel-safe: the
    /// request goes on if the future is dropped.
    pub(crate) async fn outcome(&mut self) -> FetchOutcome {
        let (Some(request), Some(schemas)) = (&mut self.request, &self.schemas) else {
            return pending().await;
        };
        if request.answer.is_none() {
            sleep_until(request.next).await;
        }
        let ask = || schemas.ask(&request.pending.subject);
        let answer = request.answer.get_or_insert_with(ask).await;
        request.answer = None;
        let subject = request.pending.subject.clone();
        let now = Instant::now();
        let error = match answer {
            Ok(schema) => {
                self.request = None;
                return FetchOutcome::Schema(subject, schema);
            }
            Err(error) => error,
        };
        // If a schema is known, the request for a later one is repeated only while the registry is
        // unavailable.
        let may_pass = if request.pending.again {
            error.kind == SchemaFailure::Unavailable
        } else {
            error.kind.may_pass()
        };
        if !may_pass || now.duration_since(request.since) >= self.retry_for {
            self.request = None;
            return FetchOutcome::Nothing(subject, error);
        }
        request.next = now + self.backoff.next_delay();
        let warning = self.throttle.about(&error.reason, now);
        FetchOutcome::Later(error, warning)
    }

    /// Ends the warnings about failed requests. Returns how long requests failed, if any failed.
    pub(crate) fn over(&mut self) -> Option<Duration> {
        self.throttle.over(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::Mutex;

    use super::*;

    /// Returns the answers in order, and repeats the last one. `None`: the answer never arrives.
    #[derive(Debug)]
    struct Script {
        answers: Mutex<Vec<Option<Result<u32, SchemaFailure>>>>,
        asked: Mutex<Vec<String>>,
    }

    impl Script {
        fn new(answers: &[Option<Result<u32, SchemaFailure>>]) -> Arc<Self> {
            Arc::new(Self {
                answers: Mutex::new(answers.iter().rev().copied().collect()),
                asked: Mutex::default(),
            })
        }

        fn asked(&self) -> usize {
            self.asked.lock().unwrap().len()
        }
    }

    impl Schemas for Script {
        fn ask(&self, subject: &str) -> SchemaAnswer {
            self.asked.lock().unwrap().push(subject.to_owned());
            let mut answers = self.answers.lock().unwrap();
            let answer = match answers.len() {
                1 => answers[0],
                _ => answers.pop().expect("an answer"),
            };
            match answer {
                None => Box::pin(pending()),
                Some(answer) => Box::pin(ready(answer.map(ValueSchema::json).map_err(|kind| {
                    let reason = format!("{kind:?}");
                    SchemaError { kind, reason }
                }))),
            }
        }
    }

    fn schema_fetcher(script: &Arc<Script>, retry_for_ms: u64) -> SchemaFetcher {
        let backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(40));
        let schemas: Arc<dyn Schemas> = Arc::<Script>::clone(script);
        SchemaFetcher::new(Some(schemas), Duration::from_millis(retry_for_ms), backoff)
    }

    fn pending_schema(subject: &str, again: bool) -> PendingSchema {
        PendingSchema {
            subject: subject.to_owned(),
            again,
        }
    }

    /// Waits for the final outcome; returns it, the number of `Later` before it, and the time until
    /// it.
    async fn final_outcome(
        schema_fetcher: &mut SchemaFetcher,
    ) -> (Result<u32, SchemaFailure>, usize, Duration) {
        let begun = Instant::now();
        let mut waits = 0;
        loop {
            match schema_fetcher.outcome().await {
                FetchOutcome::Schema(_, schema) => {
                    return (Ok(schema.id()), waits, begun.elapsed());
                }
                FetchOutcome::Nothing(_, error) => {
                    return (Err(error.kind), waits, begun.elapsed());
                }
                FetchOutcome::Later(..) => waits += 1,
            }
        }
    }

    #[tokio::test]
    async fn a_registry_that_comes_back_is_asked_until_it_answers() {
        use SchemaFailure::{Missing, Unavailable};
        let script = Script::new(&[Some(Err(Unavailable)), Some(Err(Missing)), Some(Ok(7))]);
        let mut schema_fetcher = schema_fetcher(&script, 60_000);
        schema_fetcher.request(Some(&pending_schema("s", false)));
        let (outcome, waits, _) = final_outcome(&mut schema_fetcher).await;
        assert_eq!((outcome, waits, script.asked()), (Ok(7), 2, 3));
        assert!(schema_fetcher.request.is_none());
    }

    #[tokio::test]
    async fn a_schema_is_given_up_after_the_limit_and_not_before() {
        for kind in [
            SchemaFailure::Unavailable,
            SchemaFailure::Missing,
            SchemaFailure::Forbidden,
        ] {
            let script = Script::new(&[Some(Err(kind))]);
            let mut schema_fetcher = schema_fetcher(&script, 300);
            schema_fetcher.request(Some(&pending_schema("s", false)));
            let (outcome, waits, after) = final_outcome(&mut schema_fetcher).await;
            assert_eq!(outcome, Err(kind));
            assert!(
                waits > 0 && after >= Duration::from_millis(300),
                "{waits} {after:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_refused_request_is_not_repeated() {
        for kind in [SchemaFailure::Refused, SchemaFailure::Unauthenticated] {
            let script = Script::new(&[Some(Err(kind))]);
            let mut schema_fetcher = schema_fetcher(&script, 60_000);
            schema_fetcher.request(Some(&pending_schema("s", false)));
            let (outcome, waits, _) = final_outcome(&mut schema_fetcher).await;
            assert_eq!((outcome, waits), (Err(kind), 0));
        }
    }

    #[tokio::test]
    async fn a_later_schema_is_waited_for_only_while_the_registry_is_unavailable() {
        let script = Script::new(&[Some(Err(SchemaFailure::Missing))]);
        let mut fetcher = schema_fetcher(&script, 60_000);
        fetcher.request(Some(&pending_schema("s", true)));
        assert_eq!(final_outcome(&mut fetcher).await.1, 0);
        let script = Script::new(&[Some(Err(SchemaFailure::Unavailable)), Some(Ok(8))]);
        let mut away = schema_fetcher(&script, 60_000);
        away.request(Some(&pending_schema("s", true)));
        assert_eq!(final_outcome(&mut away).await.0, Ok(8));
    }

    #[tokio::test]
    async fn an_answer_under_way_is_not_asked_for_twice() {
        let script = Script::new(&[None]);
        let mut schema_fetcher = schema_fetcher(&script, 60_000);
        let subject = pending_schema("s", false);
        for _ in 0..5 {
            schema_fetcher.request(Some(&subject));
            let moment = Duration::from_millis(20);
            let answer = tokio::time::timeout(moment, schema_fetcher.outcome()).await;
            assert!(answer.is_err(), "{answer:?}");
        }
        assert_eq!(script.asked(), 1);
        // Another subject replaces the request.
        schema_fetcher.request(Some(&pending_schema("t", false)));
        let moment = Duration::from_millis(20);
        let answer = tokio::time::timeout(moment, schema_fetcher.outcome()).await;
        assert!(answer.is_err(), "{answer:?}");
        assert_eq!(*script.asked.lock().unwrap(), ["s", "t"]);
        schema_fetcher.request(None);
        assert!(schema_fetcher.request.is_none());
    }
}
