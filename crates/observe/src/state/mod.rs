//! The state of a running relay, as the pipeline and the server report it, and the status document made of it.

pub(crate) mod batches;
mod history;
pub(crate) mod latencies;
mod pipelines;
mod relay_state;
mod run_observer;
mod setup;
mod slo;
mod status;
mod summary;
mod telemetry;

pub use latencies::Latencies;
pub use pipelines::Pipelines;
pub use run_observer::RunObserver;
pub use setup::{ReplaceFile, Setup, SinkSetup, SourceFacts};
pub use telemetry::Telemetry;
