use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use walrelay_sink::{Parking, Poison, dlq_headers};

/// What happens to an event that cannot be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoisonAction {
    /// The pipeline stops before it.
    #[default]
    Halt,
    /// A dead letter takes its place, and is acknowledged like any record.
    DeadLetter,
    /// It is passed over, counted and logged.
    Skip,
}

/// The configured policy.
#[derive(Debug, Clone)]
pub struct PoisonPolicy {
    /// For [`Poison::Unroutable`].
    pub unroutable: PoisonAction,
    /// For [`Poison::Oversize`].
    pub oversize: PoisonAction,
    /// For [`Poison::Rejected`].
    pub rejected: PoisonAction,
    /// For [`Poison::Undecodable`].
    pub undecodable: PoisonAction,
    /// Where dead letters go.
    pub topic: Arc<str>,
    /// The replication slot, which dead letters name.
    pub slot: Arc<str>,
    /// How long an event whose refusal may pass (a topic that may appear, a permission that may be
    /// granted) is offered again before the action for it is taken.
    pub retry_for: Duration,
    /// The keys that are parked behind dead letters; `None`: dead letters park nothing.
    pub parking: Option<Arc<Parking>>,
}

impl Default for PoisonPolicy {
    fn default() -> Self {
        Self {
            unroutable: PoisonAction::Halt,
            oversize: PoisonAction::Halt,
            rejected: PoisonAction::Halt,
            undecodable: PoisonAction::Halt,
            topic: Arc::from("walrelay.dead-letters"),
            slot: Arc::from("walrelay"),
            retry_for: Duration::from_secs(300),
            parking: None,
        }
    }
}

impl PoisonPolicy {
    /// What happens to such an event.
    pub fn action(&self, poison: Poison) -> PoisonAction {
        match poison {
            Poison::Unroutable => self.unroutable,
            Poison::Oversize => self.oversize,
            Poison::Rejected => self.rejected,
            Poison::Undecodable => self.undecodable,
        }
    }
}

/// Why an event is diverted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It cannot be delivered.
    Poison(Poison),
    /// An earlier event of its key is a dead letter.
    Parked,
}

impl Class {
    /// As dead letters and logs name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Poison(poison) => poison.name(),
            Self::Parked => dlq_headers::PARKED,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
