//! The rules of Debezium's outbox event router.

mod compile;
mod options;
mod topic_template;

pub use options::Options;
pub use topic_template::{TopicTemplate, TopicTemplateError};

/// The header that carries the event's id. Debezium names it so whatever the column is called.
pub(crate) const ID_HEADER: &str = "id";
