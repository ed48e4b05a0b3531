//! The topics of the sink as `cutover` and `verify-topic` read them, and the rows of the outbox that
//! they are compared with.
//!
//! [`place`]: texts in a record, such as its event's id. [`reading`]: reads topics to the ends that
//! they have. [`rows`]: routes rows of the outbox as the relay does, and sends nothing.

pub(crate) mod place;
pub(crate) mod reading;
pub(crate) mod rows;
