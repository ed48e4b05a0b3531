//! The table of known keys: what the checks of names and the reference in `docs/CONFIGURATION.md` read.
//!
//! The rows come from the declarations in `sections`.

/// What a value looks like in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// A string that no message may show; also the content of the file that `<key>_file` names.
    Secret,
    Bool,
    Integer,
    /// A string with a number and a unit of time.
    Duration,
    /// A string with a number and a unit of bytes.
    Size,
    TextList,
    /// One of `here`; those of `later` are known by name and refused as not in this version.
    Choice {
        here: Vec<&'static str>,
        later: &'static [&'static str],
    },
    /// A string, number or boolean, taken as its text.
    Scalar,
    /// A template over columns, or `false` for none.
    Template,
}

impl Kind {
    /// With its article, for messages.
    pub(super) fn wanted(&self) -> &'static str {
        match self {
            Kind::Text | Kind::Secret | Kind::Choice { .. } => "a string",
            Kind::Bool => "a boolean",
            Kind::Integer => "an integer",
            Kind::Duration => "a duration",
            Kind::Size => "a size",
            Kind::TextList => "a list of strings",
            Kind::Scalar => "a string, number or boolean",
            Kind::Template => "a template",
        }
    }

    /// Which values are possible, for the help of an error.
    pub(super) fn help(&self) -> String {
        let example = match self {
            Kind::Choice { here, .. } => {
                let quoted: Vec<_> = here.iter().map(|one| format!("\"{one}\"")).collect();
                return match quoted.as_slice() {
                    [only] => format!("the only value of this version is {only}"),
                    _ => format!("one of {}", quoted.join(", ")),
                };
            }
            Kind::Text | Kind::Secret => "\"text\"",
            Kind::Bool => "true",
            Kind::Integer => "1",
            Kind::Duration => "\"1s\" (units: ms, s, m, h)",
            Kind::Size => "\"16MiB\" (units: B, KB, KiB, MB, MiB, GB, GiB)",
            Kind::TextList => "[\"text\"]",
            Kind::Scalar => "\"text\", 1 or true",
            Kind::Template => "\"{column}\"",
        };
        format!("for example {example}")
    }
}

/// What holds when the file does not mention the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fallback {
    Required,
    /// Nothing; the key's documentation says what that means.
    Unset,
    /// This, as written in the file but for the quotes of strings.
    Is(&'static str),
}

/// How far this version supports a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Support {
    Full,
    /// The file may contain it only with its default.
    DefaultOnly,
}

#[derive(Debug)]
pub(super) struct Row {
    /// Section and name, joined by dots.
    pub(super) path: String,
    pub(super) kind: Kind,
    pub(super) fallback: Fallback,
    pub(super) support: Support,
    /// One line for the reference, which a test writes.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "read by the test of the reference")
    )]
    pub(super) doc: String,
}

/// Section whose keys are passed through to librdkafka.
pub(super) const PASS_THROUGH: &str = "sink.kafka";
/// Sections whose keys are the user's own names: of headers, of the members of a value (a dot leads
/// into an object, so a name with a dot or a quote is quoted), of lookup tables and their values, and
/// of subjects.
pub(super) const HEADERS: &str = "router.route.headers";
pub(super) const MEMBERS: &str = "router.route.value";
pub(super) const LOOKUPS: &str = "router.lookup";
pub(super) const SCHEMAS: &str = "router.registry.schemas";
const OPEN: &[&str] = &[PASS_THROUGH, HEADERS, MEMBERS, LOOKUPS, SCHEMAS];

/// Every key, in the order of the reference.
#[derive(Debug)]
pub(super) struct Keys(pub(super) Vec<Row>);

impl Keys {
    pub(super) fn find(&self, path: &str) -> Option<&Row> {
        self.0.iter().find(|row| row.path == path)
    }

    /// Whether `path` is a section, or the beginning of a name with dots.
    pub(super) fn is_prefix(&self, path: &str) -> bool {
        OPEN.iter()
            .any(|open| path == *open || below(open, path).is_some())
            || self.0.iter().any(|row| below(&row.path, path).is_some())
    }

    /// The kind of a key's value, also in open sections.
    pub(super) fn kind(&self, path: &str) -> Option<Kind> {
        match self.find(path) {
            Some(row) => Some(row.kind.clone()),
            None if below(path, HEADERS).is_some() || below(path, MEMBERS).is_some() => {
                Some(Kind::Template)
            }
            None => is_free(path).then_some(Kind::Scalar),
        }
    }

    /// Whether messages must not show the key's value.
    pub(super) fn is_secret(&self, path: &str) -> bool {
        names_a_secret(path) || self.find(path).is_some_and(|row| row.kind == Kind::Secret)
    }

    /// The help for an unknown key: the nearest known one, or what there is.
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

    /// The known key or section that an unknown one was probably meant to be.
    fn nearest(&self, unknown: &str) -> Option<&str> {
        let leaf = unknown.rsplit('.').next().unwrap_or(unknown);
        let within_section = unknown.split_once('.').map_or(unknown, |(_, rest)| rest);
        // The right name in the wrong section.
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

/// Whether `path` is a key of a section that takes any name.
pub(super) fn is_free(path: &str) -> bool {
    OPEN.iter().any(|section| below(path, section).is_some())
}

/// What `path` names in `section`.
pub(super) fn below<'p>(path: &'p str, section: &str) -> Option<&'p str> {
    path.strip_prefix(section)?.strip_prefix('.')
}

/// Whether the name of a key, or of a property of a client library, is that of a secret.
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
