//! Kafka Connect's schemas and values.

use std::borrow::Cow;

use crate::value::decimal::Decimal;

/// A schema of Kafka Connect.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Schema {
    pub(crate) kind: SchemaType,
    pub(crate) optional: bool,
    pub(crate) name: Option<Cow<'static, str>>,
    pub(crate) version: Option<i32>,
    pub(crate) doc: Option<&'static str>,
    pub(crate) parameters: Vec<(&'static str, String)>,
    /// Replaces null in a struct.
    pub(crate) default: Option<Data<'static>>,
}

/// A type of Kafka Connect.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SchemaType {
    Boolean,
    Int16,
    Int32,
    Int64,
    Float32,
    Float64,
    String,
    Bytes,
    Array(Box<Schema>),
    /// A map from strings to optional strings; Debezium makes no other maps.
    Map,
    Struct(Vec<(String, Schema)>),
}

/// A value of Kafka Connect, borrowed from a row if possible.
#[derive(Clone, PartialEq)]
pub(crate) enum Data<'a> {
    Null,
    Boolean(bool),
    /// An integer; the schema has its width.
    Int(i64),
    Float(f32),
    Double(f64),
    Text(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
    Decimal(Decimal),
    /// A `java.util.Date`, in milliseconds since 1970 UTC.
    Instant(i64),
    List(Vec<Data<'a>>),
    /// The entries in the order of the output.
    Map(Vec<(String, Option<String>)>),
    /// A value for each field of the schema.
    Struct(Vec<Data<'a>>),
}

/// Hides the value, as it is a row's.
impl std::fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Data")
    }
}

pub(crate) const DECIMAL: &str = "org.apache.kafka.connect.data.Decimal";
pub(crate) const CONNECT_DATE: &str = "org.apache.kafka.connect.data.Date";

impl Schema {
    pub(crate) const fn new(kind: SchemaType) -> Self {
        Self {
            kind,
            optional: false,
            name: None,
            version: None,
            doc: None,
            parameters: Vec::new(),
            default: None,
        }
    }

    /// Creates the schema of a semantic type, with version 1.
    pub(crate) fn named(kind: SchemaType, name: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name: Some(name.into()),
            version: Some(1),
            ..Self::new(kind)
        }
    }

    #[must_use]
    pub(crate) fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    #[must_use]
    pub(crate) fn parameter(mut self, name: &'static str, value: &impl ToString) -> Self {
        self.parameters.push((name, value.to_string()));
        self
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        self.name.as_deref() == Some(name)
    }
}

impl Data<'_> {
    /// Copies what is borrowed.
    pub(crate) fn into_owned(self) -> Data<'static> {
        match self {
            Data::Null => Data::Null,
            Data::Boolean(it) => Data::Boolean(it),
            Data::Int(it) => Data::Int(it),
            Data::Float(it) => Data::Float(it),
            Data::Double(it) => Data::Double(it),
            Data::Text(it) => Data::Text(Cow::Owned(it.into_owned())),
            Data::Bytes(it) => Data::Bytes(Cow::Owned(it.into_owned())),
            Data::Decimal(it) => Data::Decimal(it),
            Data::Instant(it) => Data::Instant(it),
            Data::List(it) => Data::List(it.into_iter().map(Data::into_owned).collect()),
            Data::Map(it) => Data::Map(it),
            Data::Struct(it) => Data::Struct(it.into_iter().map(Data::into_owned).collect()),
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Data::Null)
    }
}
