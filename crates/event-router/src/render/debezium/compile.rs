//! From options to a plan.

use walrelay_pgoutput::Relation;

use super::field::{ConnectField, Literal, PartitionColumn, TimestampColumn};
use super::options::{Additional, ID_HEADER, Options, Placement};
use super::payload::{Envelope, Payload};
use crate::plan::{Columns, Field, HeaderField, Piece, Plan, PlanError, Role, Topic};
use crate::render::connect::schema::{Data, Kind, Schema};
use crate::render::connect::{Codec, ColumnFacts, ColumnType, Converter, TableFacts};
use crate::value::types::Reading;

impl Options {
    /// The plan of a table by these options, with what the catalogs say of it.
    pub(crate) fn compile(
        &self,
        relation: &Relation<'_>,
        facts: Option<&TableFacts>,
    ) -> Result<Plan, PlanError> {
        let mut table = Table {
            options: self,
            columns: Columns::of(relation),
            facts,
        };
        let id = table.needed(&self.event_id, Role::EventId)?;
        let key = table.needed(&self.event_key, Role::EventKey)?;
        let payload = table.needed(&self.payload, Role::Payload)?;
        let routed_by = table.needed(&self.route_by, Role::RouteBy)?;
        if !(routed_by.column.codec == Codec::Text && routed_by.column.schema.kind == Kind::String)
        {
            return Err(table.unsupported(&self.route_by, &routed_by, Role::RouteBy));
        }
        let default = match &routed_by.column.schema.default {
            Some(Data::Text(text)) => Some(Box::from(&**text)),
            _ => None,
        };
        let timestamp = table.timestamp()?;

        let mut headers = table.context_headers();
        let event_id = id.slot;
        headers.push(HeaderField {
            name: ID_HEADER.into(),
            field: id.into_field(&self.header_converter, Role::EventId),
        });
        let mut envelope = Vec::new();
        let mut partition = None;
        for additional in &self.additional {
            let Some(found) = table.additional(additional)? else {
                continue;
            };
            match additional.placement {
                Placement::Header => headers.push(HeaderField {
                    name: additional.alias.as_str().into(),
                    field: found.into_field(&self.header_converter, Role::Additional),
                }),
                Placement::Envelope => {
                    envelope.push((found.slot, additional.alias.clone(), found.column));
                }
                Placement::Partition => partition = Some(table.partition(additional, &found)?),
            }
        }
        let envelope = if self.has_envelope() {
            Some(Envelope {
                name: format!(
                    "{}.{}.{}.",
                    self.topic_prefix, relation.namespace, relation.name
                )
                .into(),
                routed_by: (routed_by.slot, default.clone()),
                version: table.version()?,
                fields: envelope,
            })
        } else {
            None
        };
        Ok(Plan {
            topic: Topic::Routed {
                slot: routed_by.slot,
                default,
                name: Some(Box::new(self.topic.clone())),
            },
            key: Some(key.into_field(&self.key_converter, Role::EventKey)),
            value: Some(self.value(payload, envelope)),
            headers,
            partition,
            timestamp,
            event_id: Some(event_id),
            slots: table.columns.finish(),
        })
    }

    fn value(&self, payload: Found, envelope: Option<Envelope>) -> Field {
        if envelope.is_none() && self.expand.is_none() && !self.tombstone_on_empty {
            return payload.into_field(&self.value_converter, Role::Payload);
        }
        let converter = &self.value_converter;
        let payload = Payload {
            slot: payload.slot,
            name: self.payload.as_str().into(),
            prefix: converter.prefix(Some(&payload.column.schema)),
            column: payload.column,
            converter: converter.clone(),
            tombstone_on_empty: self.tombstone_on_empty,
            expand: self.expand,
            envelope,
        };
        Field::made(Role::Payload, payload)
    }
}

/// A table while its plan is made.
struct Table<'a> {
    options: &'a Options,
    columns: Columns<'a>,
    facts: Option<&'a TableFacts>,
}

/// A column that was found.
struct Found {
    slot: usize,
    type_oid: u32,
    column: ColumnType,
}

impl Found {
    /// The column, converted; as it stands in the row where that is the same.
    fn into_field(self, converter: &Converter, role: Role) -> Field {
        let slot = self.slot;
        let reading = match self.column.codec {
            _ if !converter.is_plain() || self.column.schema.default.is_some() => None,
            Codec::Text | Codec::Integer => Some(Reading::Verbatim),
            Codec::Boolean => Some(Reading::Boolean),
            _ => None,
        };
        match reading {
            Some(reading) => Field {
                role,
                piece: Piece::Column { slot, reading },
            },
            None => Field::made(role, ConnectField::new(slot, self.column, converter)),
        }
    }
}

impl Table<'_> {
    fn find(&mut self, name: &str) -> Option<Found> {
        let found = self.columns.find(name)?;
        let facts: Option<&ColumnFacts> = self
            .facts
            .and_then(|facts| facts.columns.iter().find(|column| column.name == name));
        let type_oid = found.column.type_oid.get();
        let modifier = found.column.type_modifier;
        Some(Found {
            slot: found.slot,
            type_oid,
            column: ColumnType::of(type_oid, modifier, facts, self.options.handling),
        })
    }

    fn needed(&mut self, name: &str, role: Role) -> Result<Found, PlanError> {
        let found = self.find(name);
        found.ok_or_else(|| self.columns.missing(name, role))
    }

    fn unsupported(&self, name: &str, found: &Found, role: Role) -> PlanError {
        self.columns.unsupported(name, found.type_oid, role)
    }

    /// An additional column, or nothing where it is to be passed over.
    fn additional(&mut self, additional: &Additional) -> Result<Option<Found>, PlanError> {
        let found = self.find(&additional.column);
        match found {
            // Debezium has no such column in its events.
            Some(found) if found.column.unknown && self.options.ignore_missing => Ok(None),
            Some(found) => Ok(Some(found)),
            None if self.options.ignore_missing => Ok(None),
            None => Err(self.columns.missing(&additional.column, Role::Additional)),
        }
    }

    fn partition(&self, additional: &Additional, found: &Found) -> Result<Field, PlanError> {
        if found.column.codec != Codec::Integer {
            return Err(self.unsupported(&additional.column, found, Role::Additional));
        }
        let default = match found.column.schema.default {
            Some(Data::Int(number)) => Some(number),
            _ => None,
        };
        let slot = found.slot;
        Ok(Field::made(
            Role::Additional,
            PartitionColumn { slot, default },
        ))
    }

    fn timestamp(&mut self) -> Result<Option<Field>, PlanError> {
        let Some(name) = &self.options.event_timestamp else {
            return Ok(None);
        };
        let Found { slot, column, .. } = self.needed(name, Role::EventTimestamp)?;
        let made = TimestampColumn { slot, column };
        Ok(Some(Field::made(Role::EventTimestamp, made)))
    }

    fn version(&mut self) -> Result<Option<(usize, ColumnType)>, PlanError> {
        let Some(name) = &self.options.schema_version else {
            return Ok(None);
        };
        let found = self.needed(name, Role::SchemaVersion)?;
        if found.column.codec != Codec::Integer {
            return Err(self.unsupported(name, &found, Role::SchemaVersion));
        }
        Ok(Some((found.slot, found.column)))
    }

    fn context_headers(&self) -> Vec<HeaderField> {
        let converter = &self.options.header_converter;
        let schema = Schema::of(Kind::String);
        let headers = self.options.context_headers.iter().map(|(name, text)| {
            let mut bytes = Vec::new();
            let prefix = converter.prefix(Some(&schema));
            let data = Data::Text(text.as_str().into());
            // Texts are no bytes: such a converter cannot write them.
            let converted = converter.convert(&prefix, Some(&schema), &data, &mut bytes);
            let literal = Literal(converted.is_ok().then_some(bytes));
            HeaderField {
                name: name.as_str().into(),
                field: Field::made(Role::Additional, literal),
            }
        });
        headers.collect()
    }
}
