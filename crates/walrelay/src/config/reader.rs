//! Typed access to a [`Document`]: defaults, types, and a problem noted for whatever does not fit.

use std::collections::BTreeMap;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;

use super::document::{Document, Entry, Origin, Value};
use super::error::{Place, Problem};
use super::keys::{self, Fallback, Kind, Support};
use super::units;

/// Reads a file named by a `*_file` key.
pub(super) type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

pub(super) struct Reader<'a> {
    document: Document<'a>,
    files: ReadFile<'a>,
}

/// A value, and where it stands, for what is checked later.
pub(super) struct Found<T> {
    pub(super) value: T,
    pub(super) origin: Origin,
}

impl<'a> Reader<'a> {
    pub(super) fn new(document: Document<'a>, files: ReadFile<'a>) -> Self {
        let mut reader = Self { document, files };
        reader.refuse_what_comes_later();
        reader
    }

    /// What was noted, in the order of the file; what has no place in it comes last.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.document.problems;
        problems.sort_by_key(|problem| match problem.place {
            Place::Set { .. } => (0, 0, 0),
            Place::At { line, column, .. } => (1, line, column),
            Place::File { .. } => (2, 0, 0),
        });
        problems
    }

    fn refuse_what_comes_later(&mut self) {
        let mut refused = Vec::new();
        for (path, entry) in &self.document.entries {
            let Some(key) = keys::find(path) else {
                continue;
            };
            let said = match &entry.value {
                Value::Text(text) | Value::Float(text) => Some(text.trim().to_owned()),
                Value::Bool(value) => Some(value.to_string()),
                Value::Integer(number) => Some(number.to_string()),
                _ => None,
            };
            let default = match key.default {
                Fallback::Is(text) => Some(text.to_owned()),
                _ => None,
            };
            let id = "config-not-supported";
            let what = format!("`{path}` is not supported by this version of walrelay");
            match key.support {
                Support::Full => {}
                Support::Later => {
                    let help = "remove it: without the feature behind it, it would mislead";
                    refused.push((entry.origin.clone(), id, what, help.to_owned()));
                }
                Support::DefaultOnly if entry.value == Value::Broken => {}
                Support::DefaultOnly if said.is_some() && said == default => {}
                Support::DefaultOnly => {
                    let help = match default {
                        Some(text) => {
                            format!("remove it; walrelay behaves as with its default, `{text}`")
                        }
                        None => "remove it; walrelay behaves as when it is not set".to_owned(),
                    };
                    refused.push((entry.origin.clone(), id, what, help));
                }
            }
        }
        for (origin, id, what, help) in refused {
            self.note(&origin, None, id, what, Some(help));
        }
    }

    /// Notes a problem with a value that was found.
    pub(super) fn note(
        &mut self,
        origin: &Origin,
        item: Option<&Range<usize>>,
        id: &'static str,
        what: String,
        help: Option<String>,
    ) {
        let source = self.document.source;
        let (place, excerpt) = match origin {
            Origin::File(span) => {
                let span = item.unwrap_or(span);
                (source.place(span.start), source.excerpt(span))
            }
            Origin::Set(argument) => (
                Place::Set {
                    argument: argument.clone(),
                },
                None,
            ),
        };
        self.document.problems.push(Problem {
            id,
            place,
            what,
            excerpt,
            help,
            source: None,
        });
    }

    /// Notes that a value of `path` was understood and is not acceptable.
    pub(super) fn invalid(&mut self, path: &str, origin: &Origin, why: &str) {
        let what = format!("invalid value of `{path}`: {why}");
        self.note(origin, None, "config-invalid-value", what, None);
    }

    /// Notes that the value of `path` does not go together with another one.
    pub(super) fn conflict(&mut self, path: &str, what: String) {
        if let Some(entry) = self.document.entries.get(path).cloned() {
            self.note(&entry.origin, None, "config-conflict", what, None);
        }
    }

    /// Notes that `path` is needed and absent.
    pub(super) fn missing(&mut self, path: &str, example: &str) {
        let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
        // Names with dots are quoted, and their section is the one that is passed through.
        let (section, name) = match keys::passed_through(path) {
            Some(property) => (keys::PASS_THROUGH, format!("\"{property}\"")),
            None => (section, name.to_owned()),
        };
        self.document.problems.push(Problem {
            id: "config-missing-key",
            place: self.document.source.whole(),
            what: format!("missing key `{path}`"),
            excerpt: None,
            help: Some(format!("add to [{section}]: {name} = {example}")),
            source: None,
        });
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.document.entries.contains_key(path)
    }

    /// The entry of `path`, unless a problem with it was noted already.
    fn entry(&self, path: &str) -> Option<&Entry> {
        self.document
            .entries
            .get(path)
            .filter(|entry| entry.value != Value::Broken)
    }

    pub(super) fn wrong_type(&mut self, path: &str, entry: &Entry, item: Option<&Range<usize>>) {
        let kind = keys::kind(path).unwrap_or(Kind::Scalar);
        let found = match (&entry.value, item) {
            (Value::List(_), Some(_)) => "something else in its list",
            (value, _) => value.type_name(),
        };
        let what = format!("`{path}` wants {}, found {found}", kind.wanted());
        let help = match kind {
            Kind::Choice { here, .. } => one_of(here),
            kind => format!("for example {}", kind.example()),
        };
        self.note(&entry.origin, item, "config-wrong-type", what, Some(help));
    }

    /// The text at `path` or its default; `None` when unset, or wrong and noted.
    pub(super) fn text(&mut self, path: &str) -> Option<Found<String>> {
        if self.has(path) {
            let entry = self.entry(path)?.clone();
            if let Value::Text(value) = entry.value {
                let origin = entry.origin;
                return Some(Found { value, origin });
            }
            self.wrong_type(path, &entry, None);
            return None;
        }
        let key = keys::find(path)?;
        match key.default {
            Fallback::Is(value) => Some(Found {
                value: value.to_owned(),
                origin: Origin::Set(format!("the default of {path}")),
            }),
            Fallback::Unset => None,
            Fallback::Required(example) => {
                self.missing(path, example);
                None
            }
        }
    }

    /// The same, understood by `parse`, whose error says what is expected and never the value.
    pub(super) fn parsed<T>(
        &mut self,
        path: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let found = self.text(path)?;
        match parse(&found.value) {
            Ok(value) => Some(value),
            Err(why) => {
                self.invalid(path, &found.origin, &why);
                None
            }
        }
    }

    pub(super) fn duration(
        &mut self,
        path: &str,
        least: Duration,
        most: Option<Duration>,
    ) -> Option<Duration> {
        self.parsed(path, |text| {
            let value = units::duration(text)?;
            if value < least {
                Err(format!("it must be at least {least:?}"))
            } else if let Some(most) = most.filter(|most| value > *most) {
                Err(format!("it must be at most {most:?}"))
            } else {
                Ok(value)
            }
        })
    }

    pub(super) fn size(&mut self, path: &str, within: &RangeInclusive<u64>) -> Option<u64> {
        self.parsed(path, |text| {
            let value = units::size(text)?;
            within.contains(&value).then_some(value).ok_or_else(|| {
                format!(
                    "it must lie within {} and {} bytes",
                    within.start(),
                    within.end()
                )
            })
        })
    }

    /// A truth value, or its text as Debezium and Kafka Connect read them: trimmed, in any case.
    pub(super) fn truth(&mut self, path: &str) -> Option<bool> {
        let read = |text: &str| match text.trim().to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        };
        if !self.has(path) {
            return match keys::find(path)?.default {
                Fallback::Is(text) => read(text),
                _ => None,
            };
        }
        let entry = self.entry(path)?.clone();
        match &entry.value {
            Value::Bool(value) => Some(*value),
            Value::Text(text) => {
                let value = read(text);
                if value.is_none() {
                    self.invalid(path, &entry.origin, "it must be true or false");
                }
                value
            }
            _ => {
                self.wrong_type(path, &entry, None);
                None
            }
        }
    }

    pub(super) fn boolean(&mut self, path: &str) -> bool {
        if self.has(path) {
            let Some(entry) = self.entry(path).cloned() else {
                return false;
            };
            if let Value::Bool(value) = entry.value {
                return value;
            }
            self.wrong_type(path, &entry, None);
            return false;
        }
        keys::find(path).is_some_and(|key| key.default == Fallback::Is("true"))
    }

    pub(super) fn integer<T: TryFrom<i64>>(
        &mut self,
        path: &str,
        within: &RangeInclusive<i64>,
    ) -> Option<T> {
        let (number, origin) = if self.has(path) {
            let entry = self.entry(path)?.clone();
            let Value::Integer(number) = entry.value else {
                self.wrong_type(path, &entry, None);
                return None;
            };
            (number, Some(entry.origin))
        } else {
            match keys::find(path)?.default {
                Fallback::Is(text) => (text.parse().ok()?, None),
                _ => return None,
            }
        };
        let value = within
            .contains(&number)
            .then(|| T::try_from(number).ok())
            .flatten();
        if let (None, Some(origin)) = (&value, origin) {
            let why = format!("it must lie within {} and {}", within.start(), within.end());
            self.invalid(path, &origin, &why);
        }
        value
    }

    /// A list of strings with the place of each; empty when wrong and noted.
    pub(super) fn list(&mut self, path: &str) -> Vec<(String, Option<Range<usize>>, Origin)> {
        if !self.has(path) {
            if let Some(Fallback::Required(example)) = keys::find(path).map(|key| key.default) {
                self.missing(path, example);
            }
            return Vec::new();
        }
        let Some(entry) = self.entry(path).cloned() else {
            return Vec::new();
        };
        let Value::List(items) = &entry.value else {
            self.wrong_type(path, &entry, None);
            return Vec::new();
        };
        if items.is_empty() {
            self.invalid(path, &entry.origin, "the list must not be empty");
        }
        let mut texts = Vec::new();
        for (item, span) in items {
            match item {
                Value::Text(text) => {
                    texts.push((text.clone(), span.clone(), entry.origin.clone()));
                }
                Value::Broken => {}
                _ => self.wrong_type(path, &entry, span.as_ref()),
            }
        }
        texts
    }

    /// The paths and entries of a section in which anything may follow the dot, in the order of the
    /// file, then those of the command line.
    pub(super) fn entries_below(&self, section: &str) -> Vec<(String, Entry)> {
        let entries = self.document.entries.iter();
        let mut entries: Vec<(String, Entry)> = entries
            .filter_map(|(path, entry)| {
                Some((keys::below(path, section)?.to_owned(), entry.clone()))
            })
            .collect();
        entries.sort_by_key(|(_, entry)| match &entry.origin {
            Origin::File(span) => span.start,
            Origin::Set(_) => usize::MAX,
        });
        entries
    }

    /// The entry of a key that the file or the command line has.
    pub(super) fn entry_of(&self, path: &str) -> Option<Entry> {
        self.document.entries.get(path).cloned()
    }

    /// How a text stands in the file, if it stands there as it is: without escapes, and without a
    /// variable of the environment. The place of its first byte.
    pub(super) fn literal_at(&self, origin: &Origin, value: &str) -> Option<usize> {
        let Origin::File(span) = origin else {
            return None;
        };
        let written = self.document.source.text.get(span.clone())?;
        let inner = written.get(1..written.len().checked_sub(1)?)?;
        (inner == value).then_some(span.start + 1)
    }

    /// Whether a text is shown to whoever reads the file or the command line anyway.
    pub(super) fn is_as_written(&self, origin: &Origin, value: &str) -> bool {
        match origin {
            Origin::File(_) => self.literal_at(origin, value).is_some(),
            Origin::Set(argument) => argument.ends_with(value),
        }
    }

    /// One of the choices of `path`, by its index among those of this version.
    pub(super) fn choice(&mut self, path: &str) -> Option<usize> {
        let Kind::Choice { here, later } = keys::find(path)?.kind else {
            return None;
        };
        let found = self.text(path)?;
        // Debezium trims and ignores case.
        let loose = path.starts_with("router.debezium.");
        let same = |choice: &&str| {
            if loose {
                choice.eq_ignore_ascii_case(found.value.trim())
            } else {
                **choice == found.value
            }
        };
        if let Some(index) = here.iter().position(&same) {
            return Some(index);
        }
        let (id, what) = if later.iter().any(same) {
            (
                "config-not-supported",
                format!("this value of `{path}` is not supported by this version of walrelay"),
            )
        } else {
            ("config-invalid-value", format!("invalid value of `{path}`"))
        };
        let mut help = one_of(here);
        let near = here
            .iter()
            .find(|choice| strsim::damerau_levenshtein(choice, &found.value) <= 2);
        if let Some(near) = near {
            help = format!("did you mean \"{near}\"? {help}");
        }
        self.note(&found.origin, None, id, what, Some(help));
        None
    }

    /// A secret given as `path` or in the file that `file_path` names.
    pub(super) fn secret(&mut self, path: &str, file_path: &str) -> Option<Found<SecretString>> {
        if self.has(path) && self.has(file_path) {
            self.both(path, file_path);
            return None;
        }
        let found = if self.has(file_path) {
            self.file(file_path)?
        } else if keys::find(path).is_some() {
            self.text(path)?
        } else {
            return None;
        };
        Some(Found {
            value: SecretString::from(found.value),
            origin: found.origin,
        })
    }

    fn both(&mut self, path: &str, file_path: &str) {
        if let Some(entry) = self.document.entries.get(file_path).cloned() {
            let what = format!("`{path}` and `{file_path}` are both set");
            let help = Some("keep one of them".to_owned());
            self.note(&entry.origin, None, "config-conflict", what, help);
        }
    }

    /// A file that `path` names.
    pub(super) fn path(&mut self, path: &str) -> Option<PathBuf> {
        let named = self.text(path)?;
        if named.value.is_empty() {
            self.invalid(path, &named.origin, "the name of a file is not empty");
            return None;
        }
        Some(self.beside(&named.value))
    }

    /// A relative name is looked up beside the configuration file.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        let path = PathBuf::from(name);
        match Path::new(self.document.source.name).parent() {
            Some(directory) if path.is_relative() => directory.join(path),
            _ => path,
        }
    }

    /// What stands in a file.
    pub(super) fn file_at(&self, file: &Path) -> io::Result<String> {
        (self.files)(file)
    }

    /// Notes a problem with what led to it.
    pub(super) fn note_cause(
        &mut self,
        origin: &Origin,
        id: &'static str,
        what: String,
        help: String,
        cause: io::Error,
    ) {
        self.note(origin, None, id, what, Some(help));
        if let Some(problem) = self.document.problems.last_mut() {
            problem.source = Some(cause);
        }
    }

    /// What stands in the file that `path` names, without the newline at its end.
    fn file(&mut self, path: &str) -> Option<Found<String>> {
        let named = self.text(path)?;
        let at = self.beside(&named.value);
        let text = match (self.files)(&at) {
            Ok(text) => text,
            Err(error) => {
                let what = format!("cannot read the file that `{path}` names");
                let help = "a relative name is looked up beside the configuration file; the \
                            relay's user must be able to read it"
                    .to_owned();
                self.note_cause(&named.origin, "config-secret-file", what, help, error);
                return None;
            }
        };
        let trimmed = text.strip_suffix('\n').unwrap_or(&text);
        let trimmed = trimmed.strip_suffix('\r').unwrap_or(trimmed);
        if trimmed.is_empty() {
            let what = format!("the file that `{path}` names is empty");
            self.note(&named.origin, None, "config-secret-file", what, None);
            return None;
        }
        Some(Found {
            value: trimmed.to_owned(),
            origin: named.origin,
        })
    }

    /// The section that is passed through, as strings, files of `*_file` read.
    pub(super) fn properties(&mut self) -> BTreeMap<String, String> {
        let mut properties = BTreeMap::new();
        let entries: Vec<(String, Entry)> = self
            .document
            .entries
            .iter()
            .filter_map(|(path, entry)| {
                let name = keys::passed_through(path)?;
                Some((name.to_owned(), entry.clone()))
            })
            .collect();
        for (name, entry) in entries {
            let path = format!("{}.{name}", keys::PASS_THROUGH);
            if let Some(base) = name.strip_suffix("_file") {
                let base_path = format!("{}.{base}", keys::PASS_THROUGH);
                if self.has(&base_path) {
                    self.both(&base_path, &path);
                } else if let Some(found) = self.file(&path) {
                    properties.insert(base.to_owned(), found.value);
                }
                continue;
            }
            let text = match &entry.value {
                Value::Text(text) | Value::Float(text) => text.clone(),
                Value::Bool(value) => value.to_string(),
                Value::Integer(number) => number.to_string(),
                Value::Broken => continue,
                Value::List(_) | Value::Other(_) => {
                    self.wrong_type(&path, &entry, None);
                    continue;
                }
            };
            properties.insert(name, text);
        }
        properties
    }
}

fn one_of(choices: &[&str]) -> String {
    let quoted: Vec<String> = choices
        .iter()
        .map(|choice| format!("\"{choice}\""))
        .collect();
    match quoted.as_slice() {
        [only] => format!("the only value of this version is {only}"),
        _ => format!("one of {}", quoted.join(", ")),
    }
}
