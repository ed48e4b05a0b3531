use std::io::Write;
use std::sync::{Arc, Mutex};
use std::thread;

use tracing::Level;
use walrelay_sink::{in_current_span, lock};

use super::*;
use crate::pipeline_span;

/// A writer into memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the lines that two pipelines, a thread of each, and the process log.
fn logged(format: LogFormat, slots: &[&str]) -> (Vec<String>, RecentErrors) {
    let lines = Lines::default();
    let of_log = lines.clone();
    let log = Log {
        level: Level::WARN,
        format,
    };
    let (subscriber, recent) = subscriber(log, slots, move || of_log.clone(), false);
    let dispatch = tracing::Dispatch::new(subscriber);
    let _default = tracing::dispatcher::set_default(&dispatch);
    tracing::warn!("of the process");
    tracing::info!("below the level");
    for (name, slot) in [("a", "slot_a"), ("b", "slot_b")] {
        pipeline_span(name, slot).in_scope(|| {
            tracing::warn!("of {name}");
            let dispatch = dispatch.clone();
            let work = move || {
                tracing::dispatcher::with_default(&dispatch, || {
                    tracing::error!(records = 1, "of a thread of {name}");
                });
            };
            thread::spawn(in_current_span(work)).join().unwrap();
        });
    }
    let text = String::from_utf8(lock(&lines.0).clone()).unwrap();
    (text.lines().map(str::to_owned).collect(), recent)
}

fn messages(recent: &RecentErrors, pipeline: &str) -> Vec<String> {
    let list = recent.list(pipeline).into_iter();
    let mut messages: Vec<_> = list.map(|error| error.message).collect();
    messages.sort();
    messages
}

const JSON_MEMBERS: [&str; 5] = [
    r#""level":"WARN","message":"of the process"}"#,
    r#""level":"WARN","message":"of a"}"#,
    r#""level":"ERROR","message":"of a thread of a","records":1}"#,
    r#""level":"WARN","message":"of b"}"#,
    r#""level":"ERROR","message":"of a thread of b","records":1}"#,
];

/// Asserts that each line is its beginning, the time and the usual members.
fn begin_with(lines: &[String], beginnings: [&str; 5]) {
    assert_eq!(lines.len(), 5, "{lines:?}");
    for ((line, beginning), members) in lines.iter().zip(beginnings).zip(JSON_MEMBERS) {
        let rest = line.strip_prefix(beginning);
        let rest = rest.unwrap_or_else(|| panic!("{line} begins otherwise than {beginning}"));
        let (time, rest) = rest.split_once(',').unwrap();
        assert!(time.starts_with("\"timestamp\":\""), "{line}");
        assert_eq!(rest, members);
    }
}

#[test]
fn each_json_line_names_the_pipeline_of_several_that_it_belongs_to() {
    let (lines, recent) = logged(LogFormat::Json, &["slot_a", "slot_b"]);
    let (a, b) = (
        r#"{"pipeline":"a","slot":"slot_a","#,
        r#"{"pipeline":"b","slot":"slot_b","#,
    );
    begin_with(&lines, ["{", a, a, b, b]);
    let of = |name: &str| {
        let own = [format!("of a thread of {name}"), format!("of {name}")];
        [own[1].clone(), own[0].clone(), "of the process".to_owned()]
    };
    for name in ["a", "b"] {
        let mut expected = of(name);
        expected.sort();
        assert_eq!(messages(&recent, name), expected);
    }
}

#[test]
fn each_json_line_of_one_pipeline_has_its_slot_and_nothing_of_the_span() {
    let one = r#"{"slot":"slot_a","#;
    let (lines, recent) = logged(LogFormat::Json, &["slot_a"]);
    begin_with(&lines, [one; 5]);
    // Without several pipelines, errors of the process and of each span are one list.
    assert_eq!(messages(&recent, "slot_a").len(), 5);
    let (lines, _) = logged(LogFormat::Json, &[]);
    begin_with(&lines, ["{"; 5]);
}

#[test]
fn lines_of_text_name_the_pipeline_only_of_several() {
    let after_time = |line: &String| line.split_once(' ').unwrap().1.trim_start().to_owned();
    let (lines, _) = logged(LogFormat::Text, &["slot_a"]);
    let lines: Vec<_> = lines.iter().map(after_time).collect();
    assert_eq!(lines[0], "WARN of the process");
    assert_eq!(lines[2], "ERROR of a thread of a records=1");
    let (lines, _) = logged(LogFormat::Text, &["slot_a", "slot_b"]);
    let lines: Vec<_> = lines.iter().map(after_time).collect();
    assert_eq!(lines[0], "WARN of the process");
    assert_eq!(
        lines[2],
        r#"ERROR pipeline{name="a" slot="slot_a"}: of a thread of a records=1"#
    );
}

/// Returns the JSON lines that `act` logs in the pipeline of this slot.
fn json_of(slot: &str, act: impl FnOnce()) -> String {
    let lines = Lines::default();
    let of_log = lines.clone();
    let log = Log {
        level: Level::WARN,
        format: LogFormat::Json,
    };
    let (subscriber, _) = subscriber(log, &[slot], move || of_log.clone(), false);
    tracing::subscriber::with_default(subscriber, act);
    String::from_utf8(lock(&lines.0).clone()).unwrap()
}

#[test]
fn a_key_stands_once_in_a_json_line() {
    let text = json_of("slot_a", || {
        tracing::warn!(slot = "slot_b", "another slot");
    });
    assert_eq!(text.matches("\"slot\":").count(), 1, "{text}");
    assert!(text.contains(r#""slot":"slot_b""#), "{text}");
}

#[test]
fn lists_are_arrays_in_json_lines() {
    let text = json_of("slot", || {
        let tables = r#"["public.\"a b\"","public.b"]"#;
        tracing::warn!(%tables, "says \"tables\": [\"no\"]");
        tracing::warn!(causes = "no array", "another");
    });
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        lines[0]["tables"],
        serde_json::json!(["public.\"a b\"", "public.b"])
    );
    assert_eq!(lines[0]["message"], "says \"tables\": [\"no\"]");
    assert_eq!(lines[1]["causes"], "no array");
}
