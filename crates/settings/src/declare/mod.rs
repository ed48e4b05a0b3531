//! [`section!`](crate::section): declares a section. One list of keys becomes the struct, its reader and the rows
//! of the key table.
//!
//! `types` has the types of values, which are functions: [`text`](types::text), [`choice`](types::choice),
//! [`duration`](types::duration) and others.

pub(crate) mod types;

use std::marker::PhantomData;

use crate::document::Entry;
use crate::keys::{Fallback, Row, ValueKind};
use crate::reader::{AlreadyReported, Reader};

/// Declares a section: `"key" field: Type = how;` for each key.
///
/// A row's doc comment documents the field and is the key's line in the reference. `refused { … }`
/// lists keys that are known and not supported. `impl S by K`, where
/// `K` is a unit struct, declares the keys of a struct `S` of another crate.
///
/// The struct of the keys is the section, unless keys depend on each other. Then a second struct has what
/// was checked, and cannot have the combinations that are refused: `HttpKeys` is what `[http]` says, and
/// `Http` of the same file is what the rest of the code uses.
#[macro_export]
macro_rules! section {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident at $at:literal {
            $(
                $(#[doc = $doc:literal])*
                $key:literal $field:ident: $type:ty = $how:expr;
            )*
            $(refused { $($refused:tt)* })?
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $( $(#[doc = $doc])* pub $field: $type, )*
        }

        $crate::section! {
            impl $name by $name at $at {
                $( $(#[doc = $doc])* $key $field: $type = $how; )*
                $(refused { $($refused)* })?
            }
        }
    };
    (
        impl $name:ident by $keys:ident at $at:literal {
            $(
                $(#[doc = $doc:literal])*
                $key:literal $field:ident: $type:ty = $how:expr;
            )*
            $(refused {
                $(
                    $(#[doc = $refused_doc:literal])*
                    $refused_key:literal = $refused:expr;
                )*
            })?
        }
    ) => {
        impl $crate::Section for $keys {
            type Read = $name;
            const AT: &'static str = $at;

            fn rows(at: &str, rows: &mut Vec<$crate::Row>) {
                use $crate::{Field as _, joined};
                $( $how.rows(&joined(at, $key), &[$($doc),*], rows); )*
                $($( $refused.rows(&joined(at, $refused_key), &[$($refused_doc),*], rows); )*)?
            }

            fn read_at(
                reader: &mut $crate::Reader<'_>,
                at: &str,
            ) -> Result<$name, $crate::AlreadyReported> {
                use $crate::{Field as _, joined};
                // Every key is read before the first error returns, so that all problems are noted.
                $( let $field: Result<$type, _> = $how.read(reader, &joined(at, $key)); )*
                Ok($name { $( $field: $field?, )* })
            }
        }
    };
}

/// A struct whose keys [`section!`](crate::section) declares.
pub trait Section {
    /// The type that is read: the struct itself, or one of another crate.
    type Read;
    /// The section's path; empty for a section that is part of several others.
    const AT: &'static str;
    /// Adds the keys of the section at the path `at` to `rows`.
    fn rows(at: &str, rows: &mut Vec<Row>);
    /// Adds the keys of the section at its own path to `rows`.
    fn declare(rows: &mut Vec<Row>) {
        let first = rows.len();
        Self::rows(Self::AT, rows);
        for row in rows.iter_mut().skip(first) {
            row.section = Self::AT;
        }
    }

    /// Reads the section at the path `at`.
    ///
    /// # Errors
    /// If a problem was reported to `reader`.
    fn read_at(reader: &mut Reader<'_>, at: &str) -> Result<Self::Read, AlreadyReported>;

    /// Reads the section at its own path.
    ///
    /// # Errors
    /// If a problem was reported to `reader`.
    fn read(reader: &mut Reader<'_>) -> Result<Self::Read, AlreadyReported> {
        Self::read_at(reader, Self::AT)
    }
}

/// Returns the path of `key` in the section `at`. An empty key stands for the section itself.
pub fn joined(at: &str, key: &str) -> String {
    if at.is_empty() || key.is_empty() {
        format!("{at}{key}")
    } else {
        format!("{at}.{key}")
    }
}

/// Reads a field that is a section of its own.
#[derive(Debug)]
pub struct Nested<T>(PhantomData<T>);

/// Declares a field that is a section of its own.
pub fn nested<T: Section>() -> Nested<T> {
    Nested(PhantomData)
}

/// Reads a field of a section.
pub trait Field<T> {
    /// Adds the keys of the field at `path` to `rows`. `docs`: the lines of its doc comment.
    fn rows(&self, path: &str, docs: &[&str], rows: &mut Vec<Row>);
    /// Reads the field at `path`.
    ///
    /// # Errors
    /// If a problem was reported to `reader`.
    fn read(&self, reader: &mut Reader<'_>, path: &str) -> Result<T, AlreadyReported>;
}

impl<T: Section> Field<T::Read> for Nested<T> {
    fn rows(&self, path: &str, _docs: &[&str], rows: &mut Vec<Row>) {
        T::rows(path, rows);
    }

    fn read(&self, reader: &mut Reader<'_>, path: &str) -> Result<T::Read, AlreadyReported> {
        T::read_at(reader, path)
    }
}

type Convert<T> = Box<dyn Fn(&mut Reader<'_>, &str, &Entry) -> Result<T, AlreadyReported>>;

type Condition = fn(&Reader<'_>) -> bool;

/// Converts the value of a key to a `T`.
#[expect(missing_debug_implementations, reason = "it has a closure")]
pub struct Type<T> {
    kind: ValueKind,
    convert: Convert<T>,
}

/// A [`Type`], with what applies if the key is not set.
#[expect(missing_debug_implementations, reason = "it has a closure")]
pub struct Key<T> {
    kind: ValueKind,
    convert: Convert<T>,
    fallback: Fallback,
    absent: Option<fn() -> T>,
    /// An example of the value, and the condition under which the key is required.
    required: Option<(&'static str, Condition)>,
}

impl<T: 'static> Type<T> {
    /// Creates a type of values that `convert` reads: it gets the key's path and its entry.
    pub fn new(
        kind: ValueKind,
        convert: impl Fn(&mut Reader<'_>, &str, &Entry) -> Result<T, AlreadyReported> + 'static,
    ) -> Self {
        let convert = Box::new(convert);
        Self { kind, convert }
    }

    fn key(self) -> Key<T> {
        Key {
            kind: self.kind,
            convert: self.convert,
            fallback: Fallback::Unset,
            absent: None,
            required: None,
        }
    }

    /// Makes a key with a default, as written in the file, without the quotes of a string.
    pub fn or(self, default: &'static str) -> Key<T> {
        let fallback = Fallback::Is(default);
        Key {
            fallback,
            ..self.key()
        }
    }

    /// Makes a required key. `example`: a value as written in the file.
    pub fn required(self, example: &'static str) -> Key<T> {
        self.key().required_if(example, |_| true)
    }

    /// Makes a key that need not be set.
    pub fn optional(self) -> Key<Option<T>> {
        let convert = self.convert;
        let convert_some = move |reader: &mut Reader<'_>, path: &str, entry: &Entry| {
            convert(reader, path, entry).map(Some)
        };
        let absent: Option<fn() -> Option<T>> = Some(|| None);
        Key {
            absent,
            ..Type::new(self.kind, convert_some).key()
        }
    }
}

impl<T> Type<T> {
    /// Converts an entry, such as that of an open section's key.
    ///
    /// # Errors
    /// If a problem was reported to `reader`.
    pub fn convert(
        &self,
        reader: &mut Reader<'_>,
        path: &str,
        entry: &Entry,
    ) -> Result<T, AlreadyReported> {
        (self.convert)(reader, path, entry)
    }
}

impl<T: 'static> Type<Vec<T>> {
    /// Makes a key whose list is empty if it is not set.
    pub fn or_empty(self) -> Key<Vec<T>> {
        let absent: Option<fn() -> Vec<T>> = Some(Vec::new);
        Key {
            absent,
            ..self.key()
        }
    }
}

impl<T: 'static> Key<T> {
    /// Makes the key required under a condition.
    #[must_use]
    pub fn required_if(self, example: &'static str, needed: Condition) -> Self {
        Self {
            fallback: Fallback::Required,
            required: Some((example, needed)),
            ..self
        }
    }
}

impl<T> Field<T> for Key<T> {
    fn rows(&self, path: &str, docs: &[&str], rows: &mut Vec<Row>) {
        let lines: Vec<&str> = docs.iter().map(|line| line.trim()).collect();
        rows.push(Row {
            path: path.to_owned(),
            section: "",
            kind: self.kind.clone(),
            fallback: self.fallback,
            doc: lines.join(" "),
        });
        if self.kind == ValueKind::Secret {
            let (_, name) = path.rsplit_once('.').unwrap_or(("", path));
            rows.push(Row {
                doc: format!("The file to read it from, instead of `{name}`."),
                path: format!("{path}_file"),
                section: "",
                kind: ValueKind::Text,
                fallback: Fallback::Unset,
            });
        }
    }

    fn read(&self, reader: &mut Reader<'_>, path: &str) -> Result<T, AlreadyReported> {
        if let Some(entry) = reader.entry(path, &self.kind)? {
            return (self.convert)(reader, path, &entry);
        }
        if let Fallback::Is(text) = self.fallback {
            let entry = Entry::from_default(path, &self.kind, text);
            return (self.convert)(reader, path, &entry);
        }
        if let Some((example, needed)) = self.required
            && needed(reader)
        {
            return Err(reader.missing(path, example));
        }
        self.absent.map(|absent| absent()).ok_or(AlreadyReported)
    }
}
