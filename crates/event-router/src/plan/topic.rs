//! Where a row goes.

use std::fmt;
use std::str;

use walrelay_pgoutput::Value;

use super::Render;
use super::role::{Role, Target};
use crate::value::{Fault, ValueError, value};

/// What makes the name of a topic.
#[derive(Debug)]
pub(crate) enum Topic {
    /// By the text of one column.
    Routed {
        slot: usize,
        /// What NULL stands for.
        default: Option<Box<str>>,
        /// `None`: the text is the topic.
        name: Option<Box<dyn TopicName>>,
    },
    /// A text made of any columns.
    Made(Box<dyn Render>),
}

/// Makes the name of a topic from the text of a column.
pub(crate) trait TopicName: fmt::Debug + Send + Sync {
    /// Replaces what `topic` holds by the topic for `value`.
    fn render(&self, value: &str, topic: &mut String);
}

impl Topic {
    /// What its columns are needed for.
    pub(crate) fn role(&self) -> Role {
        match self {
            Self::Routed { .. } => Role::RouteBy,
            Self::Made(_) => Role::Template(Target::Topic),
        }
    }

    /// Replaces what `topic` holds by the name for this row. The name is not empty.
    pub(crate) fn render(
        &self,
        values: &[Value<'_>],
        scratch: &mut Vec<u8>,
        topic: &mut String,
    ) -> Result<(), Fault> {
        let part;
        let (slot, bytes, name) = match self {
            Self::Routed {
                slot,
                default,
                name,
            } => {
                let default = default.as_deref().map(str::as_bytes);
                (*slot, value(values, *slot)?.or(default), name.as_ref())
            }
            Self::Made(render) => {
                part = render.render(values, scratch)?;
                (render.slot(), part.resolve(scratch), None)
            }
        };
        let fault = |why| Fault::new(slot, why);
        let text = str::from_utf8(bytes.ok_or(fault(ValueError::Null))?);
        let text = text.map_err(|_| fault(ValueError::NotUtf8))?;
        match name {
            Some(name) => name.render(text, topic),
            None => text.clone_into(topic),
        }
        if topic.is_empty() {
            return Err(fault(ValueError::Empty));
        }
        Ok(())
    }
}
