//! The types of values: a function for each.

use std::fmt::Display;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use walrelay_failure::nearest;

use super::{Key, Type};
use crate::document::Value;
use crate::keys::{Fallback, Spelling, ValueKind};
use crate::units;

/// One second.
pub const SECOND: Duration = Duration::from_secs(1);

/// One minute.
pub const MINUTE: Duration = Duration::from_secs(60);

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
                    let other = "something else in its list";
                    reader.unexpected(path, &entry.origin.part(span), other);
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
