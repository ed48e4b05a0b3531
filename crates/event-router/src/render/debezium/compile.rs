//! Compiles the options of Debezium's router into the plan of a table.

use std::borrow::Cow;

use super::field::{Envelope, PayloadRules};
use super::options::{ID_HEADER, Options, Placement};
use super::trace;
use crate::plan::{Columns, Field, Plan, PlanError, Renderer, Role, Topic};
use crate::render::connect::schema::{Data, Schema, SchemaType};
use crate::render::connect::{Codec, Column, TableFacts};
use crate::value::{ColumnIndex, Part, value};

impl Options {
    /// Compiles the plan of a table. `facts` are from the catalogs.
    pub(crate) fn compile(
        &self,
        columns: &mut Columns<'_>,
        facts: Option<&TableFacts>,
    ) -> Result<Plan, PlanError> {
        let mut table = Table {
            options: self,
            columns,
            facts,
        };
        let id = table.needed(&self.event_id, Role::EventId)?;
        let key = table.needed(&self.event_key, Role::EventKey)?;
        let payload = table.needed(&self.payload, Role::Payload)?;
        let routed_by = table.needed(&self.route_by, Role::RouteBy)?;
        if !(routed_by.codec == Codec::Text && routed_by.schema.kind == SchemaType::String) {
            return Err(table.unsupported(&self.route_by, &routed_by, Role::RouteBy));
        }
        let default = match &routed_by.schema.default {
            Some(Data::Text(text)) => Some(Box::from(&**text)),
            _ => None,
        };
        let timestamp = match &self.event_timestamp {
            Some(name) => Some(table.needed(name, Role::EventTimestamp)?.into_timestamp()),
            None => None,
        };

        let event_id = id.index;
        let id = id.into_field(&self.header_converter, Role::EventId);
        let mut headers = self.context_headers();
        headers.push((ID_HEADER.into(), id));
        let additional = table.additional()?;
        headers.extend(additional.headers);
        headers.extend(table.trace_headers());
        let envelope = if self.has_envelope() {
            let routed_by = (routed_by.index, default.clone());
            Some(table.envelope(routed_by, additional.envelope)?)
        } else {
            None
        };
        let topic = self.topic.clone();
        Ok(Plan {
            topic: Topic::Routed {
                index: routed_by.index,
                default,
                name: Some(Box::new(move |value, into| topic.render(value, into))),
            },
            routing_key: None,
            key: Some(key.into_field(&self.key_converter, Role::EventKey)),
            value: self.value(payload, envelope),
            headers,
            partition: additional.partition,
            timestamp,
            event_id: Some(event_id),
        })
    }

    fn value(&self, payload: Column, envelope: Option<Envelope>) -> Field {
        if envelope.is_none() && self.expand.is_none() && !self.tombstone_on_empty {
            return payload.into_field(&self.value_converter, Role::Payload);
        }
        let rules = PayloadRules {
            name: self.payload.clone(),
            tombstone_on_empty: self.tombstone_on_empty,
            expand: self.expand,
            envelope,
        };
        payload.into_converted(&self.value_converter, Role::Payload, Some(rules))
    }

    /// Creates the headers with the same text for every row. A converter that cannot write texts
    /// leaves them out.
    fn context_headers(&self) -> Headers {
        let converter = &self.header_converter;
        let schema = Schema::new(SchemaType::String);
        let headers = self.context_headers.iter().map(|(name, text)| {
            let mut bytes = Vec::new();
            let prefix = converter.prefix(Some(&schema));
            let data = Data::Text(text.as_str().into());
            let converted = converter.convert(&prefix, Some(&schema), &data, &mut bytes);
            let literal = converted.is_ok().then_some(bytes);
            let renderer = Renderer::new(0, move |_, scratch| {
                let bytes = literal.as_ref();
                Ok(bytes.map_or(Part::Absent, |bytes| Part::appended(bytes, scratch)))
            });
            (name.as_str().into(), renderer.field(Role::Additional))
        });
        headers.collect()
    }
}

type Headers = Vec<(Box<str>, Field)>;

/// The additional columns, by their placement.
#[derive(Default)]
struct AdditionalColumns {
    headers: Headers,
    envelope: Vec<(String, Column)>,
    partition: Option<Field>,
}

/// The table that a plan is compiled for.
struct Table<'a, 'r> {
    options: &'a Options,
    columns: &'a mut Columns<'r>,
    facts: Option<&'a TableFacts>,
}

impl Table<'_, '_> {
    fn find(&mut self, name: &str) -> Option<Column> {
        let (index, column) = self.columns.find(name)?;
        // The facts are of today: the column may have another name there.
        let facts = self.columns.names(name).find_map(|name| {
            let mut facts = self.facts.iter().flat_map(|facts| &facts.columns);
            facts.find(|column| column.name == name)
        });
        Some(Column::new(index, &column, facts, self.options.handling))
    }

    fn needed(&mut self, name: &str, role: Role) -> Result<Column, PlanError> {
        let column = self.find(name);
        column.ok_or_else(|| self.columns.missing(name, role))
    }

    fn additional(&mut self) -> Result<AdditionalColumns, PlanError> {
        let options = self.options;
        let mut columns = AdditionalColumns::default();
        for additional in &options.additional {
            let name = &additional.column;
            let column = match self.find(name) {
                // Debezium leaves columns of unsupported types out of its events.
                Some(column) if !(column.unknown && options.ignore_missing) => column,
                _ if options.ignore_missing => continue,
                _ => return Err(self.columns.missing(name, Role::Additional)),
            };
            match additional.placement {
                Placement::Header => {
                    let header = column.into_field(&options.header_converter, Role::Additional);
                    let name = additional.alias.as_str().into();
                    columns.headers.push((name, header));
                }
                Placement::Envelope => columns.envelope.push((additional.alias.clone(), column)),
                Placement::Partition => {
                    let column = self.integer(name, column, Role::Additional)?;
                    columns.partition = Some(column.into_partition());
                }
            }
        }
        Ok(columns)
    }

    fn trace_headers(&mut self) -> Headers {
        let column = self.options.trace_context.as_ref();
        let Some((index, _)) = column.and_then(|name| self.columns.find(name)) else {
            return Headers::new();
        };
        let headers = trace::HEADERS.map(|name| {
            let renderer = Renderer::new(index, move |values, scratch| {
                let text = value(values, index)?.unwrap_or_default();
                Ok(match trace::header(text, name) {
                    Some(Cow::Borrowed(header)) => Part::Row(header),
                    Some(Cow::Owned(header)) => Part::appended(&header, scratch),
                    None => Part::Absent,
                })
            });
            (Box::from(name), renderer.field(Role::Additional))
        });
        headers.into()
    }

    fn envelope(
        &mut self,
        routed_by: (ColumnIndex, Option<Box<str>>),
        fields: Vec<(String, Column)>,
    ) -> Result<Envelope, PlanError> {
        let role = Role::SchemaVersion;
        let options = self.options;
        let version = match &options.schema_version {
            Some(name) => {
                let column = self.needed(name, role.clone())?;
                Some(self.integer(name, column, role)?)
            }
            None => None,
        };
        Ok(Envelope {
            name: format!("{}.{}.", options.topic_prefix, self.columns.table()),
            routed_by,
            version,
            fields,
        })
    }

    fn integer(&self, name: &str, found: Column, role: Role) -> Result<Column, PlanError> {
        if found.codec == Codec::Integer {
            return Ok(found);
        }
        Err(self.unsupported(name, &found, role))
    }

    fn unsupported(&self, name: &str, found: &Column, role: Role) -> PlanError {
        self.columns.unsupported(name, found.type_oid, role)
    }
}
