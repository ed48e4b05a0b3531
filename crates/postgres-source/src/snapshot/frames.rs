//! Encodes rows of `COPY … TO STDOUT` as pgoutput messages. Pure.

use crate::error::RowError;
use walrelay_lsn::RelationId;
use walrelay_pgoutput::MessageKind;

// Tags of pgoutput: the new row of an Insert, a value as text, and NULL.
const NEW: u8 = b'N';
const TEXT: u8 = b't';
const NULL: u8 = b'n';

/// Replaces `body` by the Insert message of a row. The row's first value is no column, but the
/// index of the row's relation in `relations`.
pub(super) fn insert(
    line: &[u8],
    relations: &[RelationId],
    body: &mut Vec<u8>,
) -> Result<(), RowError> {
    body.clear();
    let line = line
        .strip_suffix(b"\n")
        .ok_or(RowError("it has no line end"))?;
    let mut values = line.split(|byte| *byte == b'\t');
    let number = values.next().unwrap_or_default();
    let number = str::from_utf8(number)
        .ok()
        .and_then(|text| text.parse().ok());
    let relation = number.and_then(|number: usize| relations.get(number));
    let relation = relation.ok_or(RowError("it belongs to no table"))?;
    body.push(MessageKind::Insert.tag());
    body.extend_from_slice(&relation.get().to_be_bytes());
    body.push(NEW);
    let count_at = body.len();
    body.extend_from_slice(&[0; 2]);
    let mut count = 0_u16;
    for value in values {
        count = count
            .checked_add(1)
            .ok_or(RowError("it has too many columns"))?;
        if value == b"\\N" {
            body.push(NULL);
        } else {
            push_text(value, body)?;
        }
    }
    body[count_at..count_at + 2].copy_from_slice(&count.to_be_bytes());
    Ok(())
}

/// Appends a value with its tag and length, unescaped. Postgres' `CopyAttributeOutText` escapes
/// only these six control characters and the backslash.
fn push_text(mut value: &[u8], body: &mut Vec<u8>) -> Result<(), RowError> {
    body.push(TEXT);
    let length_at = body.len();
    body.extend_from_slice(&[0; 4]);
    while let Some(at) = value.iter().position(|byte| *byte == b'\\') {
        body.extend_from_slice(&value[..at]);
        let escaped = value.get(at + 1).ok_or(RowError("it ends in an escape"))?;
        body.push(match escaped {
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            b'\\' => b'\\',
            _ => return Err(RowError("it has an unknown escape")),
        });
        value = &value[at + 2..];
    }
    body.extend_from_slice(value);
    let length = u32::try_from(body.len() - length_at - 4);
    let length = length.map_err(|_| RowError("a value is too long"))?;
    body[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use walrelay_pgoutput::{Message, Value, decode};

    use super::*;

    const RELATIONS: [RelationId; 2] = [RelationId::new(16_400), RelationId::new(16_500)];

    type Values = Vec<Option<Vec<u8>>>;

    fn read(line: &[u8]) -> Result<(RelationId, Values), RowError> {
        let mut body = b"an earlier message".to_vec();
        insert(line, &RELATIONS, &mut body)?;
        let Ok(Message::Insert(insert)) = decode(&body) else {
            panic!("no Insert");
        };
        let values = insert.tuple.values().map(|value| match value {
            Value::Text(text) => Some(text.to_vec()),
            Value::Null => None,
            _ => panic!("neither text nor NULL"),
        });
        Ok((insert.relation, values.collect()))
    }

    #[test]
    fn values_are_unescaped() {
        let (relation, values) =
            read(b"1\t7\t\\N\t\t\\\\x00ff\ta\\tb\\nc\\\\N\\r\\b\\f\\v\t\xc3\xa9\n").unwrap();
        assert_eq!(relation, RELATIONS[1]);
        assert_eq!(
            values,
            [
                Some(b"7".to_vec()),
                None,
                Some(b"".to_vec()),
                Some(b"\\x00ff".to_vec()),
                Some(b"a\tb\nc\\N\r\x08\x0c\x0b".to_vec()),
                Some("é".as_bytes().to_vec())
            ]
        );
        // A table without columns, and one whose only value is empty.
        assert_eq!(read(b"0\n").unwrap(), (RELATIONS[0], vec![]));
        assert_eq!(
            read(b"0\t\n").unwrap(),
            (RELATIONS[0], vec![Some(b"".to_vec())])
        );
    }

    #[test]
    fn an_invalid_line_is_refused() {
        for line in [
            &b"0\ta"[..],
            b"2\ta\n",
            b"x\ta\n",
            b"\n",
            b"0\ta\\\n",
            b"0\t\\q\n",
            b"0\t\\N\\\n",
        ] {
            assert!(read(line).is_err(), "{}", line.escape_ascii());
        }
    }
}
