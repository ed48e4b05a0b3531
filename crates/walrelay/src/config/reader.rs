//! [`Reader`]: converts entries of a [`Document`] to values, and notes problems.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use walrelay_event_router::{
    ColumnNames, Lookups, Place as TemplatePlace, Template, TemplateError, TemplateProblem,
};

use super::document::{Document, Entry, Origin, Value};
use super::error::{Place, Problem};
use super::keys::{self, Fallback, Kind};

/// Reads a file named by a key.
pub(super) type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

/// The error of a read whose problem was noted in the [`Document`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Noted;

pub(super) struct Reader<'a> {
    document: Document<'a>,
    files: ReadFile<'a>,
    /// The lookup tables that templates may name; read before any template.
    pub(super) lookups: Lookups,
    /// Other names of columns.
    pub(super) column_names: ColumnNames,
}

impl<'a> Reader<'a> {
    pub(super) fn new(document: Document<'a>, files: ReadFile<'a>) -> Self {
        let mut reader = Self {
            document,
            files,
            lookups: Lookups::new(),
            column_names: ColumnNames::default(),
        };
        reader.refuse_unsupported();
        reader
    }

    /// The noted problems: overrides first, then in the order of the file, then those without a
    /// line.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.document.problems;
        problems.sort_by_key(|problem| match problem.place {
            Place::Set { .. } => (0, 0, 0),
            Place::At { line, column, .. } => (1, line, column),
            Place::File { .. } => (2, 0, 0),
        });
        problems
    }

    /// Keys and values to show: as written in the file and on the command line, so that `${NAME}`
    /// is not replaced, and the defaults of the sections that every configuration has. Secrets are
    /// redacted.
    pub(super) fn shown(&self) -> Vec<(String, String)> {
        const WITH_DEFAULTS: [&str; 4] = ["source", "delivery", "poison", "log"];
        let Document {
            entries,
            keys,
            source,
            ..
        } = &self.document;
        let mut shown: BTreeMap<String, String> = entries
            .iter()
            .map(|(path, entry)| {
                let written = match &entry.origin {
                    _ if keys.is_secret(path) => None,
                    Origin::File(span) => source.text.get(span.clone()),
                    Origin::Set(argument) => argument.split_once('=').map(|(_, value)| value),
                };
                (path.clone(), written.unwrap_or("[redacted]").to_owned())
            })
            .collect();
        for row in &keys.0 {
            let section = row.path.split('.').next().unwrap_or_default();
            if let Fallback::Is(default) = row.fallback
                && WITH_DEFAULTS.contains(&section)
            {
                shown
                    .entry(row.path.clone())
                    .or_insert_with(|| default.to_owned());
            }
        }
        shown.into_iter().collect()
    }

    /// Notes every key that this version does not support.
    fn refuse_unsupported(&mut self) {
        for row in &self.document.keys.0 {
            let Fallback::Only(default) = row.fallback else {
                continue;
            };
            let Ok(Some(entry)) = self.entry(&row.path, &row.kind) else {
                continue;
            };
            let value = entry.value.scalar();
            if value.is_none_or(|value| value.trim() != default) {
                let path = &row.path;
                let what = format!("`{path}` is not supported by this version of walrelay");
                let help = format!("remove it; walrelay behaves as with its default, `{default}`");
                self.note(&entry.origin, "config-not-supported", what, Some(help));
            }
        }
    }

    /// Notes a problem with a value, or with a part of it.
    pub(super) fn note(
        &mut self,
        origin: &Origin,
        id: &'static str,
        what: String,
        help: Option<String>,
    ) -> Noted {
        self.document.note(origin, id, what, help);
        Noted
    }

    /// Notes that the value of `path` has the right type and is not allowed.
    pub(super) fn invalid(&mut self, path: &str, entry: &Entry, why: &str) -> Noted {
        self.invalid_part(path, &entry.origin, why, None)
    }

    /// Notes that a part of the value of `path` is not allowed, such as an item of a list.
    pub(super) fn invalid_part(
        &mut self,
        path: &str,
        part: &Origin,
        why: &str,
        help: Option<String>,
    ) -> Noted {
        let what = format!("invalid value of `{path}`: {why}");
        self.note(part, "config-invalid-value", what, help)
    }

    /// Notes that `path`, if it is set, conflicts with another key.
    pub(super) fn conflict(&mut self, path: &str, what: String) -> Noted {
        if let Some(entry) = self.document.entries.get(path) {
            let origin = entry.origin.clone();
            self.note(&origin, "config-conflict", what, None);
        }
        Noted
    }

    /// Notes that `path`, if it is set, has no effect. `why` completes that sentence.
    pub(super) fn no_effect(&mut self, path: &str, why: &str) -> Noted {
        self.conflict(path, format!("`{path}` has no effect {why}"))
    }

    /// Notes that `path` is required and missing.
    pub(super) fn missing(&mut self, path: &str, example: &str) -> Noted {
        let (section, name) = if let Some(property) = keys::below(path, keys::PASS_THROUGH) {
            (keys::PASS_THROUGH, format!("\"{property}\""))
        } else {
            let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
            (section, name.to_owned())
        };
        let what = format!("missing key `{path}`");
        let file = self.document.source.name.to_owned();
        self.document.problems.push(Problem {
            help: Some(format!("add to [{section}]: {name} = {example}")),
            ..Problem::new("config-missing-key", Place::File { name: file }, what)
        });
        Noted
    }

    /// Notes that the value has the wrong type, unless a problem with it was noted already.
    pub(super) fn wrong_type(&mut self, path: &str, entry: &Entry) -> Noted {
        let found = match &entry.value {
            Value::Broken => return Noted,
            Value::TooLarge => {
                let what = "the number does not fit into 64 bits".to_owned();
                return self.note(&entry.origin, "config-invalid-value", what, None);
            }
            Value::Text(_) => "a string",
            Value::Bool(_) => "a boolean",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a float",
            Value::List(_) => "a list",
            Value::Other(name) => name,
        };
        self.unexpected(path, &entry.origin, found)
    }

    /// Notes that a part of the value of `path` has the wrong type: `found`.
    pub(super) fn unexpected(&mut self, path: &str, part: &Origin, found: &str) -> Noted {
        let kind = self.document.keys.kind(path).unwrap_or(Kind::Scalar);
        let what = format!("`{path}` wants {}, found {found}", kind.wanted());
        self.note(part, "config-wrong-type", what, Some(kind.help()))
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.document.entries.contains_key(path)
    }

    /// Whether any key of a section is set.
    pub(super) fn has_below(&self, section: &str) -> bool {
        let mut paths = self.document.entries.keys();
        paths.any(|path| keys::below(path, section).is_some())
    }

    /// The entry of a key, even if its value is broken.
    pub(super) fn raw(&self, path: &str) -> Option<Entry> {
        self.document.entries.get(path).cloned()
    }

    /// The entry of a key. The value of a secret may come from the file that `<path>_file` names.
    pub(super) fn entry(&mut self, path: &str, kind: &Kind) -> Result<Option<Entry>, Noted> {
        let entry = self.raw(path);
        if *kind == Kind::Secret {
            let file_path = format!("{path}_file");
            if let Some(file) = self.raw(&file_path) {
                if entry.is_some() {
                    return Err(self.both(path, &file_path));
                }
                let value = Value::Text(self.content(&file_path, &file)?);
                return Ok(Some(Entry { value, ..file }));
            }
        }
        match entry {
            Some(entry) if entry.value == Value::Broken => Err(Noted),
            entry => Ok(entry),
        }
    }

    /// Notes that `path` and `other` exclude each other.
    pub(super) fn both(&mut self, path: &str, other: &str) -> Noted {
        let what = format!("`{path}` and `{other}` are both set: keep one of them");
        self.conflict(other, what)
    }

    /// The names and entries of an open section: those of the file in its order, then those of the
    /// command line.
    pub(super) fn below(&self, section: &str) -> Vec<(String, Entry)> {
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

    /// The text of a string, number or boolean.
    pub(super) fn scalar(&mut self, path: &str, entry: &Entry) -> Result<String, Noted> {
        let text = entry.value.scalar();
        text.ok_or_else(|| self.wrong_type(path, entry))
    }

    /// The text of a string.
    pub(super) fn text<'e>(&mut self, path: &str, entry: &'e Entry) -> Result<&'e str, Noted> {
        match &entry.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.wrong_type(path, entry)),
        }
    }

    /// The path of a file. A relative name is looked up beside the configuration file.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        let path = PathBuf::from(name);
        match Path::new(self.document.source.name).parent() {
            Some(directory) if path.is_relative() => directory.join(path),
            _ => path,
        }
    }

    /// The path and the text of the file that `path` names. `id` and `help` are those of the problem
    /// if the file cannot be read.
    pub(super) fn file(
        &mut self,
        path: &str,
        entry: &Entry,
        id: &'static str,
        help: &str,
    ) -> Result<(PathBuf, String), Noted> {
        let name = self.text(path, entry)?;
        let file = self.beside(name);
        let cause = match (self.files)(&file) {
            Ok(text) => return Ok((file, text)),
            Err(error) => error,
        };
        let what = format!("cannot read the file that `{path}` names");
        self.note(&entry.origin, id, what, Some(help.to_owned()));
        if let Some(problem) = self.document.problems.last_mut() {
            problem.source = Some(cause);
        }
        Err(Noted)
    }

    /// The content of the file that `path` names, without one newline at its end.
    pub(super) fn content(&mut self, path: &str, entry: &Entry) -> Result<String, Noted> {
        let id = "config-secret-file";
        let help = "a relative name is looked up beside the configuration file; the relay's user \
                    must be able to read it";
        let (_, text) = self.file(path, entry, id, help)?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            let what = format!("the file that `{path}` names is empty");
            return Err(self.note(&entry.origin, id, what, None));
        }
        Ok(line.to_owned())
    }

    /// Parses a template; `None` for `false`.
    pub(super) fn template(
        &mut self,
        path: &str,
        entry: &Entry,
        place: TemplatePlace,
    ) -> Result<Option<Template>, Noted> {
        match &entry.value {
            Value::Text(text) => match Template::parse(text, place, &self.lookups) {
                Ok(template) => Ok(Some(template)),
                Err(error) => Err(self.wrong_template(path, &entry.origin, text, &error)),
            },
            Value::Bool(false) => Ok(None),
            _ => Err(self.wrong_type(path, entry)),
        }
    }

    /// Notes a template's error, with a caret under the character if the template is written
    /// literally in the file.
    fn wrong_template(
        &mut self,
        path: &str,
        origin: &Origin,
        text: &str,
        error: &TemplateError,
    ) -> Noted {
        let shows_name = matches!(
            error.problem,
            TemplateProblem::UnknownFilter { .. } | TemplateProblem::UnknownTable { .. }
        );
        let why = if shows_name && !self.is_as_written(origin, text) {
            // The error would show the name, which may be the value of an environment variable.
            let position = error.position;
            format!("character {position}: no filter or lookup table of that name")
        } else {
            error.to_string()
        };
        let part = self.literal_at(origin, text).map(|start| {
            let mut chars = text.char_indices().skip(error.position - 1);
            let (at, length) = chars
                .next()
                .map_or((text.len(), 1), |(at, c)| (at, c.len_utf8()));
            Origin::File(start + at..start + at + length)
        });
        let help = Some("templates are explained in docs/CONFIGURATION.md".to_owned());
        self.invalid_part(path, part.as_ref().unwrap_or(origin), &why, help)
    }

    /// The offset of a text in the file, if it is written literally: without escapes and
    /// environment variables.
    fn literal_at(&self, origin: &Origin, value: &str) -> Option<usize> {
        let Origin::File(span) = origin else {
            return None;
        };
        let written = self.document.source.text.get(span.clone())?;
        let inner = written.get(1..written.len().checked_sub(1)?)?;
        (inner == value).then_some(span.start + 1)
    }

    /// Whether a text is written literally in the file or on the command line.
    pub(super) fn is_as_written(&self, origin: &Origin, value: &str) -> bool {
        match origin {
            Origin::File(_) => self.literal_at(origin, value).is_some(),
            Origin::Set(argument) => argument.ends_with(value),
        }
    }
}
