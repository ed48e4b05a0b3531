//! Errors of templates.

use super::ast::FILTERS;
use crate::plan::did_you_mean;

/// The reason why a text is not a [`Template`](super::Template), or not one for its place.
///
/// Positions count characters of the text from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("character {position}: {problem}")]
pub struct TemplateError {
    /// Position in the text, counted in characters from 1.
    pub position: usize,
    /// The fault at that position.
    pub problem: TemplateProblem,
}

/// A fault at a place of a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateProblem {
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// `{` without `}`.
    #[error("{{ is not closed by a }}; write {{{{ for the character itself")]
    Unclosed,
    /// `}` without `{`.
    #[error("a }} without its {{; write }}}} for the character itself")]
    Stray,
    /// `${type}`, as in shells and in Debezium's `${routedByValue}`.
    #[error(
        "a column is written {{name}}, without a dollar sign; write {{'$'}} for the character itself"
    )]
    Dollar,
    /// A quote that is not closed.
    #[error("the quote is not closed by another {0}")]
    Quote(char),
    /// Unexpected text.
    #[error("expected {0}")]
    Expected(&'static str),
    /// Unknown filter.
    #[error("there is no filter {name:?}{}; filters are {}", did_you_mean(nearest.as_deref()), FILTERS.map(|(name, _)| name).join(", "))]
    UnknownFilter {
        /// Name as written.
        name: String,
        /// The filter of the most similar name.
        nearest: Option<String>,
    },
    /// Wrong number or kind of arguments.
    #[error("{filter} is written {usage}")]
    Arguments {
        /// Name of the filter.
        filter: &'static str,
        /// Usage of the filter.
        usage: &'static str,
    },
    /// Unknown lookup table.
    #[error(
        "there is no lookup table {name:?}{}; {}",
        did_you_mean(nearest.as_deref()),
        tables(known)
    )]
    UnknownTable {
        /// Name as written.
        name: String,
        /// The table of the most similar name.
        nearest: Option<String>,
        /// Tables of the configuration.
        known: Vec<String>,
    },
    /// `optional` before another filter.
    #[error("optional must be the last filter")]
    OptionalNotLast,
    /// `optional` in a place that cannot be left out.
    #[error("optional leaves out what is NULL; {0} cannot be left out")]
    NothingToLeaveOut(&'static str),
    /// `optional` in a text with more than one column.
    #[error("optional can only stand where the column is all there is")]
    OptionalInText,
}

fn tables(known: &[String]) -> String {
    match known {
        [] => "none is configured".to_owned(),
        known => format!("tables are {}", known.join(", ")),
    }
}
