//! Threads alongside a running relay: each has one task, and none of them stops the relay. `monitors` run on that of the
//! HTTP endpoint. `source_facts`: the reports of what they and the source find.

mod audit;
mod marks;
mod monitors;
mod pruning;
mod rolling;
mod run_keeper;
mod sink_watch;
mod source_facts;

pub(crate) use audit::AuditWorker;
pub(crate) use marks::MarkWorker;
pub(crate) use monitors::{OutboxMonitor, SlotMonitor};
pub(crate) use pruning::RowWorker;
pub(crate) use rolling::{Keep, Keeping, start as keep_bookmark};
pub(crate) use run_keeper::{LAST_WORD, RunKeeper};
pub(crate) use sink_watch::SinkWatch;
pub(crate) use source_facts::{PostgresFacts, former_run_report, move_report, slot_report};
