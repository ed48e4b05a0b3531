//! [`Keys`]: the table of known keys, for the check of names and for a reference.
//!
//! The rows follow from the declarations with [`section!`](crate::section).

use walrelay_failure::nearest_within;

/// The type of a key's value, as written in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueKind {
    /// A string.
    Text,
    /// A string that no message may show. `<key>_file` may name a file that contains it.
    Secret,
    /// A boolean.
    Bool,
    /// An integer.
    Integer {
        /// The least value.
        least: i64,
        /// The largest value.
        most: i64,
    },
    /// A string of a number and a unit of time.
    Duration,
    /// A string of a number and a unit of bytes.
    Size,
    /// A list of strings.
    TextList,
    /// A string, or a list of strings.
    Names,
    /// One of the strings in `here`. Those in `later` are refused as not supported by this version.
    Choice {
        /// The values of this version.
        here: Vec<&'static str>,
        /// Values that this version refuses.
        later: &'static [&'static str],
        /// How a value may differ from its name here.
        spelling: Spelling,
    },
    /// A string, number or boolean, read as text.
    Scalar,
    /// A template over columns, or `false` for none.
    Template,
}

/// The way in which a choice may be spelt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// As it is listed.
    Exact,
    /// In any case, and with blanks around it.
    Loose,
}

impl Spelling {
    /// Returns true if `text` spells `name`.
    pub(crate) fn is(self, name: &str, text: &str) -> bool {
        match self {
            Self::Exact => name == text,
            Self::Loose => name.eq_ignore_ascii_case(text.trim()),
        }
    }
}

impl ValueKind {
    /// Returns the name of the type with its article, and an example of a value.
    fn described(&self) -> (&'static str, &'static str) {
        match self {
            ValueKind::Text | ValueKind::Secret | ValueKind::Choice { .. } => {
                ("a string", "\"text\"")
            }
            ValueKind::Bool => ("a boolean", "true"),
            ValueKind::Integer { .. } => ("an integer", "1"),
            ValueKind::Duration => ("a duration", "\"1s\" (units: ms, s, m, h)"),
            ValueKind::Size => ("a size", "\"16MiB\" (units: B, KB, KiB, MB, MiB, GB, GiB)"),
            ValueKind::TextList => ("a list of strings", "[\"text\"]"),
            ValueKind::Names => (
                "a string or list of strings",
                "\"now\", or [\"now\", \"then\"]",
            ),
            ValueKind::Scalar => ("a string, number or boolean", "\"text\", 1 or true"),
            ValueKind::Template => ("a template", "\"{column}\""),
        }
    }

    /// Returns the name of the type with its article, for messages.
    pub fn wanted(&self) -> &'static str {
        self.described().0
    }

    /// Returns possible values, for the help of an error.
    pub(crate) fn help(&self) -> String {
        let ValueKind::Choice { here, .. } = self else {
            return format!("for example {}", self.described().1);
        };
        let quoted: Vec<_> = here.iter().map(|one| format!("\"{one}\"")).collect();
        match quoted.as_slice() {
            [only] => format!("the only value of this version is {only}"),
            _ => format!("one of {}", quoted.join(", ")),
        }
    }
}

/// The value of a key that is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// The key has no default.
    Required,
    /// No value; the key's documentation says what that means.
    Unset,
    /// This default, as written in the file, without the quotes of strings.
    Is(&'static str),
    /// This default, and this version does not support another value.
    Only(&'static str),
}

/// A declared key.
#[derive(Debug)]
pub struct Row {
    /// Section and name, joined by dots.
    pub path: String,
    /// The path of the section in which it is declared.
    pub section: &'static str,
    /// The type of its value.
    pub kind: ValueKind,
    /// Its value if it is not set.
    pub fallback: Fallback,
    /// Its line in a reference, in Markdown.
    pub doc: String,
}

/// A section whose keys are the user's own names.
#[derive(Debug, Clone)]
pub struct OpenSection {
    /// The section's path.
    pub at: &'static str,
    /// The kind of every value.
    pub kind: ValueKind,
    /// Tells whether a dot in a name leads into a section below. A name that has a dot or a quote
    /// is quoted there. A value may be an integer or a boolean, too.
    pub nests: bool,
}

/// Every key of a configuration, in the order of its reference.
#[derive(Debug)]
pub struct Keys {
    rows: Vec<Row>,
    open: Vec<OpenSection>,
    /// The section of which each section below is an alternative to the others.
    alternatives: Option<&'static str>,
    /// Names by which other programs know a key: a name or a whole path, and the key's path.
    synonyms: &'static [(&'static str, &'static str)],
}

impl Keys {
    /// Creates the table of the keys in `rows` and of the sections in `open`.
    pub fn new(rows: Vec<Row>, open: Vec<OpenSection>) -> Self {
        Self {
            rows,
            open,
            alternatives: None,
            synonyms: &[],
        }
    }

    /// Sets the section of which each section below is an alternative to the others.
    #[must_use]
    pub fn with_alternatives(mut self, section: &'static str) -> Self {
        self.alternatives = Some(section);
        self
    }

    /// Sets names by which other programs know a key: a name or a whole path, and the key's path.
    #[must_use]
    pub fn with_synonyms(mut self, synonyms: &'static [(&'static str, &'static str)]) -> Self {
        self.synonyms = synonyms;
        self
    }

    /// Returns the declared keys, in order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the sections whose keys are the user's own names.
    pub(crate) fn open(&self) -> &[OpenSection] {
        &self.open
    }

    /// Finds a declared key by its path.
    pub(crate) fn find(&self, path: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.path == path)
    }

    /// Returns true if `path` is a section, or the first part of a name with dots.
    pub(crate) fn is_prefix(&self, path: &str) -> bool {
        self.open
            .iter()
            .any(|open| path == open.at || below(open.at, path).is_some())
            || self.rows.iter().any(|row| below(&row.path, path).is_some())
    }

    /// Returns the open section that `path` is a key of.
    pub(crate) fn open_around(&self, path: &str) -> Option<&OpenSection> {
        self.open.iter().find(|open| below(path, open.at).is_some())
    }

    /// Returns the kind of a key's value, also in open sections; `None` for an unknown key.
    pub(crate) fn kind(&self, path: &str) -> Option<ValueKind> {
        match self.find(path) {
            Some(row) => Some(row.kind.clone()),
            None => self.open_around(path).map(|open| open.kind.clone()),
        }
    }

    /// Returns true if messages must not show the key's value.
    pub(crate) fn is_secret(&self, path: &str) -> bool {
        names_a_secret(path)
            || self
                .find(path)
                .is_some_and(|row| row.kind == ValueKind::Secret)
    }

    /// Returns the path of the key `name` in the section `prefix`. Quotes make a difference only
    /// where sections nest.
    pub(crate) fn joined(&self, prefix: &str, name: &str) -> String {
        let nests = |open: &OpenSection| {
            open.nests && (prefix == open.at || below(prefix, open.at).is_some())
        };
        if (name.is_empty() || name.contains(['.', '"'])) && self.open.iter().any(nests) {
            format!("{prefix}.\"{}\"", name.replace('"', "\"\""))
        } else if prefix.is_empty() {
            name.to_owned()
        } else {
            format!("{prefix}.{name}")
        }
    }

    /// Returns the path of an override. Quotes are kept only where [`Keys::joined`] writes them.
    pub(crate) fn unquoted(&self, path: &str) -> String {
        if self.open_around(path).is_some_and(|open| open.nests) {
            path.to_owned()
        } else {
            path.replace('"', "")
        }
    }

    /// Returns the help for an unknown key: the nearest known key, or the known keys of the
    /// section.
    pub(crate) fn help_for_unknown(&self, path: &str) -> String {
        let similar = self.similar(path);
        let only = match similar[..] {
            [only] => Some(only),
            _ => None,
        };
        let nearest = self.synonym(path).or(only);
        let nearest = nearest.or_else(|| self.nearest(path));
        let nearest = nearest.or_else(|| self.far(path));
        if let Some(nearest) = nearest {
            let is_open = self.open.iter().any(|open| open.at == nearest);
            let is_section = is_open && self.find(nearest).is_none();
            let section = if is_section { "the section " } else { "" };
            return format!("did you mean {section}`{nearest}`?");
        }
        if !similar.is_empty() {
            let similar = similar.iter().map(|path| format!("`{path}`"));
            return format!("did you mean {}?", similar.collect::<Vec<_>>().join(" or "));
        }
        let section = path.split_once('.').map_or("", |(section, _)| section);
        let rows = self.rows.iter();
        let known: Vec<&str> = rows
            .clone()
            .filter_map(|row| below(&row.path, section))
            .collect();
        if known.is_empty() {
            let mut sections: Vec<&str> =
                rows.filter_map(|row| row.path.split('.').next()).collect();
            sections.dedup();
            format!("the sections are {}", sections.join(", "))
        } else if known.len() <= MAX_LISTED {
            format!("the keys of [{section}] are {}", known.join(", "))
        } else {
            let mut first: Vec<&str> = known
                .iter()
                .filter_map(|key| key.split('.').next())
                .collect();
            first.dedup();
            format!(
                "the keys and sections of [{section}] are {}",
                first.join(", ")
            )
        }
    }

    /// Returns the key that a name or a path of another program stands for.
    fn synonym(&self, name: &str) -> Option<&'static str> {
        let synonym = self.synonyms.iter().find(|(synonym, _)| *synonym == name);
        synonym.map(|(_, path)| *path)
    }

    /// Returns the key or section that an unknown key of another spelling means: by the name in another program,
    /// or by a section without those around it.
    fn far(&self, unknown: &str) -> Option<&str> {
        let leaf = unknown.rsplit('.').next().unwrap_or(unknown);
        // The key of another kind has no effect.
        let is_of_other = |path: &str| {
            self.alternatives.is_some_and(|of| {
                below(unknown, of).is_some_and(|rest| rest.contains('.'))
                    && below(path, of).is_some()
            })
        };
        let known = self.synonym(&leaf.to_ascii_lowercase().replace('-', "_"));
        if let Some(path) = known.filter(|path| !is_of_other(path)) {
            return Some(path);
        }
        let (first, _) = unknown.split_once('.').unwrap_or((unknown, ""));
        let open = self.open.iter().map(|open| open.at);
        let sections = self.rows.iter().map(|row| row.section).chain(open);
        let mut sections = sections.filter(|section| section.contains('.'));
        sections.find(|section| section.rsplit('.').next() == Some(first))
    }

    /// Returns the keys of the section whose names contain the unknown one, or are contained in it. Dots,
    /// underscores and a plural make no difference.
    fn similar(&self, unknown: &str) -> Vec<&str> {
        let section = unknown.rsplit_once('.').map_or("", |(section, _)| section);
        let wanted = squashed(below(unknown, section).unwrap_or(unknown));
        let matches = |row: &&Row| {
            let name = below(&row.path, section).map(squashed).unwrap_or_default();
            let (short, long) = if name.len() < wanted.len() {
                (&name, &wanted)
            } else {
                (&wanted, &name)
            };
            short.len() >= LEAST_SIMILAR && long.contains(short.as_str())
        };
        let rows = self.rows.iter().filter(matches);
        let paths = rows.map(|row| row.path.as_str());
        paths.take(MAX_SIMILAR).collect()
    }

    /// Returns the known key or section that an unknown key probably means.
    fn nearest(&self, unknown: &str) -> Option<&str> {
        let leaf = unknown.rsplit('.').next().unwrap_or(unknown);
        let within_section = unknown.split_once('.').map_or(unknown, |(_, rest)| rest);
        let section = unknown.rsplit_once('.').map_or("", |(section, _)| section);
        if SERVERS.contains(&leaf)
            && let Some(row) = self.find(&format!("{section}.hosts"))
        {
            return Some(&row.path);
        }
        let alternative = |path: &str| {
            let (section, _) = below(path, self.alternatives?)?.split_once('.')?;
            Some(section.to_owned())
        };
        let own = alternative(unknown);
        // The name is right, but in the wrong section. That of an alternative has no effect.
        let misplaced = |name: &str| {
            let name = format!(".{name}");
            let mut rows = self.rows.iter();
            rows.find(|row| {
                let other = alternative(&row.path);
                row.path.ends_with(&name) && (own.is_none() || other.is_none() || other == own)
            })
        };
        if let Some(row) = [unknown, within_section, leaf]
            .into_iter()
            .find_map(misplaced)
        {
            return Some(&row.path);
        }
        let depth = unknown.matches('.').count();
        let paths = self.rows.iter().map(|row| row.path.as_str());
        let sections = paths
            .clone()
            .filter_map(|path| Some(&path[..path.match_indices('.').nth(depth)?.0]));
        let open = self.open.iter().map(|open| open.at);
        nearest_within(
            (leaf.len() / 3).clamp(1, 3),
            unknown,
            paths.chain(sections).chain(open),
        )
    }
}

/// Names by which other programs know the servers, which a section calls `hosts`.
const SERVERS: [&str; 11] = [
    "brokers",
    "endpoints",
    "nodes",
    "url",
    "urls",
    "uri",
    "host",
    "server",
    "servers",
    "address",
    "addresses",
];

/// The fewest signs of a name that is looked for in others.
const LEAST_SIMILAR: usize = 4;
/// The most keys that a help suggests.
const MAX_SIMILAR: usize = 3;

/// Returns the letters and digits of a name, in lower case, without the `s` of a plural.
fn squashed(name: &str) -> String {
    let signs = name.chars().filter(char::is_ascii_alphanumeric);
    let mut name: String = signs.map(|sign| sign.to_ascii_lowercase()).collect();
    if name.ends_with('s') {
        name.pop();
    }
    name
}

/// The most keys that a help lists.
const MAX_LISTED: usize = 20;

/// Returns the rest of `path` below `section`; `None` if it is not below.
pub fn below<'p>(path: &'p str, section: &str) -> Option<&'p str> {
    path.strip_prefix(section)?.strip_prefix('.')
}

/// Tells whether a key, or a property of a client library, holds a secret by its name.
pub fn names_a_secret(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    [
        "password",
        "passwd",
        "secret",
        "token",
        "credential",
        "jaas",
        "key.pem",
        "oauthbearer.config",
    ]
    .iter()
    .any(|word| lower.contains(word))
}
