//! [`EventJobs`]: looks for an event, and sends its row again, for the page of a pipeline: one job at a
//! time.

use std::sync::{Arc, Mutex};
use std::thread;

use serde::Serialize;
use serde_json::Value;
use tracing::info;
use walrelay_sink::{in_current_span, lock};

use super::printable;

/// Answers of `walrelay where` for events that the relay, or the redrive of their dead letter, is to deliver yet.
const UNDELIVERED: [&str; 3] = ["behind-slot", "waits-for-sink", "dead-letter"];

/// Returns true if an event with the id is to be delivered yet. `found`: the document of `walrelay where`.
fn is_undelivered(found: &Value) -> bool {
    let is_answer = UNDELIVERED.iter().any(|name| found["answer"] == **name);
    // The answer is that of the event with the best evidence. All rows with the id would be sent.
    let has_several_rows = found["rows"].as_array().is_some_and(|rows| rows.len() > 1);
    let is_open = |letter: &Value| letter["status"] == "open";
    let letters = found["dead_letters"].as_array();
    let waits =
        found["behind_slot"].is_object() || letters.is_some_and(|all| all.iter().any(is_open));
    is_answer || has_several_rows && waits
}

/// The commands of an operator that concern one event. An error is a text for the page.
pub trait EventCommands: Send + Sync {
    /// Looks for the event, as `walrelay where` does. Returns its document.
    fn whereabouts(&self, event: &str) -> Result<Value, String>;
    /// Returns the records that [`Self::resend`] would send now.
    fn dry_run(&self, event: &str) -> Result<String, String>;
    /// Sends the event's rows again, as `walrelay resend` does. Returns the result in words.
    fn resend(&self, event: &str) -> Result<String, String>;
}

/// Runs the jobs of one pipeline, one at a time, each on a thread of its own.
pub struct EventJobs {
    commands: Box<dyn EventCommands>,
    answer: Mutex<EventAnswer>,
}

// Not derived: the id of an event is a value of a row.
impl std::fmt::Debug for EventJobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventJobs").finish_non_exhaustive()
    }
}

/// A job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventJob {
    Where,
    DryRun,
    Resend,
}

/// The reason why a job was not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotBegun {
    /// Another job runs.
    Busy,
    /// The last job was no dry run of the event.
    NoDryRun,
    /// The event was not looked for.
    NotLookedFor,
    /// The event is to be delivered yet, so its row is not sent again.
    Undelivered,
}

/// The document of `/api/event`: the last event that was asked for.
#[derive(Clone, Default, Serialize)]
pub(crate) struct EventAnswer {
    /// A job runs: ask again.
    busy: bool,
    event: Option<String>,
    /// Why the last job failed.
    error: Option<String>,
    /// The document of `walrelay where`.
    found: Option<Value>,
    /// The result of a dry run, until the event is sent again.
    would_send: Option<String>,
    /// The result of the last sending.
    sent: Option<String>,
}

impl EventJobs {
    /// Creates the jobs of a pipeline; none runs yet.
    pub fn new(commands: Box<dyn EventCommands>) -> Arc<Self> {
        Arc::new(Self {
            commands,
            answer: Mutex::default(),
        })
    }

    pub(crate) fn answer(&self) -> EventAnswer {
        lock(&self.answer).clone()
    }

    /// Begins a job. Rows are sent again only after a look and a dry run of the same event, once.
    pub(crate) fn begin(self: &Arc<Self>, job: EventJob, event: &str) -> Result<(), NotBegun> {
        let mut answer = lock(&self.answer);
        if answer.busy {
            return Err(NotBegun::Busy);
        }
        let is_same = answer.event.as_deref() == Some(event);
        if job == EventJob::Resend && !(is_same && answer.would_send.is_some()) {
            return Err(NotBegun::NoDryRun);
        }
        if job == EventJob::DryRun {
            let found = answer.found.as_ref().filter(|_| is_same);
            let found = found.ok_or(NotBegun::NotLookedFor)?;
            if is_undelivered(found) {
                return Err(NotBegun::Undelivered);
            }
        }
        if !is_same || job == EventJob::Where {
            *answer = EventAnswer::default();
        }
        (answer.busy, answer.error) = (true, None);
        (answer.would_send, answer.sent) = (None, None);
        answer.event = Some(event.to_owned());
        drop(answer);
        let (jobs, event) = (Arc::clone(self), event.to_owned());
        let work = move || jobs.carry_out(job, &event);
        let thread = thread::Builder::new().name("event".to_owned());
        if let Err(error) = thread.spawn(in_current_span(work)) {
            let mut answer = lock(&self.answer);
            (answer.busy, answer.error) = (false, Some(error.to_string()));
        }
        Ok(())
    }

    fn carry_out(&self, job: EventJob, event: &str) {
        let commands = &self.commands;
        let done = match job {
            EventJob::Where => commands
                .whereabouts(event)
                .map(|found| lock(&self.answer).found = Some(found)),
            EventJob::DryRun => commands
                .dry_run(event)
                .map(|text| lock(&self.answer).would_send = Some(text)),
            EventJob::Resend => commands.resend(event).map(|text| {
                info!(result = %text, "rows were sent again from the status page");
                lock(&self.answer).sent = Some(text);
            }),
        };
        let mut answer = lock(&self.answer);
        answer.error = done.err().map(|why| printable(&why).into_owned());
        answer.busy = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Commands that end when the test says so.
    struct Paused {
        begun: Sender<String>,
        ends: Mutex<Receiver<Result<String, String>>>,
    }

    impl Paused {
        fn run(&self, what: String) -> Result<String, String> {
            self.begun.send(what).expect("the test");
            lock(&self.ends).recv().expect("the test")
        }
    }

    impl EventCommands for Paused {
        fn whereabouts(&self, event: &str) -> Result<Value, String> {
            let answer = self.run(format!("where {event}"))?;
            Ok(serde_json::json!({ "answer": answer }))
        }
        fn dry_run(&self, event: &str) -> Result<String, String> {
            self.run(format!("dry run {event}"))
        }
        fn resend(&self, event: &str) -> Result<String, String> {
            self.run(format!("resend {event}"))
        }
    }

    #[test]
    fn no_row_is_sent_while_another_event_with_its_id_is_undelivered() {
        let found = |rows: usize, behind: Value, letters: &[&str]| {
            let rows = vec![serde_json::json!({}); rows];
            let letters = letters
                .iter()
                .map(|status| serde_json::json!({ "status": status }));
            let letters: Vec<Value> = letters.collect();
            is_undelivered(&serde_json::json!({
                "answer": "delivered", "rows": rows, "behind_slot": behind, "dead_letters": letters,
            }))
        };
        let behind = || serde_json::json!({ "behind_bytes": 8 });
        assert!(found(2, behind(), &[]));
        assert!(found(2, Value::Null, &["redriven", "open"]));
        assert!(!found(2, Value::Null, &["redriven", "dropped"]));
        // One event that was delivered, and is not confirmed yet.
        assert!(!found(1, behind(), &[]));
    }

    #[test]
    fn rows_are_sent_once_after_each_dry_run_of_the_same_event() {
        let (begun, begins) = channel();
        let (end, ends) = channel();
        let ends = Mutex::new(ends);
        let jobs = EventJobs::new(Box::new(Paused { begun, ends }));
        let run = |job, event: &str, result: Result<&str, &str>| {
            jobs.begin(job, event).expect("begun");
            let what = begins.recv().expect("begun");
            assert_eq!(jobs.begin(EventJob::Where, "x"), Err(NotBegun::Busy));
            let result = result.map(str::to_owned).map_err(str::to_owned);
            end.send(result).expect("the job");
            while jobs.answer().busy {
                thread::yield_now();
            }
            what
        };
        let refused = |event| jobs.begin(EventJob::Resend, event) == Err(NotBegun::NoDryRun);
        assert!(refused("a"));
        let not_looked_for = Err(NotBegun::NotLookedFor);
        assert_eq!(jobs.begin(EventJob::DryRun, "a"), not_looked_for);
        assert_eq!(run(EventJob::Where, "a", Ok("delivered")), "where a");
        assert!(refused("a"));
        assert_eq!(jobs.begin(EventJob::DryRun, "b"), not_looked_for);
        assert_eq!(run(EventJob::DryRun, "a", Ok("1 row")), "dry run a");
        assert!(refused("b"));
        assert_eq!(
            jobs.answer().found,
            Some(serde_json::json!({ "answer": "delivered" }))
        );
        assert_eq!(run(EventJob::Resend, "a", Ok("1 record")), "resend a");
        assert_eq!(jobs.answer().sent.as_deref(), Some("1 record"));
        assert!(refused("a"), "a second click sends nothing");
        // A dry run that fails allows nothing, nor does a look for another event. No former result is shown beside it.
        run(EventJob::DryRun, "a", Err("no row\nmatches"));
        assert!(refused("a"));
        let answer = jobs.answer();
        assert!(answer.error.is_some() && answer.sent.is_none());
        run(EventJob::DryRun, "a", Ok("1 row"));
        run(EventJob::Where, "b", Err("no answer"));
        assert!(refused("a"));
        assert!(jobs.answer().found.is_none());
        assert_eq!(jobs.begin(EventJob::DryRun, "b"), not_looked_for);
        for answer in UNDELIVERED {
            run(EventJob::Where, "b", Ok(answer));
            let dry_run = jobs.begin(EventJob::DryRun, "b");
            assert_eq!(dry_run, Err(NotBegun::Undelivered), "{answer}");
        }
        assert_eq!(format!("{jobs:?}"), "EventJobs { .. }");
    }
}
