//! The rules of Debezium's outbox event router.

mod compile;
mod expand;
mod field;
mod java_regex;
mod options;
mod topic_template;
mod trace;

pub use expand::{Expand, NameAdjustment};
pub use java_regex::{JavaRegexError, RegexProblem};
pub(crate) use options::ID_HEADER;
pub use options::{Additional, Options, Placement, PlacementError};
pub use topic_template::{TopicTemplate, TopicTemplateError};
