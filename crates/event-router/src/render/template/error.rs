//! The errors of templates.

use super::ast::FILTERS;
use crate::plan::did_you_mean;

/// Why a text is not a [`Template`](super::Template), or not one for the place where it stands.
///
/// Positions count characters of the text from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("character {position}: {problem}")]
pub struct TemplateError {
    /// Where in the text.
    pub position: usize,
    /// What is wrong there.
    pub problem: TemplateProblem,
}

/// What is wrong at a place of a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateProblem {
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// `{` without its `}`.
    #[error("{{ is not closed by a }}; write {{{{ for the character itself")]
    Unclosed,
    /// A `}` that closes nothing.
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
    /// Something else comes next.
    #[error("expected {0}")]
    Expected(&'static str),
    /// The filter does not exist.
    #[error("there is no filter {name:?}{}; filters are {}", did_you_mean(nearest.as_deref()), FILTERS.map(|(name, _)| name).join(", "))]
    UnknownFilter {
        /// As written.
        name: String,
        /// A filter of similar spelling.
        nearest: Option<String>,
    },
    /// The wrong number or kind of arguments.
    #[error("{filter} is written {usage}")]
    Arguments {
        /// The filter.
        filter: &'static str,
        /// How it is written.
        usage: &'static str,
    },
    /// The configuration does not have the lookup table.
    #[error(
        "there is no lookup table {name:?}{}; {}",
        did_you_mean(nearest.as_deref()),
        tables(known)
    )]
    UnknownTable {
        /// As written.
        name: String,
        /// A table of similar spelling.
        nearest: Option<String>,
        /// The tables of the configuration.
        known: Vec<String>,
    },
    /// `optional` somewhere before the end.
    #[error("optional must be the last filter")]
    OptionalNotLast,
    /// `optional` in a part that cannot be left out.
    #[error("optional leaves out what is NULL; {0} cannot be left out")]
    NothingToLeaveOut(&'static str),
    /// `optional` in a text with other parts.
    #[error("optional can only stand where the column is all there is")]
    OptionalInText,
}

fn tables(known: &[String]) -> String {
    match known {
        [] => "none is configured".to_owned(),
        known => format!("tables are {}", known.join(", ")),
    }
}
