//! `walrelay schema`: prints the JSON Schema of the configuration file.

use crate::commands::{CommandResult, print_text};
use crate::config;

/// Runs `walrelay schema`.
pub(crate) fn schema() -> CommandResult {
    Ok(print_text(&config::json_schema())?)
}
