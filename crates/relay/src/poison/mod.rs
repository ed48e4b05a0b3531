//! Events that cannot be delivered: the poison policy, the decisions about single events, and dead
//! letters.

mod decisions;
mod dlq_record;
mod policy;
mod retry;

pub use decisions::{Diverted, PoisonDecisions};
pub use policy::{Class, PoisonAction, PoisonPolicy, ReservedPart, SinkLimits, WallClock};

pub(crate) use decisions::PoisonDecision;
pub(crate) use dlq_record::{Body, DlqHeaders, DlqRecord};
pub(crate) use retry::{Decision, Refusal, RetryPolicy};
