use walrelay_event_router::RouteError;
use walrelay_sink::EventPosition;

use super::read::RowError;
use crate::interface::schemas::PendingSchema;
use crate::poison::{PoisonDecision, PoisonDecisions};

/// The schema that the event at the front waits for.
#[derive(Debug, Default)]
pub(super) struct SchemaWait {
    pub(super) pending: Option<PendingSchema>,
    /// The event whose value does not fit the known schema, and whether the request for a later
    /// schema was answered.
    mismatch: Option<(EventPosition, bool)>,
}

/// The outcome for an event that cannot be read.
pub(super) enum Unreadable {
    /// The event waits until [`SchemaWait::pending`] is known.
    AwaitsSchema,
    Diverted(PoisonDecision),
    /// The pipeline stops.
    Halts,
}

impl SchemaWait {
    /// Decides about the event at `position`, which cannot be read because of `error`.
    pub(super) fn decide(
        &mut self,
        error: &RowError,
        position: EventPosition,
        decisions: &PoisonDecisions,
    ) -> Unreadable {
        if let Some(pending) = self.missing(error, position) {
            if !pending.again
                && let Some(decision) = decisions.for_subject(&pending.subject)
            {
                return Unreadable::Diverted(decision);
            }
            self.pending = Some(pending);
            return Unreadable::AwaitsSchema;
        }
        error
            .poison()
            .and_then(|poison| decisions.by_policy(poison, error.to_string()))
            .map_or(Unreadable::Halts, Unreadable::Diverted)
    }

    /// Returns the schema that the event lacks, if it lacks one.
    fn missing(&mut self, error: &RowError, position: EventPosition) -> Option<PendingSchema> {
        let (subject, again) = match error {
            RowError::Route(RouteError::UnknownSchema { subject }) => (subject, false),
            // A producer registers a schema before it writes, so a value that is newer than our
            // schema fits the schema that is registered now. Each such event requests it once.
            RowError::Route(RouteError::SchemaMismatch {
                subject,
                may_change: true,
                ..
            }) if self.mismatch != Some((position, true)) => {
                self.mismatch = Some((position, false));
                (subject, true)
            }
            _ => return None,
        };
        Some(PendingSchema {
            subject: subject.clone(),
            again,
        })
    }

    /// Notes that the request was answered. Returns true if it was for a later schema than the
    /// known one.
    pub(super) fn answered(&mut self) -> bool {
        if let Some((_, answered)) = &mut self.mismatch {
            *answered = true;
        }
        self.pending.take().is_some_and(|pending| pending.again)
    }
}
