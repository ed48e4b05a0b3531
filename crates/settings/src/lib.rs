//! Declares and reads a configuration: a TOML file, `--set` and environment variables. Knows no
//! key.
//!
//! # Contents
//! - [`section!`]: declares a section. One list of keys becomes the struct, its reader and the rows
//!   of [`Keys`].
//! - [`text`], [`choice`], [`duration`], … : the types of values, each a [`Type`] that becomes a
//!   [`Key`] with its default.
//! - [`read`]: reads a file and overrides into a [`Reader`], which sections read their keys from.
//! - [`ConfigError`], [`Problem`], [`Location`]: all problems, each with line, column, an excerpt
//!   and a remedy.
//! - [`Keys::json_schema`]: the declared keys as a JSON Schema, for editors.
//! - [`nearest`]: "did you mean". [`format_bytes`]: `12.3 MiB`.
//!
//! # Inside
//! `document` reads TOML and `--set` into entries, and expands variables (`expand`). `reader`
//! converts entries to values and collects problems. `excerpt` shows lines of the file. `keys` is
//! the table of keys. `declare` has the macro, `declare/types` the types of values; `units` reads
//! durations and sizes. `schema` makes a JSON Schema of the table.
//!
//! # Invariants
//! - Struct, reader, known names and defaults follow from one declaration; a reference can.
//! - A key that is known and not supported is refused, not ignored.
//! - All problems are reported, not only the first.
//! - No value of a secret key or of an environment variable is part of an error. Messages show
//!   lines of the file as they are written. A line that may hold a secret is cut off at the equals
//!   sign.

mod bytes;
mod declare;
mod document;
mod error;
mod excerpt;
mod expand;
mod keys;
mod reader;
mod schema;
mod units;

pub use bytes::format_bytes;
pub use declare::types::{
    MINUTE, SECOND, boolean, choice, choice_and_later, default_only, duration, integer, list,
    loose_boolean, loose_choice, names, not_empty, path, percent, secret, secret_file, size,
    string, strings, text, why,
};
pub use declare::{Field, Key, Nested, Section, Type, joined, nested};
pub use document::{Entry, Origin, Value};
pub use error::{ConfigError, Location, Problem};
pub use expand::expand;
pub use keys::{Fallback, Keys, OpenSection, Row, Spelling, ValueKind, below, names_a_secret};
pub use reader::{AlreadyReported, ReadFile, Reader};
pub use units::duration as parse_duration;
pub use walrelay_failure::nearest;

use document::Document;
use excerpt::FileText;

/// Reads `text` and `overrides` (`key=value` texts that take precedence).
///
/// Messages name the text `file_name`, and relative names of secret files are looked up beside that
/// file. A value of an override is bare text if the key takes a string and the value does not begin
/// with a quote, and TOML otherwise. `env` looks up environment variables for `${NAME}`; `files`
/// reads files that keys name.
///
/// # Errors
/// If `text` is no TOML. The other problems are those of [`Reader::into_problems`].
pub fn read<'a>(
    text: &'a str,
    file_name: &'a str,
    overrides: &[String],
    env: &'a dyn Fn(&str) -> Option<String>,
    files: ReadFile<'a>,
    keys: &'a Keys,
) -> Result<Reader<'a>, ConfigError> {
    let source = FileText {
        name: file_name,
        text,
    };
    let document = Document::read(source, keys, overrides, env);
    let mut problems = document.problems.iter();
    if problems.any(|problem| problem.id == "config-syntax") {
        // No entry was read, so every required key would be reported as missing.
        return Err(ConfigError::new(document.problems));
    }
    Ok(Reader::new(document, files))
}
