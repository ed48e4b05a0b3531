//! [`Reader`]: converts entries of a [`Document`] to values, and notes problems.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use crate::document::{Document, Entry, Origin, Value};
use crate::error::{Location, Problem};
use crate::keys::{Fallback, ValueKind, below};

/// Reads a file named by a key.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

/// The error of a read whose problem the [`Reader`] has noted.
#[derive(Debug, Clone, Copy)]
pub struct AlreadyReported;

/// Converts entries of the configuration to values, and collects problems.
#[expect(missing_debug_implementations, reason = "values may be secrets")]
pub struct Reader<'a> {
    document: Document<'a>,
    files: ReadFile<'a>,
    /// Values that one section reads for others, by their types.
    shared: HashMap<TypeId, Box<dyn Any>>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(document: Document<'a>, files: ReadFile<'a>) -> Self {
        let mut reader = Self {
            document,
            files,
            shared: HashMap::new(),
        };
        reader.refuse_unsupported();
        reader
    }

    /// Returns the noted problems: overrides first, then in the order of the file, then those
    /// without a line.
    pub fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.document.problems;
        problems.sort_by_key(|problem| match problem.place {
            Location::Set { .. } => (0, 0, 0),
            Location::At { line, column, .. } => (1, line, column),
            Location::File { .. } => (2, 0, 0),
        });
        problems
    }

    /// Keys and values to show: as written in the file and on the command line, so that `${NAME}`
    /// is not replaced, and the defaults of the sections in `with_defaults`. Secrets are redacted.
    pub fn shown(&self, with_defaults: &[&str]) -> Vec<(String, String)> {
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
        for row in keys.rows() {
            let section = row.path.split('.').next().unwrap_or_default();
            if let Fallback::Is(default) = row.fallback
                && with_defaults.contains(&section)
            {
                shown
                    .entry(row.path.clone())
                    .or_insert_with(|| default.to_owned());
            }
        }
        shown.into_iter().collect()
    }

    /// Returns the value of a type that one section reads for others, such as lookup tables.
    pub fn shared<T: Any + Default>(&mut self) -> &mut T {
        let value = self
            .shared
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Box::<T>::default());
        match value.downcast_mut() {
            Some(value) => value,
            None => unreachable!("the key is the type"),
        }
    }

    /// Notes every key that this version does not support.
    fn refuse_unsupported(&mut self) {
        for row in self.document.keys.rows() {
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
    pub fn note(
        &mut self,
        origin: &Origin,
        id: &'static str,
        what: String,
        help: Option<String>,
    ) -> AlreadyReported {
        self.document.note(origin, id, what, help);
        AlreadyReported
    }

    /// Notes that the value of `path` has the right type and is not allowed.
    pub fn invalid(&mut self, path: &str, entry: &Entry, why: &str) -> AlreadyReported {
        self.invalid_part(path, &entry.origin, why, None)
    }

    /// Notes that a part of the value of `path` is not allowed, such as an item of a list.
    pub fn invalid_part(
        &mut self,
        path: &str,
        part: &Origin,
        why: &str,
        help: Option<String>,
    ) -> AlreadyReported {
        let what = format!("invalid value of `{path}`: {why}");
        self.note(part, "config-invalid-value", what, help)
    }

    /// Notes that `path`, if it is set, conflicts with another key.
    pub fn conflict(&mut self, path: &str, what: String) -> AlreadyReported {
        if let Some(entry) = self.document.entries.get(path) {
            let origin = entry.origin.clone();
            self.note(&origin, "config-conflict", what, None);
        }
        AlreadyReported
    }

    /// Notes that `path`, if it is set, has no effect. `why` completes that sentence.
    pub fn no_effect(&mut self, path: &str, why: &str) -> AlreadyReported {
        self.conflict(path, format!("`{path}` has no effect {why}"))
    }

    /// Notes that `path` is required and missing.
    pub fn missing(&mut self, path: &str, example: &str) -> AlreadyReported {
        // The keys of open sections have dots in their names.
        let open = self.document.keys.open_around(path);
        let of_open = open.and_then(|open| Some((open.at, below(path, open.at)?)));
        let (section, name) = if let Some((section, name)) = of_open {
            (section, format!("\"{name}\""))
        } else {
            let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
            (section, name.to_owned())
        };
        let what = format!("missing key `{path}`");
        let file = self.document.source.name.to_owned();
        self.document.problems.push(Problem {
            help: Some(format!("add to [{section}]: {name} = {example}")),
            ..Problem::new("config-missing-key", Location::File { name: file }, what)
        });
        AlreadyReported
    }

    /// Notes that the value has the wrong type, unless a problem with it was noted already.
    pub fn wrong_type(&mut self, path: &str, entry: &Entry) -> AlreadyReported {
        let kind = match &entry.value {
            Value::Broken => return AlreadyReported,
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
        self.unexpected(path, &entry.origin, kind)
    }

    /// Notes that a part of the value of `path` has the wrong type: `found`.
    pub(crate) fn unexpected(&mut self, path: &str, part: &Origin, found: &str) -> AlreadyReported {
        let kind = self.document.keys.kind(path).unwrap_or(ValueKind::Scalar);
        let what = format!("`{path}` wants {}, found {found}", kind.wanted());
        self.note(part, "config-wrong-type", what, Some(kind.help()))
    }

    /// Returns true if a key is set.
    pub fn has(&self, path: &str) -> bool {
        self.document.entries.contains_key(path)
    }

    /// Returns true if any key of a section is set.
    pub fn has_below(&self, section: &str) -> bool {
        let mut paths = self.document.entries.keys();
        paths.any(|path| below(path, section).is_some())
    }

    /// Returns the entry of a key, even if its value is broken.
    pub fn raw(&self, path: &str) -> Option<Entry> {
        self.document.entries.get(path).cloned()
    }

    /// Returns the entry of a key. The value of a secret may come from the file that `<path>_file`
    /// names.
    pub fn entry(
        &mut self,
        path: &str,
        kind: &ValueKind,
    ) -> Result<Option<Entry>, AlreadyReported> {
        let entry = self.raw(path);
        if *kind == ValueKind::Secret {
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
            Some(entry) if entry.value == Value::Broken => Err(AlreadyReported),
            entry => Ok(entry),
        }
    }

    /// Notes that `path` and `other` exclude each other.
    pub fn both(&mut self, path: &str, other: &str) -> AlreadyReported {
        let what = format!("`{path}` and `{other}` are both set: keep one of them");
        self.conflict(other, what)
    }

    /// Returns the names and entries of an open section: those of the file in its order, then those
    /// of the command line.
    pub fn below(&self, section: &str) -> Vec<(String, Entry)> {
        let entries = self.document.entries.iter();
        let mut entries: Vec<(String, Entry)> = entries
            .filter_map(|(path, entry)| Some((below(path, section)?.to_owned(), entry.clone())))
            .collect();
        entries.sort_by_key(|(_, entry)| match &entry.origin {
            Origin::File(span) => span.start,
            Origin::Set(_) => usize::MAX,
        });
        entries
    }

    /// Returns the text of a string, number or boolean.
    pub fn scalar(&mut self, path: &str, entry: &Entry) -> Result<String, AlreadyReported> {
        let text = entry.value.scalar();
        text.ok_or_else(|| self.wrong_type(path, entry))
    }

    /// Returns the text of a string.
    pub fn text<'e>(&mut self, path: &str, entry: &'e Entry) -> Result<&'e str, AlreadyReported> {
        match &entry.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.wrong_type(path, entry)),
        }
    }

    /// Returns the path of a file. A relative name is looked up next to the configuration file.
    pub fn beside(&self, name: &str) -> PathBuf {
        let path = PathBuf::from(name);
        match Path::new(self.document.source.name).parent() {
            Some(directory) if path.is_relative() => directory.join(path),
            _ => path,
        }
    }

    /// Reads the path and the text of the file that `path` names. `id` and `help` are those of the
    /// problem if the file cannot be read.
    pub fn file(
        &mut self,
        path: &str,
        entry: &Entry,
        id: &'static str,
        help: &str,
    ) -> Result<(PathBuf, String), AlreadyReported> {
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
        Err(AlreadyReported)
    }

    /// Reads the content of the file that `path` names, without one newline at its end.
    pub fn content(&mut self, path: &str, entry: &Entry) -> Result<String, AlreadyReported> {
        let id = "config-secret-file";
        let help = "a relative name is looked up next to the configuration file; the relay's user \
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

    /// Returns the offset of a text in the file, if it is written literally: without escapes and
    /// environment variables.
    pub fn literal_at(&self, origin: &Origin, value: &str) -> Option<usize> {
        let Origin::File(span) = origin else {
            return None;
        };
        let written = self.document.source.text.get(span.clone())?;
        let inner = written.get(1..written.len().checked_sub(1)?)?;
        (inner == value).then_some(span.start + 1)
    }

    /// Returns true if a text is written literally in the file or on the command line.
    pub fn is_as_written(&self, origin: &Origin, value: &str) -> bool {
        match origin {
            Origin::File(_) => self.literal_at(origin, value).is_some(),
            Origin::Set(argument) => argument.ends_with(value),
        }
    }
}
