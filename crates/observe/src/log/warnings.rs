//! The last warnings and errors of the log, for the status page.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::pipeline_span::PipelineNames;
use super::printable::printable;
use crate::millis_now;
use crate::report::{ErrorReport, remedy_of_cause};
use walrelay_sink::lock;

/// Number of different messages that are kept.
const KEPT: usize = 20;
/// Longest message in characters; the rest is cut off.
const LONGEST: usize = 1_000;

/// The last warnings and errors of the log, each message once; those of several pipelines apart.
#[derive(Debug, Clone, Default)]
pub struct RecentErrors {
    /// The process has several pipelines.
    several: bool,
    /// The messages by the name of their pipeline. Those of the process have none, and no message has
    /// in a process with one pipeline.
    lists: Arc<Mutex<BTreeMap<Option<String>, VecDeque<ErrorReport>>>>,
}

impl RecentErrors {
    /// Creates an empty list. `several`: the process has several pipelines.
    pub(crate) fn new(several: bool) -> Self {
        Self {
            several,
            lists: Arc::default(),
        }
    }

    /// Returns the messages of a pipeline and of the process, the newest first.
    pub fn list(&self, pipeline: &str) -> Vec<ErrorReport> {
        let lists = lock(&self.lists);
        let of = |name| lists.get(&name).into_iter().flatten().cloned();
        let mut list: Vec<_> = of(Some(pipeline.to_owned())).chain(of(None)).collect();
        if self.several {
            list.sort_by_key(|error| std::cmp::Reverse(error.at_ms));
            list.truncate(KEPT);
        }
        list
    }

    fn add(&self, pipeline: Option<String>, level: Level, message: String, remedy: Option<String>) {
        let now = millis_now();
        let mut lists = lock(&self.lists);
        let kept = lists.entry(pipeline).or_default();
        let known = kept.iter().position(|error| error.message == message);
        let mut error = known.and_then(|at| kept.remove(at)).unwrap_or(ErrorReport {
            at_ms: 0,
            first_ms: now,
            level: level.to_string(),
            message,
            remedy,
            count: 0,
        });
        error.at_ms = now;
        error.count += 1;
        kept.truncate(KEPT - 1);
        kept.push_front(error);
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for RecentErrors {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        PipelineNames::keep(attributes, id, &context);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let level = *event.metadata().level();
        if level > Level::WARN {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let scope = context.event_scope(event).filter(|_| self.several);
        let pipeline = PipelineNames::find(scope, |names| names.name.clone());
        self.add(pipeline, level, text.shown(), text.remedy);
    }
}

/// The parts of an event that are shown: message, error and remedy. Other fields, such as
/// durations, would make each repetition a message of its own.
#[derive(Default)]
struct Text {
    message: String,
    error: Option<String>,
    remedy: Option<String>,
}

impl Text {
    fn shown(&self) -> String {
        let mut shown = self.message.clone();
        if let Some(error) = &self.error {
            let _ = write!(shown, ": {error}");
        }
        printable(&shown).chars().take(LONGEST).collect()
    }
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            "error" | "waiting_for" => self.error = Some(value.to_owned()),
            "cause" => {
                self.remedy = remedy_of_cause(value).map(str::to_owned);
            }
            "remedy" => self.remedy = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if matches!(
            field.name(),
            "message" | "error" | "waiting_for" | "cause" | "remedy"
        ) {
            self.record_str(field, &format!("{value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn a_message_is_listed_once_with_its_remedy_and_without_its_numbers() {
        let recent = RecentErrors::default();
        let subscriber = tracing_subscriber::registry().with(recent.clone());
        tracing::subscriber::with_default(subscriber, || {
            for lasts_s in 0..3 {
                tracing::warn!(
                    error = "refused",
                    cause = "connection",
                    lasts_s,
                    "trying again"
                );
            }
            tracing::info!("nothing to see");
            tracing::error!("the disk is full");
        });
        let listed = recent.list("");
        let shown: Vec<_> = listed
            .iter()
            .map(|e| (&*e.level, &*e.message, e.count))
            .collect();
        assert_eq!(
            shown,
            [
                ("ERROR", "the disk is full", 1),
                ("WARN", "trying again: refused", 3)
            ]
        );
        assert!(
            listed[1]
                .remedy
                .as_deref()
                .unwrap()
                .contains("walrelay check")
        );
        let first = listed[1].first_ms;
        while millis_now() == first {
            std::hint::spin_loop();
        }
        recent.add(None, Level::WARN, listed[1].message.clone(), None);
        let repeated = &recent.list("")[0];
        assert_eq!(repeated.first_ms, first, "its beginning is kept");
        assert!(repeated.at_ms > first);
        for n in 0..100 {
            recent.add(None, Level::WARN, format!("message {n}"), None);
        }
        assert_eq!(recent.list("").len(), KEPT);
    }
}
