//! Parses the options and the facts about tables in the recordings.

use serde_json::Value as Json;
use walrelay_event_router::{
    Additional, BinaryHandling, ColumnFacts, DecimalHandling, Expand, Handling, HstoreHandling,
    IntervalHandling, NameAdjustment, Options, TableFacts, TimePrecision, TopicTemplate, TypeFacts,
    TypeKind,
};
use walrelay_lsn::TypeOid;
use walrelay_pgoutput::Relation;

/// Returns the router's options of a recorded configuration.
pub(crate) fn options(config: &Json) -> Options {
    let mut options = Options {
        topic_prefix: "srv".to_owned(),
        ..Options::default()
    };
    let get = |name: &str| config.get(name).and_then(Json::as_str);
    let mut expand = Expand::default();
    for (name, value) in config.as_object().unwrap() {
        let value = value.as_str().unwrap();
        match name.as_str() {
            "table.field.event.key" => value.clone_into(&mut options.event_key),
            "table.field.event.payload" => value.clone_into(&mut options.payload),
            "table.field.event.timestamp" => options.event_timestamp = Some(value.to_owned()),
            "table.field.event.schema.version" => options.schema_version = Some(value.to_owned()),
            "route.by.field" => value.clone_into(&mut options.route_by),
            "table.fields.additional.placement" => {
                options.additional = Additional::parse(value).unwrap();
            }
            "route.tombstone.on.empty.payload" => options.tombstone_on_empty = value == "true",
            "field.name.adjustment.mode" if value == "avro" => expand.names = NameAdjustment::Avro,
            // These options are read below, or do not concern the router.
            "table.expand.json.payload"
            | "route.topic.regex"
            | "route.topic.replacement"
            | "table.op.invalid.behavior" => {}
            other => panic!("an option that is not known: {other}"),
        }
    }
    if get("table.expand.json.payload") == Some("true") {
        options.expand = Some(expand);
    }
    options.topic = TopicTemplate::with_regex(
        get("route.topic.regex").unwrap_or("(?<routedByValue>.*)"),
        get("route.topic.replacement").unwrap_or("outbox.event.${routedByValue}"),
    )
    .unwrap();
    options
}

/// Returns the connector's options for column values of a recorded configuration.
pub(crate) fn handling(config: &Json) -> Handling {
    let mut handling = Handling::default();
    for (name, value) in config.as_object().unwrap() {
        match (name.as_str(), value.as_str().unwrap()) {
            ("time.precision.mode", mode) => {
                handling.time = match mode {
                    "adaptive_time_microseconds" => TimePrecision::AdaptiveTimeMicroseconds,
                    "connect" => TimePrecision::Connect,
                    "isostring" => TimePrecision::IsoString,
                    "microseconds" => TimePrecision::Microseconds,
                    "nanoseconds" => TimePrecision::Nanoseconds,
                    other => panic!("{other}"),
                };
            }
            ("decimal.handling.mode", "string") => handling.decimal = DecimalHandling::String,
            ("decimal.handling.mode", "double") => handling.decimal = DecimalHandling::Double,
            ("binary.handling.mode", mode) => {
                handling.binary = match mode {
                    "base64" => BinaryHandling::Base64,
                    "base64-url-safe" => BinaryHandling::Base64UrlSafe,
                    "hex" => BinaryHandling::Hex,
                    other => panic!("{other}"),
                };
            }
            ("interval.handling.mode", "string") => handling.interval = IntervalHandling::String,
            ("hstore.handling.mode", "map") => handling.hstore = HstoreHandling::Map,
            ("money.fraction.digits", digits) => {
                handling.money_fraction_digits = digits.parse().unwrap();
            }
            other => panic!("an option that is not known: {other:?}"),
        }
    }
    handling
}

/// Facts about the table, as recorded from the catalogs.
pub(crate) fn table(relation: &Relation<'_>, facts: &str) -> TableFacts {
    let columns: Vec<Json> = serde_json::from_str(facts).unwrap();
    TableFacts {
        schema: relation.namespace.to_owned(),
        name: relation.name.to_owned(),
        columns: columns.iter().map(column).collect(),
    }
}

fn column(column: &Json) -> ColumnFacts {
    ColumnFacts {
        name: column["name"].as_str().unwrap().to_owned(),
        not_null: column["not_null"].as_bool().unwrap(),
        default: column["default"].as_str().map(str::to_owned),
        type_facts: type_facts(&column["type"]),
    }
}

fn type_facts(facts: &Json) -> TypeFacts {
    let of = || Box::new(type_facts(&facts["of"]));
    TypeFacts {
        oid: TypeOid::new(facts["oid"].as_u64().unwrap() as u32),
        name: facts["name"].as_str().unwrap().to_owned(),
        kind: match facts["kind"].as_str().unwrap() {
            "base" => TypeKind::Base,
            "enum" => {
                let labels = facts["labels"].as_array().unwrap().iter();
                TypeKind::Enum(labels.map(|it| it.as_str().unwrap().to_owned()).collect())
            }
            "domain" => TypeKind::Domain(of(), facts["modifier"].as_i64().unwrap() as i32),
            "array" => TypeKind::Array(of()),
            _ => TypeKind::Other,
        },
    }
}
