//! Bodies that no server sends: errors that say what and where, and nothing worse.

use proptest::prelude::*;
use walrelay_pgoutput::{DecodeError, Fault, Field, MessageKind, decode, fuzzing};

use super::roundtrip;

fn malformed(message: MessageKind, field: Field, offset: usize, fault: Fault) -> DecodeError {
    DecodeError::Malformed {
        message,
        field,
        offset,
        fault,
    }
}

#[track_caller]
fn refused(body: &[u8], expected: DecodeError) {
    assert_eq!(decode(body), Err(expected));
}

#[test]
fn no_body_at_all() {
    refused(b"", DecodeError::Empty);
}

#[test]
fn tags_of_other_protocol_versions_and_of_none() {
    for tag in 0..=u8::MAX {
        let known = b"BCORYIUDTM".contains(&tag);
        let unknown = Err(DecodeError::UnknownMessage { tag });
        assert_eq!(decode(&[tag, 0, 0]) == unknown, !known, "{tag}");
    }
    assert_eq!(
        decode(b"S\0\0\0\x01\x01").unwrap_err().to_string(),
        "unknown pgoutput message: tag 'S' (0x53) at byte 0 is not of protocol version 1"
    );
}

#[test]
fn flags_without_a_meaning() {
    use MessageKind::{Commit, Logical, Relation, Truncate};
    let fault = |found, known| Fault::UnknownFlags { found, known };
    refused(
        b"C\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        malformed(Commit, Field::Flags, 1, fault(1, 0)),
    );
    refused(
        b"M\x02\0\0\0\0\0\0\0\0p\0\0\0\0\0",
        malformed(Logical, Field::Flags, 1, fault(2, 1)),
    );
    refused(
        b"T\0\0\0\x01\x04\0\0\0\x07",
        malformed(Truncate, Field::TruncateOptions, 5, fault(4, 3)),
    );
    refused(
        b"R\0\0\0\x07s\0t\0d\0\x01\x03c\0\0\0\0\x17\xff\xff\xff\xff",
        malformed(Relation, Field::ColumnFlags, 12, fault(3, 1)),
    );
}

#[test]
fn letters_without_a_meaning() {
    use MessageKind::{Delete, Insert, Relation, Update};
    let fault = |found, known| Fault::UnknownTag { found, known };
    refused(
        b"I\0\0\0\x07K\0\0",
        malformed(Insert, Field::TupleKind, 5, fault(b'K', "'N'")),
    );
    refused(
        b"U\0\0\0\x07X\0\0",
        malformed(Update, Field::TupleKind, 5, fault(b'X', "'K', 'O', 'N'")),
    );
    refused(
        b"U\0\0\0\x07K\0\0K\0\0",
        malformed(Update, Field::TupleKind, 8, fault(b'K', "'N'")),
    );
    refused(
        b"D\0\0\0\x07N\0\0",
        malformed(Delete, Field::TupleKind, 5, fault(b'N', "'K', 'O'")),
    );
    refused(
        b"I\0\0\0\x07N\0\x02nz",
        malformed(
            Insert,
            Field::ValueKind,
            9,
            fault(b'z', "'n', 'u', 't', 'b'"),
        ),
    );
    refused(
        b"R\0\0\0\x07s\0t\0x\0\0",
        malformed(
            Relation,
            Field::ReplicaIdentity,
            9,
            fault(b'x', "'d', 'n', 'f', 'i'"),
        ),
    );
}

#[test]
fn names_that_do_not_end_or_are_not_utf_8() {
    use MessageKind::{Relation, Type};
    refused(
        b"Y\0\0\0\x07public",
        malformed(Type, Field::Namespace, 5, Fault::Unterminated),
    );
    refused(
        b"Y\0\0\0\x07s\0mood",
        malformed(Type, Field::TypeName, 7, Fault::Unterminated),
    );
    refused(
        b"R\0\0\0\x07s\0ta\xFFle\0",
        malformed(Relation, Field::RelationName, 9, Fault::NotUtf8),
    );
}

#[test]
fn counts_and_lengths_below_zero() {
    use MessageKind::{Insert, Logical, Relation, Truncate};
    let fault = |found| Fault::Negative { found };
    refused(
        b"I\0\0\0\x07N\xff\xff",
        malformed(Insert, Field::ColumnCount, 6, fault(-1)),
    );
    refused(
        b"I\0\0\0\x07N\0\x01t\xff\xff\xff\xff",
        malformed(Insert, Field::ValueLength, 9, fault(-1)),
    );
    refused(
        b"T\x80\0\0\0\0",
        malformed(Truncate, Field::RelationCount, 1, fault(i32::MIN)),
    );
    refused(
        b"M\0\0\0\0\0\0\0\0\0p\0\xff\xff\xff\xfe",
        malformed(Logical, Field::ContentLength, 12, fault(-2)),
    );
    refused(
        b"R\0\0\0\x07s\0t\0d\x80\0",
        malformed(Relation, Field::ColumnCount, 10, fault(-32768)),
    );
}

#[test]
fn counts_and_lengths_beyond_the_body() {
    use MessageKind::{Insert, Logical, Relation, Truncate};
    let fault = |needed, left| Fault::Truncated { needed, left };
    refused(
        b"I\0\0\0\x07N\0\x01b\x7f\xff\xff\xffabc",
        malformed(Insert, Field::Value, 13, fault(0x7FFF_FFFF, 3)),
    );
    refused(
        b"I\0\0\0\x07N\x7f\xffn",
        malformed(Insert, Field::ValueKind, 9, fault(1, 0)),
    );
    refused(
        b"M\0\0\0\0\0\0\0\0\0p\0\x7f\xff\xff\xff",
        malformed(Logical, Field::Content, 16, fault(0x7FFF_FFFF, 0)),
    );
    refused(
        b"R\0\0\0\x07s\0t\0d\x7f\xff",
        malformed(Relation, Field::ColumnFlags, 12, fault(1, 0)),
    );
    let needed = 0x7FFF_FFFF_usize.saturating_mul(4);
    refused(
        b"T\x7f\xff\xff\xff\x03\0\0\0\x07",
        malformed(Truncate, Field::RelationId, 6, fault(needed, 4)),
    );
}

#[test]
fn more_than_the_message() {
    refused(
        b"I\0\0\0\x07N\0\x01nn?",
        malformed(
            MessageKind::Insert,
            Field::End,
            9,
            Fault::TrailingBytes { count: 2 },
        ),
    );
    assert_eq!(
        decode(b"I\0\0\0\x07N\0\x01nn?").unwrap_err().to_string(),
        "malformed pgoutput Insert message: end of the message at byte 9: 2 bytes too many"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_cut_short_is_an_error_at_a_byte_that_is_there(message in roundtrip::message()) {
        let body = roundtrip::encoded(&message);
        for len in 0..body.len() {
            let error = decode(&body[..len]).expect_err("a part is no message");
            prop_assert!(error.offset() <= len, "{} of {}: {}", len, body.len(), error);
            match error {
                DecodeError::Empty => prop_assert_eq!(len, 0),
                DecodeError::Malformed { offset, fault: Fault::Truncated { needed, left }, .. } => {
                    prop_assert_eq!(left, len - offset);
                    prop_assert!(needed > left);
                }
                DecodeError::Malformed { fault, .. } => prop_assert_eq!(fault, Fault::Unterminated),
                DecodeError::UnknownMessage { .. } => prop_assert!(false, "{}", error),
            }
        }
    }

    #[test]
    fn one_changed_byte_is_never_a_panic(
        message in roundtrip::message(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut body = roundtrip::encoded(&message);
        let at = at.index(body.len());
        body[at] = byte;
        fuzzing::decodes_without_panic(&body);
        fuzzing::encodes_what_it_decoded(&body);
    }

    #[test]
    fn any_bytes_after_a_known_tag_are_never_a_panic(
        tag in prop::sample::select(b"BCORYIUDTM".to_vec()),
        rest in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let body = [&[tag], &rest[..]].concat();
        fuzzing::decodes_without_panic(&body);
        fuzzing::encodes_what_it_decoded(&body);
    }

    #[test]
    fn any_bytes_are_never_a_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzzing::decodes_without_panic(&body);
    }
}
