//! A column: its Connect schema, and the codec that reads its Postgres text.

use super::catalog::{ColumnFacts, TypeFacts, TypeKind};
use super::codec::{Codec, TimeEncoding};
use super::defaults;
use super::options::{
    BinaryHandling, DecimalHandling, Handling, HstoreHandling, IntervalHandling, TimePrecision,
};
use super::schema::{DECIMAL, Schema, SchemaType};
use crate::value::ColumnIndex;

pub(crate) struct Column {
    pub(crate) index: ColumnIndex,
    pub(crate) type_oid: u32,
    pub(crate) schema: Schema,
    pub(crate) codec: Codec,
    /// Debezium does not support the type, and leaves the column out of its events.
    pub(crate) unknown: bool,
}

/// The first OID of types that users or extensions create (Postgres: `FirstNormalObjectId`).
pub(crate) const FIRST_USER_TYPE: u32 = 16384;

impl Column {
    /// Creates the plan of a column. `facts` are those of the same column.
    pub(crate) fn new(
        index: ColumnIndex,
        column: &walrelay_pgoutput::Column<'_>,
        facts: Option<&ColumnFacts>,
        handling: Handling,
    ) -> Self {
        let (type_oid, modifier) = (column.type_oid.get(), column.type_modifier);
        let facts = facts.filter(|facts| facts.type_facts.oid.get() == type_oid);
        let known = match facts {
            Some(facts) => {
                let (base, modifier) = facts.type_facts.base(modifier);
                schema_and_codec(base.oid.get(), modifier, Some(base), handling)
            }
            None => schema_and_codec(type_oid, modifier, None, handling),
        };
        let unknown = known.is_none() && (type_oid < FIRST_USER_TYPE || facts.is_some());
        let (mut schema, codec) = known.unwrap_or((Schema::new(SchemaType::String), Codec::Text));
        schema.optional = !facts.is_some_and(|facts| facts.not_null);
        if let Some(facts) = facts
            && let Some(default) = &facts.default
        {
            schema.default = defaults::parse(default, &facts.type_facts, &codec, &schema);
        }
        Self {
            index,
            type_oid,
            schema,
            codec,
            unknown,
        }
    }
}

/// Returns schema and codec of a type that is not a domain; `None` if Debezium does not support the
/// type.
fn schema_and_codec(
    oid: u32,
    modifier: i32,
    facts: Option<&TypeFacts>,
    handling: Handling,
) -> Option<(Schema, Codec)> {
    use SchemaType::{Boolean, Bytes, Float32, Float64, Int16, Int32, Int64, String};

    if let Some(element) = array_element(oid) {
        let (schema, codec) = schema_and_codec(element, modifier, None, handling)?;
        return Some(array(schema.optional(), codec));
    }
    let plain = |kind, codec| (Schema::new(kind), codec);
    let named = |kind, name, codec| (Schema::named(kind, name), codec);
    let text = |name| named(String, name, Codec::Text);
    let time = |what, encoding, codec: fn(TimeEncoding) -> Codec| {
        (time_schema(what, encoding), codec(encoding))
    };
    Some(match oid {
        16 => plain(Boolean, Codec::Boolean),
        17 => match handling.binary {
            BinaryHandling::Bytes => plain(Bytes, Codec::Bytes),
            as_text => plain(String, Codec::BytesText(as_text)),
        },
        // "char", text, bpchar, varchar; name, whose value is null in Debezium; cidr, macaddr8,
        // macaddr, inet; the ranges, but not the multiranges.
        18 | 19 | 25 | 1042 | 1043 | 650 | 774 | 829 | 869 | 3904 | 3906 | 3908 | 3910 | 3912
        | 3926 => plain(String, Codec::Text),
        20 | 26 => plain(Int64, Codec::Integer),
        21 => plain(Int16, Codec::Integer),
        23 => plain(Int32, Codec::Integer),
        114 | 3802 => text("io.debezium.data.Json"),
        142 => text("io.debezium.data.Xml"),
        600 => (point(), Codec::Point),
        700 => plain(Float32, Codec::Float),
        701 => plain(Float64, Codec::Double),
        790 => money(handling),
        1082 => time("Date", date_encoding(handling), Codec::Date),
        1083 => time("Time", time_encoding(modifier, handling, true), Codec::Time),
        1114 => {
            let encoding = time_encoding(modifier, handling, false);
            time("Timestamp", encoding, Codec::Timestamp)
        }
        1184 => {
            let digits = usize::try_from(precision(modifier)).ok();
            let digits = digits.filter(|digits| *digits > 0);
            let codec = Codec::ZonedTimestamp { digits };
            named(String, "io.debezium.time.ZonedTimestamp", codec)
        }
        1186 => interval(handling),
        1266 => named(String, "io.debezium.time.ZonedTime", Codec::ZonedTime),
        1560 | 1562 => bits(oid, modifier),
        1700 => numeric(modifier, handling),
        2950 => text("io.debezium.data.Uuid"),
        3614 => text("io.debezium.data.Tsvector"),
        _ => return user_defined(modifier, facts?, handling),
    })
}

/// Returns schema and codec of a type that is not built into Postgres, or of an array of such a
/// type.
fn user_defined(modifier: i32, facts: &TypeFacts, handling: Handling) -> Option<(Schema, Codec)> {
    let text = |name| (Schema::named(SchemaType::String, name), Codec::Text);
    Some(match &facts.kind {
        TypeKind::Enum(labels) => {
            let (schema, codec) = text("io.debezium.data.Enum");
            (schema.parameter("allowed", &labels.join(",")), codec)
        }
        TypeKind::Array(element) => {
            let (schema, codec) = match &element.kind {
                TypeKind::Domain(..) => return None,
                _ => schema_and_codec(element.oid.get(), modifier, Some(element), handling)?,
            };
            // In Debezium, an element of an enum type is not optional.
            match element.kind {
                TypeKind::Enum(_) => array(schema, codec),
                _ => array(schema.optional(), codec),
            }
        }
        TypeKind::Base if facts.oid.get() >= FIRST_USER_TYPE => match facts.name.as_str() {
            "citext" | "isbn" => (Schema::new(SchemaType::String), Codec::Text),
            "ltree" => text("io.debezium.data.Ltree"),
            "hstore" => match handling.hstore {
                HstoreHandling::Json => (text("io.debezium.data.Json").0, Codec::HstoreJson),
                HstoreHandling::Map => (Schema::new(SchemaType::Map), Codec::HstoreMap),
            },
            _ => return None,
        },
        _ => return None,
    })
}

/// Returns the element type of an array type, if Debezium supports the array.
const fn array_element(oid: u32) -> Option<u32> {
    Some(match oid {
        // The OID of each of these arrays is that of its elements plus one.
        651 | 775 | 1115 | 1185 | 2951 | 3905 | 3907 | 3909 | 3911 | 3913 | 3927 => oid - 1,
        199 => 114,
        1000 => 16,
        1001 => 17,
        1002 => 18,
        1005 => 21,
        1007 => 23,
        1009 => 25,
        1014 => 1042,
        1015 => 1043,
        1016 => 20,
        1021 => 700,
        1022 => 701,
        1028 => 26,
        1040 => 829,
        1041 => 869,
        1182 => 1082,
        1183 => 1083,
        1231 => 1700,
        1270 => 1266,
        3807 => 3802,
        _ => return None,
    })
}

fn array(element: Schema, codec: Codec) -> (Schema, Codec) {
    let schema = Schema::new(SchemaType::Array(Box::new(element)));
    (schema, Codec::Array(Box::new(codec)))
}

/// Returns the number of digits of the fraction of a second.
fn precision(modifier: i32) -> i32 {
    match modifier {
        0..=6 => modifier,
        _ => 6,
    }
}

fn interval(handling: Handling) -> (Schema, Codec) {
    match handling.interval {
        IntervalHandling::Numeric => {
            let schema = Schema::named(SchemaType::Int64, "io.debezium.time.MicroDuration");
            (schema, Codec::IntervalMicros)
        }
        IntervalHandling::String => {
            let schema = Schema::named(SchemaType::String, "io.debezium.time.Interval");
            (schema, Codec::IntervalText)
        }
    }
}

fn numeric(modifier: i32, handling: Handling) -> (Schema, Codec) {
    match (handling.decimal, scale(modifier)) {
        (DecimalHandling::Double, _) => (Schema::new(SchemaType::Float64), Codec::NumericDouble),
        (DecimalHandling::String, scale) => {
            (Schema::new(SchemaType::String), Codec::NumericText(scale))
        }
        (DecimalHandling::Precise, Some(scale)) => {
            let precision = ((modifier - 4) >> 16) & 0xffff;
            let schema = decimal(scale).parameter("connect.decimal.precision", &precision);
            (schema, Codec::Decimal { scale })
        }
        (DecimalHandling::Precise, None) => (variable_decimal(), Codec::VariableDecimal),
    }
}

fn decimal(scale: i32) -> Schema {
    Schema::named(SchemaType::Bytes, DECIMAL).parameter("scale", &scale)
}

fn variable_decimal() -> Schema {
    let fields = [("scale", SchemaType::Int32), ("value", SchemaType::Bytes)];
    let fields = fields.map(|(name, kind)| (name.to_owned(), Schema::new(kind)));
    let kind = SchemaType::Struct(fields.into());
    Schema {
        doc: Some("Variable scaled decimal"),
        ..Schema::named(kind, "io.debezium.data.VariableScaleDecimal")
    }
}

/// Returns the scale of `numeric(p,s)`. A negative scale becomes a large one, as in the JDBC
/// driver.
fn scale(modifier: i32) -> Option<i32> {
    (modifier >= 4).then(|| (modifier - 4) & 0xffff)
}

fn money(handling: Handling) -> (Schema, Codec) {
    let scale = i32::from(handling.money_fraction_digits);
    match handling.decimal {
        DecimalHandling::Precise => (decimal(scale), Codec::Money { scale }),
        DecimalHandling::Double => (Schema::new(SchemaType::Float64), Codec::MoneyDouble),
        DecimalHandling::String => (Schema::new(SchemaType::String), Codec::MoneyText),
    }
}

fn bits(oid: u32, modifier: i32) -> (Schema, Codec) {
    const BIT: u32 = 1560;
    let length = match modifier {
        1.. => modifier,
        _ if oid == BIT => 1,
        _ => i32::MAX,
    };
    if length == 1 {
        return (Schema::new(SchemaType::Boolean), Codec::Bit);
    }
    let schema = Schema::named(SchemaType::Bytes, "io.debezium.data.Bits");
    (schema.parameter("length", &length), Codec::Bits)
}

fn point() -> Schema {
    let fields = [
        ("x", Schema::new(SchemaType::Float64)),
        ("y", Schema::new(SchemaType::Float64)),
        ("wkb", Schema::new(SchemaType::Bytes).optional()),
        ("srid", Schema::new(SchemaType::Int32).optional()),
    ];
    let fields = fields.map(|(name, schema)| (name.to_owned(), schema));
    let kind = SchemaType::Struct(fields.into());
    Schema {
        doc: Some("Geometry (POINT)"),
        ..Schema::named(kind, "io.debezium.data.geometry.Point")
    }
}

/// Returns the encoding of a date.
fn date_encoding(handling: Handling) -> TimeEncoding {
    match handling.time {
        TimePrecision::Connect => TimeEncoding::Connect,
        TimePrecision::IsoString => TimeEncoding::Iso,
        _ => TimeEncoding::Millis,
    }
}

/// Returns the encoding of a time (`is_time`) or timestamp with this modifier.
fn time_encoding(modifier: i32, handling: Handling, is_time: bool) -> TimeEncoding {
    match handling.time {
        TimePrecision::AdaptiveTimeMicroseconds if is_time => TimeEncoding::Micros,
        TimePrecision::Adaptive | TimePrecision::AdaptiveTimeMicroseconds => {
            match precision(modifier) {
                ..=3 => TimeEncoding::Millis,
                _ => TimeEncoding::Micros,
            }
        }
        TimePrecision::Connect => TimeEncoding::Connect,
        TimePrecision::IsoString => TimeEncoding::Iso,
        TimePrecision::Microseconds => TimeEncoding::Micros,
        TimePrecision::Nanoseconds => TimeEncoding::Nanos,
    }
}

/// Creates the schema of a `Date`, a `Time` or a `Timestamp` in this encoding.
fn time_schema(what: &str, encoding: TimeEncoding) -> Schema {
    let prefix = match encoding {
        TimeEncoding::Millis => "io.debezium.time.",
        TimeEncoding::Micros => "io.debezium.time.Micro",
        TimeEncoding::Nanos => "io.debezium.time.Nano",
        TimeEncoding::Iso => "io.debezium.time.Iso",
        TimeEncoding::Connect => "org.apache.kafka.connect.data.",
    };
    let kind = match (what, encoding) {
        (_, TimeEncoding::Iso) => SchemaType::String,
        ("Timestamp", _) | (_, TimeEncoding::Micros | TimeEncoding::Nanos) => SchemaType::Int64,
        _ => SchemaType::Int32,
    };
    Schema::named(kind, [prefix, what].concat())
}
