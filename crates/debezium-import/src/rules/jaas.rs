//! Parses `sasl.jaas.config`: `Module required name="value" …;`.

/// The credentials that a login module authenticates with.
#[derive(PartialEq, Eq)]
pub(super) enum Login {
    /// PLAIN and SCRAM: user name and password.
    Password(Option<String>, Option<String>),
    /// Tokens, by OAUTHBEARER.
    Tokens,
    /// Kerberos, or another module.
    Other,
}

/// Parses a login module; `None` if the text is not one.
pub(super) fn login(text: &str) -> Option<Login> {
    let mut words = Words { rest: text.trim() };
    let class = words.word()?;
    let flag = words.word()?;
    let flags = ["required", "requisite", "sufficient", "optional"];
    flags
        .iter()
        .find(|known| flag.eq_ignore_ascii_case(known))?;
    let mut options = Vec::new();
    loop {
        words.skip();
        if words.rest.is_empty() || words.rest.starts_with(';') {
            break;
        }
        let name = words.word()?;
        words.skip();
        words.rest = words.rest.strip_prefix('=')?;
        let value = words.word()?;
        options.push((name, value));
    }
    let mut take = |name: &str| {
        let at = options.iter().position(|(known, _)| known == name)?;
        Some(options.swap_remove(at).1)
    };
    Some(match class.rsplit('.').next().unwrap_or_default() {
        "PlainLoginModule" | "ScramLoginModule" => {
            Login::Password(take("username"), take("password"))
        }
        "OAuthBearerLoginModule" => Login::Tokens,
        _ => Login::Other,
    })
}

struct Words<'a> {
    rest: &'a str,
}

impl Words<'_> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Takes a word, bare or in quotes. In quotes a backslash escapes the next character.
    fn word(&mut self) -> Option<String> {
        self.skip();
        let mut chars = self.rest.chars();
        let quote = chars.next()?;
        if !matches!(quote, '"' | '\'') {
            let ends = |c: char| c.is_whitespace() || matches!(c, '=' | ';');
            let end = self.rest.find(ends).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest;
            return (end > 0).then(|| word.to_owned());
        }
        let mut word = String::new();
        loop {
            match chars.next()? {
                c if c == quote => break,
                '\\' => word.push(chars.next()?),
                c => word.push(c),
            }
        }
        self.rest = chars.as_str();
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(text: &str) -> (Option<String>, Option<String>) {
        match login(text) {
            Some(Login::Password(username, password)) => (username, password),
            _ => panic!("no password in {text}"),
        }
    }

    #[test]
    fn user_and_password() {
        let some = |text: &str| Some(text.to_owned());
        for text in [
            r#"org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p;=\"x";"#,
            r#"org.apache.kafka.common.security.plain.PlainLoginModule REQUIRED
               serviceName=kafka password = 'p;="x' username=u ;"#,
        ] {
            assert_eq!(password(text), (some("u"), some("p;=\"x")));
        }
        let text = "a.PlainLoginModule required username=u password=${PW}";
        assert_eq!(password(text), (some("u"), some("${PW}")));
        assert_eq!(password("a.PlainLoginModule required;"), (None, None));
    }

    #[test]
    fn other_modules_and_other_texts() {
        let tokens = "x.OAuthBearerLoginModule required;";
        assert!(matches!(login(tokens), Some(Login::Tokens)));
        let kerberos = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;";
        assert!(matches!(login(kerberos), Some(Login::Other)));
        for text in [
            "",
            "x",
            "x maybe",
            "x required a",
            "x required a=",
            "x required a=\"b",
        ] {
            assert!(login(text).is_none(), "{text}");
        }
    }
}
