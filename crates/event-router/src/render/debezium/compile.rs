//! From options to a plan.

use std::borrow::Cow;

use super::field::{Envelope, PayloadRules};
use super::options::{ID_HEADER, Options, Placement};
use super::trace;
use crate::plan::{Columns, Field, Made, Plan, PlanError, Role, Topic};
use crate::render::connect::schema::{Data, Kind, Schema};
use crate::render::connect::{Codec, Column, TableFacts};
use crate::value::{Part, value};

impl Options {
    /// The plan of a table by these options; `facts` are from the catalogs.
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
        if !(routed_by.codec == Codec::Text && routed_by.schema.kind == Kind::String) {
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

        let mut headers = self.context_headers();
        let event_id = id.slot;
        let id = id.into_field(&self.header_converter, Role::EventId);
        headers.push((ID_HEADER.into(), id));
        let mut envelope = Vec::new();
        let mut partition = None;
        for additional in &self.additional {
            let name = &additional.column;
            let found = match table.find(name) {
                // Debezium has no column of an unknown type in its events.
                Some(found) if !(found.unknown && self.ignore_missing) => found,
                _ if self.ignore_missing => continue,
                _ => return Err(table.columns.missing(name, Role::Additional)),
            };
            match additional.placement {
                Placement::Header => {
                    let header = found.into_field(&self.header_converter, Role::Additional);
                    headers.push((additional.alias.as_str().into(), header));
                }
                Placement::Envelope => envelope.push((additional.alias.clone(), found)),
                Placement::Partition => {
                    let found = table.integer(name, found, Role::Additional)?;
                    partition = Some(found.into_partition());
                }
            }
        }
        let traced = self.trace_context.as_ref();
        if let Some((slot, _)) = traced.and_then(|name| table.columns.find(name)) {
            headers.extend(trace::HEADERS.map(|name| {
                let made = Made::new(slot, move |values, scratch| {
                    let text = value(values, slot)?.unwrap_or_default();
                    Ok(match trace::header(text, name) {
                        Some(Cow::Borrowed(header)) => Part::Row(header),
                        Some(Cow::Owned(header)) => Part::appended(&header, scratch),
                        None => Part::Absent,
                    })
                });
                (name.into(), made.field(Role::Additional))
            }));
        }
        let envelope = if self.has_envelope() {
            let role = Role::SchemaVersion;
            Some(Envelope {
                name: format!("{}.{}.", self.topic_prefix, table.columns.table()),
                routed_by: (routed_by.slot, default.clone()),
                version: match &self.schema_version {
                    Some(name) => {
                        let found = table.needed(name, role.clone())?;
                        Some(table.integer(name, found, role)?)
                    }
                    None => None,
                },
                fields: envelope,
            })
        } else {
            None
        };
        let topic = self.topic.clone();
        Ok(Plan {
            topic: Topic::Routed {
                slot: routed_by.slot,
                default,
                name: Some(Box::new(move |value, into| topic.render(value, into))),
            },
            key: Some(key.into_field(&self.key_converter, Role::EventKey)),
            value: Some(self.value(payload, envelope)),
            headers,
            partition,
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
        payload.into_connected(&self.value_converter, Role::Payload, Some(rules))
    }

    /// The same texts for each row. A converter that cannot write texts leaves them out.
    fn context_headers(&self) -> Vec<(Box<str>, Field)> {
        let converter = &self.header_converter;
        let schema = Schema::of(Kind::String);
        let headers = self.context_headers.iter().map(|(name, text)| {
            let mut bytes = Vec::new();
            let prefix = converter.prefix(Some(&schema));
            let data = Data::Text(text.as_str().into());
            let converted = converter.convert(&prefix, Some(&schema), &data, &mut bytes);
            let literal = converted.is_ok().then_some(bytes);
            let made = Made::new(0, move |_, scratch| {
                let bytes = literal.as_ref();
                Ok(bytes.map_or(Part::Absent, |bytes| Part::appended(bytes, scratch)))
            });
            (name.as_str().into(), made.field(Role::Additional))
        });
        headers.collect()
    }
}

/// A table while its plan is made.
struct Table<'a, 'r> {
    options: &'a Options,
    columns: &'a mut Columns<'r>,
    facts: Option<&'a TableFacts>,
}

impl Table<'_, '_> {
    fn find(&mut self, name: &str) -> Option<Column> {
        let (slot, column) = self.columns.find(name)?;
        let mut facts = self.facts.iter().flat_map(|facts| &facts.columns);
        let facts = facts.find(|column| column.name == name);
        Some(Column::of(slot, &column, facts, self.options.handling))
    }

    fn needed(&mut self, name: &str, role: Role) -> Result<Column, PlanError> {
        let found = self.find(name);
        found.ok_or_else(|| self.columns.missing(name, role))
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
