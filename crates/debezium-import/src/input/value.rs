//! Values of settings: text, and references to environment variables.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::report::Variable;

/// A value, split into literals and references.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Value(Vec<Part>);

#[derive(Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    /// A reference to an environment variable.
    Reference(Variable),
}

/// Shows no value, which may be a secret.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Value(…)")
    }
}

/// Remark of a variable that replaces a configuration provider of Kafka Connect.
const PROVIDER: &str =
    "a configuration provider of Kafka Connect gave it; put the same value into the variable";
/// Remark of a variable whose default in the input is lost.
const DEFAULT: &str =
    "the file has a default for it, and walrelay knows none: set the variable in any case";
/// Remark of a variable that has another name in the input.
const RENAMED: &str = "its name is another one in the file, or it is a property that is not there";

/// Returns the value of another property.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Value {
    /// Creates a value without references.
    pub(crate) fn literal(text: impl Into<String>) -> Self {
        Self(vec![Part::Literal(text.into())])
    }

    /// Creates a value that is one reference.
    pub(crate) fn variable(name: &str) -> Self {
        Self::reference(name, None)
    }

    /// Creates a value that is a reference to the variable of this name, or of the most similar
    /// valid name.
    fn reference(name: &str, remark: Option<&'static str>) -> Self {
        let name = variable_name(name);
        Self(vec![Part::Reference(Variable { name, remark })])
    }

    /// Parses a value of a connector. References to configuration providers contain a colon, such
    /// as `${env:NAME}` and `${file:/path:key}`; `${routedByValue}` has none.
    pub(crate) fn from_connect(key: &str, raw: &str) -> Self {
        Self::scan(key, raw, false, |inside| {
            let (provider, path) = inside.split_once(':')?;
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            match provider {
                "env" => Some(Self::reference(path, renamed(path))),
                _ if provider.is_empty() || !provider.chars().all(plain) => None,
                _ => Some(Self::reference(key, Some(PROVIDER))),
            }
        })
    }

    /// Parses a value of `application.properties`. References are `${NAME}`, `${NAME:default}` and
    /// `${other.property}`, which `property` resolves; `$${` and `\${` stand for `${`.
    pub(crate) fn from_server(key: &str, raw: &str, property: Lookup<'_>) -> Self {
        Self::server(key, raw, property, 8)
    }

    fn server(key: &str, raw: &str, property: Lookup<'_>, depth: usize) -> Self {
        Self::scan(key, raw, true, |inside| {
            let name = inside.split(':').next().unwrap_or_default();
            if name.is_empty() || name == "routedByValue" {
                return None;
            }
            if depth > 0
                && let Some(raw) = property(name)
            {
                return Some(Self::server(key, &raw, property, depth - 1));
            }
            let default = (name != inside).then_some(DEFAULT);
            Some(Self::reference(name, default.or_else(|| renamed(name))))
        })
    }

    /// Replaces each `${…}` by the result of `find` for the text between the braces, if there is
    /// one. With `escapes`, a `$` or a backslash before `${` makes it literal.
    fn scan(key: &str, raw: &str, escapes: bool, find: impl Fn(&str) -> Option<Self>) -> Self {
        let mut value = Self(Vec::new());
        let mut rest = raw;
        while let Some(at) = rest.find("${") {
            let inside = &rest[at + 2..];
            if escapes && rest[..at].ends_with(['$', '\\']) {
                value.push(&rest[..at - 1]);
                value.push("${");
                rest = inside;
                continue;
            }
            value.push(&rest[..at]);
            let found = inside
                .split_once('}')
                .and_then(|(inside, after)| Some((find(inside)?, after)));
            rest = if let Some((found, after)) = found {
                value.extend(found);
                after
            } else {
                value.push("${");
                inside
            };
        }
        value.push(rest);
        if value.0.is_empty() {
            value.0.push(Part::Literal(String::new()));
        }
        value.representable(key)
    }

    fn push(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.0.last_mut() {
            Some(Part::Literal(before)) => before.push_str(text),
            _ => self.0.push(Part::Literal(text.to_owned())),
        }
    }

    fn extend(&mut self, other: Self) {
        for part in other.0 {
            match part {
                Part::Literal(text) => self.push(&text),
                reference @ Part::Reference(_) => self.0.push(reference),
            }
        }
    }

    /// Replaces a value that has a `$` before a reference by one variable, as walrelay's
    /// configuration cannot express that `$`.
    fn representable(self, key: &str) -> Self {
        let dollar =
            |pair: &[Part]| matches!(pair, [Part::Literal(text), _] if text.ends_with('$'));
        if self.0.windows(2).any(dollar) {
            return Self::reference(key, Some("put the whole value into the variable"));
        }
        self
    }

    /// Returns the text, if the value contains no reference.
    pub(crate) fn text(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns true if all variables are used as the input names them.
    pub(crate) fn is_plain(&self) -> bool {
        self.references().all(|variable| variable.remark.is_none())
    }

    /// Returns the environment variables that the value refers to.
    pub(crate) fn references(&self) -> impl Iterator<Item = &Variable> {
        self.0.iter().filter_map(|part| match part {
            Part::Reference(variable) => Some(variable),
            Part::Literal(_) => None,
        })
    }

    /// Writes the value as a string of walrelay's configuration, before the quoting of TOML:
    /// references become `${NAME}`, and text is escaped.
    pub(crate) fn configured(&self) -> String {
        self.join(escape)
    }

    /// Writes the value as [`configured`](Self::configured) does, but text is percent-encoded for a
    /// URL.
    pub(crate) fn in_url(&self) -> String {
        self.join(percent)
    }

    fn join(&self, literal: impl Fn(&str) -> String) -> String {
        let parts = self.0.iter().map(|part| match part {
            Part::Literal(text) => literal(text),
            Part::Reference(variable) => format!("${{{}}}", variable.name),
        });
        parts.collect()
    }
}

/// Returns true if walrelay's configuration reads `${name}` as an environment variable.
fn is_variable(name: &str) -> bool {
    let upper = |c: char| c.is_ascii_uppercase() || c == '_';
    name.starts_with(upper) && name.chars().all(|c| upper(c) || c.is_ascii_digit())
}

fn renamed(name: &str) -> Option<&'static str> {
    (!is_variable(name)).then_some(RENAMED)
}

/// Makes the most similar valid name of a variable. As in Quarkus, letters become upper case, signs
/// `_`.
pub(crate) fn variable_name(name: &str) -> String {
    let sign = |c: char| !c.is_ascii_alphanumeric();
    let name = name.replace(sign, "_").to_ascii_uppercase();
    if is_variable(&name) {
        name
    } else {
        format!("_{name}")
    }
}

/// Escapes `${NAME}` and `$${`, which have a meaning in walrelay's strings.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        out.push_str(&rest[..at]);
        let name = rest[at + 2..].split_once('}').map(|(name, _)| name);
        if out.ends_with('$') || name.is_some_and(is_variable) {
            out.push('$');
        }
        out.push_str("${");
        rest = &rest[at + 2..];
    }
    out.push_str(rest);
    out
}

/// All but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

pub(crate) fn percent(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(value: &Value) -> Vec<&str> {
        value.references().map(|v| v.name.as_str()).collect()
    }

    #[test]
    fn references_of_kafka_connect() {
        let value = Value::from_connect("database.password", "${env:PG_PASS}");
        assert_eq!(value.configured(), "${PG_PASS}");
        let value = Value::from_connect("database.password", "${file:/run/secrets:pw}");
        assert_eq!(value.configured(), "${DATABASE_PASSWORD}");
        assert_eq!(value.references().next().unwrap().remark, Some(PROVIDER));
        let value = Value::from_connect("k", "a-${env:HOST}.b");
        assert_eq!(value.configured(), "a-${HOST}.b");
        let topic = "outbox.event.${routedByValue}";
        assert_eq!(Value::from_connect("k", topic).text(), Some(topic));
        assert_eq!(Value::from_connect("k", "p$w${A}").text(), Some("p$w${A}"));
        // walrelay's configuration cannot express a dollar sign before a reference.
        let value = Value::from_connect("a.b", "x$${env:B}");
        assert_eq!(value.configured(), "${A_B}");
    }

    #[test]
    fn references_of_debezium_server() {
        let none = |_: &str| None;
        let topic = Value::from_server("k", "outbox.event.$${routedByValue}", &none);
        assert_eq!(topic.text(), Some("outbox.event.${routedByValue}"));
        let topic = Value::from_server("k", "outbox.event.\\${routedByValue}", &none);
        assert_eq!(topic.text(), Some("outbox.event.${routedByValue}"));
        let value = Value::from_server("k", "${PG_PASS}", &none);
        assert_eq!(value.configured(), "${PG_PASS}");
        assert_eq!(value.references().next().unwrap().remark, None);
        let value = Value::from_server("k", "${PG_HOST:localhost}", &none);
        assert_eq!(value.configured(), "${PG_HOST}");
        assert_eq!(value.references().next().unwrap().remark, Some(DEFAULT));
        let value = Value::from_server("k", "${db.password}", &none);
        assert_eq!(value.configured(), "${DB_PASSWORD}");
        assert_eq!(value.references().next().unwrap().remark, Some(RENAMED));
        let lookup = |name: &str| (name == "db.host").then(|| "h-${ZONE}".to_owned());
        let value = Value::from_server("k", "${db.host}:5432", &lookup);
        assert_eq!(value.configured(), "h-${ZONE}:5432");
        let itself = |_: &str| Some("${a}".to_owned());
        assert_eq!(variables(&Value::from_server("k", "${a}", &itself)), ["A"]);
        assert_eq!(Value::from_server("k", "$${A}", &none).text(), Some("${A}"));
    }

    #[test]
    fn urls_are_encoded_and_references_are_not() {
        let value = Value::from_connect("k", "p@ß/${env:X}");
        assert_eq!(value.in_url(), "p%40%C3%9F%2F${X}");
    }

    #[test]
    fn debug_shows_no_value() {
        assert_eq!(format!("{:?}", Value::literal("hunter2")), "Value(…)");
    }
}
