//! Expands `${NAME}` in string values.

/// Replaces `${NAME}`, where `NAME` is upper case, by the environment's value. `$${` becomes `${`.
///
/// Everything else is kept: `${routedByValue}` belongs to a template, and a lone `$` to the reader
/// of the value. Values of variables are not expanded again. The error is the name of a variable
/// that is not set.
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
            out.push_str(&env(name).ok_or_else(|| name.to_owned())?);
            rest = after;
        } else {
            out.push('$');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// The name at the start of `${NAME}…`, and the text after it.
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
    fn an_unset_name_is_an_error() {
        assert_eq!(expand("x${NO_SUCH}", &env), Err("NO_SUCH".to_owned()));
    }
}
