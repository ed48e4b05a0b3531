//! The source of schemas, for values that are encoded by schemas.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use walrelay_event_router::ValueSchema;

/// The answer to a request for a schema.
pub type SchemaAnswer = Pin<Box<dyn Future<Output = Result<ValueSchema, SchemaError>> + Send>>;

/// A schema registry.
pub trait Schemas: fmt::Debug + Send + Sync {
    /// Sends one request for the schema of a subject, without a cache. Must not block: the I/O runs
    /// on another thread or task and resolves the answer.
    fn ask(&self, subject: &str) -> SchemaAnswer;
}

/// The reason why there is no schema of a subject. Contains the subject and the registry's answer,
/// no credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SchemaError {
    /// The kind of failure, which decides whether the request is repeated.
    pub kind: SchemaFailure,
    /// The failure in words.
    pub reason: String,
}

/// The kinds of failures of a request for a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaFailure {
    /// The registry does not answer, or not as a registry should. A later request may succeed.
    Unavailable,
    /// The registry does not know the subject or the schema, which may be registered later.
    Missing,
    /// The registry denies access to the subject, which may be granted later.
    Forbidden,
    /// The registry refuses our credentials. No event is at fault, so no event is poison for it.
    Unauthenticated,
    /// The registry refuses the request, or the schema cannot be used: a second request gets the
    /// same answer.
    Refused,
}

impl SchemaFailure {
    /// Returns true if a second request may get another answer.
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::Unavailable | Self::Missing | Self::Forbidden)
    }
}

/// Number of requests to a schema registry, by outcome.
#[derive(Debug, Default)]
pub struct RegistryStats {
    found: AtomicU64,
    refused: AtomicU64,
    unavailable: AtomicU64,
}

impl RegistryStats {
    /// Counts a request that got a schema, or failed.
    pub fn count(&self, failure: Option<SchemaFailure>) {
        let counter = match failure {
            None => &self.found,
            Some(SchemaFailure::Unavailable) => &self.unavailable,
            Some(_) => &self.refused,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Returns the outcomes as metrics name them, each with its number of requests.
    pub fn requests(&self) -> [(&'static str, u64); 3] {
        [
            ("found", &self.found),
            ("refused", &self.refused),
            ("unavailable", &self.unavailable),
        ]
        .map(|(outcome, count)| (outcome, count.load(Relaxed)))
    }
}

/// A schema that the core waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingSchema {
    /// The subject.
    pub subject: String,
    /// A schema is known, and an event does not fit it: a later schema is requested.
    pub again: bool,
}
