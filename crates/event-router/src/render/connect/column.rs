//! A column: its Connect schema, and how its Postgres text is read.

use super::catalog::{ColumnFacts, TypeFacts, TypeKind};
use super::codec::{Clock, Codec};
use super::defaults;
use super::options::{
    BinaryHandling, DecimalHandling, Handling, HstoreHandling, IntervalHandling, TimePrecision,
};
use super::schema::{CONNECT_DATE, DECIMAL, Kind, Schema};

/// A column of a table, as Debezium has it.
#[derive(Debug, Clone)]
pub(crate) struct ColumnType {
    pub(crate) schema: Schema,
    pub(crate) codec: Codec,
    /// Debezium leaves such a column out of its events.
    pub(crate) unknown: bool,
}

/// The first OID that is given to a type made by a user or an extension (`FirstNormalObjectId`).
const FIRST_USER_TYPE: u32 = 16384;

impl ColumnType {
    /// Of a column with this type and modifier. `facts` are of the same column, if they are there.
    pub(crate) fn of(
        type_oid: u32,
        modifier: i32,
        facts: Option<&ColumnFacts>,
        handling: Handling,
    ) -> Self {
        let facts = facts.filter(|facts| facts.type_facts.oid.get() == type_oid);
        let known = match facts {
            Some(facts) => {
                let (base, modifier) = facts.type_facts.base(modifier);
                of_type(base.oid.get(), modifier, Some(base), handling)
            }
            None => of_type(type_oid, modifier, None, handling),
        };
        let (schema, codec, unknown) = if let Some((schema, codec)) = known {
            (schema, codec, false)
        } else {
            // A text, for want of a description of the type.
            let described = type_oid < FIRST_USER_TYPE || facts.is_some();
            (Schema::of(Kind::String), Codec::Text, described)
        };
        let mut column = Self {
            schema,
            codec,
            unknown,
        };
        column.schema.optional = !facts.is_some_and(|facts| facts.not_null);
        if let Some(facts) = facts
            && let Some(default) = &facts.default
        {
            let Self { codec, schema, .. } = &column;
            column.schema.default = defaults::parse(default, &facts.type_facts, codec, schema);
        }
        column
    }
}

/// Schema and codec of a type that is no domain, or nothing where Debezium has none.
fn of_type(
    oid: u32,
    modifier: i32,
    facts: Option<&TypeFacts>,
    handling: Handling,
) -> Option<(Schema, Codec)> {
    let text = |name| (Schema::named(Kind::String, name), Codec::Text);
    let plain = |kind, codec| (Schema::of(kind), codec);
    if let Some(element) = array_element(oid) {
        let (schema, codec) = of_type(element, modifier, None, handling)?;
        return Some(array(schema.optional(), codec));
    }
    Some(match oid {
        16 => plain(Kind::Boolean, Codec::Boolean),
        17 => binary(handling),
        // "char", text, bpchar, varchar; name, which Debezium gives as null; cidr, macaddr8, macaddr,
        // inet; the ranges but multiranges.
        18 | 19 | 25 | 1042 | 1043 | 650 | 774 | 829 | 869 | 3904 | 3906 | 3908 | 3910 | 3912
        | 3926 => plain(Kind::String, Codec::Text),
        20 | 26 => plain(Kind::Int64, Codec::Integer),
        21 => plain(Kind::Int16, Codec::Integer),
        23 => plain(Kind::Int32, Codec::Integer),
        114 | 3802 => text("io.debezium.data.Json"),
        142 => text("io.debezium.data.Xml"),
        600 => (point(), Codec::Point),
        700 => plain(Kind::Float32, Codec::Float),
        701 => plain(Kind::Float64, Codec::Double),
        790 => money(handling),
        1082 => date(handling),
        1083 => time(modifier, handling),
        1114 => timestamp(modifier, handling),
        1184 => (
            Schema::named(Kind::String, "io.debezium.time.ZonedTimestamp"),
            Codec::ZonedTimestamp {
                digits: match precision(modifier) {
                    0 => None,
                    digits => Some(digits.unsigned_abs() as usize),
                },
            },
        ),
        1186 => match handling.interval {
            IntervalHandling::Numeric => (
                Schema::named(Kind::Int64, "io.debezium.time.MicroDuration"),
                Codec::IntervalMicros,
            ),
            IntervalHandling::String => (
                Schema::named(Kind::String, "io.debezium.time.Interval"),
                Codec::IntervalText,
            ),
        },
        1266 => (
            Schema::named(Kind::String, "io.debezium.time.ZonedTime"),
            Codec::ZonedTime,
        ),
        1560 | 1562 => bits(oid, modifier),
        1700 => numeric(modifier, handling),
        2950 => text("io.debezium.data.Uuid"),
        3614 => text("io.debezium.data.Tsvector"),
        _ => return of_facts(modifier, facts?, handling),
    })
}

/// Of a type that is not Postgres' own, or an array of one.
fn of_facts(modifier: i32, facts: &TypeFacts, handling: Handling) -> Option<(Schema, Codec)> {
    match &facts.kind {
        TypeKind::Enum(labels) => Some((
            Schema::named(Kind::String, "io.debezium.data.Enum")
                .parameter("allowed", labels.join(",")),
            Codec::Text,
        )),
        TypeKind::Array(element) => {
            let (schema, codec) = match &element.kind {
                TypeKind::Domain(..) => return None,
                _ => of_type(element.oid.get(), modifier, Some(element), handling)?,
            };
            // As Debezium has it: elements of an enum are not optional.
            Some(match element.kind {
                TypeKind::Enum(_) => array(schema, codec),
                _ => array(schema.optional(), codec),
            })
        }
        TypeKind::Base if facts.oid.get() >= FIRST_USER_TYPE => Some(match facts.name.as_str() {
            "citext" | "isbn" => (Schema::of(Kind::String), Codec::Text),
            "ltree" => (
                Schema::named(Kind::String, "io.debezium.data.Ltree"),
                Codec::Text,
            ),
            "hstore" => match handling.hstore {
                HstoreHandling::Json => (
                    Schema::named(Kind::String, "io.debezium.data.Json"),
                    Codec::HstoreJson,
                ),
                HstoreHandling::Map => (Schema::of(Kind::Map), Codec::HstoreMap),
            },
            _ => return None,
        }),
        _ => None,
    }
}

/// The element type of the array types that Debezium supports.
const fn array_element(oid: u32) -> Option<u32> {
    Some(match oid {
        199 => 114,
        651 => 650,
        775 => 774,
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
        1115 => 1114,
        1182 => 1082,
        1183 => 1083,
        1185 => 1184,
        1231 => 1700,
        1270 => 1266,
        2951 => 2950,
        3807 => 3802,
        3905 => 3904,
        3907 => 3906,
        3909 => 3908,
        3911 => 3910,
        3913 => 3912,
        3927 => 3926,
        _ => return None,
    })
}

fn array(element: Schema, codec: Codec) -> (Schema, Codec) {
    (
        Schema::of(Kind::Array(Box::new(element))),
        Codec::Array(Box::new(codec)),
    )
}

/// Digits of a second.
fn precision(modifier: i32) -> i32 {
    if (0..=6).contains(&modifier) {
        modifier
    } else {
        6
    }
}

fn binary(handling: Handling) -> (Schema, Codec) {
    match handling.binary {
        BinaryHandling::Bytes => (Schema::of(Kind::Bytes), Codec::Bytes),
        as_text => (Schema::of(Kind::String), Codec::BytesText(as_text)),
    }
}

fn numeric(modifier: i32, handling: Handling) -> (Schema, Codec) {
    match handling.decimal {
        DecimalHandling::Double => (Schema::of(Kind::Float64), Codec::NumericDouble),
        DecimalHandling::String => (
            Schema::of(Kind::String),
            Codec::NumericText(scale(modifier)),
        ),
        DecimalHandling::Precise => precise(modifier),
    }
}

fn precise(modifier: i32) -> (Schema, Codec) {
    if let Some(scale) = scale(modifier) {
        let precision = ((modifier - 4) >> 16) & 0xffff;
        let schema = Schema::named(Kind::Bytes, DECIMAL)
            .parameter("scale", scale.to_string())
            .parameter("connect.decimal.precision", precision.to_string());
        return (schema, Codec::Decimal { scale });
    }
    let mut schema = Schema::named(
        Kind::Struct(vec![
            ("scale".to_owned(), Schema::of(Kind::Int32)),
            ("value".to_owned(), Schema::of(Kind::Bytes)),
        ]),
        "io.debezium.data.VariableScaleDecimal",
    );
    schema.doc = Some("Variable scaled decimal");
    (schema, Codec::VariableDecimal)
}

/// Of `numeric(p,s)`. A negative one is taken for a large one, as the driver of Java does.
fn scale(modifier: i32) -> Option<i32> {
    (modifier >= 4).then(|| (modifier - 4) & 0xffff)
}

fn money(handling: Handling) -> (Schema, Codec) {
    let scale = i32::from(handling.money_fraction_digits);
    match handling.decimal {
        DecimalHandling::Precise => (
            Schema::named(Kind::Bytes, DECIMAL).parameter("scale", scale.to_string()),
            Codec::Money { scale },
        ),
        DecimalHandling::Double => (Schema::of(Kind::Float64), Codec::MoneyDouble),
        DecimalHandling::String => (Schema::of(Kind::String), Codec::MoneyText),
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
        (Schema::of(Kind::Boolean), Codec::Bit)
    } else {
        let schema = Schema::named(Kind::Bytes, "io.debezium.data.Bits");
        (schema.parameter("length", length.to_string()), Codec::Bits)
    }
}

fn point() -> Schema {
    let mut schema = Schema::named(
        Kind::Struct(vec![
            ("x".to_owned(), Schema::of(Kind::Float64)),
            ("y".to_owned(), Schema::of(Kind::Float64)),
            ("wkb".to_owned(), Schema::of(Kind::Bytes).optional()),
            ("srid".to_owned(), Schema::of(Kind::Int32).optional()),
        ]),
        "io.debezium.data.geometry.Point",
    );
    schema.doc = Some("Geometry (POINT)");
    schema
}

fn date(handling: Handling) -> (Schema, Codec) {
    match handling.time {
        TimePrecision::Connect => (
            Schema::named(Kind::Int32, CONNECT_DATE),
            Codec::Date(Clock::Connect),
        ),
        TimePrecision::IsoString => (
            Schema::named(Kind::String, "io.debezium.time.IsoDate"),
            Codec::Date(Clock::Iso),
        ),
        _ => (
            Schema::named(Kind::Int32, "io.debezium.time.Date"),
            Codec::Date(Clock::Millis),
        ),
    }
}

fn clock(modifier: i32, handling: Handling, is_time: bool) -> Clock {
    match handling.time {
        TimePrecision::AdaptiveTimeMicroseconds if is_time => Clock::Micros,
        TimePrecision::Adaptive | TimePrecision::AdaptiveTimeMicroseconds => {
            if precision(modifier) <= 3 {
                Clock::Millis
            } else {
                Clock::Micros
            }
        }
        TimePrecision::Connect => Clock::Connect,
        TimePrecision::IsoString => Clock::Iso,
        TimePrecision::Microseconds => Clock::Micros,
        TimePrecision::Nanoseconds => Clock::Nanos,
    }
}

fn time(modifier: i32, handling: Handling) -> (Schema, Codec) {
    let clock = clock(modifier, handling, true);
    let (kind, name) = match clock {
        Clock::Millis => (Kind::Int32, "io.debezium.time.Time"),
        Clock::Micros => (Kind::Int64, "io.debezium.time.MicroTime"),
        Clock::Nanos => (Kind::Int64, "io.debezium.time.NanoTime"),
        Clock::Iso => (Kind::String, "io.debezium.time.IsoTime"),
        Clock::Connect => (Kind::Int32, "org.apache.kafka.connect.data.Time"),
    };
    (Schema::named(kind, name), Codec::Time(clock))
}

fn timestamp(modifier: i32, handling: Handling) -> (Schema, Codec) {
    let clock = clock(modifier, handling, false);
    let (kind, name) = match clock {
        Clock::Millis => (Kind::Int64, "io.debezium.time.Timestamp"),
        Clock::Micros => (Kind::Int64, "io.debezium.time.MicroTimestamp"),
        Clock::Nanos => (Kind::Int64, "io.debezium.time.NanoTimestamp"),
        Clock::Iso => (Kind::String, "io.debezium.time.IsoTimestamp"),
        Clock::Connect => (Kind::Int64, "org.apache.kafka.connect.data.Timestamp"),
    };
    (Schema::named(kind, name), Codec::Timestamp(clock))
}
