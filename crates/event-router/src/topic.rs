//! Where a row goes.

use std::str;

use walrelay_pgoutput::Value;

use crate::part::{Fault, ValueError, value};
use crate::{Role, Target, TopicTemplate, template};

/// What makes the name of a topic.
#[derive(Debug)]
pub(crate) enum Topic {
    /// Debezium's `route.topic.replacement` over the text of a column.
    Routed {
        slot: usize,
        /// What NULL stands for.
        default: Option<Box<str>>,
        template: TopicTemplate,
    },
    /// The text of a column as it is.
    Column { slot: usize },
    /// A template over columns.
    Template(template::Text),
}

impl Topic {
    /// What its columns are needed for.
    pub(crate) fn role(&self) -> Role {
        match self {
            Self::Routed { .. } | Self::Column { .. } => Role::RouteBy,
            Self::Template(_) => Role::Template(Target::Topic),
        }
    }

    /// Replaces what `topic` holds by the name for this row. The name is not empty.
    pub(crate) fn render(
        &self,
        values: &[Value<'_>],
        scratch: &mut Vec<u8>,
        topic: &mut String,
    ) -> Result<(), Fault> {
        match self {
            Self::Routed { slot, .. } | Self::Column { slot } => {
                let fault = |why| Fault::new(*slot, why);
                let default = match self {
                    Self::Routed { default, .. } => default.as_deref(),
                    _ => None,
                };
                let text = match (value(values, *slot)?, default) {
                    (Some(text), _) => {
                        str::from_utf8(text).map_err(|_| fault(ValueError::NotUtf8))?
                    }
                    (None, Some(default)) => default,
                    (None, None) => return Err(fault(ValueError::Null)),
                };
                match self {
                    Self::Routed { template, .. } => template.render(text, topic),
                    _ => text.clone_into(topic),
                }
                if topic.is_empty() {
                    return Err(fault(ValueError::Empty));
                }
                Ok(())
            }
            Self::Template(template) => {
                let part = template.render(values, scratch)?;
                let fault = |why| Fault::new(template.slot(), why);
                let text = part.resolve(scratch).ok_or(fault(ValueError::Null))?;
                let text = str::from_utf8(text).map_err(|_| fault(ValueError::NotUtf8))?;
                if text.is_empty() {
                    return Err(fault(ValueError::Empty));
                }
                topic.clear();
                topic.push_str(text);
                Ok(())
            }
        }
    }
}
