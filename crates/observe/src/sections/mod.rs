//! The sections of the configuration that are about logs, metrics and the endpoint.

mod http;
mod log;
mod otel;
mod slo;

pub use http::{Http, HttpKeys, http};
pub use log::{Log, LogFormat};
pub use otel::{Otel, OtelKeys, otel};
pub use slo::{Slo, slo};
