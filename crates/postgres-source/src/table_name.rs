//! Names of tables in SQL's notation. Ambiguous names are refused.

use walrelay_relay::TableName;
use walrelay_walsender::quote_ident;

/// Bytes of the longest identifier: Postgres silently truncates longer ones (`NAMEDATALEN` - 1).
pub const MAX_IDENTIFIER_BYTES: usize = 63;

/// Parses `schema.table`, or `table` in schema `public`. Parts that are not plain lower-case names
/// are written in double quotes, with `""` for a quote: `"My Schema"."Tab"`.
///
/// The error says what is wrong. Upper-case letters without quotes are refused: SQL would fold them
/// to lower case, which is rarely meant.
pub fn parse(text: &str) -> Result<TableName, String> {
    let (first, rest) = part(text)?;
    let (schema, name, rest) = match rest.strip_prefix('.') {
        Some(rest) => {
            let (second, rest) = part(rest)?;
            (first, second, rest)
        }
        None => ("public".to_owned(), first, rest),
    };
    if rest.is_empty() {
        Ok(TableName { schema, name })
    } else if rest.starts_with('.') {
        Err("a table has two parts, schema.table".to_owned())
    } else {
        Err("names with blanks or signs are written in double quotes".to_owned())
    }
}

/// Writes a name as [`parse`] reads it: with quotes where they are needed.
pub fn written(table: &TableName) -> String {
    let part = |name: &str| match plain(name) {
        Ok((_, "")) => name.to_owned(),
        _ => quote_ident(name),
    };
    format!("{}.{}", part(&table.schema), part(&table.name))
}

/// The name that stands for all tables of a schema, as in `schema.*`.
pub const ALL: &str = "*";

/// Parses `schema.*`, whose name is [`ALL`], or as [`parse`] does.
pub fn parse_or_all(text: &str) -> Result<TableName, String> {
    match text.strip_suffix(".*").map(part) {
        Some(Ok((schema, ""))) => Ok(TableName::new(schema, ALL)),
        Some(Err(why)) => Err(why),
        _ => parse(text),
    }
}

/// Parses one identifier. Returns it with the rest of the text.
fn part(text: &str) -> Result<(String, &str), String> {
    let (name, rest) = match text.strip_prefix('"') {
        Some(inside) => quoted(inside)?,
        None => plain(text)?,
    };
    identifier(&name)?;
    Ok((name, rest))
}

/// Checks that a name is a valid identifier.
fn identifier(name: &str) -> Result<(), String> {
    if name.is_empty() {
        Err("a name must not be empty".to_owned())
    } else if name.contains('\0') {
        Err("a name must not contain a zero byte".to_owned())
    } else if name.len() > MAX_IDENTIFIER_BYTES {
        Err(format!(
            "a name has at most {MAX_IDENTIFIER_BYTES} bytes in Postgres"
        ))
    } else {
        Ok(())
    }
}

/// Returns the value of a key that is an identifier.
pub fn owned_identifier(name: &str) -> Result<String, String> {
    identifier(name).map(|()| name.to_owned())
}

/// Parses the text up to the closing quote, and unescapes doubled quotes. Returns it with the rest
/// of the text.
pub fn quoted(inside: &str) -> Result<(String, &str), String> {
    let mut name = String::new();
    let mut rest = inside;
    loop {
        let Some((before, after)) = rest.split_once('"') else {
            return Err("a double quote is not closed".to_owned());
        };
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None => return Ok((name, after)),
        }
    }
}

/// Parses an identifier without quotes. Returns it with the rest of the text.
fn plain(text: &str) -> Result<(String, &str), String> {
    let ends = |c: char| !(c.is_alphanumeric() || c == '_' || c == '$');
    let (name, rest) = text.split_at(text.find(ends).unwrap_or(text.len()));
    if name.chars().any(char::is_uppercase) {
        return Err(
            "a name with upper-case letters is written in double quotes: '\"Name\"'".to_owned(),
        );
    }
    if name.starts_with(|c: char| c.is_numeric() || c == '$') {
        return Err("a name that starts with a digit or $ is written in double quotes".to_owned());
    }
    if name.is_empty() && !rest.is_empty() && !rest.starts_with('.') {
        return Err("names with blanks or signs are written in double quotes".to_owned());
    }
    Ok((name.to_owned(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_sql_writes_them() {
        for (text, schema, name) in [
            ("public.outbox", "public", "outbox"),
            ("outbox", "public", "outbox"),
            ("\"My Schema\".\"Tab\"", "My Schema", "Tab"),
            ("app.\"a.b\"", "app", "a.b"),
            ("app.\"a\"\"b\"", "app", "a\"b"),
            ("größe.t$1", "größe", "t$1"),
        ] {
            let table = parse(text).unwrap();
            assert_eq!((table.schema.as_str(), table.name.as_str()), (schema, name));
            assert_eq!(parse(&written(&table)), Ok(table));
        }
        assert_eq!(
            written(&TableName::new("public", "outbox")),
            "public.outbox"
        );
    }

    #[test]
    fn all_tables_of_a_schema_are_named_by_a_star() {
        for (text, schema, name) in [
            ("app.*", "app", ALL),
            ("\"A.b\".*", "A.b", ALL),
            ("app.x", "app", "x"),
        ] {
            let table = parse_or_all(text).unwrap();
            assert_eq!((table.schema.as_str(), table.name.as_str()), (schema, name));
        }
        for text in ["*", ".*", "a.b.*", "A.*", "a.*b"] {
            assert!(parse_or_all(text).is_err(), "{text}");
        }
    }

    #[test]
    fn doubtful_names_are_refused() {
        let long = "a".repeat(64);
        for text in [
            "",
            ".",
            "a.",
            ".a",
            "a.b.c",
            "a b",
            "Public.outbox",
            "a.Outbox",
            "\"a",
            "\"\"",
            "a.\"\"",
            "\"a\"b",
            "a-b",
            "1a",
            "$a",
            "a.b ",
            " a",
            "a;b",
            "\"a\0\"",
            &long,
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
