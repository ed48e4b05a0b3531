//! The columns that the assignments of `UPDATE … SET` change.

/// Returns the columns that these assignments set, as the catalogs name them. Text that is no list of
/// assignments gives fewer: the server refuses it later.
///
/// Grammar: `UPDATE` in the documentation of Postgres. A column stands at the beginning of an assignment,
/// also in parentheses with others.
pub fn assigned_columns(set: &str) -> Vec<String> {
    let mut columns = Vec::new();
    let mut text = Text(set);
    let mut depth = 0_u32;
    let mut begins = true;
    // The parentheses in which columns are listed.
    let mut lists = false;
    while let Some(token) = text.next() {
        match token {
            Token::Name(name) if begins => {
                columns.push(name);
                begins = false;
            }
            Token::Char('(') => {
                depth += 1;
                lists |= begins && depth == 1;
            }
            Token::Char(')') => {
                depth = depth.saturating_sub(1);
                lists = false;
                begins = false;
            }
            Token::Char('[') => {
                depth += 1;
                begins = false;
            }
            Token::Char(']') => depth = depth.saturating_sub(1),
            Token::Char(',') => begins = depth == 0 || lists,
            // `ROW (…)` and the like stand behind the equals sign only.
            Token::Name(_) | Token::Char(_) => begins = false,
        }
    }
    columns
}

/// Returns true if `value` stands in a literal or a quoted name of these assignments, where it would be text.
pub(crate) fn is_quoted(set: &str, value: &str) -> bool {
    let mut text = Text(set);
    loop {
        text.skip();
        let before = text.0;
        if text.next().is_none() {
            return false;
        }
        let (token, _) = before.split_at(before.len() - text.0.len());
        if token.contains(value) {
            return true;
        }
    }
}

enum Token {
    /// An identifier, as the catalogs have it.
    Name(String),
    /// Another character that is not in a literal, a comment or a space.
    Char(char),
}

/// The rest of a text of SQL.
struct Text<'a>(&'a str);

impl Text<'_> {
    fn next(&mut self) -> Option<Token> {
        self.skip();
        let first = self.0.chars().next()?;
        Some(if first == '\'' {
            self.quoted('\'');
            Token::Char('\'')
        } else if first == '"' {
            Token::Name(self.quoted('"'))
        } else if let Some(tag) = self.dollar_tag() {
            let body = &self.0[tag.len()..];
            self.0 = body.split_once(tag).map_or("", |(_, rest)| rest);
            Token::Char('$')
        } else if first.is_alphabetic() || first == '_' {
            let is_other = |c: char| !(c.is_alphanumeric() || matches!(c, '_' | '$'));
            let end = self.0.find(is_other).unwrap_or(self.0.len());
            let (name, rest) = self.0.split_at(end);
            self.0 = rest;
            Token::Name(name.to_lowercase())
        } else {
            self.0 = &self.0[first.len_utf8()..];
            Token::Char(first)
        })
    }

    /// Passes over spaces and comments.
    fn skip(&mut self) {
        loop {
            self.0 = self.0.trim_start();
            if self.0.starts_with("--") {
                self.0 = self.0.split_once('\n').map_or("", |(_, rest)| rest);
            } else if self.0.starts_with("/*") {
                self.0 = self.0.split_once("*/").map_or("", |(_, rest)| rest);
            } else {
                return;
            }
        }
    }

    /// Passes over a text in quotes, in which two quotes stand for one. Returns it.
    fn quoted(&mut self, quote: char) -> String {
        let mut text = String::new();
        let mut chars = self.0.char_indices().skip(1).peekable();
        while let Some((at, char)) = chars.next() {
            if char != quote {
                text.push(char);
            } else if chars.next_if(|(_, next)| *next == quote).is_some() {
                text.push(quote);
            } else {
                self.0 = &self.0[at + quote.len_utf8()..];
                return text;
            }
        }
        self.0 = "";
        text
    }

    /// Returns the tag at the front, such as `$$` or `$body$`.
    fn dollar_tag(&self) -> Option<&str> {
        let rest = self.0.strip_prefix('$')?;
        let end = rest.find('$')?;
        let is_tag = rest[..end].chars().all(|c| c.is_alphanumeric() || c == '_')
            && !rest.starts_with(|c: char| c.is_ascii_digit());
        is_tag.then(|| &self.0[..end + 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_a_literal_is_text() {
        for (set, expected) in [
            ("last_error = {error}", false),
            ("last_error = 'failed: ' || {error}", false),
            (
                "a = 'it''s', last_error = left({error}, 9) -- '{error}'",
                false,
            ),
            ("/* '{error}' */ last_error = {error}", false),
            ("last_error = '{error}'", true),
            ("last_error = 'failed: {error}'", true),
            ("last_error = 'it''s {error} here'", true),
            ("last_error = $$failed: {error}$$", true),
            ("last_error = $t$ {error} $t$", true),
            ("last_error = E'{error}\\n'", true),
            ("\"last {error}\" = 1", true),
        ] {
            assert_eq!(is_quoted(set, "{error}"), expected, "{set}");
        }
    }

    #[test]
    fn columns_stand_at_the_beginning_of_an_assignment() {
        for (set, expected) in [
            ("status = 'SENT'", &["status"][..]),
            (
                "status = 'a, b = 1', sent_at = now()",
                &["status", "sent_at"],
            ),
            (
                "STATUS = 'it''s, x = 2', \"Sent At\" = 1",
                &["status", "Sent At"],
            ),
            (
                "(a, b) = (SELECT c, d FROM e), f = (1, g)",
                &["a", "b", "f"],
            ),
            ("a = CASE WHEN b = 1 THEN c ELSE coalesce(d, e) END", &["a"]),
            (
                "-- x = 1,\n a /* , y = */ = $$, z = $$, b = $t$ ' $t$",
                &["a", "b"],
            ),
            ("a[1] = b, c.d = e", &["a", "c"]),
            ("a = ARRAY[b, c], d = 1", &["a", "d"]),
            ("", &[]),
            ("'", &[]),
            ("\"a", &["a"]),
            ("$1", &[]),
        ] {
            assert_eq!(assigned_columns(set), expected, "{set}");
        }
    }
}
