//! The topic of a row.

use std::str;

use walrelay_pgoutput::Value;

use super::Renderer;
use super::role::{Role, Target};
use crate::value::{ColumnIndex, Fault, ValueError, value};

pub(crate) enum Topic {
    /// The topic by the text of one column.
    Routed {
        index: ColumnIndex,
        /// Replaces NULL.
        default: Option<Box<str>>,
        /// Makes the topic of the text; `None` if the text is the topic.
        name: Option<Box<TopicName>>,
    },
    /// A text rendered from any columns.
    Rendered(Renderer),
    /// The first part of an address, and the key of its template. It may be empty, as the name of
    /// AMQP's default exchange is.
    Address(Renderer, &'static str),
}

/// Replaces the second argument by the topic for the first.
pub(crate) type TopicName = dyn Fn(&str, &mut String) + Send + Sync;

impl Topic {
    pub(crate) fn role(&self) -> Role {
        match self {
            Self::Routed { .. } => Role::RouteBy,
            Self::Rendered(_) => Role::Template(Target::Topic),
            Self::Address(_, key) => Role::Template(Target::Address(key)),
        }
    }

    /// Replaces `topic` by the topic of this row, which is not empty, or by its address.
    pub(crate) fn render(
        &self,
        values: &[Value<'_>],
        scratch: &mut Vec<u8>,
        topic: &mut String,
    ) -> Result<(), Fault> {
        let part;
        let (index, bytes, name) = match self {
            Self::Routed {
                index,
                default,
                name,
            } => {
                let default = default.as_deref().map(str::as_bytes);
                (*index, value(values, *index)?.or(default), name.as_ref())
            }
            Self::Rendered(renderer) | Self::Address(renderer, _) => {
                part = (renderer.render)(values, scratch)?;
                (renderer.index, part.resolve(scratch), None)
            }
        };
        let fault = |why| Fault::new(index, why);
        let text = str::from_utf8(bytes.ok_or(fault(ValueError::Null))?);
        let text = text.map_err(|_| fault(ValueError::NotUtf8))?;
        match name {
            Some(name) => name(text, topic),
            None => text.clone_into(topic),
        }
        if topic.is_empty() && !matches!(self, Self::Address(..)) {
            return Err(fault(ValueError::Empty));
        }
        Ok(())
    }
}
