//! Templates for all parts of a record, and their compilation into a plan.

use super::ast::{Lookups, Member, Template, ValueTemplate};
use super::compile::{Compiler, Text};
use crate::plan::{Columns, Plan, PlanError, Role, Target, Topic};

/// A template for each part of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Templates {
    /// Column of the event's id, which dead letters contain.
    pub id: Option<String>,
    /// Topic of the record.
    pub topic: Template,
    /// Key of the record; `None` for the null key.
    pub key: Option<Template>,
    /// Value of the record.
    pub value: ValueTemplate,
    /// Headers of the record, in this order.
    pub headers: Vec<(String, Template)>,
    /// Partition of the record; `None` leaves it to the sink.
    pub partition: Option<Template>,
    /// Timestamp of the record; `None` for the time of production.
    pub timestamp: Option<Template>,
    /// Tables of the filter `lookup`.
    pub lookups: Lookups,
}

impl Templates {
    /// Returns the columns that the templates read, without repetitions, in the order of the
    /// record's parts.
    pub fn columns(&self) -> Vec<&str> {
        let value = match &self.value {
            ValueTemplate::Text(template) => vec![template],
            ValueTemplate::Object(object) => object.templates(),
        };
        let templates = std::iter::once(&self.topic)
            .chain(&self.key)
            .chain(value)
            .chain(self.headers.iter().map(|(_, template)| template))
            .chain(&self.partition)
            .chain(&self.timestamp);
        let named = templates.flat_map(Template::columns);
        let mut names: Vec<&str> = Vec::new();
        for name in self.id.iter().map(String::as_str).chain(named) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Returns the columns of the event's id, key and value, or those that come nearest.
    pub(crate) fn partial_row_columns(&self) -> [Option<&str>; 3] {
        let key = self.key.as_ref().and_then(Template::column);
        let value = match &self.value {
            ValueTemplate::Text(template) => template.column(),
            ValueTemplate::Object(object) => {
                let payload = object.members.iter().find(|(name, _)| name == "payload");
                match payload {
                    Some((_, Member::Template(template))) => template.column(),
                    _ => None,
                }
            }
        };
        [self.id.as_deref(), key, value]
    }

    pub(crate) fn id_header(&self) -> Option<&str> {
        let id = self.id.as_deref()?;
        let mut headers = self.headers.iter();
        let (name, _) = headers.find(|(_, template)| template.column() == Some(id))?;
        Some(name)
    }

    /// Compiles the plan of a table.
    pub(crate) fn compile(&self, columns: &mut Columns<'_>) -> Result<Plan, PlanError> {
        let id = || Role::Template(Target::Id);
        let event_id = match &self.id {
            Some(name) => Some(columns.needed(name, id)?.0),
            None => None,
        };
        let lookups = &self.lookups;
        let mut compiler = Compiler { columns, lookups };
        let topic = compiler.text(&self.topic, &Target::Topic)?.into_part();
        let key = self.key.as_ref();
        let key = key.map(|key| compiler.field(key, Target::Key, Text::into_part));
        let key = key.transpose()?;
        let value = match &self.value {
            ValueTemplate::Text(template) => {
                compiler.field(template, Target::Value, Text::into_part)?
            }
            ValueTemplate::Object(object) => {
                let object = compiler.object(object, "")?.into_part();
                object.field(Role::Template(Target::Value))
            }
        };
        let headers = self.headers.iter().map(|(name, template)| {
            let name: Box<str> = name.as_str().into();
            let target = Target::Header(name.clone());
            Ok((name, compiler.field(template, target, Text::into_part)?))
        });
        let headers = headers.collect::<Result<_, PlanError>>()?;
        let partition = self.partition.as_ref();
        let partition = partition
            .map(|template| compiler.field(template, Target::Partition, Text::into_partition));
        let partition = partition.transpose()?;
        let timestamp = self.timestamp.as_ref();
        let timestamp = timestamp
            .map(|template| compiler.field(template, Target::Timestamp, Text::into_timestamp));
        Ok(Plan {
            topic: Topic::Rendered(topic),
            routing_key: None,
            key,
            value,
            headers,
            partition,
            timestamp: timestamp.transpose()?,
            event_id,
        })
    }
}
