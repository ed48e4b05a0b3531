//! Events that cannot be delivered: the policy for them, what was decided about single ones, and the records
//! that take their place.

mod decisions;
mod dlq_record;
mod policy;
mod retry;

pub use decisions::{Diverted, PoisonDecisions};
pub use policy::{Class, PoisonAction, PoisonPolicy};

pub(crate) use decisions::PoisonDecision;
pub(crate) use dlq_record::{Body, DlqHeaders, DlqRecord};
pub(crate) use retry::{Decision, Refusal, RetryPolicy};
