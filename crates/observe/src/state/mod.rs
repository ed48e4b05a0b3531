//! The state of a running relay: what the pipeline and the server report, and the status document that is made of it.

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
pub use setup::{Setup, SinkSetup};
pub use telemetry::Telemetry;
