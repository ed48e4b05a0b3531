//! What the fuzz target runs, here so that its corpus is also an ordinary test.
//!
//! It takes any bytes and panics only when a promise of this crate is broken.

use serde_json::value::RawValue;
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_sink::Poison;

use crate::{Event, Messages, Options, Router, TopicTemplate, TopicTemplateError};

/// Any content of a message: what is read is a row of the table that was announced, and says again
/// what it said; nothing of the content is in an error.
pub fn messages(bytes: &[u8]) {
    let mut messages = Messages::new("outbox", []);
    let time = PgTimestamp::new(0);
    let mut router = Router::new(Options::default());
    assert!(messages.announce(&mut router).is_ok());
    let row = match messages.read(bytes, time) {
        Ok(row) => row,
        Err(error) => {
            let shown = format!("{error} {error:?}");
            assert!(shown.len() < 400, "{shown}");
            let _ = error.poison();
            return;
        }
    };
    let headers: Vec<_> = row.headers.iter().map(|header| header.name).collect();
    let named = row.insert.relation == Messages::TABLES[1];
    let event = Event {
        commit_lsn: Lsn::new(8),
        row: 0,
        commit_time: time,
    };
    let routed = router.route(row.insert.relation, &row.insert.tuple, &event);
    match routed {
        Ok(routed) => {
            let routed = routed.with_headers(row.headers.iter());
            assert_eq!(routed.headers().len(), 1 + headers.len());
            assert!(!routed.topic().is_empty());
            let value = routed.value().map(serde_json::from_slice::<&RawValue>);
            assert!(value.is_none_or(|value| value.is_ok()), "the value is JSON");
        }
        // Only what is not there can be missing.
        Err(error) => {
            assert!(!named, "{error}");
            assert_eq!(error.poison(), Some(Poison::Unroutable), "{error}");
        }
    }
}

/// Any template, and behind a NUL a value: errors point into it, what is understood reads back, and
/// values go in as they are.
pub fn topic_templates(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let (text, value) = text.split_once('\0').unwrap_or((text, "Order"));
    let template = match text.parse::<TopicTemplate>() {
        Err(error) => {
            let position = match error {
                TopicTemplateError::Empty => return assert!(text.is_empty()),
                TopicTemplateError::Dollar { position }
                | TopicTemplateError::Unclosed { position }
                | TopicTemplateError::Unknown { position, .. }
                | TopicTemplateError::Backslash { position } => position,
            };
            let blamed = text.chars().nth(position - 1);
            assert!(matches!(blamed, Some('$' | '\\')), "{position} of {text:?}");
            return;
        }
        Ok(template) => template,
    };
    assert_eq!(
        template.to_string().parse().as_ref(),
        Ok(&template),
        "{text:?}"
    );
    let mut topic = "what was there before".to_owned();
    // A character that stands for the value, unless the template has it too.
    if !text.contains('\u{E000}') {
        template.render("\u{E000}", &mut topic);
        let expected = topic.replace('\u{E000}', value);
        template.render(value, &mut topic);
        assert_eq!(topic, expected, "{text:?}");
    }
}
