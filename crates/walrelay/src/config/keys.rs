//! The table of known keys, for the check of names and the reference in `docs/CONFIGURATION.md`.
//!
//! The rows follow from the declarations in `sections`.

/// The type of a key's value, as written in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// A string that no message may show. `<key>_file` may name a file that contains it.
    Secret,
    Bool,
    Integer,
    /// A string of a number and a unit of time.
    Duration,
    /// A string of a number and a unit of bytes.
    Size,
    TextList,
    /// A string, or a list of strings.
    Names,
    /// One of the strings in `here`. Those in `later` are refused as not supported by this version.
    Choice {
        here: Vec<&'static str>,
        later: &'static [&'static str],
    },
    /// A string, number or boolean, read as text.
    Scalar,
    /// A template over columns, or `false` for none.
    Template,
}

impl Kind {
    /// Name of the type with its article, and an example of a value.
    fn described(&self) -> (&'static str, &'static str) {
        match self {
            Kind::Text | Kind::Secret | Kind::Choice { .. } => ("a string", "\"text\""),
            Kind::Bool => ("a boolean", "true"),
            Kind::Integer => ("an integer", "1"),
            Kind::Duration => ("a duration", "\"1s\" (units: ms, s, m, h)"),
            Kind::Size => ("a size", "\"16MiB\" (units: B, KB, KiB, MB, MiB, GB, GiB)"),
            Kind::TextList => ("a list of strings", "[\"text\"]"),
            Kind::Names => (
                "a string or list of strings",
                "\"now\", or [\"now\", \"then\"]",
            ),
            Kind::Scalar => ("a string, number or boolean", "\"text\", 1 or true"),
            Kind::Template => ("a template", "\"{column}\""),
        }
    }

    /// Name of the type with its article, for messages.
    pub(super) fn wanted(&self) -> &'static str {
        self.described().0
    }

    /// Possible values, for the help of an error.
    pub(super) fn help(&self) -> String {
        let Kind::Choice { here, .. } = self else {
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
pub(super) enum Fallback {
    Required,
    /// No value; the key's documentation says what that means.
    Unset,
    /// This default, as written in the file, without the quotes of strings.
    Is(&'static str),
    /// This default, and this version does not support another value.
    Only(&'static str),
}

#[derive(Debug)]
pub(super) struct Row {
    /// Section and name, joined by dots.
    pub(super) path: String,
    pub(super) kind: Kind,
    pub(super) fallback: Fallback,
    /// The key's line in the reference, which a test writes.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "read by the test of the reference")
    )]
    pub(super) doc: String,
}

/// The section whose keys are passed to librdkafka.
pub(super) const PASS_THROUGH: &str = "sink.kafka";
/// The section whose keys are names of headers.
pub(super) const HEADERS: &str = "router.route.headers";
/// The section whose keys are members of the value. A dot leads into an object, so a member's name
/// with a dot or a quote is quoted.
pub(super) const MEMBERS: &str = "router.route.value";
/// The section whose keys are lookup tables and their values.
pub(super) const LOOKUPS: &str = "router.lookup";
/// The section whose keys are columns, with their former names.
pub(super) const FORMER_COLUMNS: &str = "router.former_columns";
/// The section whose keys are subjects.
pub(super) const SCHEMAS: &str = "router.registry.schemas";
/// The sections whose keys are the user's own names.
const OPEN: &[&str] = &[
    PASS_THROUGH,
    HEADERS,
    MEMBERS,
    LOOKUPS,
    FORMER_COLUMNS,
    SCHEMAS,
];

/// Every key, in the order of the reference.
#[derive(Debug)]
pub(super) struct Keys(pub(super) Vec<Row>);

impl Keys {
    pub(super) fn find(&self, path: &str) -> Option<&Row> {
        self.0.iter().find(|row| row.path == path)
    }

    /// Whether `path` is a section, or the first part of a name with dots.
    pub(super) fn is_prefix(&self, path: &str) -> bool {
        OPEN.iter()
            .any(|open| path == *open || below(open, path).is_some())
            || self.0.iter().any(|row| below(&row.path, path).is_some())
    }

    /// The kind of a key's value, also in open sections; `None` for an unknown key.
    pub(super) fn kind(&self, path: &str) -> Option<Kind> {
        match self.find(path) {
            Some(row) => Some(row.kind.clone()),
            None if below(path, HEADERS).is_some() || below(path, MEMBERS).is_some() => {
                Some(Kind::Template)
            }
            None if below(path, FORMER_COLUMNS).is_some() => Some(Kind::Names),
            None => is_free(path).then_some(Kind::Scalar),
        }
    }

    /// Whether messages must not show the key's value.
    pub(super) fn is_secret(&self, path: &str) -> bool {
        names_a_secret(path) || self.find(path).is_some_and(|row| row.kind == Kind::Secret)
    }

    /// The help for an unknown key: the nearest known key, or the known keys of the section.
    pub(super) fn help_for_unknown(&self, path: &str) -> String {
        if let Some(nearest) = self.nearest(path) {
            let is_section = OPEN.contains(&nearest) && self.find(nearest).is_none();
            let section = if is_section { "the section " } else { "" };
            return format!("did you mean {section}`{nearest}`?");
        }
        let section = path.split_once('.').map_or("", |(section, _)| section);
        let rows = self.0.iter();
        let known: Vec<&str> = rows
            .clone()
            .filter_map(|row| below(&row.path, section))
            .collect();
        if known.is_empty() {
            let mut sections: Vec<&str> =
                rows.filter_map(|row| row.path.split('.').next()).collect();
            sections.dedup();
            format!("the sections are {}", sections.join(", "))
        } else {
            format!("the keys of [{section}] are {}", known.join(", "))
        }
    }

    /// The known key or section that an unknown key probably means.
    fn nearest(&self, unknown: &str) -> Option<&str> {
        let leaf = unknown.rsplit('.').next().unwrap_or(unknown);
        let within_section = unknown.split_once('.').map_or(unknown, |(_, rest)| rest);
        // The name is right, but in the wrong section.
        let misplaced = |name: &str| {
            let name = format!(".{name}");
            self.0.iter().find(|row| row.path.ends_with(&name))
        };
        if let Some(row) = [unknown, within_section, leaf]
            .into_iter()
            .find_map(misplaced)
        {
            return Some(&row.path);
        }
        let depth = unknown.matches('.').count();
        let paths = self.0.iter().map(|row| row.path.as_str());
        let sections = paths
            .clone()
            .filter_map(|path| Some(&path[..path.match_indices('.').nth(depth)?.0]));
        paths
            .chain(sections)
            .chain(OPEN.iter().copied())
            .map(|known| (strsim::damerau_levenshtein(unknown, known), known))
            .min()
            .filter(|(distance, _)| *distance <= (leaf.len() / 3).max(2))
            .map(|(_, known)| known)
    }
}

/// Whether `path` is a key of an open section.
pub(super) fn is_free(path: &str) -> bool {
    OPEN.iter().any(|section| below(path, section).is_some())
}

/// The rest of `path` below `section`; `None` if it is not below.
pub(super) fn below<'p>(path: &'p str, section: &str) -> Option<&'p str> {
    path.strip_prefix(section)?.strip_prefix('.')
}

/// Whether a key, or a property of a client library, holds a secret by its name.
pub(super) fn names_a_secret(name: &str) -> bool {
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
