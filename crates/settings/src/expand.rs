//! Expands `${NAME}` in string values.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The unreserved characters of RFC 3986 stay as they are, and `:`, which separates user and
/// password.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':');

/// Replaces `${NAME}`, where `NAME` is upper case, by the environment's value. `$${` becomes `${`.
///
/// Everything else is kept: `${routedByValue}` belongs to a template, and a lone `$` to the reader
/// of the value. Values of variables are not expanded again. The error is the name of a variable
/// that is not set.
///
/// Among the credentials of a URL, a value that would end them is percent-encoded (RFC 3986, section
/// 3.2.1): generated passwords have `/`, and a URL without it has no other meaning.
pub fn expand(raw: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$${") {
            out.push_str("${");
            rest = after;
        } else if let Some((name, after)) = variable(rest) {
            let value = env(name).ok_or_else(|| name.to_owned())?;
            if are_credentials(&raw[..raw.len() - rest.len()], after) && ends_credentials(&value) {
                out.extend(utf8_percent_encode(&value, ENCODED));
            } else {
                out.push_str(&value);
            }
            rest = after;
        } else {
            out.push('$');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns true if what stands between the two texts is part of the credentials of a URL.
fn are_credentials(before: &str, after: &str) -> bool {
    let authority = before.split_once("://").map(|(_, authority)| authority);
    let begun = authority.is_some_and(|authority| !authority.contains(['/', '@', '?', '#']));
    begun
        && after
            .split(['/', '?', '#'])
            .next()
            .unwrap_or_default()
            .contains('@')
}

/// Returns true if no URL can have the value among its credentials as it is.
fn ends_credentials(value: &str) -> bool {
    let is_encoded = |rest: &str| {
        let digits = rest.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    value.contains(['/', '@', '?', '#']) || value.split('%').skip(1).any(|rest| !is_encoded(rest))
}

/// Returns the name at the start of `${NAME}…`, and the text after it.
fn variable(text: &str) -> Option<(&str, &str)> {
    let (name, after) = text.strip_prefix("${")?.split_once('}')?;
    let upper = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
    let first = name.bytes().next()?;
    (upper(first)
        && name
            .bytes()
            .all(|byte| upper(byte) || byte.is_ascii_digit()))
    .then_some((name, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "USER" => Some("app".to_owned()),
            "_P4" => Some("a$${USER}b".to_owned()),
            "EMPTY" => Some(String::new()),
            "BASE64" => Some("a+/b@c=?#%é".to_owned()),
            "ENCODED" => Some("a%2Fb".to_owned()),
            "BOTH" => Some("app:a/b".to_owned()),
            "URL" => Some("postgres://app:a%2Fb@db/x?y#z".to_owned()),
            "HOST" => Some("db:5432".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn only_upper_case_names_are_replaced() {
        for (raw, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("a${USER}b${USER}", "aappbapp"),
            ("${EMPTY}", ""),
            (
                "outbox.event.${routedByValue}",
                "outbox.event.${routedByValue}",
            ),
            ("${User}", "${User}"),
            ("${1A}", "${1A}"),
            ("${}", "${}"),
            ("${USER", "${USER"),
            ("$USER", "$USER"),
            ("$", "$"),
            ("$$", "$$"),
            ("$1", "$1"),
            ("ü${USER}ß", "üappß"),
        ] {
            assert_eq!(expand(raw, &env).as_deref(), Ok(expected), "{raw}");
        }
    }

    #[test]
    fn doubled_dollar_escapes() {
        for (raw, expected) in [
            ("$${USER}", "${USER}"),
            ("$$${USER}", "$${USER}"),
            ("$${routedByValue}", "${routedByValue}"),
            ("$${USER}${USER}", "${USER}app"),
        ] {
            assert_eq!(expand(raw, &env).as_deref(), Ok(expected), "{raw}");
        }
    }

    #[test]
    fn values_of_variables_are_not_expanded_again() {
        assert_eq!(expand("${_P4}", &env).as_deref(), Ok("a$${USER}b"));
    }

    #[test]
    fn what_would_end_the_credentials_of_a_url_is_encoded() {
        for (raw, expected) in [
            (
                "postgres://app:${BASE64}@${HOST}/${USER}",
                "postgres://app:a%2B%2Fb%40c%3D%3F%23%25%C3%A9@db:5432/app",
            ),
            (
                "postgres://app:${ENCODED}@db/app",
                "postgres://app:a%2Fb@db/app",
            ),
            ("postgres://${USER}:x@db/app", "postgres://app:x@db/app"),
            ("postgres://${BOTH}@db/app", "postgres://app:a%2Fb@db/app"),
            ("${URL}", "postgres://app:a%2Fb@db/x?y#z"),
            // No credentials: a path, a query, another text.
            ("https://host/${BASE64}@x", "https://host/a+/b@c=?#%é@x"),
            (
                "postgres://db/app?password=${BASE64}",
                "postgres://db/app?password=a+/b@c=?#%é",
            ),
            ("postgres://db/${BOTH}", "postgres://db/app:a/b"),
            ("${BASE64}@x", "a+/b@c=?#%é@x"),
        ] {
            assert_eq!(expand(raw, &env).as_deref(), Ok(expected), "{raw}");
        }
    }

    #[test]
    fn an_unset_name_is_an_error() {
        assert_eq!(expand("x${NO_SUCH}", &env), Err("NO_SUCH".to_owned()));
    }
}
