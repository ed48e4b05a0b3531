//! Threads alongside a running relay: each has one task, and none of them stops the relay.

mod audit;
mod marks;
mod pruning;
mod rolling;
mod run_keeper;
mod sink_watch;

pub(crate) use audit::AuditWorker;
pub(crate) use marks::MarkWorker;
pub(crate) use pruning::RowWorker;
pub(crate) use rolling::{Keep, Keeping, start as keep_bookmark};
pub(crate) use run_keeper::{LAST_WORD, RunKeeper};
pub(crate) use sink_watch::SinkWatch;
