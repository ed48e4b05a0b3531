//! [`section!`](crate::section): declares a section. One list of keys becomes the struct, its reader and the rows
//! of the key table.
//!
//! The types of values are functions: [`text`], [`choice`], [`duration`] and others.

use std::fmt::Display;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use crate::document::{Entry, Value};
use crate::keys::{Fallback, Row, Spelling, ValueKind};
use crate::nearest::nearest;
use crate::reader::{AlreadyReported, Reader};
use crate::units;

/// One second.
pub const SECOND: Duration = Duration::from_secs(1);
/// One minute.
pub const MINUTE: Duration = Duration::from_secs(60);

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
        let some = move |reader: &mut Reader<'_>, path: &str, entry: &Entry| {
            convert(reader, path, entry).map(Some)
        };
        let absent: Option<fn() -> Option<T>> = Some(|| None);
        Key {
            absent,
            ..Type::new(self.kind, some).key()
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

/// Declares a text of some kind that `parse` converts.
fn parsed<T: 'static>(
    kind: ValueKind,
    parse: impl Fn(&str) -> Result<T, String> + 'static,
) -> Type<T> {
    Type::new(kind, move |reader, path, entry| {
        let text = reader.text(path, entry)?;
        parse(text).map_err(|why| reader.invalid(path, entry, &why))
    })
}

/// Declares a text that `parse` converts. The error of `parse` says what is expected and must not
/// contain the value.
pub fn text<T: 'static>(parse: fn(&str) -> Result<T, String>) -> Type<T> {
    parsed(ValueKind::Text, parse)
}

/// Declares any text.
pub fn string() -> Type<String> {
    text(|text| Ok(text.to_owned()))
}

/// Returns a text that must not be empty, or else the error `why`.
pub fn not_empty(text: &str, why: &str) -> Result<String, String> {
    if text.is_empty() {
        Err(why.to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// Declares a secret. `<key>_file` may name a file that contains it.
pub fn secret(check: fn(&str) -> Result<(), String>) -> Type<SecretString> {
    parsed(ValueKind::Secret, move |text| {
        check(text).map(|()| text.into())
    })
}

/// Declares the name of a file with a secret, read as its content.
pub fn secret_file() -> Type<SecretString> {
    Type::new(ValueKind::Text, |reader, path, entry| {
        reader.content(path, entry).map(SecretString::from)
    })
}

/// Declares the name of a file. A relative name is looked up next to the configuration file.
pub fn path() -> Type<PathBuf> {
    Type::new(ValueKind::Text, |reader, path, entry| {
        match reader.text(path, entry)? {
            "" => Err(reader.invalid(path, entry, "the name of a file is not empty")),
            name => Ok(reader.beside(name)),
        }
    })
}

/// Declares a boolean.
pub fn boolean() -> Type<bool> {
    Type::new(ValueKind::Bool, |reader, path, entry| match entry.value {
        Value::Bool(value) => Ok(value),
        _ => Err(reader.wrong_type(path, entry)),
    })
}

/// Declares a boolean, or a text that Debezium and Kafka Connect read as one: trimmed, in any case.
pub fn loose_boolean() -> Type<bool> {
    Type::new(ValueKind::Scalar, |reader, path, entry| {
        match &entry.value {
            Value::Bool(value) => Ok(*value),
            Value::Text(text) => {
                let parsed = text.trim().to_ascii_lowercase().parse();
                parsed.map_err(|_| reader.invalid(path, entry, "it must be true or false"))
            }
            _ => Err(reader.wrong_type(path, entry)),
        }
    })
}

/// Declares an integer within limits.
pub fn integer<T: TryFrom<i64> + 'static>(within: RangeInclusive<i64>) -> Type<T> {
    let kind = ValueKind::Integer {
        least: *within.start(),
        most: *within.end(),
    };
    Type::new(kind, move |reader, path, entry| {
        let Value::Integer(number) = entry.value else {
            return Err(reader.wrong_type(path, entry));
        };
        let value = T::try_from(number)
            .ok()
            .filter(|_| within.contains(&number));
        value.ok_or_else(|| {
            let why = format!("it must lie within {} and {}", within.start(), within.end());
            reader.invalid(path, entry, &why)
        })
    })
}

/// Declares a percentage within limits, as in `99.9`.
pub fn percent(within: RangeInclusive<f64>) -> Type<f64> {
    Type::new(ValueKind::Scalar, move |reader, path, entry| {
        let value = reader.scalar(path, entry)?.parse::<f64>().ok();
        value.filter(|value| within.contains(value)).ok_or_else(|| {
            let why = format!(
                "it is a number within {} and {}, such as {}",
                within.start(),
                within.end(),
                within.end()
            );
            reader.invalid(path, entry, &why)
        })
    })
}

/// Declares a duration within limits, as in `"250ms"`, `"1s"`, `"2m"`, `"1h"`.
pub fn duration(within: impl RangeBounds<Duration> + 'static) -> Type<Duration> {
    parsed(ValueKind::Duration, move |text| {
        let value = units::duration(text)?;
        match (within.start_bound(), within.end_bound()) {
            (Bound::Included(least), _) if value < *least => {
                Err(format!("it must be at least {least:?}"))
            }
            (_, Bound::Included(most)) if value > *most => {
                Err(format!("it must be at most {most:?}"))
            }
            _ => Ok(value),
        }
    })
}

/// Declares a size in bytes within limits, as in `"64KiB"`, `"16MiB"`, `"1GB"`.
pub fn size(within: RangeInclusive<u64>) -> Type<u64> {
    parsed(ValueKind::Size, move |text| {
        let value = units::size(text)?;
        within.contains(&value).then_some(value).ok_or_else(|| {
            let (least, most) = (within.start(), within.end());
            format!("it must lie within {least} and {most} bytes")
        })
    })
}

/// Declares a list of strings. `push` adds an item to the values before it, or returns why it is
/// not allowed.
pub fn list<T: 'static>(
    push: impl Fn(&mut Vec<T>, &str) -> Result<(), String> + 'static,
    help: Option<&'static str>,
) -> Type<Vec<T>> {
    Type::new(ValueKind::TextList, move |reader, path, entry| {
        let Value::List(items) = &entry.value else {
            return Err(reader.wrong_type(path, entry));
        };
        if items.is_empty() {
            return Err(reader.invalid(path, entry, "the list must not be empty"));
        }
        let mut values = Vec::new();
        for (item, span) in items {
            match item {
                Value::Text(text) => {
                    if let Err(why) = push(&mut values, text) {
                        let help = help.map(str::to_owned);
                        reader.invalid_part(path, &entry.origin.part(span), &why, help);
                    }
                }
                Value::Broken => {}
                _ => {
                    let found = "something else in its list";
                    reader.unexpected(path, &entry.origin.part(span), found);
                }
            }
        }
        Ok(values)
    })
}

/// Declares a name, or a list of a name and other names for the same thing. `parse` checks each.
pub fn names(parse: fn(&str) -> Result<String, String>) -> Type<Vec<String>> {
    let push = list(
        move |names: &mut Vec<String>, text: &str| {
            names.push(parse(text)?);
            Ok(())
        },
        None,
    );
    Type::new(ValueKind::Names, move |reader, path, entry| {
        match &entry.value {
            Value::Text(text) => match parse(text) {
                Ok(name) => Ok(vec![name]),
                Err(why) => Err(reader.invalid(path, entry, &why)),
            },
            _ => (push.convert)(reader, path, entry),
        }
    })
}

/// Declares a list of any strings.
pub fn strings() -> Type<Vec<String>> {
    let push = |strings: &mut Vec<String>, text: &str| {
        strings.push(text.to_owned());
        Ok(())
    };
    list(push, None)
}

/// Declares one of the texts in `table`.
pub fn choice<T: Copy + 'static>(table: &'static [(&'static str, T)]) -> Type<T> {
    one_of(table, &[], Spelling::Exact)
}

/// Declares one of the texts in `table`, in any case and with blanks around it.
pub fn loose_choice<T: Copy + 'static>(table: &'static [(&'static str, T)]) -> Type<T> {
    one_of(table, &[], Spelling::Loose)
}

/// Declares one of the texts in `table`. Those in `later` are refused as not supported by this
/// version.
pub fn choice_and_later<T: Copy + 'static>(
    table: &'static [(&'static str, T)],
    later: &'static [&'static str],
) -> Type<T> {
    one_of(table, later, Spelling::Exact)
}

fn one_of<T: Copy + 'static>(
    table: &'static [(&'static str, T)],
    later: &'static [&'static str],
    spelling: Spelling,
) -> Type<T> {
    let here = table.iter().map(|(name, _)| *name).collect();
    let kind = ValueKind::Choice {
        here,
        later,
        spelling,
    };
    let help = kind.help();
    Type::new(kind, move |reader, path, entry| {
        let text = reader.text(path, entry)?;
        if let Some((_, value)) = table.iter().find(|(name, _)| spelling.is(name, text)) {
            return Ok(*value);
        }
        let (id, what) = if later.iter().any(|name| spelling.is(name, text)) {
            let what = "is not supported by this version of walrelay";
            (
                "config-not-supported",
                format!("this value of `{path}` {what}"),
            )
        } else {
            ("config-invalid-value", format!("invalid value of `{path}`"))
        };
        let near = nearest(text, table.iter().map(|(name, _)| *name))
            .map_or_else(String::new, |name| format!("did you mean \"{name}\"? "));
        Err(reader.note(&entry.origin, id, what, Some(near + &help)))
    })
}

/// Declares a key that is accepted only with its default.
pub fn default_only(default: &'static str) -> Key<()> {
    Key {
        fallback: Fallback::Only(default),
        ..Type::new(ValueKind::Scalar, |_, _, _| Ok(())).key()
    }
}

/// Makes a library's error the error of a `parse` function.
pub fn why(error: impl Display) -> String {
    error.to_string()
}
