//! The pipeline of a report: its state, the runs before, and the problems.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PipelineReport {
    pub slot: String,
    /// One of [`STATES`].
    pub state: String,
    /// The reason of the state, where it has one.
    pub reason: Option<String>,
    /// What an operator can do about the state; `null` where nothing need be done.
    #[serde(default)]
    pub remedy: Option<String>,
    /// The kind of failure while the state is `retrying`, and in the next attempt until it goes beyond the
    /// last one, as `walrelay_reconnects_total` names it.
    #[serde(default)]
    pub cause: Option<String>,
    /// The id of the error while there is a `cause`, as the table of error ids has it; `null` if the error has
    /// none of its own.
    #[serde(default)]
    pub error_id: Option<String>,
    /// The process that reads the slot, while the state is `waiting-for-slot`.
    #[serde(default)]
    pub holder: Option<HolderReport>,
    /// When the pipeline entered this state.
    pub since_ms: u64,
}

/// The process that reads the slot of a pipeline that waits for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HolderReport {
    /// It is another relay of the same configuration, for which this one stands by.
    pub standby: bool,
    /// It is no relay of this configuration: nobody relays what it confirms.
    pub taken: bool,
    /// Its process id on the server.
    pub pid: Option<i64>,
    /// Its `application_name`.
    pub application_name: Option<String>,
    /// The start of its connection by the server's clock, in milliseconds since 1970; `null` if the
    /// relay's role may not see it.
    pub since_ms: Option<u64>,
}

/// The states of a pipeline.
pub(crate) const STATES: [&str; 9] = [
    "connecting",
    "snapshot",
    "streaming",
    "blocked",
    "waiting-for-schema",
    "waiting-for-slot",
    "retrying",
    "draining",
    "halted",
];

/// The error with which the last run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LastErrorReport {
    /// The end of that run, in milliseconds since 1970.
    pub at_ms: u64,
    /// The id of the error.
    pub id: String,
    /// When and how the run ended.
    pub text: String,
    /// What an operator can do about it.
    pub remedy: Option<String>,
}

/// A run of a slot's relay, as it has noted itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FormerRunReport {
    /// The number of runs that had noted their start by then, that one included.
    pub starts: u64,
    /// The start of that run, in milliseconds since 1970.
    pub started_ms: u64,
    /// The end that it has noted, in milliseconds since 1970; `null`: it was killed, its machine failed, or Postgres
    /// did not answer then.
    pub ended_ms: Option<u64>,
    /// The id of the error that ended it; `null` if it was asked to stop, or has noted no end.
    pub error_id: Option<String>,
    /// When it started, and how it ended.
    pub text: String,
}

/// One problem of a relay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProblemReport {
    /// `bad`: events are not relayed, or will not be. `warn`: somebody should look. `note`: something
    /// happened since the start. `ok`: the relay stands by for another one.
    pub level: String,
    /// What is wrong, without figures that change.
    pub title: String,
    /// The reason, where one is known.
    pub reason: Option<String>,
    /// What an operator can do about it.
    pub remedy: Option<String>,
    /// The alert of `deploy/prometheus/alerts.yml` for it.
    pub alert: Option<String>,
    /// How long the problem lasts before the alert fires, as Prometheus writes it; `null` if it fires
    /// at once.
    pub alert_after: Option<String>,
    /// The anchor of the heading of the runbook, `docs/operate`, about it.
    pub runbook: String,
    /// When it began, in milliseconds since 1970, where that is known.
    pub since_ms: Option<u64>,
    /// Whether the state of the pipeline is the problem.
    pub is_state: bool,
}

impl ProblemReport {
    /// Returns the title with the reason, if there is one.
    pub fn finding(&self) -> String {
        match &self.reason {
            Some(reason) => format!("{}: {reason}", self.title),
            None => self.title.clone(),
        }
    }

    /// Returns the alert with its time, as in `WalrelayLag, after 1m`.
    pub fn alert_text(&self) -> Option<String> {
        let alert = self.alert.as_deref()?;
        Some(match &self.alert_after {
            Some(after) => format!("{alert}, after {after}"),
            None => alert.to_owned(),
        })
    }
}
