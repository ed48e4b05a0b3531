use proptest::collection::vec;
use proptest::prelude::*;
use walrelay_lsn::{CommitEnd, Lsn};

use super::messages::*;
use crate::error::Error;

/// Encodes a message with its header.
pub(crate) fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn encode(frame: &Frame<'_>) -> Vec<u8> {
    let mut inner = Vec::new();
    match *frame {
        Frame::XLogData {
            start,
            end,
            sent_at,
            body,
        } => {
            inner.push(b'w');
            inner.extend_from_slice(&start.get().to_be_bytes());
            inner.extend_from_slice(&end.get().to_be_bytes());
            inner.extend_from_slice(&sent_at.to_be_bytes());
            inner.extend_from_slice(body);
        }
        Frame::Keepalive {
            wal_end,
            sent_at,
            reply_requested,
        } => {
            inner.push(b'k');
            inner.extend_from_slice(&wal_end.get().to_be_bytes());
            inner.extend_from_slice(&sent_at.to_be_bytes());
            inner.push(u8::from(reply_requested));
        }
    }
    message(b'd', &inner)
}

#[derive(Debug, Clone)]
enum Sent {
    Data(u64, u64, i64, Vec<u8>),
    Alive(u64, i64, bool),
    Notice,
}

impl Sent {
    fn frame(&self) -> Option<Frame<'_>> {
        match self {
            Self::Data(start, end, sent_at, body) => Some(Frame::XLogData {
                start: Lsn::new(*start),
                end: Lsn::new(*end),
                sent_at: *sent_at,
                body,
            }),
            Self::Alive(wal_end, sent_at, reply_requested) => Some(Frame::Keepalive {
                wal_end: Lsn::new(*wal_end),
                sent_at: *sent_at,
                reply_requested: *reply_requested,
            }),
            Self::Notice => None,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.frame().map_or_else(
            || message(b'N', b"SNOTICE\0Mhello\0\0"),
            |frame| encode(&frame),
        )
    }
}

fn sent() -> impl Strategy<Value = Sent> {
    prop_oneof![
        4 => (any::<u64>(), any::<u64>(), any::<i64>(), vec(any::<u8>(), 0..60))
            .prop_map(|(start, end, at, body)| Sent::Data(start, end, at, body)),
        2 => (any::<u64>(), any::<i64>(), any::<bool>())
            .prop_map(|(end, at, reply)| Sent::Alive(end, at, reply)),
        1 => Just(Sent::Notice),
    ]
}

proptest! {
    /// Encoded frames are parsed in order, up to the end of the bytes.
    #[test]
    fn all_encoded_frames_are_parsed(all in vec(sent(), 0..20)) {
        let bytes: Vec<u8> = all.iter().flat_map(Sent::bytes).collect();
        let mut at = 0;
        for frame in all.iter().filter_map(Sent::frame) {
            let (found, length) = parse_frame(&bytes[at..]).unwrap().unwrap();
            prop_assert_eq!(found, frame);
            at += length;
        }
        prop_assert!(parse_frame(&bytes[at..]).unwrap().is_none());
    }

    #[test]
    fn a_part_of_a_frame_is_no_frame(one in sent(), cut in any::<prop::sample::Index>()) {
        let bytes = one.bytes();
        prop_assert!(parse_frame(&bytes[..cut.index(bytes.len())]).unwrap().is_none());
    }

    /// No bytes make the parser panic, and a returned length is within them.
    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(Some((_, length))) = parse_frame(&bytes) {
            prop_assert!(length <= bytes.len());
        }
    }

    /// The same with bytes that are closer to the protocol.
    #[test]
    fn any_body_behind_a_right_header(
        tag in prop::sample::select(&b"dEcCZNSA"[..]),
        kind in prop::sample::select(&b"wkx\0"[..]),
        body in vec(any::<u8>(), 0..60),
    ) {
        let mut inner = vec![kind];
        inner.extend_from_slice(&body);
        if let Ok(Some((_, length))) = parse_frame(&message(tag, &inner)) {
            prop_assert!(length <= body.len() + 6);
        }
    }
}

#[test]
fn impossible_lengths_are_errors() {
    for length in [
        0,
        1,
        3,
        MAX_MESSAGE as u32,
        0x7FFF_FFFF,
        0x8000_0000,
        u32::MAX,
    ] {
        let mut bytes = vec![b'd'];
        bytes.extend_from_slice(&length.to_be_bytes());
        let error = parse_frame(&bytes).unwrap_err();
        assert!(matches!(&error, Error::Protocol { .. }), "{error}");
        assert!(error.to_string().contains(&length.to_string()), "{error}");
    }
    // The longest length that Postgres can send is accepted; the message is not complete.
    let mut bytes = vec![b'd'];
    bytes.extend_from_slice(&(MAX_MESSAGE as u32 - 1).to_be_bytes());
    assert!(parse_frame(&bytes).unwrap().is_none());
}

#[test]
fn messages_that_a_stream_does_not_allow_are_errors() {
    let unknown: [(u8, &[u8]); 6] = [
        (b'd', b""),
        (b'd', b"x"),
        (b'd', &[b'w'; 24]),
        (b'd', &[b'k'; 17]),
        (b'd', &[b'k'; 19]),
        (b'D', b"\0\0"),
    ];
    for (tag, body) in unknown {
        let error = parse_frame(&message(tag, body)).unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }
}

#[test]
fn the_servers_error_comes_with_its_fields() {
    let body = b"SFEHLER\0VERROR\0C55006\0Mslot is active\0DPID 7\0Hwait\0\0";
    let error = parse_frame(&message(b'E', body)).unwrap_err();
    let server = error.server().unwrap();
    assert_eq!(server.severity, "ERROR");
    assert_eq!(error.sqlstate(), Some("55006"));
    assert_eq!(
        error.to_string(),
        "ERROR: slot is active (SQLSTATE 55006); PID 7; hint: wait"
    );
    // Of a truncated message the fields that are there are reported.
    let error = parse_frame(&message(b'E', b"VFATAL\0C57P01\0Mbye")).unwrap_err();
    assert_eq!(error.sqlstate(), Some("57P01"));
}

#[test]
fn details_that_quote_rows_are_left_out() {
    let body = b"VERROR\0C23505\0Mduplicate key\0DKey (email)=(a@b.c) already exists.\0\0";
    let error = parse_frame(&message(b'E', body)).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("a@b.c"));
}

#[test]
fn the_end_of_the_stream() {
    for (tag, body) in [(b'c', &b""[..]), (b'C', b"COPY 0\0"), (b'Z', b"I")] {
        let error = parse_frame(&message(tag, body)).unwrap_err();
        assert!(matches!(error, Error::Closed { .. }), "{error}");
        assert!(error.is_retryable());
    }
}

#[test]
fn a_status_update_on_the_wire() {
    let bytes = status_update(&StatusUpdate {
        written: Lsn::new(0x0102_0304_0506_0708),
        flushed: CommitEnd::from_commit_message(Lsn::new(2)),
        applied: CommitEnd::from_commit_message(Lsn::new(3)),
        clock_us_since_2000: -1,
        reply_requested: true,
    });
    let mut expected = vec![b'd', 0, 0, 0, 38, b'r', 1, 2, 3, 4, 5, 6, 7, 8];
    expected.extend_from_slice(&2_u64.to_be_bytes());
    expected.extend_from_slice(&3_u64.to_be_bytes());
    expected.extend_from_slice(&[0xFF; 8]);
    expected.push(1);
    assert_eq!(bytes.to_vec(), expected);
}
