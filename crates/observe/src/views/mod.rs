//! The views of the status document: the HTTP endpoint with its page, metrics, OpenTelemetry, and systemd.

mod http;
mod metrics;
mod otlp;
mod service_manager;

pub use http::{EndpointError, start_endpoint};
pub use metrics::{CONTENT_TYPE as METRICS_TYPE, text as metrics_text};
pub use otlp::Exporter;
pub use service_manager::{ServiceManager, heartbeat};
