//! Quotes names and strings for SQL and for the replication grammar.
//!
//! A NUL byte cannot be quoted, because no Postgres string can contain one. It is left as it is: a
//! command that contains it is an error when it is queued, so no command is ever cut at it.

/// Quotes a name for SQL and the replication grammar: `"outbox"`, inner quotes doubled.
///
/// The server truncates names longer than 63 bytes, as everywhere in Postgres.
pub fn quote_ident(name: &str) -> String {
    doubled(name, '"')
}

/// Quotes a string constant for SQL, whatever the value of `standard_conforming_strings` is. Text
/// with a backslash becomes an `E'…'` constant, with a space before it so that it cannot join the
/// word before it. The rule is that of libpq's `PQescapeLiteral`.
pub fn quote_literal(text: &str) -> String {
    if text.contains('\\') {
        format!(" E{}", doubled(&text.replace('\\', r"\\"), '\''))
    } else {
        doubled(text, '\'')
    }
}

/// Quotes a string constant for the replication grammar, which has no `E'…'` and no escapes by
/// backslash (`repl_scanner.l`).
pub(crate) fn replication_literal(text: &str) -> String {
    doubled(text, '\'')
}

fn doubled(text: &str, quote: char) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push(quote);
    for character in text.chars() {
        if character == quote {
            quoted.push(quote);
        }
        quoted.push(character);
    }
    quoted.push(quote);
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, quoted) in [
            ("outbox", r#""outbox""#),
            ("", r#""""#),
            (r#"a"b"#, r#""a""b""#),
            (r#"";DROP TABLE x;--"#, r#"""";DROP TABLE x;--""#),
            (r"back\slash'", r#""back\slash'""#),
            ("Größe", r#""Größe""#),
        ] {
            assert_eq!(quote_ident(name), quoted);
        }
    }

    #[test]
    fn strings() {
        for (text, quoted, replication) in [
            ("x", "'x'", "'x'"),
            ("", "''", "''"),
            ("it's", "'it''s'", "'it''s'"),
            (r"\", r" E'\\'", r"'\'"),
            (r"\'; --", r" E'\\''; --'", r"'\''; --'"),
            ("\"q\"", "'\"q\"'", "'\"q\"'"),
        ] {
            assert_eq!(quote_literal(text), quoted);
            assert_eq!(replication_literal(text), replication);
        }
    }

    proptest::proptest! {
        /// A lone quote inside would end the constant early.
        #[test]
        fn quotes_inside_come_in_pairs(text in ".*") {
            for (quoted, quote) in [(quote_ident(&text), '"'), (replication_literal(&text), '\'')] {
                let inner = &quoted[1..quoted.len() - 1];
                let pair: String = [quote, quote].iter().collect();
                proptest::prop_assert_eq!(inner.replace(&pair, &quote.to_string()), text.clone());
                proptest::prop_assert!(!inner.replace(&pair, "").contains(quote));
            }
        }
    }
}
