//! Reads the topics of the demonstration and shows their records.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use walrelay_kafka_sink::{KafkaError, Tail};
use walrelay_observe::Latencies;
use walrelay_sink::lock;
use walrelay_sink::topics::ReadRecord;

use super::tracker::{Arrival, EventTracker, ViewerTotals};
use super::{Finish, print};

/// Records that are shown per second; a person cannot read more.
const LINES_PER_SECOND: u32 = 12;

/// Reads the topics until `done` is set and no record comes any more. Shows the records if
/// `colours` is given, in colours if it is true; ends the writer if nobody reads them.
pub(super) fn watch(
    broker: &str,
    topics: &[String],
    tracker: &EventTracker,
    done: &AtomicBool,
    colours: Option<bool>,
    finish: &Finish,
) -> Result<ViewerTotals, KafkaError> {
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    let mut tail = Tail::open(broker, &names, Duration::from_secs(10))?;
    let mut totals = ViewerTotals {
        per_topic: BTreeMap::new(),
        not_committed: 0,
        out_of_order: 0,
        latencies: Latencies::default(),
    };
    let mut last_number: HashMap<Vec<u8>, u64> = HashMap::new();
    // Beginning of the current second, and the number of records in it.
    let mut second = (Instant::now(), 0);
    loop {
        let Some(record) = tail.next(Duration::from_millis(50))? else {
            if done.load(Ordering::Acquire) {
                return Ok(totals);
            }
            continue;
        };
        *totals.per_topic.entry(record.topic.clone()).or_default() += 1;
        let id = header(&record, "id");
        let note = match tracker.arrived(&id) {
            Arrival::First(latency) => {
                totals.latencies.record(latency);
                // The events of a key are numbered in the order of their commits.
                let key = [
                    record.topic.as_bytes(),
                    record.key.as_deref().unwrap_or_default(),
                ]
                .concat();
                let number = number(&record);
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
            && !show(&record, &note, colours)
        {
            drop(lock(finish).take());
        }
    }
}

fn header(record: &ReadRecord, name: &str) -> String {
    let value = record.headers.iter().find(|(header, _)| header == name);
    let bytes = value
        .and_then(|(_, value)| value.as_deref())
        .unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

fn number(record: &ReadRecord) -> u64 {
    let value = record.value.as_deref().unwrap_or_default();
    let json: serde_json::Value = serde_json::from_slice(value).unwrap_or_default();
    json.get("number")
        .and_then(serde_json::Value::as_u64)
        .unwrap_or_default()
}

/// Shows a record; returns false if nobody reads it.
fn show(record: &ReadRecord, note: &str, colours: bool) -> bool {
    let (cyan, yellow, green, off) = if colours {
        ("\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[0m")
    } else {
        ("", "", "", "")
    };
    let key = String::from_utf8_lossy(record.key.as_deref().unwrap_or_default());
    let value = String::from_utf8_lossy(record.value.as_deref().unwrap_or_default());
    print(&format!(
        "{green}{note}{off}  {cyan}{:<22}{off} {yellow}{key:<12}{off} {value}",
        record.topic
    ))
}
