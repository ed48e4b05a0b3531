//! Arguments that several commands take.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use secrecy::SecretString;

/// The configuration file and its overrides.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ConfigArgs {
    /// The configuration file.
    #[arg(
        short,
        long,
        value_name = "FILE",
        env = "WALRELAY_CONFIG",
        default_value = "walrelay.toml"
    )]
    pub config: PathBuf,

    /// Override a key of the file; may be repeated, the last one counts.
    ///
    /// The value is plain text, or TOML for numbers, booleans and lists.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = assignment)]
    pub set: Vec<String>,
}

/// The output format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs: one document, or an object a line.
    Json,
}

/// The place of a text in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordPlace {
    /// The header of this name.
    Header(String),
    /// The member of this name in the value, a JSON object.
    Value(String),
}

impl FromStr for RecordPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("header", name)) if !name.is_empty() => Ok(Self::Header(name.to_owned())),
            Some(("value", name)) if !name.is_empty() => Ok(Self::Value(name.to_owned())),
            _ => Err("a place has the form header:NAME or value:MEMBER".to_owned()),
        }
    }
}

/// Takes an argument that may hold a password.
#[expect(clippy::unnecessary_wraps, reason = "as clap asks for it")]
pub(super) fn secret(text: &str) -> Result<SecretString, Infallible> {
    Ok(SecretString::from(text))
}

/// Arguments of commands that change something: the configuration and `--dry-run`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ChangeArgs {
    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// Show what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of commands that ask first: the configuration, `--dry-run` and `--yes`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct AskArgs {
    /// The configuration and `--dry-run`.
    #[command(flatten)]
    pub change: ChangeArgs,

    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
}

/// The option of commands that the status page of a relay runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct ParentArgs {
    /// End when standard input ends: a relay that is killed cannot end the command.
    #[arg(long, hide = true)]
    pub end_with_stdin: bool,
}

/// Arguments of `slots list` and `bookmark list`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ListSlotsArgs {
    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// For people, or for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Checks the form of `--set`; the configuration checks the key.
fn assignment(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, _)) if !key.trim().is_empty() => Ok(text.to_owned()),
        _ => Err("an override has the form key=value, such as source.slot=orders".to_owned()),
    }
}
