use walrelay_sink::Poison;

use super::*;

/// Reads a batch: the text of each event's key, or its error.
fn read(content: &str) -> Vec<Result<String, MessageError>> {
    assert!(BatchEvent::are_in(content.as_bytes()), "{content}");
    let mut messages = Messages::new("outbox", [("key", crate::MessageMember::Key)]);
    let mut place = BatchPlace::default();
    let mut read = Vec::new();
    while let Some(event) = BatchEvent::at(content.as_bytes(), place) {
        let again = BatchEvent::at(content.as_bytes(), place).expect("the same place");
        assert_eq!(again.content(), event.content());
        assert!(event.next() != place, "no progress: {content}");
        place = event.next();
        let row = messages.read_event(&event, PgTimestamp::new(0));
        read.push(row.map(|row| {
            let key = row.insert.tuple.values().next();
            format!("{key:?}")
        }));
    }
    assert_eq!(BatchEvent::count(content.as_bytes()), read.len() as u64);
    read
}

fn shown(key: &str) -> String {
    format!("{:?}", Some(walrelay_pgoutput::Value::Text(key.as_bytes())))
}

#[test]
fn events_are_read_one_by_one() {
    assert_eq!(read("[]"), []);
    assert_eq!(read(" [ \n] "), []);
    let content = r#" [ {"key":"a","payload":[1,[2]]} ,{"key":"b","payload":"],["}
        ,	{"key":3}]
        "#;
    assert_eq!(read(content), ["a", "b", "3"].map(|key| Ok(shown(key))));
    for message in ["{}", "", "  ", "x", r#"{"payload":[]}"#] {
        assert!(!BatchEvent::are_in(message.as_bytes()), "{message}");
    }
}

#[test]
fn the_events_around_a_malformed_one_are_read() {
    let content =
        r#"[{"key":"a"}, {"kye":"secret"}, 7, null, [{}], "secret", {"topic":""}, {"key":"b"}]"#;
    let events = read(content);
    assert_eq!(events.len(), 8);
    assert_eq!(events[0], Ok(shown("a")));
    assert_eq!(events[7], Ok(shown("b")));
    for (number, event) in events.iter().enumerate().skip(1).take(6) {
        let error = event.as_ref().unwrap_err();
        let text = error.to_string();
        let begins = format!("event {} of the batch: ", number + 1);
        assert!(
            text.starts_with(&begins) && !text.contains("secret"),
            "{text}"
        );
        let unroutable = number == 6;
        assert_eq!(error.poison() == Poison::Unroutable, unroutable, "{text}");
    }
}

/// The rest is one event, so that each byte is in exactly one event and no error is repeated.
#[test]
fn the_rest_of_a_content_that_is_no_array_is_one_event() {
    for (content, events, at) in [
        ("[", 0, 1),
        ("[,", 0, 1),
        (r#"[{"key":"a""#, 0, 1),
        (r#"[{"key":"a"}"#, 1, 12),
        (r#"[{"key":"a"},"#, 1, 13),
        (r#"[{"key":"a"},]"#, 1, 13),
        (r#"[{"key":"a"} {"key":"b"}]"#, 1, 13),
        (r#"[{"key":"a"}]x"#, 1, 13),
        ("[] {}", 0, 3),
        (r#"[{"key":"a"}, {"key":]"#, 1, 13),
        (r#"[{"key":"a"}}"#, 1, 12),
    ] {
        let mut read = read(content);
        assert_eq!(
            read.pop(),
            Some(Err(MessageError::NoBatch { at })),
            "{content}"
        );
        assert_eq!(read, vec![Ok(shown("a")); events], "{content}");
    }
    let latin = b"[{\"key\":\"a\"},{\"key\":\"\xe4\"},{}]";
    assert_eq!(BatchEvent::count(latin), 2);
}

#[test]
fn a_batch_has_a_limit() {
    let most = usize::try_from(BatchEvent::MOST).unwrap();
    let of = |events: usize| format!("[{}]", vec![r#"{"key":"a"}"#; events].join(","));
    assert!(read(&of(most)).iter().all(Result::is_ok));
    let mut events = read(&of(most + 100));
    let error = MessageError::TooMany {
        most: BatchEvent::MOST,
    };
    assert_eq!(error.poison(), Poison::Undecodable);
    assert_eq!(events.pop(), Some(Err(error)));
    assert_eq!(events.len(), most);
}

#[test]
fn debug_shows_no_content() {
    let content = br#"[{"key":"secret"}]"#;
    let event = BatchEvent::at(content, BatchPlace::default());
    assert!(!format!("{event:?}").contains("secret"));
}
