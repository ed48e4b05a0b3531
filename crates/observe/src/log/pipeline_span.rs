//! The tracing span of a pipeline, by which its log lines are known.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Span, Subscriber, error_span};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::{LookupSpan, Scope};

/// The name of the span.
const SPAN: &str = "pipeline";

/// Creates the span of a pipeline. Code of the pipeline runs inside it; its threads are started
/// with [`walrelay_sink::in_current_span`].
pub fn pipeline_span(name: &str, slot: &str) -> Span {
    // A span is passed over if its level is above that of the log.
    error_span!("pipeline", name, slot)
}

/// The names of the pipeline that a span belongs to.
#[derive(Debug, Default)]
pub(super) struct PipelineNames {
    pub(super) name: String,
    pub(super) slot: String,
}

impl Visit for PipelineNames {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "name" => value.clone_into(&mut self.name),
            "slot" => value.clone_into(&mut self.slot),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

impl PipelineNames {
    /// Keeps the names beside a new span, if it is that of a pipeline.
    pub(super) fn keep<S>(attributes: &Attributes<'_>, id: &Id, context: &Context<'_, S>)
    where
        S: Subscriber + for<'s> LookupSpan<'s>,
    {
        let metadata = attributes.metadata();
        if metadata.name() != SPAN || metadata.target() != module_path!() {
            return;
        }
        if let Some(span) = context.span(id) {
            let mut names = Self::default();
            attributes.record(&mut names);
            span.extensions_mut().replace(names);
        }
    }

    /// Calls `read` with the names of the innermost pipeline among the spans of an event.
    pub(super) fn find<S, T>(
        scope: Option<Scope<'_, S>>,
        read: impl FnOnce(&Self) -> T,
    ) -> Option<T>
    where
        S: for<'s> LookupSpan<'s>,
    {
        for span in scope? {
            if let Some(names) = span.extensions().get::<Self>() {
                return Some(read(names));
            }
        }
        None
    }
}
