//! Bodies that no server sends must be refused with an error that names the field and the offset.

use proptest::prelude::*;
use walrelay_pgoutput::{DecodeError, Fault, Field, MessageKind, decode, fuzzing};

use super::roundtrip;

/// Each body must be refused with this message, field, offset and fault.
macro_rules! refused {
    ($($body:literal => $message:ident, $field:ident, $offset:literal, $fault:expr;)*) => {$(
        let malformed = DecodeError::Malformed {
            message: MessageKind::$message,
            field: Field::$field,
            offset: $offset,
            fault: $fault,
        };
        assert_eq!(decode($body), Err(malformed), "{:?}", $body);
    )*};
}

#[test]
fn an_empty_body() {
    assert_eq!(decode(b""), Err(DecodeError::Empty));
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
    let fault = |found, known| Fault::UnknownFlags { found, known };
    refused! {
        b"C\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" => Commit, Flags, 1, fault(1, 0);
        b"M\x02\0\0\0\0\0\0\0\0p\0\0\0\0\0" => Logical, Flags, 1, fault(2, 1);
        b"T\0\0\0\x01\x04\0\0\0\x07" => Truncate, TruncateOptions, 5, fault(4, 3);
        b"R\0\0\0\x07s\0t\0d\0\x01\x03c\0\0\0\0\x17\xff\xff\xff\xff" => Relation, ColumnFlags, 12, fault(3, 1);
    }
}

#[test]
fn letters_without_a_meaning() {
    let fault = |found, known| Fault::UnknownTag { found, known };
    refused! {
        b"I\0\0\0\x07K\0\0" => Insert, TupleKind, 5, fault(b'K', "'N'");
        b"U\0\0\0\x07X\0\0" => Update, TupleKind, 5, fault(b'X', "'K', 'O', 'N'");
        b"U\0\0\0\x07K\0\0K\0\0" => Update, TupleKind, 8, fault(b'K', "'N'");
        b"D\0\0\0\x07N\0\0" => Delete, TupleKind, 5, fault(b'N', "'K', 'O'");
        b"I\0\0\0\x07N\0\x02nz" => Insert, ValueKind, 9, fault(b'z', "'n', 'u', 't', 'b'");
        b"R\0\0\0\x07s\0t\0x\0\0" => Relation, ReplicaIdentity, 9, fault(b'x', "'d', 'n', 'f', 'i'");
    }
}

#[test]
fn names_that_do_not_end_or_are_not_utf_8() {
    refused! {
        b"Y\0\0\0\x07public" => Type, Namespace, 5, Fault::Unterminated;
        b"Y\0\0\0\x07s\0mood" => Type, TypeName, 7, Fault::Unterminated;
        b"R\0\0\0\x07s\0ta\xFFle\0" => Relation, RelationName, 9, Fault::NotUtf8;
    }
}

#[test]
fn counts_and_lengths_below_zero() {
    let fault = |found| Fault::Negative { found };
    refused! {
        b"I\0\0\0\x07N\xff\xff" => Insert, ColumnCount, 6, fault(-1);
        b"I\0\0\0\x07N\0\x01t\xff\xff\xff\xff" => Insert, ValueLength, 9, fault(-1);
        b"T\x80\0\0\0\0" => Truncate, RelationCount, 1, fault(i32::MIN);
        b"M\0\0\0\0\0\0\0\0\0p\0\xff\xff\xff\xfe" => Logical, ContentLength, 12, fault(-2);
        b"R\0\0\0\x07s\0t\0d\x80\0" => Relation, ColumnCount, 10, fault(-32768);
    }
}

#[test]
fn counts_and_lengths_beyond_the_body() {
    let fault = |needed, left| Fault::Truncated { needed, left };
    let needed = 0x7FFF_FFFF_usize.saturating_mul(4);
    refused! {
        b"I\0\0\0\x07N\0\x01b\x7f\xff\xff\xffabc" => Insert, Value, 13, fault(0x7FFF_FFFF, 3);
        b"I\0\0\0\x07N\x7f\xffn" => Insert, ValueKind, 9, fault(1, 0);
        b"M\0\0\0\0\0\0\0\0\0p\0\x7f\xff\xff\xff" => Logical, Content, 16, fault(0x7FFF_FFFF, 0);
        b"R\0\0\0\x07s\0t\0d\x7f\xff" => Relation, ColumnFlags, 12, fault(1, 0);
        b"T\x7f\xff\xff\xff\x03\0\0\0\x07" => Truncate, RelationId, 6, fault(needed, 4);
    }
}

#[test]
fn bytes_behind_the_message() {
    refused! {
        b"I\0\0\0\x07N\0\x01nn?" => Insert, End, 9, Fault::TrailingBytes { count: 2 };
    }
    assert_eq!(
        decode(b"I\0\0\0\x07N\0\x01nn?").unwrap_err().to_string(),
        "malformed pgoutput Insert message: end of the message at byte 9: 2 bytes too many"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_truncated_message_is_an_error_with_an_offset_inside_it(body in roundtrip::message()) {
        for len in 0..body.len() {
            let error = decode(&body[..len]).expect_err("a truncated message");
            match error {
                DecodeError::Empty => prop_assert_eq!(len, 0),
                DecodeError::Malformed { offset, fault, .. } => {
                    prop_assert!(offset <= len, "{} of {}: {}", len, body.len(), error);
                    if let Fault::Truncated { needed, left } = fault {
                        prop_assert_eq!(left, len - offset);
                        prop_assert!(needed > left);
                    } else {
                        prop_assert_eq!(fault, Fault::Unterminated);
                    }
                }
                DecodeError::UnknownMessage { .. } => prop_assert!(false, "{}", error),
            }
        }
    }

    #[test]
    fn one_changed_byte_is_never_a_panic(
        mut body in roundtrip::message(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
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
