//! From TOML and `--set` to a flat map of known keys, with the place of each.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Place, Problem};
use super::excerpt::SourceText;
use super::expand;
use super::keys::{self, Keys, Kind};

/// A value, environment put in.
#[derive(Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Bool(bool),
    Integer(i64),
    /// An integer beyond 64 bits.
    TooLarge,
    /// As written.
    Float(String),
    /// With the span of each item, which means something in the file only.
    List(Vec<(Value, Range<usize>)>),
    /// A date or a table, by its name.
    Other(&'static str),
    /// A problem was noted already; nothing more is said about this value.
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

    /// What it is, for messages.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Text(_) => "a string",
            Value::Bool(_) => "a boolean",
            Value::Integer(_) | Value::TooLarge => "an integer",
            Value::Float(_) => "a float",
            Value::List(_) => "a list",
            Value::Other(name) => name,
            Value::Broken => "broken",
        }
    }

    /// The text of a string, number or boolean.
    pub(super) fn scalar(&self) -> Option<String> {
        match self {
            Value::Text(text) | Value::Float(text) => Some(text.clone()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Integer(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

/// Where an entry came from.
#[derive(Clone, PartialEq)]
pub(super) enum Origin {
    /// The span of the value in the file.
    File(Range<usize>),
    /// The argument, as it may be shown.
    Set(String),
}

#[derive(Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) value: Value,
    pub(super) origin: Origin,
}

impl Entry {
    pub(super) fn of_default(path: &str, kind: &Kind, default: &str) -> Self {
        Self {
            value: set_value(kind, default).unwrap_or(Value::Broken),
            origin: Origin::Set(format!("the default of {path}")),
        }
    }
}

/// The entries of the file and the command line.
pub(super) struct Document<'a> {
    pub(super) source: SourceText<'a>,
    pub(super) keys: &'a Keys,
    /// By the path of the key.
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) problems: Vec<Problem>,
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Document<'a> {
    pub(super) fn read(
        source: SourceText<'a>,
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
                let what = format!("not valid TOML: {}", error.message());
                document.problems.push(Problem {
                    excerpt: source.excerpt_of_syntax(&span),
                    ..Problem::new("config-syntax", source.place(span.start), what)
                });
            }
        }
        document
    }

    /// Notes a problem with an entry, or with an item of its list.
    pub(super) fn note(
        &mut self,
        origin: &Origin,
        item: Option<&Range<usize>>,
        id: &'static str,
        what: String,
        help: Option<String>,
    ) {
        let (place, excerpt) = match origin {
            Origin::File(span) => {
                let span = item.unwrap_or(span);
                (self.source.place(span.start), self.source.excerpt(span))
            }
            Origin::Set(argument) => {
                let argument = argument.clone();
                (Place::Set { argument }, None)
            }
        };
        self.problems.push(Problem {
            excerpt,
            help,
            ..Problem::new(id, place, what)
        });
    }

    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        // The parser sorts keys by name; people read from top to bottom.
        let mut rows: Vec<_> = table.iter().collect();
        rows.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in rows {
            let path = joined(prefix, name.get_ref());
            let is_section = self.keys.is_prefix(&path);
            let is_free = keys::is_free(&path);
            let origin = Origin::File(name.span());
            match value.get_ref() {
                DeValue::Table(inner) if is_free || is_section => self.table(&path, inner),
                _ if is_free || self.keys.find(&path).is_some() => {
                    self.take(&path, &origin, value);
                }
                _ if is_section => {
                    let what = format!("`{path}` is a section, not a value");
                    let help = format!("write [{path}] on a line of its own, its keys below");
                    self.note(&origin, None, "config-wrong-type", what, Some(help));
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

    fn take(&mut self, path: &str, key: &Origin, value: &Spanned<DeValue<'_>>) {
        let mut same = self.entries.get(path);
        if same.is_none() {
            // `--set source.url=…` stands in for `url_file` of the file, and the other way round.
            let partner = match path.strip_suffix("_file") {
                Some(base) => base.to_owned(),
                None => format!("{path}_file"),
            };
            same = self
                .entries
                .get(&partner)
                .filter(|entry| matches!(entry.origin, Origin::Set(_)));
        }
        match same.map(|entry| &entry.origin) {
            Some(Origin::Set(_)) => {}
            Some(Origin::File(_)) => {
                let what = format!("`{path}` is set twice, once with quotes and once without");
                self.note(key, None, "config-duplicate-key", what, None);
            }
            None => self.insert(
                path,
                Value::from_toml(value.get_ref()),
                Origin::File(value.span()),
            ),
        }
    }

    fn insert(&mut self, path: &str, value: Value, origin: Origin) {
        let value = self.expanded(value, &origin, None);
        let entry = Entry { value, origin };
        self.entries.insert(path.to_owned(), entry);
    }

    /// The value with environment variables put in.
    fn expanded(&mut self, value: Value, origin: &Origin, item: Option<&Range<usize>>) -> Value {
        let name = match value {
            Value::Text(text) => match expand::expand(&text, self.env) {
                Ok(text) => return Value::Text(text),
                Err(unset) => unset.name,
            },
            Value::List(items) => {
                let items = items.into_iter();
                let expanded =
                    items.map(|(item, span)| (self.expanded(item, origin, Some(&span)), span));
                return Value::List(expanded.collect());
            }
            other => return other,
        };
        let variable = format!("${{{name}}}");
        let place = match (item, origin) {
            (Some(span), _) | (None, Origin::File(span)) => {
                // Escapes shift offsets, so the name is looked for in the text as written.
                let written = self.source.text.get(span.clone()).unwrap_or_default();
                written.find(&variable).map(|at| {
                    let start = span.start + at;
                    start..start + variable.len()
                })
            }
            (None, Origin::Set(_)) => None,
        };
        let what = format!("the environment variable {name} is not set");
        let help = format!("set {name}, or write `$${{{name}}}` if the text itself is meant");
        self.note(
            origin,
            place.as_ref().or(item),
            "config-env-unset",
            what,
            Some(help),
        );
        Value::Broken
    }

    /// One `--set key=value`.
    fn set(&mut self, argument: &str) {
        let (path, text) = argument.split_once('=').unwrap_or((argument, ""));
        let path = &unquoted(path.trim());
        let hidden = Origin::Set(format!("--set {path}=…"));
        let origin = if self.keys.is_secret(path) {
            hidden.clone()
        } else {
            Origin::Set(format!("--set {argument}"))
        };
        if !argument.contains('=') || path.is_empty() {
            let what = "an override has the form key=value".to_owned();
            let help = Some("for example: --set source.slot=walrelay".to_owned());
            self.note(&origin, None, "config-override", what, help);
            return;
        }
        let Some(kind) = self.keys.kind(path) else {
            // The value of an unknown key may be anything, a password too.
            let help = Some(self.keys.help_for_unknown(path));
            let what = format!("unknown key `{path}`");
            self.note(&hidden, None, "config-unknown-key", what, help);
            return;
        };
        let value = set_value(&kind, text).unwrap_or_else(|what| {
            self.note(&origin, None, "config-override", what, None);
            Value::Broken
        });
        // The last override of a key, or of its file, counts.
        match path.strip_suffix("_file") {
            Some(base) => self.entries.remove(base),
            None => self.entries.remove(&format!("{path}_file")),
        };
        self.insert(path, value, origin);
    }
}

/// The path of a key. In the section of a value's members a dot leads into an object, so that names
/// with dots are quoted there; elsewhere they mean the same with quotes and without.
fn joined(prefix: &str, name: &str) -> String {
    let members = prefix == keys::MEMBERS || keys::below(prefix, keys::MEMBERS).is_some();
    if members && (name.is_empty() || name.contains(['.', '"'])) {
        format!("{prefix}.\"{}\"", name.replace('"', "\"\""))
    } else if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}.{name}")
    }
}

/// The path of an override. Quotes around a name with dots matter only where [`joined`] keeps them.
fn unquoted(path: &str) -> String {
    if keys::below(path, keys::MEMBERS).is_some() {
        path.to_owned()
    } else {
        path.replace('"', "")
    }
}

/// The value of an override: bare text where a string is wanted, TOML otherwise.
fn set_value(kind: &Kind, text: &str) -> Result<Value, String> {
    let quoted = text.starts_with(['"', '\'']);
    if *kind == Kind::Template && text == "false" {
        return Ok(Value::Bool(false));
    }
    let wants_text = !matches!(kind, Kind::Bool | Kind::Integer | Kind::TextList);
    if wants_text && !quoted {
        return Ok(Value::Text(text.to_owned()));
    }
    match DeValue::parse(text) {
        Ok(value) => Ok(Value::from_toml(value.get_ref())),
        Err(error) if quoted || text.starts_with('[') => {
            Err(format!("not a TOML value: {}", error.message()))
        }
        Err(_) if *kind == Kind::TextList => {
            Ok(Value::List(vec![(Value::Text(text.to_owned()), 0..0)]))
        }
        Err(_) => Ok(Value::Text(text.to_owned())),
    }
}
