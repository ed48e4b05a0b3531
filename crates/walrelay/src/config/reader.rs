//! Access to the entries of a [`Document`] by path; notes a problem for whatever does not fit.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use walrelay_event_router::{
    Lookups, Place as TemplatePlace, Template, TemplateError, TemplateProblem,
};

use super::document::{Document, Entry, Origin, Value};
use super::error::{Place, Problem};
use super::keys::{self, Fallback, Kind, Support};

/// Reads a file named by a key.
pub(super) type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

/// A problem was noted; there is nothing more to say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Noted;

pub(super) struct Reader<'a> {
    document: Document<'a>,
    files: ReadFile<'a>,
    /// The tables that templates may name; read before any template.
    pub(super) lookups: Lookups,
}

impl<'a> Reader<'a> {
    pub(super) fn new(document: Document<'a>, files: ReadFile<'a>) -> Self {
        let mut reader = Self {
            document,
            files,
            lookups: Lookups::new(),
        };
        reader.refuse_unsupported();
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

    /// The configuration as it may be shown: what the file and the command line say in their own words, so that
    /// `${NAME}` is not replaced, and the defaults of the sections that everybody has. Secrets are left out.
    pub(super) fn shown(&self) -> Vec<(String, String)> {
        const EVERYBODYS: [&str; 4] = ["source", "delivery", "poison", "log"];
        let Document {
            entries,
            keys,
            source,
            ..
        } = &self.document;
        let mut shown: BTreeMap<String, String> = entries
            .iter()
            .map(|(path, entry)| {
                let said = match &entry.origin {
                    _ if keys.is_secret(path) => None,
                    Origin::File(span) => source.text.get(span.clone()),
                    Origin::Set(argument) => argument.split_once('=').map(|(_, value)| value),
                };
                (path.clone(), said.unwrap_or("[redacted]").to_owned())
            })
            .collect();
        for row in &keys.0 {
            let section = row.path.split('.').next().unwrap_or_default();
            if let Fallback::Is(default) = row.fallback
                && EVERYBODYS.contains(&section)
            {
                shown
                    .entry(row.path.clone())
                    .or_insert_with(|| default.to_owned());
            }
        }
        shown.into_iter().collect()
    }

    fn refuse_unsupported(&mut self) {
        let mut refused = Vec::new();
        for (path, entry) in &self.document.entries {
            let Some(row) = self.document.keys.find(path) else {
                continue;
            };
            let help = match (row.support, row.fallback) {
                (Support::Full, _) => continue,
                (Support::DefaultOnly, Fallback::Is(default)) => {
                    let said = entry.value.scalar();
                    let is_default = said.is_some_and(|said| said.trim() == default);
                    if is_default || entry.value == Value::Broken {
                        continue;
                    }
                    format!("remove it; walrelay behaves as with its default, `{default}`")
                }
                _ => "remove it: without the feature behind it, it would mislead".to_owned(),
            };
            let what = format!("`{path}` is not supported by this version of walrelay");
            refused.push((entry.origin.clone(), what, help));
        }
        for (origin, what, help) in refused {
            self.note(&origin, None, "config-not-supported", what, Some(help));
        }
    }

    /// Notes a problem with a value, or with an item of a list.
    pub(super) fn note(
        &mut self,
        origin: &Origin,
        item: Option<&Range<usize>>,
        id: &'static str,
        what: String,
        help: Option<String>,
    ) -> Noted {
        self.document.note(origin, item, id, what, help);
        Noted
    }

    /// Notes that a file that a value names cannot be read.
    pub(super) fn note_file(
        &mut self,
        entry: &Entry,
        id: &'static str,
        (path, help): (&str, &str),
        cause: io::Error,
    ) -> Noted {
        let what = format!("cannot read the file that `{path}` names");
        self.note(&entry.origin, None, id, what, Some(help.to_owned()));
        if let Some(problem) = self.document.problems.last_mut() {
            problem.source = Some(cause);
        }
        Noted
    }

    /// Notes that a value of `path` was understood and is not acceptable.
    pub(super) fn invalid(&mut self, path: &str, entry: &Entry, why: &str) -> Noted {
        let what = format!("invalid value of `{path}`: {why}");
        self.note(&entry.origin, None, "config-invalid-value", what, None)
    }

    /// Notes that the value of `path`, if there is one, contradicts another one.
    pub(super) fn conflict(&mut self, path: &str, what: String) -> Noted {
        if let Some(entry) = self.document.entries.get(path) {
            let origin = entry.origin.clone();
            self.note(&origin, None, "config-conflict", what, None);
        }
        Noted
    }

    /// Notes that `path` is needed and absent.
    pub(super) fn missing(&mut self, path: &str, example: &str) -> Noted {
        let (section, name) = if let Some(property) = keys::below(path, keys::PASS_THROUGH) {
            (keys::PASS_THROUGH, format!("\"{property}\""))
        } else {
            let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
            (section, name.to_owned())
        };
        self.document.problems.push(Problem {
            help: Some(format!("add to [{section}]: {name} = {example}")),
            ..Problem::new(
                "config-missing-key",
                self.document.source.whole(),
                format!("missing key `{path}`"),
            )
        });
        Noted
    }

    /// Notes that the value, or an item of its list, has another type than the key wants.
    pub(super) fn wrong_type(
        &mut self,
        path: &str,
        entry: &Entry,
        item: Option<&Range<usize>>,
    ) -> Noted {
        if entry.value == Value::TooLarge {
            let what = "the number does not fit into 64 bits".to_owned();
            return self.note(&entry.origin, None, "config-invalid-value", what, None);
        }
        let kind = self.document.keys.kind(path).unwrap_or(Kind::Scalar);
        let found = match item {
            Some(_) => "something else in its list",
            None => entry.value.type_name(),
        };
        let what = format!("`{path}` wants {}, found {found}", kind.wanted());
        self.note(
            &entry.origin,
            item,
            "config-wrong-type",
            what,
            Some(kind.help()),
        )
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.document.entries.contains_key(path)
    }

    /// Whether a section has any key.
    pub(super) fn has_below(&self, section: &str) -> bool {
        let mut paths = self.document.entries.keys();
        paths.any(|path| keys::below(path, section).is_some())
    }

    /// The entry as it is, also a broken one.
    pub(super) fn raw(&self, path: &str) -> Option<Entry> {
        self.document.entries.get(path).cloned()
    }

    /// The entry of a key; that of a secret may come from the file of `<path>_file`.
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

    pub(super) fn both(&mut self, path: &str, other: &str) -> Noted {
        let what = format!("`{path}` and `{other}` are both set: keep one of them");
        self.conflict(other, what)
    }

    /// The paths and entries of a section in which anything may follow the dot, in the order of the
    /// file, then those of the command line.
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
        match entry.value.scalar() {
            Some(text) => Ok(text),
            None if entry.value == Value::Broken => Err(Noted),
            None => Err(self.wrong_type(path, entry, None)),
        }
    }

    /// A relative name is looked up beside the configuration file.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        let path = PathBuf::from(name);
        match Path::new(self.document.source.name).parent() {
            Some(directory) if path.is_relative() => directory.join(path),
            _ => path,
        }
    }

    pub(super) fn read_file(&self, file: &Path) -> io::Result<String> {
        (self.files)(file)
    }

    /// The content of the file that `path` names, without the newline at its end.
    pub(super) fn content(&mut self, path: &str, entry: &Entry) -> Result<String, Noted> {
        let name = match &entry.value {
            Value::Text(name) => name,
            Value::Broken => return Err(Noted),
            _ => return Err(self.wrong_type(path, entry, None)),
        };
        let id = "config-secret-file";
        let text = self.read_file(&self.beside(name)).map_err(|error| {
            let help = "a relative name is looked up beside the configuration file; the relay's \
                        user must be able to read it";
            self.note_file(entry, id, (path, help), error)
        })?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            let what = format!("the file that `{path}` names is empty");
            return Err(self.note(&entry.origin, None, id, what, None));
        }
        Ok(line.to_owned())
    }

    /// A template; `None` for `false`.
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
            Value::Broken => Err(Noted),
            _ => Err(self.wrong_type(path, entry, None)),
        }
    }

    /// With a caret under the character, where the text stands in the file as it is.
    fn wrong_template(
        &mut self,
        path: &str,
        origin: &Origin,
        text: &str,
        error: &TemplateError,
    ) -> Noted {
        let names_something = matches!(
            error.problem,
            TemplateProblem::UnknownFilter { .. } | TemplateProblem::UnknownTable { .. }
        );
        let why = if names_something && !self.is_as_written(origin, text) {
            // The name may be a variable's value.
            let position = error.position;
            format!("character {position}: no filter or lookup table of that name")
        } else {
            error.to_string()
        };
        let item = self.literal_at(origin, text).map(|start| {
            let mut chars = text.char_indices().skip(error.position - 1);
            let (at, length) = chars
                .next()
                .map_or((text.len(), 1), |(at, c)| (at, c.len_utf8()));
            start + at..start + at + length
        });
        let what = format!("invalid value of `{path}`: {why}");
        let help = Some("templates are explained in docs/CONFIGURATION.md".to_owned());
        self.note(origin, item.as_ref(), "config-invalid-value", what, help)
    }

    /// The place of a text's first byte, if it stands in the file as it is: without escapes, and
    /// without an environment variable.
    fn literal_at(&self, origin: &Origin, value: &str) -> Option<usize> {
        let Origin::File(span) = origin else {
            return None;
        };
        let written = self.document.source.text.get(span.clone())?;
        let inner = written.get(1..written.len().checked_sub(1)?)?;
        (inner == value).then_some(span.start + 1)
    }

    /// Whether a text is visible in the file or on the command line anyway.
    pub(super) fn is_as_written(&self, origin: &Origin, value: &str) -> bool {
        match origin {
            Origin::File(_) => self.literal_at(origin, value).is_some(),
            Origin::Set(argument) => argument.ends_with(value),
        }
    }
}
