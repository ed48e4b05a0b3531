use proptest::prelude::*;
use walrelay_sink::EventPosition;

use super::*;

#[test]
fn a_subject_never_means_something_else() {
    for right in ["a", "a.b-c_d.é", "events.Order.42", "_INBOXES.a"] {
        assert_eq!(check_subject(right), Ok(()), "{right}");
    }
    for wrong in [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a.*",
        ">",
        "a.>",
        "a*",
        "a b",
        "a\tb",
        "a\r\nPUB x 0",
        "a\u{a0}b",
        "a\0",
        "$JS.API.STREAM.DELETE.S",
        "_INBOX.x",
    ] {
        check_subject(wrong).unwrap_err();
    }
    check_subject(&"x".repeat(4_000)).unwrap_err();
}

#[test]
fn a_record_becomes_headers_and_payload() {
    let headers = [
        Header {
            name: "event-type",
            value: Some("Paid ü".as_bytes()),
        },
        Header {
            name: "note",
            value: Some(b" two\r\nlines \xff"),
        },
        Header {
            name: "null",
            value: None,
        },
    ];
    let record = Record {
        topic: "events.Order",
        key: Some(b"5%\n"),
        value: Some(b"{}"),
        headers: &headers,
        event_id: Some(b"e-1"),
        timestamp_ms: Some(7),
        position: EventPosition::in_first_epoch(0x10_0000_0001, 2),
        ..Record::default()
    };
    check(&record, 1_000).unwrap();
    let block = super::headers(&record);
    let text = String::from_utf8(block.clone()).unwrap();
    assert_eq!(
        text,
        "NATS/1.0\r\nNats-Msg-Id: e-1\r\n\
         walrelay.position: 10/1 2\r\nwalrelay.subject: events.Order\r\nwalrelay.key: 5%25%0A\r\nwalrelay.timestamp: 7\r\n\
         event-type: Paid ü\r\nnote: %20two%0D%0Alines %FF\r\n\r\n"
    );
    let mut out = Vec::new();
    put_message(&mut out, &record, "_INBOX.x.1", &block);
    let line = format!(
        "HPUB events.Order _INBOX.x.1 {} {}\r\nNATS/1.0\r\n",
        block.len(),
        block.len() + 2
    );
    assert!(out.starts_with(line.as_bytes()));
    assert!(out.ends_with(b"\r\n\r\n{}\r\n"));
    let tombstone = Record {
        value: None,
        event_id: None,
        headers: &[],
        key: None,
        timestamp_ms: None,
        ..record
    };
    let text = String::from_utf8(super::headers(&tombstone)).unwrap();
    assert_eq!(
        text,
        "NATS/1.0\r\nwalrelay.position: 10/1 2\r\nwalrelay.null: true\r\n\r\n"
    );
}

#[test]
fn a_dead_letter_has_another_id_than_its_event() {
    let header = |name, value: &'static str| Header {
        name,
        value: Some(value.as_bytes()),
    };
    let of_letter = [
        header(dlq_headers::CLASS, "rejected"),
        header(dlq_headers::SLOT, "orders"),
        header(dlq_headers::SYSTEM, "7"),
        header("Nats-Rollup", "all"),
    ];
    let record = Record {
        kind: RecordKind::DeadLetter,
        topic: "dead",
        event_id: Some(b"e"),
        headers: &of_letter,
        ..Record::default()
    };
    check(&record, 1_000).unwrap();
    let text = String::from_utf8(headers(&record)).unwrap();
    let id = "Nats-Msg-Id: dead-letter/orders.7/0/0 0/e\r\n";
    assert!(text.contains(id) && !text.contains("Rollup"), "{text}");
    let list = "walrelay.dlq.headers: +3 TmF0cy1Sb2xsdXA:YWxs\r\n";
    assert!(text.contains(list), "{text}");
    let of_resolution = [
        header(dlq_headers::RESOLVES, "orders 0/0 0"),
        header(dlq_headers::RESOLUTION, "dropped"),
    ];
    let resolution = Record {
        kind: RecordKind::Resolution,
        headers: &of_resolution,
        ..record
    };
    let text = String::from_utf8(headers(&resolution)).unwrap();
    assert!(!text.contains("Nats-Msg-Id"), "{text}");
    // What its event has fits with the headers of the relay.
    let value = vec![b'x'; 1_000];
    let large = Record {
        value: Some(&value),
        ..record
    };
    check(&large, 1_000).unwrap();
    let value = vec![b'x'; 70_000];
    let larger = Record {
        value: Some(&value),
        ..record
    };
    assert_eq!(check(&larger, 1_000).unwrap_err().0, Poison::Oversize);
}

#[test]
fn an_event_with_a_header_of_dead_letters_is_refused() {
    for name in [dlq_headers::CLASS, dlq_headers::RESOLVES] {
        let headers = [Header {
            name,
            value: Some(b"secret"),
        }];
        let event = Record {
            topic: "t.a",
            headers: &headers,
            ..Record::default()
        };
        assert!(!is_dead_letter(&event));
        let (poison, why) = check(&event, 1_000).unwrap_err();
        assert_eq!(poison, Poison::Rejected);
        assert!(!why.contains("secret"), "{why}");
    }
}

#[test]
fn a_header_that_nats_obeys_and_an_event_that_is_too_large_are_refused() {
    let poison = |record: &Record<'_>, limit| check(record, limit).unwrap_err();
    for name in [
        "",
        "Nats-Rollup",
        "nats-msg-id",
        "a:b",
        "a b",
        "a\r\nb",
        "walrelay.key",
    ] {
        let headers = [Header { name, value: None }];
        let record = Record {
            topic: "t",
            headers: &headers,
            ..Record::default()
        };
        let (poison, why) = poison(&record, 1_000);
        assert_eq!(poison, Poison::Rejected, "{name}");
        assert!(name.is_empty() || !why.contains(name), "{why}");
    }
    let large = vec![b'x'; 70_000];
    let record = Record {
        topic: "t",
        value: Some(&large),
        ..Record::default()
    };
    assert_eq!(poison(&record, 70_000).0, Poison::Oversize, "with headers");
    check(&record, 80_000).unwrap();
    let record = Record {
        topic: "t",
        key: Some(&large),
        ..Record::default()
    };
    assert_eq!(poison(&record, 1 << 20).0, Poison::Oversize, "headers");
}

proptest! {
    /// An id and a key stay what they are, whatever bytes they have.
    #[test]
    fn two_values_never_become_one(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut out = Vec::new();
        escape(&mut out, &bytes, true);
        let text = String::from_utf8(out).unwrap();
        prop_assert!(!text.contains(['\r', '\n']));
        prop_assert_eq!(text.trim_ascii(), &text);
        let mut back = Vec::new();
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            if byte == b'%' {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                let digits = String::from_utf8(digits.to_vec()).unwrap();
                back.push(u8::from_str_radix(&digits, 16).unwrap());
            } else {
                back.push(byte);
            }
        }
        prop_assert_eq!(back, bytes);
    }
}
