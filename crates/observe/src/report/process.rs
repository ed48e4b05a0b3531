//! The process of a report: its resources, its log, and its requests to the schema registry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The process, as the system sees it; `null` where it does not tell.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessReport {
    /// Memory in use (`VmRSS`).
    pub resident_bytes: Option<u64>,
    /// Processor time so far.
    pub cpu_seconds: Option<f64>,
    /// Number of threads.
    pub threads: Option<u64>,
    /// Number of open file descriptors.
    pub open_files: Option<u64>,
    /// It runs as root.
    #[serde(default)]
    pub is_root: Option<bool>,
    /// The system may write its memory to a file when it crashes (`RLIMIT_CORE`).
    #[serde(default)]
    pub may_dump_core: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ErrorReport {
    /// When the message was logged last.
    pub at_ms: u64,
    /// When it was logged first.
    #[serde(default)]
    pub first_ms: u64,
    /// `WARN` or `ERROR`.
    pub level: String,
    pub message: String,
    pub remedy: Option<String>,
    /// How often the message was logged.
    pub count: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RegistryReport {
    /// Requests by outcome: `found`, `refused`, `unavailable`.
    pub requests: BTreeMap<String, u64>,
}
