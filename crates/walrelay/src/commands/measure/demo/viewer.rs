//! Reads the events that arrive, and shows them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use walrelay_failure::Failure;
use walrelay_observe::Latencies;
use walrelay_sink::lock;

use super::event::{EventReader, ReadEvent};
use super::tracker::{Arrival, EventTracker, ViewerTotals};
use super::{Finish, print};

/// Events that are shown per second; a person cannot read more.
const LINES_PER_SECOND: u32 = 12;

/// Reads events until `done` is set and none comes any more. Shows them if `colours` is given, in
/// colours if it is true; ends the writer if nobody reads them.
pub(super) fn watch(
    reader: &mut dyn EventReader,
    tracker: &EventTracker,
    done: &AtomicBool,
    colours: Option<bool>,
    finish: &Finish,
) -> Result<ViewerTotals, Failure> {
    let mut totals = ViewerTotals {
        per_topic: BTreeMap::new(),
        not_committed: 0,
        out_of_order: 0,
        latencies: Latencies::default(),
    };
    let mut last_number: HashMap<Vec<u8>, u64> = HashMap::new();
    // Beginning of the current second, and the number of events in it.
    let mut second = (Instant::now(), 0);
    loop {
        let Some(event) = reader.next(Duration::from_millis(50))? else {
            if done.load(Ordering::Acquire) {
                return Ok(totals);
            }
            continue;
        };
        *totals.per_topic.entry(event.topic.clone()).or_default() += 1;
        let note = match tracker.arrived(&event.id) {
            Arrival::First(latency) => {
                totals.latencies.record(latency);
                // The events of a key are numbered in the order of their commits.
                let key = [event.topic.as_bytes(), &event.key].concat();
                let number = number(&event);
                let last = last_number.entry(key).or_default();
                if number != *last + 1 {
                    totals.out_of_order += 1;
                }
                *last = number;
                format!("{:>7.2} ms", latency.as_secs_f64() * 1000.0)
            }
            Arrival::Repeat => "   repeat".to_owned(),
            Arrival::NotCommitted => {
                totals.not_committed += 1;
                "NOT COMMITTED".to_owned()
            }
        };
        if second.0.elapsed() >= Duration::from_secs(1) {
            second = (Instant::now(), 0);
        }
        second.1 += 1;
        if second.1 <= LINES_PER_SECOND
            && let Some(colours) = colours
            && !show(&event, &note, colours)
        {
            drop(lock(finish).take());
        }
    }
}

fn number(event: &ReadEvent) -> u64 {
    let json: serde_json::Value = serde_json::from_slice(&event.value).unwrap_or_default();
    json.get("number")
        .and_then(serde_json::Value::as_u64)
        .unwrap_or_default()
}

/// Shows an event; returns false if nobody reads it.
fn show(event: &ReadEvent, note: &str, colours: bool) -> bool {
    let (cyan, yellow, green, off) = if colours {
        ("\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[0m")
    } else {
        ("", "", "", "")
    };
    let key = String::from_utf8_lossy(&event.key);
    let value = String::from_utf8_lossy(&event.value);
    print(&format!(
        "{green}{note}{off}  {cyan}{:<22}{off} {yellow}{key:<12}{off} {value}",
        event.topic
    ))
}
