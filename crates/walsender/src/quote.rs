//! Quoting of names and strings for the two grammars a server speaks.
//!
//! A NUL byte cannot be quoted, because no Postgres string can hold one; it is left as it is, and
//! the protocol refuses to carry a command that contains it, so nothing is ever cut short at it.

/// A name as SQL and the replication grammar take it: `"outbox"`, inner quotes doubled.
///
/// Names longer than 63 bytes are cut by the server, as they are everywhere in Postgres.
pub fn quote_ident(name: &str) -> String {
    doubled(name, '"')
}

/// A string constant for SQL, right whatever `standard_conforming_strings` says: text with a
/// backslash becomes an `E'…'` constant, with a space before it so that it cannot join the word
/// in front. The same rule as libpq's `PQescapeLiteral`.
pub fn quote_literal(text: &str) -> String {
    if text.contains('\\') {
        format!(" E{}", doubled(&text.replace('\\', r"\\"), '\''))
    } else {
        doubled(text, '\'')
    }
}

/// A string constant for the replication grammar, which knows no `E'…'` and takes a backslash as
/// it stands (`repl_scanner.l`).
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
        /// What is quoted ends where the quoting ends: no lone quote is left inside.
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
