//! Templates for all parts of a record, and the plan that they make.

use walrelay_pgoutput::Relation;

use super::ast::{Lookups, Member, Template, ValueTemplate};
use super::compile::{Compiled, Compiler, Text};
use crate::plan::{Columns, Field, HeaderField, Plan, PlanError, Role, Target, Topic};

/// What each part of a record is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Templates {
    /// The column of the event's id: dead letters name events by it.
    pub id: Option<String>,
    /// Where the record goes.
    pub topic: Template,
    /// Its key; `None` for the null key.
    pub key: Option<Template>,
    /// Its value.
    pub value: ValueTemplate,
    /// Its headers, in this order.
    pub headers: Vec<(String, Template)>,
    /// Its partition; `None` leaves it to the sink.
    pub partition: Option<Template>,
    /// Its timestamp; `None` for the time of production.
    pub timestamp: Option<Template>,
    /// The tables of the filter `lookup`.
    pub lookups: Lookups,
}

impl Templates {
    /// The columns that they name, each once, in the order of the record's parts.
    pub fn columns(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        let mut note = |name| {
            if !names.contains(&name) {
                names.push(name);
            }
        };
        if let Some(id) = &self.id {
            note(id);
        }
        let value = match &self.value {
            ValueTemplate::Text(template) => vec![template],
            ValueTemplate::Object(object) => object.templates(),
        };
        let headers = self.headers.iter().map(|(_, template)| template);
        let templates = std::iter::once(&self.topic)
            .chain(&self.key)
            .chain(value)
            .chain(headers)
            .chain(&self.partition)
            .chain(&self.timestamp);
        templates.flat_map(Template::columns).for_each(note);
        names
    }

    /// The columns that most nearly are the event's id, key and value.
    pub(crate) fn partial_row_columns(&self) -> [Option<&str>; 3] {
        let key = self.key.as_ref().and_then(Template::column);
        let value = match &self.value {
            ValueTemplate::Text(template) => template.column(),
            // What such objects have the event itself in.
            ValueTemplate::Object(object) => {
                object
                    .members
                    .iter()
                    .find_map(|(name, member)| match member {
                        Member::Template(template) if name == "payload" => template.column(),
                        _ => None,
                    })
            }
        };
        [self.id.as_deref(), key, value]
    }

    /// The header that carries the event's id, where one does.
    pub(crate) fn id_header(&self) -> Option<&str> {
        let id = self.id.as_deref()?;
        let mut headers = self.headers.iter();
        let (name, _) = headers.find(|(_, template)| template.column() == Some(id))?;
        Some(name)
    }

    /// The plan of a table.
    pub(crate) fn compile(&self, relation: &Relation<'_>) -> Result<Plan, PlanError> {
        let mut columns = Columns::of(relation);
        let id = || Role::Template(Target::Id);
        let event_id = match &self.id {
            Some(name) => Some(columns.needed(name, id)?.slot),
            None => None,
        };
        let mut compiler = Compiler {
            columns: &mut columns,
            lookups: &self.lookups,
        };
        let topic = compiler.text(&self.topic, &Target::Topic)?;
        let mut fields = Fields { compiler };
        let key = fields.optional(self.key.as_ref(), Target::Key, Compiled::Text)?;
        let value = match &self.value {
            ValueTemplate::Text(template) => {
                fields.field(template, Target::Value, Compiled::Text)?
            }
            ValueTemplate::Object(object) => {
                let object = fields.compiler.object(object, "")?;
                Field::made(Role::Template(Target::Value), Compiled::Object(object))
            }
        };
        let mut headers = Vec::with_capacity(self.headers.len());
        for (name, template) in &self.headers {
            let target = Target::Header(name.as_str().into());
            headers.push(HeaderField {
                name: name.as_str().into(),
                field: fields.field(template, target, Compiled::Text)?,
            });
        }
        let partition = self.partition.as_ref();
        let partition = fields.optional(partition, Target::Partition, Compiled::Partition)?;
        let timestamp = self.timestamp.as_ref();
        let timestamp = fields.optional(timestamp, Target::Timestamp, Compiled::Timestamp)?;
        Ok(Plan {
            topic: Topic::Made(Box::new(topic)),
            key,
            value: Some(value),
            headers,
            partition,
            timestamp,
            event_id,
            slots: columns.finish(),
        })
    }
}

/// Makes fields of templates.
struct Fields<'c, 'r> {
    compiler: Compiler<'c, 'r>,
}

impl Fields<'_, '_> {
    fn field(
        &mut self,
        template: &Template,
        target: Target,
        make: fn(Text) -> Compiled,
    ) -> Result<Field, PlanError> {
        let text = self.compiler.text(template, &target)?;
        Ok(Field::made(Role::Template(target), make(text)))
    }

    fn optional(
        &mut self,
        template: Option<&Template>,
        target: Target,
        make: fn(Text) -> Compiled,
    ) -> Result<Option<Field>, PlanError> {
        template
            .map(|template| self.field(template, target, make))
            .transpose()
    }
}
