//! From TOML and `--set` to a flat map of known keys, with the place of each.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Place, Problem};
use super::excerpt::SourceText;
use super::expand;
use super::keys::{self, Kind};

/// A value, environment put in.
#[derive(Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Bool(bool),
    Integer(i64),
    /// As written.
    Float(String),
    List(Vec<(Value, Option<Range<usize>>)>),
    /// A date or a table, by its name.
    Other(&'static str),
    /// A problem was noted already; whoever reads this says nothing more.
    Broken,
}

impl Value {
    /// What it is, for messages.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Text(_) => "a string",
            Value::Bool(_) => "a boolean",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a float",
            Value::List(_) => "a list",
            Value::Other(name) => name,
            Value::Broken => "broken",
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

/// What the file and the command line say.
pub(super) struct Document<'a> {
    pub(super) source: SourceText<'a>,
    /// By the path of the key.
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) problems: Vec<Problem>,
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Document<'a> {
    pub(super) fn read(
        source: SourceText<'a>,
        overrides: &[String],
        env: &'a dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let mut document = Document {
            source,
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
                document.problems.push(Problem {
                    id: "config-syntax",
                    place: source.place(span.start),
                    what: format!("not valid TOML: {}", error.message()),
                    excerpt: source.excerpt_of_syntax(&span),
                    help: None,
                    source: None,
                });
            }
        }
        document
    }

    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        // The parser sorts keys by name; people read from top to bottom.
        let mut rows: Vec<_> = table.iter().collect();
        rows.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in rows {
            let path = joined(prefix, name.get_ref());
            let known = keys::find(&path).is_some();
            let property = keys::is_free(&path);
            match value.get_ref() {
                DeValue::Table(inner) if property || keys::is_prefix(&path) => {
                    self.table(&path, inner);
                }
                _ if known || property => self.take(&path, name.span(), value),
                _ => {
                    let span = name.span();
                    let problem = if keys::is_prefix(&path) {
                        let what = format!("`{path}` is a section, not a value");
                        let help = format!("write [{path}] on a line of its own, its keys below");
                        self.at(&span, "config-wrong-type", what, Some(help))
                    } else {
                        let what = format!("unknown key `{path}`");
                        Problem {
                            excerpt: self.source.excerpt_of_key(&span),
                            ..self.at(&span, "config-unknown-key", what, Some(unknown_help(&path)))
                        }
                    };
                    self.problems.push(problem);
                }
            }
        }
    }

    fn take(&mut self, path: &str, key: Range<usize>, value: &Spanned<DeValue<'_>>) {
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
                let problem = self.at(
                    &key,
                    "config-duplicate-key",
                    format!("`{path}` is set twice, once with quotes and once without"),
                    None,
                );
                self.problems.push(problem);
            }
            None => {
                let entry = Entry {
                    value: self.value(value),
                    origin: Origin::File(value.span()),
                };
                self.entries.insert(path.to_owned(), entry);
            }
        }
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>) -> Value {
        match value.get_ref() {
            DeValue::String(text) => match expand::expand(text, self.env) {
                Ok(text) => Value::Text(text),
                Err(unset) => {
                    // Escapes shift offsets, so the name is looked for in the text as written.
                    let written = self.source.text.get(value.span()).unwrap_or_default();
                    let wanted = format!("${{{}}}", unset.name);
                    let span = written.find(&wanted).map_or(value.span(), |at| {
                        let start = value.span().start + at;
                        start..start + wanted.len()
                    });
                    let (what, help) = unset_words(&unset.name);
                    let problem = self.at(&span, "config-env-unset", what, Some(help));
                    self.problems.push(problem);
                    Value::Broken
                }
            },
            DeValue::Boolean(value) => Value::Bool(*value),
            DeValue::Integer(integer) => {
                let digits = integer.as_str().replace('_', "");
                if let Ok(number) = i64::from_str_radix(&digits, integer.radix()) {
                    Value::Integer(number)
                } else {
                    let what = "the number does not fit into 64 bits".to_owned();
                    let problem = self.at(&value.span(), "config-invalid-value", what, None);
                    self.problems.push(problem);
                    Value::Broken
                }
            }
            DeValue::Float(float) => Value::Float(float.as_str().to_owned()),
            DeValue::Array(items) => Value::List(
                items
                    .iter()
                    .map(|item| (self.value(item), Some(item.span())))
                    .collect(),
            ),
            DeValue::Datetime(_) => Value::Other("a date"),
            DeValue::Table(_) => Value::Other("a table"),
        }
    }

    /// One `--set key=value`.
    fn set(&mut self, argument: &str) {
        let (path, text) = argument.split_once('=').unwrap_or((argument, ""));
        let path = &unquoted(path.trim());
        let shown = if keys::is_secret(path) {
            format!("--set {path}=…")
        } else {
            format!("--set {argument}")
        };
        let problem = |id, what, help| Problem {
            id,
            place: Place::Set {
                argument: shown.clone(),
            },
            what,
            excerpt: None,
            help,
            source: None,
        };
        if !argument.contains('=') || path.is_empty() {
            let what = "an override has the form key=value".to_owned();
            let help = Some("for example: --set source.slot=walrelay".to_owned());
            self.problems.push(problem("config-override", what, help));
            return;
        }
        let Some(kind) = keys::kind(path) else {
            // The value of a key nobody knows may be anything, a password too.
            self.problems.push(Problem {
                place: Place::Set {
                    argument: format!("--set {path}=…"),
                },
                ..problem(
                    "config-unknown-key",
                    format!("unknown key `{path}`"),
                    Some(unknown_help(path)),
                )
            });
            return;
        };
        let value = match set_value(kind, text) {
            Ok(value) => value,
            Err(what) => {
                self.problems.push(problem("config-override", what, None));
                Value::Broken
            }
        };
        let expanded = self.expand_set(value);
        let value = expanded.unwrap_or_else(|name| {
            let (what, help) = unset_words(&name);
            self.problems
                .push(problem("config-env-unset", what, Some(help)));
            Value::Broken
        });
        // The last override of a key, or of its file, counts.
        match path.strip_suffix("_file") {
            Some(base) => self.entries.remove(base),
            None => self.entries.remove(&format!("{path}_file")),
        };
        let entry = Entry {
            value,
            origin: Origin::Set(shown),
        };
        self.entries.insert(path.to_owned(), entry);
    }

    fn expand_set(&self, value: Value) -> Result<Value, String> {
        Ok(match value {
            Value::Text(text) => {
                Value::Text(expand::expand(&text, self.env).map_err(|unset| unset.name)?)
            }
            Value::List(items) => Value::List(
                items
                    .into_iter()
                    .map(|(item, span)| Ok((self.expand_set(item)?, span)))
                    .collect::<Result<_, String>>()?,
            ),
            other => other,
        })
    }

    fn at(
        &self,
        span: &Range<usize>,
        id: &'static str,
        what: String,
        help: Option<String>,
    ) -> Problem {
        Problem {
            id,
            place: self.source.place(span.start),
            what,
            excerpt: self.source.excerpt(span),
            help,
            source: None,
        }
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

/// The path of an override. Quotes around a name with dots say nothing, but where [`joined`] keeps them.
fn unquoted(path: &str) -> String {
    if keys::below(path, keys::MEMBERS).is_some() {
        path.to_owned()
    } else {
        path.replace('"', "")
    }
}

/// The value of an override: bare text where a string is wanted, TOML otherwise.
fn set_value(kind: Kind, text: &str) -> Result<Value, String> {
    let quoted = text.starts_with(['"', '\'']);
    if kind == Kind::Template && text == "false" {
        return Ok(Value::Bool(false));
    }
    let wants_text = !matches!(kind, Kind::Bool | Kind::Integer | Kind::TextList);
    if wants_text && !quoted {
        return Ok(Value::Text(text.to_owned()));
    }
    match DeValue::parse(text) {
        Ok(value) => Ok(plain(value.get_ref())),
        Err(_) if kind == Kind::TextList && !quoted && !text.starts_with('[') => {
            Ok(Value::List(vec![(Value::Text(text.to_owned()), None)]))
        }
        Err(_) if !quoted && !text.starts_with('[') => Ok(Value::Text(text.to_owned())),
        Err(error) => Err(format!("not a TOML value: {}", error.message())),
    }
}

fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Integer(integer) => {
            let digits = integer.as_str().replace('_', "");
            i64::from_str_radix(&digits, integer.radix())
                .map_or(Value::Other("a number beyond 64 bits"), Value::Integer)
        }
        DeValue::Float(float) => Value::Float(float.as_str().to_owned()),
        DeValue::Array(items) => Value::List(
            items
                .iter()
                .map(|item| (plain(item.get_ref()), None))
                .collect(),
        ),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Table(_) => Value::Other("a table"),
    }
}

fn unknown_help(path: &str) -> String {
    let Some(nearest) = keys::nearest(path) else {
        let section = path.split_once('.').map_or("", |(section, _)| section);
        let known = keys::of_section(section);
        return if known.is_empty() {
            format!("the sections are {}", keys::SECTIONS.join(", "))
        } else {
            format!("the keys of [{section}] are {}", known.join(", "))
        };
    };
    if keys::is_open(nearest) && keys::find(nearest).is_none() {
        format!("did you mean the section `{nearest}`?")
    } else {
        format!("did you mean `{nearest}`?")
    }
}

fn unset_words(name: &str) -> (String, String) {
    (
        format!("the environment variable {name} is not set"),
        format!("set {name}, or write `$${{{name}}}` if the text itself is meant"),
    )
}
