//! Requests the schema that the core waits for, again and again, until it is there or for long enough.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use walrelay_event_router::ValueSchema;

use super::attempts::Backoff;
use super::log_throttle::{LogThrottle, Throttled};
use crate::interface::schemas::{PendingSchema, SchemaAnswer, SchemaError, SchemaFailure, Schemas};

/// What a request came to.
#[derive(Debug)]
pub(crate) enum FetchOutcome {
    /// The schema of this subject.
    Schema(String, ValueSchema),
    /// Not yet: it is requested again. With a warning to log, if it is not throttled.
    Later(SchemaError, Option<Throttled>),
    /// There is none.
    Nothing(String, SchemaError),
}

/// Requests one schema until it is known, or for long enough.
pub(crate) struct SchemaFetcher {
    schemas: Option<Arc<dyn Schemas>>,
    retry_for: Duration,
    search: Option<Search>,
    backoff: Backoff,
    throttle: LogThrottle,
}

struct Search {
    pending: PendingSchema,
    since: Instant,
    answer: Option<SchemaAnswer>,
    /// When to request it next, while no answer is under way.
    next: Instant,
}

impl fmt::Debug for SchemaFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.search.as_ref().map(|search| &search.pending);
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
            search: None,
            backoff,
            throttle: LogThrottle::default(),
        }
    }

    /// Requests this schema from now on, and no other one.
    pub(crate) fn request(&mut self, pending: Option<&PendingSchema>) {
        let requested = self.search.as_ref().map(|search| &search.pending);
        if requested == pending {
            return;
        }
        let now = Instant::now();
        self.backoff.reset();
        self.throttle.over(now);
        self.search = pending.map(|pending| Search {
            pending: pending.clone(),
            since: now,
            answer: None,
            next: now,
        });
    }

    /// What the request comes to; pending for ever while there is none. Cancel-safe: an answer that is under way
    /// stays so.
    pub(crate) async fn found(&mut self) -> FetchOutcome {
        let (Some(search), Some(schemas)) = (&mut self.search, &self.schemas) else {
            return pending().await;
        };
        if search.answer.is_none() {
            sleep_until(search.next).await;
        }
        let ask = || schemas.ask(&search.pending.subject);
        let answer = search.answer.get_or_insert_with(ask).await;
        search.answer = None;
        let subject = search.pending.subject.clone();
        let now = Instant::now();
        let error = match answer {
            Ok(schema) => {
                self.search = None;
                return FetchOutcome::Schema(subject, schema);
            }
            Err(error) => error,
        };
        // Where a schema is known, a later one is waited for only while the registry cannot be asked.
        let may_pass = if search.pending.again {
            error.kind == SchemaFailure::Unavailable
        } else {
            error.kind.may_pass()
        };
        if !may_pass || now.duration_since(search.since) >= self.retry_for {
            self.search = None;
            return FetchOutcome::Nothing(subject, error);
        }
        search.next = now + self.backoff.next_delay();
        let warning = self.throttle.about(&error.reason, now);
        FetchOutcome::Later(error, warning)
    }

    /// For how long a request failed, if it did; that is over.
    pub(crate) fn over(&mut self) -> Option<Duration> {
        self.throttle.over(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::Mutex;

    use super::*;

    /// Answers in order, the last one for ever. An answer that is to come never is `None`.
    #[derive(Debug)]
    struct Script {
        answers: Mutex<Vec<Option<Result<u32, SchemaFailure>>>>,
        asked: Mutex<Vec<String>>,
    }

    impl Script {
        fn of(answers: &[Option<Result<u32, SchemaFailure>>]) -> Arc<Self> {
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

    /// The last outcome, how many `Later` came before it, and after how long.
    async fn end(
        schema_fetcher: &mut SchemaFetcher,
    ) -> (Result<u32, SchemaFailure>, usize, Duration) {
        let begun = Instant::now();
        let mut waits = 0;
        loop {
            match schema_fetcher.found().await {
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
        let script = Script::of(&[Some(Err(Unavailable)), Some(Err(Missing)), Some(Ok(7))]);
        let mut schema_fetcher = schema_fetcher(&script, 60_000);
        schema_fetcher.request(Some(&pending_schema("s", false)));
        let (end, waits, _) = end(&mut schema_fetcher).await;
        assert_eq!((end, waits, script.asked()), (Ok(7), 2, 3));
        assert!(schema_fetcher.search.is_none());
    }

    #[tokio::test]
    async fn it_is_given_up_after_long_enough_and_not_before() {
        for kind in [
            SchemaFailure::Unavailable,
            SchemaFailure::Missing,
            SchemaFailure::Forbidden,
        ] {
            let script = Script::of(&[Some(Err(kind))]);
            let mut schema_fetcher = schema_fetcher(&script, 300);
            schema_fetcher.request(Some(&pending_schema("s", false)));
            let (end, waits, after) = end(&mut schema_fetcher).await;
            assert_eq!(end, Err(kind));
            assert!(
                waits > 0 && after >= Duration::from_millis(300),
                "{waits} {after:?}"
            );
        }
    }

    #[tokio::test]
    async fn what_is_refused_is_not_asked_again() {
        for kind in [SchemaFailure::Refused, SchemaFailure::Unauthenticated] {
            let script = Script::of(&[Some(Err(kind))]);
            let mut schema_fetcher = schema_fetcher(&script, 60_000);
            schema_fetcher.request(Some(&pending_schema("s", false)));
            let (end, waits, _) = end(&mut schema_fetcher).await;
            assert_eq!((end, waits), (Err(kind), 0));
        }
    }

    /// An event that does not fit what is known waits for a registry that is away, and for nothing
    /// else.
    #[tokio::test]
    async fn a_later_schema_is_waited_for_only_while_nobody_can_be_asked() {
        let script = Script::of(&[Some(Err(SchemaFailure::Missing))]);
        let mut known = schema_fetcher(&script, 60_000);
        known.request(Some(&pending_schema("s", true)));
        assert_eq!(end(&mut known).await.1, 0);
        let script = Script::of(&[Some(Err(SchemaFailure::Unavailable)), Some(Ok(8))]);
        let mut away = schema_fetcher(&script, 60_000);
        away.request(Some(&pending_schema("s", true)));
        assert_eq!(end(&mut away).await.0, Ok(8));
    }

    #[tokio::test]
    async fn an_answer_under_way_is_not_asked_for_twice() {
        let script = Script::of(&[None]);
        let mut schema_fetcher = schema_fetcher(&script, 60_000);
        let subject = pending_schema("s", false);
        for _ in 0..5 {
            schema_fetcher.request(Some(&subject));
            let moment = Duration::from_millis(20);
            let answer = tokio::time::timeout(moment, schema_fetcher.found()).await;
            assert!(answer.is_err(), "{answer:?}");
        }
        assert_eq!(script.asked(), 1);
        // Something else is: what was asked for is left.
        schema_fetcher.request(Some(&pending_schema("t", false)));
        let moment = Duration::from_millis(20);
        let answer = tokio::time::timeout(moment, schema_fetcher.found()).await;
        assert!(answer.is_err(), "{answer:?}");
        assert_eq!(*script.asked.lock().unwrap(), ["s", "t"]);
        schema_fetcher.request(None);
        assert!(schema_fetcher.search.is_none());
    }
}
