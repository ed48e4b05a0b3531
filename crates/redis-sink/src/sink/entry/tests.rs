use walrelay_sink::{Header, RecordKind};

use super::*;
use crate::client::resp::decode;

fn string(text: &[u8]) -> Reply {
    Reply::String(Some(text.to_vec()))
}

fn strings(command: &[u8]) -> Vec<Vec<u8>> {
    // A command has the form of a reply.
    let (reply, length) = decode(command).unwrap().unwrap();
    assert_eq!(length, command.len());
    let Reply::Array(Some(members)) = reply else {
        panic!("{reply:?}");
    };
    let string = |member| match member {
        Reply::String(Some(string)) => string,
        other => panic!("{other:?}"),
    };
    members.into_iter().map(string).collect()
}

const RECORD: Record<'static> = Record {
    kind: RecordKind::Event,
    topic: "orders",
    routing_key: None,
    partition: None,
    timestamp_ms: Some(-5),
    key: Some(b"k\r\n"),
    value: Some(&[0, 0xff]),
    headers: &[
        Header {
            name: "a",
            value: Some(b"first"),
        },
        Header {
            name: "null",
            value: None,
        },
        Header {
            name: "a",
            value: Some(b"last"),
        },
    ],
    event_id: Some(b"7"),
    position: EventPosition::in_first_epoch(0x10, 3),
};

#[test]
fn an_entry_has_the_fields_of_the_page() {
    let mut out = Vec::new();
    let id = NewId::Explicit(RECORD.position.into());
    put_xadd(&mut out, &RECORD, id, false);
    let expected: [&[u8]; 15] = [
        b"XADD",
        b"orders",
        b"16-3",
        b"id",
        b"7",
        b"key",
        b"k\r\n",
        b"payload",
        &[0, 0xff],
        b"position",
        b"0/10 3",
        b"timestamp",
        b"-5",
        b"header.a",
        b"last",
    ];
    assert_eq!(strings(&out), expected);
    let behind = NewId::Behind(EntryId {
        first: 9,
        second: 1,
    });
    for (id, text) in [(NewId::Clock, &b"*"[..]), (behind, b"9-1")] {
        out.clear();
        let bare = Record {
            topic: "t",
            ..Record::default()
        };
        put_xadd(&mut out, &bare, id, true);
        let expected: [&[u8]; 6] = [b"XADD", b"t", b"NOMKSTREAM", text, b"position", b"0/0 0"];
        assert_eq!(strings(&out), expected);
    }
}

#[test]
fn an_entry_is_that_of_an_event_by_position_id_key_and_payload() {
    type Fields<'a> = Vec<(&'a [u8], &'a [u8])>;
    let entry = |fields: Fields<'_>| {
        let fields = fields.iter();
        let fields = fields.flat_map(|(name, value)| [string(name), string(value)]);
        let fields = Reply::Array(Some(fields.collect()));
        Reply::Array(Some(vec![Reply::Array(Some(vec![
            string(b"16-3"),
            fields,
        ]))]))
    };
    let own: Fields<'_> = vec![
        (ID, b"7"),
        (KEY, b"k\r\n"),
        (PAYLOAD, &[0, 0xff]),
        (POSITION, b"0/10 3"),
    ];
    let none = Reply::Array(Some(vec![]));
    assert_eq!(is_stored(&none, &RECORD), Ok(false));
    assert_eq!(is_stored(&entry(own.clone()), &RECORD), Ok(true));
    let other: [&[u8]; 4] = [b"8", b"j", b"changed", b"0/10 2"];
    for (at, other) in other.into_iter().enumerate() {
        let mut fields = own.clone();
        fields[at].1 = other;
        assert_eq!(is_stored(&entry(fields), &RECORD), Ok(false), "{at}");
        let mut fields = own.clone();
        fields.remove(at);
        assert_eq!(is_stored(&entry(fields), &RECORD), Ok(false), "no {at}");
    }
    let without = Record {
        event_id: None,
        ..RECORD
    };
    assert_eq!(is_stored(&entry(own.clone()), &without), Ok(false));
    assert_eq!(is_stored(&entry(own[1..].to_vec()), &without), Ok(true));
    assert!(is_stored(&Reply::Integer(1), &RECORD).is_err());
}

#[test]
fn the_following_id_carries() {
    let next = |first, second| {
        let next = EntryId { first, second }.following();
        (next.first, next.second)
    };
    assert_eq!(next(5, 5), (5, 6));
    assert_eq!(next(5, u64::MAX), (6, 0));
    assert_eq!(next(u64::MAX, u64::MAX), (u64::MAX, u64::MAX));
}

#[test]
fn records_are_the_same_event_by_position_id_key_and_payload() {
    assert!(is_same(&RECORD, &RECORD));
    for other in [
        Record {
            position: EventPosition::in_first_epoch(0x10, 4),
            ..RECORD
        },
        Record {
            event_id: None,
            ..RECORD
        },
        Record {
            key: Some(b"j"),
            ..RECORD
        },
        Record {
            value: None,
            ..RECORD
        },
    ] {
        assert!(!is_same(&RECORD, &other), "{other:?}");
    }
}

#[test]
fn the_id_and_the_name_of_the_stream_count() {
    let record = Record {
        topic: "stream",
        value: Some(b"12345"),
        event_id: Some(b"1234"),
        ..Record::default()
    };
    assert_eq!(size(&record), 15);
    assert_eq!(check(&record, 15), Ok(15));
    let (poison, why) = check(&record, 14).unwrap_err();
    assert_eq!(poison, Poison::Oversize);
    assert!(why.contains("15 bytes"), "{why}");
}

#[test]
fn an_extent_tells_what_was_deleted() {
    let of = |length: i64, added: Option<i64>| {
        let mut members = vec![
            string(b"length"),
            Reply::Integer(length),
            string(b"last-generated-id"),
            string(b"9-1"),
        ];
        if let Some(added) = added {
            members.extend([string(b"entries-added"), Reply::Integer(added)]);
        }
        extent(&Reply::Array(Some(members))).map(|extent| extent.deleted)
    };
    assert_eq!(of(3, Some(5)), Ok(2));
    // Of a stream from before Redis 7 the server may know fewer.
    assert_eq!((of(3, Some(0)), of(3, None)), (Ok(0), Ok(0)));
    assert!(of(-1, None).is_err());
}

#[test]
fn the_newest_id_is_that_of_the_server() {
    let with = |last: Option<Reply>| {
        let id = [
            string(b"last-generated-id"),
            string(b"18446744073709551615-2"),
        ];
        let last = last.map(|last| [string(b"last-entry"), last]);
        let members = id.into_iter().chain(last.into_iter().flatten());
        newest(&Reply::Array(Some(members.collect())))
    };
    let last = |id: &[u8], name: &[u8], value: &[u8]| {
        let fields = Reply::Array(Some(vec![string(name), string(value)]));
        Some(Reply::Array(Some(vec![string(id), fields])))
    };
    let expected = |is_repeat, last: Option<u64>| {
        let (first, second) = (u64::MAX, 2);
        Ok(Newest {
            id: EntryId { first, second },
            is_repeat,
            exists: true,
            last: last.map(|row| EventPosition::in_first_epoch(16, row)),
            ..Newest::default()
        })
    };
    assert_eq!(with(None), expected(false, None));
    assert_eq!(with(Some(Reply::Array(None))), expected(false, None));
    let own = with(last(b"16-3", POSITION, b"0/10 3"));
    assert_eq!(own, expected(false, Some(3)));
    let appended = with(last(b"16-3", POSITION, b"0/10 2"));
    assert_eq!(appended, expected(true, Some(2)));
    let foreign = with(last(b"16-3", b"field", b"0/10 2"));
    assert_eq!(foreign, expected(false, None));
    assert!(newest(&Reply::Array(None)).is_err());
    assert!(newest(&Reply::Array(Some(vec![]))).is_err());
}
