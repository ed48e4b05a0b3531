//! Compiles an Avro schema into nodes.

use std::collections::HashMap;

use apache_avro::Schema;
use apache_avro::schema::{InnerDecimalSchema, RecordSchema, UuidSchema};

use super::encode::{self, Mode};
use super::node::{Branch, Field, MICROS, MILLIS, NANOS, Node, Plan, Uuid};

/// The reason why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaProblem {
    /// The text is not a schema.
    #[error("it is not an Avro schema: {0}")]
    Unreadable(String),
    /// The schema names a type that it does not define.
    #[error("it does not define the type {0:?}")]
    UnknownName(String),
    /// The default of a field does not fit the field's type.
    #[error("the default of field {field:?} does not fit: it {why}")]
    Default {
        /// Name of the field.
        field: String,
        /// The part that does not fit.
        why: String,
    },
    /// The schema is nested deeper than 100 types.
    #[error("it is nested too deep")]
    TooDeep,
}

/// Limit of nested types; a reference to a type does not count.
const MAX_DEPTH: usize = 100;

/// Compiles a schema from its JSON.
pub(in crate::render::registry) fn plan(text: &str) -> Result<Plan, SchemaProblem> {
    let schema = Schema::parse_str(text);
    let schema = schema.map_err(|error| SchemaProblem::Unreadable(error.to_string()))?;
    let mut compiler = Compiler::default();
    let root = compiler.node(&schema, MAX_DEPTH)?;
    let mut plan = Plan {
        nodes: compiler.nodes,
        root,
        name: schema.name().map(|name| name.fullname(None).into()),
    };
    // Defaults are encoded last, as their types may be compiled after the field.
    for (record, index, json) in compiler.defaults {
        let Some(Node::Record(fields)) = plan.nodes.get(record) else {
            continue;
        };
        let mut default = Vec::new();
        if let Some(Field { name, node, .. }) = fields.get(index) {
            let encoded = encode::encode(&plan, *node, &json, Mode::Default, &mut default);
            encoded.map_err(|mismatch| SchemaProblem::Default {
                field: name.to_string(),
                why: mismatch.to_string(),
            })?;
        }
        if let Some(Node::Record(fields)) = plan.nodes.get_mut(record)
            && let Some(field) = fields.get_mut(index)
        {
            field.default = Some(default.into());
        }
    }
    Ok(plan)
}

#[derive(Default)]
struct Compiler {
    nodes: Vec<Node>,
    names: HashMap<String, usize>,
    /// Index of the record, index of the field, and the default's JSON.
    defaults: Vec<(usize, usize, String)>,
}

impl Compiler {
    fn node(&mut self, schema: &Schema, depth: usize) -> Result<usize, SchemaProblem> {
        let depth = depth.checked_sub(1).ok_or(SchemaProblem::TooDeep)?;
        let node = match schema {
            Schema::Null => Node::Null,
            Schema::Boolean => Node::Boolean,
            Schema::Int => Node::Int,
            Schema::Long => Node::Long,
            Schema::Float => Node::Float,
            Schema::Double => Node::Double,
            Schema::Bytes | Schema::BigDecimal => Node::Bytes,
            Schema::String => Node::String,
            Schema::Array(array) => Node::Array(self.node(&array.items, depth)?),
            Schema::Map(map) => Node::Map(self.node(&map.types, depth)?),
            Schema::Union(union) => {
                let branches = union.variants().iter().map(|variant| {
                    Ok(Branch {
                        tag: tag(variant).into(),
                        node: self.node(variant, depth)?,
                    })
                });
                Node::Union(branches.collect::<Result<_, _>>()?)
            }
            Schema::Record(record) => return self.record(record, depth),
            Schema::Enum(of) => {
                let symbols = of.symbols.iter().map(|symbol| symbol.as_str().into());
                Node::Enum(symbols.collect())
            }
            Schema::Fixed(fixed) | Schema::Duration(fixed) => Node::Fixed(fixed.size),
            Schema::Decimal(decimal) => Node::Decimal {
                precision: decimal.precision,
                scale: decimal.scale,
                size: match &decimal.inner {
                    InnerDecimalSchema::Bytes => None,
                    InnerDecimalSchema::Fixed(fixed) => Some(fixed.size),
                },
            },
            Schema::Uuid(UuidSchema::String) => Node::Uuid(Uuid::Text),
            Schema::Uuid(UuidSchema::Bytes) => Node::Uuid(Uuid::Bytes),
            Schema::Uuid(UuidSchema::Fixed(_)) => Node::Uuid(Uuid::Fixed),
            Schema::Date => Node::Date,
            Schema::TimeMillis => Node::Time(MILLIS),
            Schema::TimeMicros => Node::Time(MICROS),
            Schema::TimestampMillis => Node::Timestamp(MILLIS, false),
            Schema::TimestampMicros => Node::Timestamp(MICROS, false),
            Schema::TimestampNanos => Node::Timestamp(NANOS, false),
            Schema::LocalTimestampMillis => Node::Timestamp(MILLIS, true),
            Schema::LocalTimestampMicros => Node::Timestamp(MICROS, true),
            Schema::LocalTimestampNanos => Node::Timestamp(NANOS, true),
            Schema::Ref { name } => {
                let name = name.fullname(None);
                let known = self.names.get(&name).copied();
                return known.ok_or(SchemaProblem::UnknownName(name));
            }
        };
        self.nodes.push(node);
        let place = self.nodes.len() - 1;
        if let Some(name) = schema.name() {
            self.names.insert(name.fullname(None), place);
        }
        Ok(place)
    }

    /// Compiles a record. Its node is added before its fields, which may refer to it.
    fn record(&mut self, record: &RecordSchema, depth: usize) -> Result<usize, SchemaProblem> {
        let place = self.nodes.len();
        self.nodes.push(Node::Record(Box::default()));
        self.names.insert(record.name.fullname(None), place);
        let fields = record.fields.iter().map(|field| {
            Ok(Field {
                name: field.name.as_str().into(),
                node: self.node(&field.schema, depth)?,
                default: None,
            })
        });
        let fields = fields.collect::<Result<_, _>>()?;
        if let Some(node) = self.nodes.get_mut(place) {
            *node = Node::Record(fields);
        }
        // Defaults of nested records come first: an outer default may contain a nested record.
        for (index, field) in record.fields.iter().enumerate() {
            if let Some(default) = &field.default {
                self.defaults.push((place, index, default.to_string()));
            }
        }
        Ok(place)
    }
}

/// Returns the name of a branch in Avro's JSON encoding: its full name, or its underlying type.
fn tag(schema: &Schema) -> String {
    if let Some(name) = schema.name() {
        return name.fullname(None);
    }
    let kind = match schema {
        Schema::Null => "null",
        Schema::Boolean => "boolean",
        Schema::Int | Schema::Date | Schema::TimeMillis => "int",
        Schema::Float => "float",
        Schema::Double => "double",
        Schema::Bytes
        | Schema::BigDecimal
        | Schema::Decimal(_)
        | Schema::Uuid(UuidSchema::Bytes) => "bytes",
        Schema::String | Schema::Uuid(_) => "string",
        Schema::Array(_) => "array",
        Schema::Map(_) => "map",
        Schema::Union(_) => "union",
        // Times and timestamps; named types have returned above.
        _ => "long",
    };
    kind.to_owned()
}
