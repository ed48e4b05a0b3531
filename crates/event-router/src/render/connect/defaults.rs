//! Reads a column's default from its expression, as Debezium does: a literal gives its value, a
//! function call a placeholder, any other expression nothing.

use super::catalog::{TypeFacts, TypeKind};
use super::codec::Codec;
use super::schema::{Data, Schema, SchemaType};
use crate::value::cursor::Cursor;

/// Reads the default of a schema from an expression of `pg_get_expr`.
pub(crate) fn parse(
    expression: &str,
    facts: &TypeFacts,
    codec: &Codec,
    schema: &Schema,
) -> Option<Data<'static>> {
    let expression = expression.trim();
    if let TypeKind::Enum(_) = facts.kind {
        let (value, _cast) = expression.rsplit_once("::")?;
        let value = value.strip_prefix('\'')?.strip_suffix('\'')?;
        return Some(Data::Text(value.to_owned().into()));
    }
    let placeholder = placeholder(facts.oid.get())?;
    if expression.starts_with("NULL::") {
        return None;
    }
    let text = if is_generated(expression) {
        placeholder.to_owned()
    } else {
        literal(expression)
    };
    let text = match codec {
        Codec::Boolean if text.eq_ignore_ascii_case("true") => "t".to_owned(),
        Codec::Boolean => "f".to_owned(),
        // Debezium has no default for infinity.
        Codec::Date(_) | Codec::Timestamp(_) | Codec::ZonedTimestamp { .. }
            if text.contains("infinity") =>
        {
            return None;
        }
        Codec::Date(_) => text.split(' ').next()?.to_owned(),
        Codec::Timestamp(_) | Codec::ZonedTimestamp { .. } if !text.contains(' ') => {
            [&text, " 00:00:00"].concat()
        }
        _ => text,
    };
    let value = codec.read(&text).ok()?.into_owned();
    let is_struct = matches!(schema.kind, SchemaType::Struct(_));
    (!is_struct && !value.is_null()).then_some(value)
}

/// Returns Debezium's placeholder for a function's value; `None` if Debezium reads no defaults of
/// this type.
const fn placeholder(oid: u32) -> Option<&'static str> {
    Some(match oid {
        16 => "false",
        20 | 21 | 23 | 1562 => "0",
        25 | 142 | 1042 | 1043 => "",
        114 | 3802 => "{}",
        700 | 701 | 1700 => "0.0",
        1082 | 1114 | 1184 => "1970-01-01",
        1083 | 1186 => "00:00:00",
        1560 => "00",
        2950 => "00000000-0000-0000-0000-000000000000",
        _ => return None,
    })
}

/// Returns true if the expression begins with a function call, or is a keyword for the current
/// time.
fn is_generated(expression: &str) -> bool {
    const NOW: [&str; 5] = [
        "current_timestamp",
        "current_time",
        "current_date",
        "localtime",
        "localtimestamp",
    ];
    if NOW.iter().any(|now| expression.eq_ignore_ascii_case(now)) {
        return true;
    }
    let inner = expression.strip_prefix('(').unwrap_or(expression);
    let name = inner.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.')));
    name.is_some_and(|end| {
        let rest = inner.get(end..).unwrap_or_default();
        end > 0 && rest.starts_with('(') && rest.contains(')')
    })
}

/// Returns the text in the first quotes, or the whole expression if it has none.
fn literal(expression: &str) -> String {
    let quoted = expression.split_once('\'').map(|(_, rest)| rest);
    let quoted = quoted.and_then(|rest| Cursor::new(rest).quoted('\''));
    quoted.unwrap_or_else(|| expression.to_owned())
}
