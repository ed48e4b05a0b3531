//! Templates of a sink's address, which every route can have.

use std::fmt;

use super::ast::{Lookups, Template, Tokens};
use super::compile::{Compiler, Text};
use crate::plan::{Columns, Plan, PlanError, Role, Target, Topic};

/// The templates of a sink's address over the columns of the row, such as exchange and routing key,
/// or a URL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Address {
    /// The first part, which replaces the topic of the route; `None`: the topic of the route.
    pub topic: Option<AddressPart>,
    /// The second part, which becomes [`Record::routing_key`](walrelay_sink::Record::routing_key).
    pub routing_key: Option<AddressPart>,
    /// Tables of the filter `lookup`.
    pub lookups: Lookups,
}

/// A template of an address.
#[derive(Clone, PartialEq, Eq)]
pub struct AddressPart {
    /// The key of the configuration that has the template, for errors.
    pub key: &'static str,
    /// The template.
    pub template: Template,
    /// Each value of a column becomes one token of a text whose tokens dots separate, such as a
    /// subject of NATS, or one part of a URL; `None`: values are unchanged.
    pub tokens: Option<Tokens>,
}

/// Without the template, which may contain values of environment variables.
impl fmt::Debug for AddressPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressPart")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Address {
    /// Replaces the address in the plan of a table.
    pub(crate) fn compile(
        &self,
        columns: &mut Columns<'_>,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        let lookups = &self.lookups;
        let mut compiler = Compiler { columns, lookups };
        let mut part = |AddressPart {
                            key,
                            template,
                            tokens,
                        }: &AddressPart| {
            let mut text = compiler.text(template, &Target::Address(key))?;
            if let Some(tokens) = tokens {
                text.make_tokens(*tokens);
            }
            Ok::<_, PlanError>((Text::into_part(text), *key))
        };
        if let Some(topic) = &self.topic {
            let (renderer, key) = part(topic)?;
            plan.topic = Topic::Address(renderer, key);
        }
        if let Some(routing_key) = &self.routing_key {
            let (renderer, key) = part(routing_key)?;
            plan.routing_key = Some(renderer.field(Role::Template(Target::Address(key))));
        }
        Ok(())
    }
}
