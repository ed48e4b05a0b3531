//! `[slo]`: how soon events are to be acknowledged, and in which share of the time.

use std::time::Duration;

use walrelay_settings::{AlreadyReported, Reader, SECOND, Section, duration, percent, section};

/// The default of `target`.
const DEFAULT_TARGET: f64 = 99.9;
const HOUR: Duration = Duration::from_secs(3600);

section! {
/// `[slo]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slo at "slo" {
    /// The objective: in a good second, no event waits longer from its commit to its acknowledgement. Unset: there is no objective.
    "commit_to_ack" commit_to_ack: Option<Duration> = duration(Duration::from_millis(1)..=HOUR).optional();
    /// The share of good seconds, in percent. The rest of 30 days is the budget.
    "target" target: f64 = percent(50.0..=99.999).or("99.9");
    /// The lag from which on `WalrelayLag` of `walrelay alerts` fires.
    "lag" lag: Duration = duration(SECOND..=HOUR).or("30s");
}
}

impl Slo {
    /// Returns the share of seconds that may miss the objective.
    pub fn budget(&self) -> f64 {
        (100.0 - self.target) / 100.0
    }
}

/// Reads the section.
///
/// # Errors
/// If a problem was reported to `reader`.
pub fn slo(reader: &mut Reader<'_>) -> Result<Slo, AlreadyReported> {
    let slo = Slo::read(reader)?;
    let is_default = (slo.target - DEFAULT_TARGET).abs() < f64::EPSILON;
    if slo.commit_to_ack.is_none() && !is_default {
        return Err(reader.no_effect("slo.target", "without `slo.commit_to_ack`"));
    }
    Ok(slo)
}
