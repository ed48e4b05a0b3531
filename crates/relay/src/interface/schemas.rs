//! Where the schemas of values come from, where values are encoded by schemas.

use std::fmt;
use std::pin::Pin;

use walrelay_event_router::ValueSchema;

/// An answer that is under way.
pub type SchemaAnswer = Pin<Box<dyn Future<Output = Result<ValueSchema, SchemaError>> + Send>>;

/// Where schemas come from: a schema registry.
pub trait Schemas: fmt::Debug + Send + Sync {
    /// Requests the schema of a subject once, past any cache. Must not block: the I/O runs elsewhere and resolves
    /// the answer.
    fn ask(&self, subject: &str) -> SchemaAnswer;
}

/// Why there is no schema of a subject. Names the subject and what the registry answered, no
/// credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SchemaError {
    /// What may end it.
    pub kind: SchemaFailure,
    /// In words.
    pub reason: String,
}

/// What may end the lack of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaFailure {
    /// The registry does not answer, or not as a registry should. It may later.
    Unavailable,
    /// It does not know the subject, or not this schema. Somebody may register it.
    Missing,
    /// This subject is not for us. Somebody may allow it.
    Forbidden,
    /// It does not know us. That is no event's fault, so no event is poison for it.
    Unauthenticated,
    /// The schema is refused, or is of no use: a second request gets the same answer.
    Refused,
}

impl SchemaFailure {
    /// Whether a second request may get another answer.
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::Unavailable | Self::Missing | Self::Forbidden)
    }
}

/// A schema that the core waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingSchema {
    /// The subject.
    pub subject: String,
    /// A schema is known, and an event does not fit it: there may be a later one.
    pub again: bool,
}
