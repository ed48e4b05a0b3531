//! Arguments of `walrelay route`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::common::ConfigArgs;

/// Arguments of `route`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct RouteArgs {
    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// A file with the row: a JSON object of columns and values; `-` for standard input.
    ///
    /// Values are texts as Postgres prints them, or JSON's own: numbers, booleans, null, and
    /// objects and arrays for json and jsonb. A member "$types" is an object of columns and their
    /// types.
    #[arg(long, value_name = "FILE", required_unless_present = "message")]
    pub row: Option<PathBuf>,

    /// A file with the content of a logical message instead of a row: a JSON object, or an array of
    /// several events as outbox.emit_all writes it; `-` for standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["row", "types"])]
    pub message: Option<PathBuf>,

    /// The type of a column, as in CREATE TABLE; may be repeated. Wins over "$types".
    ///
    /// Without one it follows from the value: an object or array is jsonb, a whole number bigint,
    /// another number numeric, a boolean boolean, a text that looks like one uuid, timestamptz,
    /// timestamp or date, and anything else text.
    #[arg(long = "type", value_name = "COLUMN=TYPE", value_parser = column_type)]
    pub types: Vec<(String, String)>,

    /// How to show the record.
    #[arg(long, value_enum, value_name = "FORM", default_value_t)]
    pub output: Form,
}

/// The output format of a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people.
    #[default]
    Text,
    /// An object on one line, as the sink `stdout` writes it.
    Json,
}

fn column_type(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((column, name)) if !column.is_empty() && !name.trim().is_empty() => {
            Ok((column.to_owned(), name.trim().to_owned()))
        }
        _ => Err("it has the form column=type, such as payload=jsonb".to_owned()),
    }
}
