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

/// Quotes a text, such as the body of a function, between `$tag$` and `$tag$`. If the text would end
/// such a constant early, a number is appended to the tag.
///
/// Source: the documentation of SQL, "Dollar-Quoted String Constants": nothing inside is changed or
/// escaped.
pub fn dollar_quoted(tag: &str, text: &str) -> String {
    let mut delimiter = format!("${tag}$");
    let mut number = 1;
    // The text may also end in the first characters of the delimiter.
    while format!("{text}{delimiter}").find(&delimiter) != Some(text.len()) {
        number += 1;
        delimiter = format!("${tag}{number}$");
    }
    format!("{delimiter}{text}{delimiter}")
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

    #[test]
    fn a_text_between_dollars_cannot_end_itself() {
        for (text, quoted) in [
            ("x", "$do$x$do$"),
            ("", "$do$$do$"),
            ("'$do'", "$do$'$do'$do$"),
            ("a $do$ b", "$do2$a $do$ b$do2$"),
            ("$do$ $do2$", "$do3$$do$ $do2$$do3$"),
            ("ends in $do", "$do2$ends in $do$do2$"),
            ("ends in $", "$do$ends in $$do$"),
        ] {
            assert_eq!(dollar_quoted("do", text), quoted);
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
