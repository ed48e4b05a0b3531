//! [`Recorder`]: the history of a relay's figures: a quarter of an hour by the second, and six hours by
//! the minute, which a file beside the state file keeps over a restart (ADR 47).

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::millis_now;
use crate::report::{History, Sample};

/// Samples by the second: fifteen minutes.
const SECONDS: usize = 900;
/// Samples by the minute: six hours.
const MINUTES: usize = 360;
const MINUTE_MS: u64 = 60_000;
const VERSION: u32 = 1;
const SUFFIX: &str = ".history";
/// The largest file that is read, in bytes: ten times a full one.
const LARGEST: u64 = 256 << 10;

/// The samples of a relay.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    seconds: VecDeque<Sample>,
    minutes: VecDeque<Sample>,
    /// The seconds of the minute that has not ended.
    open: Vec<Sample>,
    /// Records acknowledged before the current second.
    records: u64,
    slot: String,
    /// `None`: minutes are kept in memory alone.
    file: Option<PathBuf>,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct Notes {
    version: u32,
    slot: String,
    minutes: VecDeque<Sample>,
}

impl Recorder {
    /// Reads the minutes of this slot that an earlier relay noted beside the state file. A file that
    /// cannot be used counts as none.
    pub(super) fn new(slot: &str, state_file: Option<&Path>) -> Self {
        let file = state_file.map(|state_file| {
            let mut path = OsString::from(state_file);
            path.push(SUFFIX);
            PathBuf::from(path)
        });
        let mut recorder = Self {
            slot: slot.to_owned(),
            file,
            ..Self::default()
        };
        recorder.minutes = recorder.noted(millis_now()).unwrap_or_default();
        recorder
    }

    fn noted(&self, now: u64) -> Option<VecDeque<Sample>> {
        let path = self.file.as_ref()?;
        // Opening a FIFO waits for its other end.
        let metadata = fs::metadata(path).ok()?;
        if !metadata.is_file() || metadata.len() > LARGEST {
            return None;
        }
        let text = fs::read_to_string(path).ok()?;
        let notes: Notes = serde_json::from_str(&text).ok()?;
        if notes.version != VERSION || notes.slot != self.slot {
            return None;
        }
        let begin = now.saturating_sub(MINUTES as u64 * MINUTE_MS);
        let known = notes.minutes.into_iter();
        let mut known: VecDeque<Sample> = known
            .filter(|(at, ..)| (begin..=now).contains(at))
            .collect();
        known.truncate(MINUTES);
        Some(known)
    }

    /// Adds a second: the records acknowledged so far, median and 99th percentile of its latencies in
    /// milliseconds, and the lag in seconds. Returns the file and its new content once a minute has
    /// ended.
    pub(super) fn end_second(
        &mut self,
        at: u64,
        records: u64,
        (p50, p99): (Option<f64>, Option<f64>),
        lag: f64,
    ) -> Option<(PathBuf, String)> {
        let new = records.saturating_sub(std::mem::replace(&mut self.records, records));
        let sample = (at, new as f64, p50, p99, lag);
        push(&mut self.seconds, sample, SECONDS);
        let first = self.open.first().map(|(at, ..)| at / MINUTE_MS);
        let ended = first.filter(|minute| *minute != at / MINUTE_MS);
        if let Some(minute) = ended {
            let minute = summarize_minute((minute + 1) * MINUTE_MS, &self.open);
            push(&mut self.minutes, minute, MINUTES);
            self.open.clear();
        }
        self.open.push(sample);
        ended.and_then(|_| Some((self.file.clone()?, self.text()?)))
    }

    fn text(&self) -> Option<String> {
        let notes = Notes {
            version: VERSION,
            slot: self.slot.clone(),
            minutes: self.minutes.clone(),
        };
        serde_json::to_string(&notes).ok()
    }

    /// Returns the samples.
    pub(super) fn history(&self) -> History {
        History {
            interval_ms: 1000,
            samples: self.seconds.iter().copied().collect(),
            minutes: self.minutes.iter().copied().collect(),
        }
    }

    /// Returns the newest second.
    pub(super) fn last(&self) -> Option<Sample> {
        self.seconds.back().copied()
    }
}

fn push(samples: &mut VecDeque<Sample>, sample: Sample, most: usize) {
    if samples.len() == most {
        samples.pop_front();
    }
    samples.push_back(sample);
}

/// Returns the sample of a minute: mean rate, median of the medians, greatest 99th percentile and lag.
fn summarize_minute(end: u64, seconds: &[Sample]) -> Sample {
    let rates: f64 = seconds.iter().map(|(_, rate, ..)| rate).sum();
    let mut medians: Vec<f64> = seconds.iter().filter_map(|(_, _, p50, ..)| *p50).collect();
    medians.sort_by(f64::total_cmp);
    let tails = seconds.iter().filter_map(|(_, _, _, p99, _)| *p99);
    let lags = seconds.iter().map(|(.., lag)| *lag);
    (
        end,
        rates / seconds.len().max(1) as f64,
        medians.get(medians.len() / 2).copied(),
        tails.reduce(f64::max),
        lags.fold(0.0, f64::max),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_survive_a_restart_in_the_file_and_only_those_of_the_slot() {
        let folder = tempfile::tempdir().expect("a folder");
        let state_file = folder.path().join("state");
        let mut recorder = Recorder::new("orders", Some(&state_file));
        // Seven hours, up to now: six of them are kept.
        let now = millis_now() / MINUTE_MS * MINUTE_MS;
        let begin = now - 420 * MINUTE_MS;
        let mut written = Vec::new();
        for second in 0..420 * 60 {
            let (at, lag) = (begin + second * 1000, (second % 60) as f64);
            let latency = (Some(2.0), Some(9.0));
            written.extend(recorder.end_second(at, second * 10, latency, lag));
        }
        let (path, text) = written.pop().expect("an ended minute");
        assert_eq!(written.len(), 418);
        let kept = recorder.history();
        assert_eq!((kept.samples.len(), kept.minutes.len()), (SECONDS, MINUTES));
        let last = kept.minutes.last().expect("a minute");
        assert_eq!(*last, (now - MINUTE_MS, 10.0, Some(2.0), Some(9.0), 59.0));

        fs::write(&path, text).expect("written");
        let after = |slot| Recorder::new(slot, Some(&state_file)).history().minutes;
        // The oldest may be older than six hours by now.
        assert!(after("orders").len() > MINUTES - 5);
        assert!(kept.minutes.ends_with(&after("orders")));
        assert_eq!(after("others"), []);
        fs::write(&path, "{").expect("written");
        assert_eq!(after("orders"), []);
        assert_eq!(Recorder::new("orders", None).history().minutes, []);
    }
}
