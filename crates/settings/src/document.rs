//! [`Document`]: reads TOML and `--set` into a flat map of known keys, each with its place.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{Location, Problem};
use crate::excerpt::FileText;
use crate::expand::expand;
use crate::keys::{Keys, ValueKind};

/// A value, with environment variables expanded.
#[derive(Clone, PartialEq)]
#[expect(missing_debug_implementations, reason = "a value may be a secret")]
pub enum Value {
    /// A string.
    Text(String),
    /// A boolean.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// An integer beyond 64 bits.
    TooLarge,
    /// A float as written.
    Float(String),
    /// Items with their spans in the file. The spans of an override are meaningless.
    List(Vec<(Value, Range<usize>)>),
    /// A date or a table, by the name of the type with its article.
    Other(&'static str),
    /// A problem with this value was noted, so no other is noted.
    Broken,
}

impl Value {
    fn from_toml(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Boolean(value) => Value::Bool(*value),
            DeValue::Integer(integer) => {
                let digits = integer.as_str().replace('_', "");
                i64::from_str_radix(&digits, integer.radix())
                    .map_or(Value::TooLarge, Value::Integer)
            }
            DeValue::Float(float) => Value::Float(float.as_str().to_owned()),
            DeValue::Array(items) => Value::List(
                items
                    .iter()
                    .map(|item| (Value::from_toml(item.get_ref()), item.span()))
                    .collect(),
            ),
            DeValue::Datetime(_) => Value::Other("a date"),
            DeValue::Table(_) => Value::Other("a table"),
        }
    }

    /// Returns the text of a string, number or boolean.
    pub fn scalar(&self) -> Option<String> {
        match self {
            Value::Text(text) | Value::Float(text) => Some(text.clone()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Integer(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

/// The place from which an entry was read.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    /// The span of the value in the file.
    File(Range<usize>),
    /// The argument on the command line, without a secret value.
    Set(String),
}

impl Origin {
    /// Returns the origin of a part of the value, such as an item of its list.
    #[must_use]
    pub fn part(&self, span: &Range<usize>) -> Self {
        match self {
            Origin::File(_) => Origin::File(span.clone()),
            Origin::Set(_) => self.clone(),
        }
    }
}

/// The value of a key, and where it was read.
#[derive(Clone, PartialEq)]
#[expect(missing_debug_implementations, reason = "a value may be a secret")]
pub struct Entry {
    /// The value.
    pub value: Value,
    /// Where it was read.
    pub origin: Origin,
}

impl Entry {
    /// Creates an entry with a key's default.
    pub fn from_default(path: &str, kind: &ValueKind, default: &str) -> Self {
        Self {
            value: set_value(kind, default).unwrap_or(Value::Broken),
            origin: Origin::Set(format!("the default of {path}")),
        }
    }
}

/// Returns the array that begins on a line before `at` and is open there, if the line at `at` is no
/// element of an array: a header, or a key with its value. The parser reports that line, which is
/// right.
fn unclosed_array(text: &str, at: usize) -> Option<usize> {
    let start = text.get(..at)?.rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[start..]
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start();
    let is_element = line.starts_with(['"', '\'', '{']) && !line.contains("\" = ");
    if is_element || !(line.starts_with('[') || line.contains('=') || line.is_empty()) {
        return None;
    }
    let mut open = Vec::new();
    let mut rest = &text[..start];
    while let Some(next) = rest.find(['[', ']', '#', '"', '\'']) {
        let position = start - rest.len() + next;
        let token = &rest[next..];
        let length = match token.as_bytes() {
            [b'[', ..] => {
                open.push(position);
                1
            }
            [b']', ..] => {
                open.pop();
                1
            }
            [b'#', ..] => token.find('\n').unwrap_or(token.len()),
            _ => string_length(token),
        };
        rest = &token[length..];
    }
    open.pop()
}

/// Returns the length of the string that the text begins with, with its quotes.
fn string_length(text: &str) -> usize {
    let quote = &text[..1];
    let triple = quote.repeat(3);
    let end = if text.starts_with(&triple) {
        &triple
    } else {
        quote
    };
    let escapes = quote == "\"";
    let mut at = end.len();
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with(end) {
            return at + end.len();
        }
        let escaped = usize::from(escapes && rest.starts_with('\\'));
        let length = rest
            .chars()
            .take(1 + escaped)
            .map(char::len_utf8)
            .sum::<usize>();
        at += length;
    }
    text.len()
}

/// The entries of the file and the command line, and the problems found.
pub(crate) struct Document<'a> {
    pub source: FileText<'a>,
    pub keys: &'a Keys,
    /// Entries by the path of their key.
    pub entries: BTreeMap<String, Entry>,
    pub problems: Vec<Problem>,
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Document<'a> {
    pub(crate) fn read(
        source: FileText<'a>,
        keys: &'a Keys,
        overrides: &[String],
        env: &'a dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let mut document = Document {
            source,
            keys,
            entries: BTreeMap::new(),
            problems: Vec::new(),
            env,
        };
        for argument in overrides {
            document.set(argument);
        }
        match DeTable::parse(source.text) {
            Ok(root) => document.table("", root.get_ref()),
            Err(error) => {
                let span = error.span().unwrap_or(0..0);
                let (span, message) = match unclosed_array(source.text, span.start) {
                    Some(at) => (at..at + 1, "the array that begins here is not closed"),
                    None => (span, error.message()),
                };
                let what = format!("not valid TOML: {message}");
                document.problems.push(Problem {
                    excerpt: source.excerpt_of_syntax(&span),
                    ..Problem::new("config-syntax", source.place(span.start), what)
                });
            }
        }
        document
    }

    /// Notes a problem with an entry, or with a part of it.
    pub(crate) fn note(
        &mut self,
        origin: &Origin,
        id: &'static str,
        what: String,
        help: Option<String>,
    ) {
        let (place, excerpt) = match origin {
            Origin::File(span) => (self.source.place(span.start), self.source.excerpt(span)),
            Origin::Set(argument) => {
                let argument = argument.clone();
                (Location::Set { argument }, None)
            }
        };
        self.problems.push(Problem {
            excerpt,
            help,
            ..Problem::new(id, place, what)
        });
    }

    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        // The parser sorts keys by name. Problems are reported from top to bottom.
        let mut rows: Vec<_> = table.iter().collect();
        rows.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in rows {
            let path = self.keys.joined(prefix, name.get_ref());
            let is_section = self.keys.is_prefix(&path);
            let is_free = self.keys.open_around(&path).is_some();
            let origin = Origin::File(name.span());
            match value.get_ref() {
                DeValue::Table(inner) if is_free || is_section => self.table(&path, inner),
                _ if is_free || self.keys.find(&path).is_some() => {
                    self.take(&path, &origin, value);
                }
                _ if is_section => {
                    let what = format!("`{path}` is a section, not a value");
                    let help = format!("write [{path}] on a line of its own, its keys below");
                    self.note(&origin, "config-wrong-type", what, Some(help));
                }
                _ => {
                    let what = format!("unknown key `{path}`");
                    let place = self.source.place(name.span().start);
                    self.problems.push(Problem {
                        excerpt: self.source.excerpt_of_key(&name.span()),
                        help: Some(self.keys.help_for_unknown(&path)),
                        ..Problem::new("config-unknown-key", place, what)
                    });
                }
            }
        }
    }

    /// Inserts an entry of the file, unless an override replaces it.
    fn take(&mut self, path: &str, key: &Origin, value: &Spanned<DeValue<'_>>) {
        let same = self.entries.get(path).or_else(|| {
            let partner = self.entries.get(&partner(path));
            partner.filter(|entry| matches!(entry.origin, Origin::Set(_)))
        });
        match same.map(|entry| &entry.origin) {
            Some(Origin::Set(_)) => {}
            Some(Origin::File(_)) => {
                let what = format!("`{path}` is set twice, once with quotes and once without");
                self.note(key, "config-duplicate-key", what, None);
            }
            None => self.insert(
                path,
                Value::from_toml(value.get_ref()),
                Origin::File(value.span()),
            ),
        }
    }

    fn insert(&mut self, path: &str, value: Value, origin: Origin) {
        let value = self.expanded(value, &origin);
        let entry = Entry { value, origin };
        self.entries.insert(path.to_owned(), entry);
    }

    /// Expands the environment variables of a value.
    fn expanded(&mut self, value: Value, origin: &Origin) -> Value {
        let name = match value {
            Value::Text(text) => match expand(&text, self.env) {
                Ok(text) => return Value::Text(text),
                Err(name) => name,
            },
            Value::List(items) => {
                let items = items.into_iter();
                let expanded =
                    items.map(|(item, span)| (self.expanded(item, &origin.part(&span)), span));
                return Value::List(expanded.collect());
            }
            other => return other,
        };
        let variable = format!("${{{name}}}");
        let mut origin = origin.clone();
        if let Origin::File(span) = &mut origin {
            // Escapes shift offsets, so the variable is searched in the text as written.
            let written = self.source.text.get(span.clone()).unwrap_or_default();
            if let Some(at) = written.find(&variable) {
                let start = span.start + at;
                *span = start..start + variable.len();
            }
        }
        let what = format!("the environment variable {name} is not set");
        let help = format!("set {name}, or write `$${{{name}}}` if the text itself is meant");
        self.note(&origin, "config-env-unset", what, Some(help));
        Value::Broken
    }

    /// Reads one `--set key=value`.
    fn set(&mut self, argument: &str) {
        let (path, text) = argument.split_once('=').unwrap_or((argument, ""));
        let path = &self.keys.unquoted(path.trim());
        let hidden = Origin::Set(format!("--set {path}=…"));
        let origin = if self.keys.is_secret(path) {
            hidden.clone()
        } else {
            Origin::Set(format!("--set {argument}"))
        };
        if !argument.contains('=') || path.is_empty() {
            let what = "an override has the form key=value".to_owned();
            let help = Some("for example: --set source.slot=walrelay".to_owned());
            self.note(&origin, "config-override", what, help);
            return;
        }
        let Some(kind) = self.keys.kind(path) else {
            // The value of an unknown key may be a password.
            let help = Some(self.keys.help_for_unknown(path));
            let what = format!("unknown key `{path}`");
            self.note(&hidden, "config-unknown-key", what, help);
            return;
        };
        let value = set_value(&kind, text).unwrap_or_else(|what| {
            self.note(&origin, "config-override", what, None);
            Value::Broken
        });
        // The last override of a key or of its file takes precedence.
        self.entries.remove(&partner(path));
        self.insert(path, value, origin);
    }
}

/// Returns the key that names the same value: `url_file` for `url`, and the other way round. An
/// override of one replaces the other.
fn partner(path: &str) -> String {
    match path.strip_suffix("_file") {
        Some(base) => base.to_owned(),
        None => format!("{path}_file"),
    }
}

/// Reads the value of an override: bare text if the key takes a string, TOML otherwise.
fn set_value(kind: &ValueKind, text: &str) -> Result<Value, String> {
    let quoted = text.starts_with(['"', '\'']);
    if *kind == ValueKind::Template && text == "false" {
        return Ok(Value::Bool(false));
    }
    let wants_text = !matches!(
        kind,
        ValueKind::Bool | ValueKind::Integer { .. } | ValueKind::TextList
    );
    let is_list = *kind == ValueKind::Names && text.starts_with('[');
    if wants_text && !quoted && !is_list {
        return Ok(Value::Text(text.to_owned()));
    }
    match DeValue::parse(text) {
        Ok(value) => Ok(Value::from_toml(value.get_ref())),
        Err(error) if quoted || text.starts_with('[') => {
            Err(format!("not a TOML value: {}", error.message()))
        }
        Err(_) if *kind == ValueKind::TextList => {
            Ok(Value::List(vec![(Value::Text(text.to_owned()), 0..0)]))
        }
        Err(_) => Ok(Value::Text(text.to_owned())),
    }
}
