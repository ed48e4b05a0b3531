//! Publication and slot: what has to be created before a stream, and creating it.

mod apply;
mod plan;
#[cfg(test)]
mod tests;

pub(crate) use apply::lock_setup;
pub(super) use apply::prepare;
pub(crate) use plan::{Action, Moment, Plan, plan};
