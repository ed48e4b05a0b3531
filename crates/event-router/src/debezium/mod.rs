//! The rules of Debezium's outbox event router.

mod compile;
mod expand;
pub(crate) mod field;
mod java_regex;
mod json_tree;
mod options;
pub(crate) mod payload;
mod topic_template;

pub use expand::{Expand, NameAdjustment};
pub use java_regex::{JavaRegexError, RegexProblem};
pub use options::{Additional, Options, Placement, PlacementError};
pub use topic_template::{TopicTemplate, TopicTemplateError};

/// The header that carries the event's id. Debezium names it so whatever the column is called.
pub(crate) const ID_HEADER: &str = "id";
