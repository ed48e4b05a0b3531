//! [`section!`]: declares a section. One list of keys becomes the struct, its reader and the rows
//! of the key table.
//!
//! A row is `"key" field: Type = how;`. Its doc comment documents the field and is the key's line
//! in `docs/CONFIGURATION.md`. `refused { … }` lists keys that are known and not supported. `impl`
//! in place of `struct` declares the keys of a struct of another crate.

use std::fmt::Display;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use walrelay_event_router::{Place, Template};

use super::document::{Entry, Value};
use super::keys::{Fallback, Kind, Row};
use super::reader::{Noted, Reader};
use super::units;

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MINUTE: Duration = Duration::from_secs(60);

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

        $crate::config::declare::section! {
            impl $name at $at {
                $( $(#[doc = $doc])* $key $field: $type = $how; )*
                $(refused { $($refused)* })?
            }
        }
    };
    (
        impl $name:ident at $at:literal {
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
        impl $crate::config::declare::Section for $name {
            const AT: &'static str = $at;

            fn rows(at: &str, rows: &mut Vec<$crate::config::keys::Row>) {
                use $crate::config::declare::{Source, joined};
                $( $how.rows(&joined(at, $key), &[$($doc),*], rows); )*
                $($( $refused.rows(&joined(at, $refused_key), &[$($refused_doc),*], rows); )*)?
            }

            fn read_at(
                reader: &mut $crate::config::reader::Reader<'_>,
                at: &str,
            ) -> Result<Self, $crate::config::reader::Noted> {
                use $crate::config::declare::{Source, joined};
                // Every key is read before the first error returns, so that all problems are noted.
                $( let $field: Result<$type, _> = $how.read(reader, &joined(at, $key)); )*
                Ok(Self { $( $field: $field?, )* })
            }
        }
    };
}
pub(super) use section;

/// A struct whose keys [`section!`] declares.
pub(super) trait Section: Sized {
    /// The section's path; empty for a section that is part of several others.
    const AT: &'static str;
    fn rows(at: &str, rows: &mut Vec<Row>);
    fn read_at(reader: &mut Reader<'_>, at: &str) -> Result<Self, Noted>;

    fn read(reader: &mut Reader<'_>) -> Result<Self, Noted> {
        Self::read_at(reader, Self::AT)
    }
}

/// The path of `key` in the section `at`. An empty key stands for the section itself.
pub(super) fn joined(at: &str, key: &str) -> String {
    if at.is_empty() || key.is_empty() {
        format!("{at}{key}")
    } else {
        format!("{at}.{key}")
    }
}

/// Reads a field that is a section of its own.
pub(super) struct Nested<T>(PhantomData<T>);

pub(super) fn nested<T: Section>() -> Nested<T> {
    Nested(PhantomData)
}

/// Reads a field of a section.
pub(super) trait Source<T> {
    fn rows(&self, path: &str, docs: &[&str], rows: &mut Vec<Row>);
    fn read(&self, reader: &mut Reader<'_>, path: &str) -> Result<T, Noted>;
}

impl<T: Section> Source<T> for Nested<T> {
    fn rows(&self, path: &str, _docs: &[&str], rows: &mut Vec<Row>) {
        T::rows(path, rows);
    }

    fn read(&self, reader: &mut Reader<'_>, path: &str) -> Result<T, Noted> {
        T::read_at(reader, path)
    }
}

type Convert<T> = Box<dyn Fn(&mut Reader<'_>, &str, &Entry) -> Result<T, Noted>>;

type Condition = fn(&Reader<'_>) -> bool;

/// Converts the value of a key to a `T`.
pub(super) struct Type<T> {
    kind: Kind,
    convert: Convert<T>,
}

/// A [`Type`], with what applies if the key is not set.
pub(super) struct Key<T> {
    kind: Kind,
    convert: Convert<T>,
    fallback: Fallback,
    absent: Option<fn() -> T>,
    /// An example of the value, and the condition under which the key is required.
    required: Option<(&'static str, Condition)>,
}

impl<T: 'static> Type<T> {
    fn new(
        kind: Kind,
        convert: impl Fn(&mut Reader<'_>, &str, &Entry) -> Result<T, Noted> + 'static,
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

    /// A key with a default, as written in the file, without the quotes of a string.
    pub(super) fn or(self, default: &'static str) -> Key<T> {
        let fallback = Fallback::Is(default);
        Key {
            fallback,
            ..self.key()
        }
    }

    /// A required key. `example`: a value as written in the file.
    pub(super) fn required(self, example: &'static str) -> Key<T> {
        self.key().required_if(example, |_| true)
    }

    pub(super) fn optional(self) -> Key<Option<T>> {
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
    /// Converts the value of an open section's key.
    pub(super) fn convert(
        &self,
        reader: &mut Reader<'_>,
        path: &str,
        entry: &Entry,
    ) -> Result<T, Noted> {
        (self.convert)(reader, path, entry)
    }
}

impl<T: 'static> Type<Vec<T>> {
    pub(super) fn or_empty(self) -> Key<Vec<T>> {
        let absent: Option<fn() -> Vec<T>> = Some(Vec::new);
        Key {
            absent,
            ..self.key()
        }
    }
}

impl<T: 'static> Key<T> {
    /// Makes the key required under a condition.
    pub(super) fn required_if(self, example: &'static str, needed: Condition) -> Self {
        Self {
            fallback: Fallback::Required,
            required: Some((example, needed)),
            ..self
        }
    }
}

impl<T> Source<T> for Key<T> {
    fn rows(&self, path: &str, docs: &[&str], rows: &mut Vec<Row>) {
        let lines: Vec<&str> = docs.iter().map(|line| line.trim()).collect();
        rows.push(Row {
            path: path.to_owned(),
            kind: self.kind.clone(),
            fallback: self.fallback,
            doc: lines.join(" "),
        });
        if self.kind == Kind::Secret {
            let (_, name) = path.rsplit_once('.').unwrap_or(("", path));
            rows.push(Row {
                doc: format!("The file to read it from, instead of `{name}`."),
                path: format!("{path}_file"),
                kind: Kind::Text,
                fallback: Fallback::Unset,
            });
        }
    }

    fn read(&self, reader: &mut Reader<'_>, path: &str) -> Result<T, Noted> {
        if let Some(entry) = reader.entry(path, &self.kind)? {
            return (self.convert)(reader, path, &entry);
        }
        if let Fallback::Is(text) = self.fallback {
            let entry = Entry::of_default(path, &self.kind, text);
            return (self.convert)(reader, path, &entry);
        }
        if let Some((example, needed)) = self.required
            && needed(reader)
        {
            return Err(reader.missing(path, example));
        }
        self.absent.map(|absent| absent()).ok_or(Noted)
    }
}

/// A text that `parse` converts. The error of `parse` says what is expected and must not contain
/// the value.
fn parsed<T: 'static>(kind: Kind, parse: impl Fn(&str) -> Result<T, String> + 'static) -> Type<T> {
    Type::new(kind, move |reader, path, entry| {
        let text = reader.text(path, entry)?;
        parse(text).map_err(|why| reader.invalid(path, entry, &why))
    })
}

pub(super) fn text<T: 'static>(parse: fn(&str) -> Result<T, String>) -> Type<T> {
    parsed(Kind::Text, parse)
}

pub(super) fn string() -> Type<String> {
    text(|text| Ok(text.to_owned()))
}

/// A text that must not be empty, or else the error `why`.
pub(super) fn not_empty(text: &str, why: &str) -> Result<String, String> {
    if text.is_empty() {
        Err(why.to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// A secret. `<key>_file` may name a file that contains it.
pub(super) fn secret(check: fn(&str) -> Result<(), String>) -> Type<SecretString> {
    parsed(Kind::Secret, move |text| check(text).map(|()| text.into()))
}

/// The name of a file with a secret, read as its content.
pub(super) fn secret_file() -> Type<SecretString> {
    Type::new(Kind::Text, |reader, path, entry| {
        reader.content(path, entry).map(SecretString::from)
    })
}

/// The name of a file. A relative name is looked up beside the configuration file.
pub(super) fn path() -> Type<PathBuf> {
    Type::new(Kind::Text, |reader, path, entry| {
        match reader.text(path, entry)? {
            "" => Err(reader.invalid(path, entry, "the name of a file is not empty")),
            name => Ok(reader.beside(name)),
        }
    })
}

pub(super) fn boolean() -> Type<bool> {
    Type::new(Kind::Bool, |reader, path, entry| match entry.value {
        Value::Bool(value) => Ok(value),
        _ => Err(reader.wrong_type(path, entry)),
    })
}

/// A boolean, or a text that Debezium and Kafka Connect read as one: trimmed, in any case.
pub(super) fn loose_boolean() -> Type<bool> {
    Type::new(Kind::Scalar, |reader, path, entry| match &entry.value {
        Value::Bool(value) => Ok(*value),
        Value::Text(text) => {
            let parsed = text.trim().to_ascii_lowercase().parse();
            parsed.map_err(|_| reader.invalid(path, entry, "it must be true or false"))
        }
        _ => Err(reader.wrong_type(path, entry)),
    })
}

pub(super) fn integer<T: TryFrom<i64> + 'static>(within: RangeInclusive<i64>) -> Type<T> {
    Type::new(Kind::Integer, move |reader, path, entry| {
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

pub(super) fn duration(within: impl RangeBounds<Duration> + 'static) -> Type<Duration> {
    parsed(Kind::Duration, move |text| {
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

pub(super) fn size(within: RangeInclusive<u64>) -> Type<u64> {
    parsed(Kind::Size, move |text| {
        let value = units::size(text)?;
        within.contains(&value).then_some(value).ok_or_else(|| {
            let (least, most) = (within.start(), within.end());
            format!("it must lie within {least} and {most} bytes")
        })
    })
}

/// A list of strings. `push` adds an item to the values before it, or returns why it is not
/// allowed.
pub(super) fn list<T: 'static>(
    push: impl Fn(&mut Vec<T>, &str) -> Result<(), String> + 'static,
    help: Option<&'static str>,
) -> Type<Vec<T>> {
    Type::new(Kind::TextList, move |reader, path, entry| {
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

/// A name, or a list of a name and other names for the same thing. `parse` checks each.
pub(super) fn names(parse: fn(&str) -> Result<String, String>) -> Type<Vec<String>> {
    let push = list(
        move |names: &mut Vec<String>, text: &str| {
            names.push(parse(text)?);
            Ok(())
        },
        None,
    );
    Type::new(Kind::Names, move |reader, path, entry| match &entry.value {
        Value::Text(text) => match parse(text) {
            Ok(name) => Ok(vec![name]),
            Err(why) => Err(reader.invalid(path, entry, &why)),
        },
        _ => (push.convert)(reader, path, entry),
    })
}

pub(super) fn strings() -> Type<Vec<String>> {
    let push = |strings: &mut Vec<String>, text: &str| {
        strings.push(text.to_owned());
        Ok(())
    };
    list(push, None)
}

/// One of the texts in `table`.
pub(super) fn choice<T: Copy + 'static>(table: &'static [(&'static str, T)]) -> Type<T> {
    choice_and_later(table, &[])
}

/// One of the texts in `table`. Those in `later` are refused as not supported by this version.
pub(super) fn choice_and_later<T: Copy + 'static>(
    table: &'static [(&'static str, T)],
    later: &'static [&'static str],
) -> Type<T> {
    let here = table.iter().map(|(name, _)| *name).collect();
    let kind = Kind::Choice { here, later };
    let help = kind.help();
    Type::new(kind, move |reader, path, entry| {
        let text = reader.text(path, entry)?;
        // Debezium trims and ignores case.
        let loose = path.starts_with("router.debezium.");
        let same =
            |choice: &str| choice == text || loose && choice.eq_ignore_ascii_case(text.trim());
        if let Some((_, value)) = table.iter().find(|(name, _)| same(name)) {
            return Ok(*value);
        }
        let (id, what) = if later.iter().any(|name| same(name)) {
            let what = "is not supported by this version of walrelay";
            (
                "config-not-supported",
                format!("this value of `{path}` {what}"),
            )
        } else {
            ("config-invalid-value", format!("invalid value of `{path}`"))
        };
        let near = table
            .iter()
            .find(|(name, _)| strsim::damerau_levenshtein(name, text) <= 2)
            .map_or_else(String::new, |(name, _)| {
                format!("did you mean \"{name}\"? ")
            });
        Err(reader.note(&entry.origin, id, what, Some(near + &help)))
    })
}

/// A template; `false` is not allowed.
pub(super) fn template(place: Place) -> Type<Template> {
    Type::new(Kind::Template, move |reader, path, entry| {
        let template = reader.template(path, entry, place)?;
        template.ok_or_else(|| reader.wrong_type(path, entry))
    })
}

/// A template that must not be the empty text.
pub(super) fn full_template(place: Place, why: &'static str) -> Type<Template> {
    let template = template(place);
    Type::new(Kind::Template, move |reader, path, entry| {
        match &entry.value {
            Value::Text(text) if text.is_empty() => Err(reader.invalid(path, entry, why)),
            _ => (template.convert)(reader, path, entry),
        }
    })
}

/// A template, or `false` for none.
pub(super) fn template_or_false(place: Place) -> Type<Part> {
    Type::new(Kind::Template, move |reader, path, entry| {
        reader.template(path, entry, place).map(Part)
    })
}

/// Only `false`. Other values belong in the section of the same name.
pub(super) fn only_false() -> Type<()> {
    Type::new(Kind::Template, |reader, path, entry| match entry.value {
        Value::Bool(false) => Ok(()),
        _ => Err(reader.wrong_type(path, entry)),
    })
}

/// The template of a part of a record; `None` if the configuration has `false`.
pub(super) struct Part(pub(super) Option<Template>);

/// A key that is accepted only with its default.
pub(super) fn default_only(default: &'static str) -> Key<()> {
    Key {
        fallback: Fallback::Only(default),
        ..Type::new(Kind::Scalar, |_, _, _| Ok(())).key()
    }
}

/// A library's error as the error of a `parse` function.
pub(super) fn why(error: impl Display) -> String {
    error.to_string()
}
