//! `[router]`, `[router.debezium]`, `[router.converters]`.

use walrelay_event_router::{
    Additional, BinaryHandling, Converter, DecimalHandling, Expand, Handling, HstoreHandling,
    IntervalHandling, JsonOptions, Lookups, NameAdjustment, Options, TimePrecision, TopicTemplate,
};

use walrelay_relay::OnUpdate;

use super::reader::Reader;
use super::route;
use super::table_name;
use super::types::{Debezium, Router};

/// Kafka's limit for the name of a topic.
const MAX_TOPIC: usize = 249;

pub(super) fn router(reader: &mut Reader<'_>, lookups: &Lookups) -> Option<Router> {
    let preset = reader.choice("router.preset");
    let templates = route::templates(reader, preset, lookups);
    let debezium = debezium(reader);
    match preset? {
        0 => debezium.map(|debezium| Router::Debezium(Box::new(debezium))),
        _ => templates.map(|templates| Router::Templates(Box::new(templates))),
    }
}

fn debezium(reader: &mut Reader<'_>) -> Option<Debezium> {
    let at = |option: &str| format!("router.debezium.{option}");
    let on_update = reader
        .choice(&at("table.op.invalid.behavior"))
        .and_then(|index| {
            [OnUpdate::Warn, OnUpdate::Error, OnUpdate::Stop]
                .get(index)
                .copied()
        });
    let mut column = |option: &str| {
        reader.parsed(&at(option), |text| {
            table_name::identifier(text).map(|()| text.to_owned())
        })
    };
    let id = column("table.field.event.id");
    let key = column("table.field.event.key");
    let event_type = column("table.field.event.type");
    let payload = column("table.field.event.payload");
    let route_by = column("route.by.field");
    let event_timestamp = column("table.field.event.timestamp");
    let schema_version = column("table.field.event.schema.version");
    let topic = topic(reader);
    let prefix = at("topic.prefix");
    let topic_prefix = reader.parsed(&prefix, |text| {
        if text.is_empty() {
            Err("it must not be empty".to_owned())
        } else {
            Ok(text.to_owned())
        }
    });
    let placement = at("table.fields.additional.placement");
    let additional = reader.parsed(&placement, |text| {
        Additional::parse(text).map_err(|error| error.to_string())
    });
    let ignore_missing = ignore_missing(reader);
    let tombstone_on_empty = reader.truth(&at("route.tombstone.on.empty.payload"));
    let is_expanded = reader.truth(&at("table.expand.json.payload"));
    let expand = expand(reader);
    let context_headers = reader.truth(&at("extended.headers.enabled"));
    let handling = handling(reader);
    let key_converter = converter(reader, "key");
    let value_converter = converter(reader, "value");
    let header_converter = header_converter(reader);
    is_expanded?;
    let options = Options {
        event_id: id?,
        event_key: key?,
        event_type: event_type?,
        payload: payload?,
        event_timestamp,
        schema_version,
        route_by: route_by?,
        topic: topic?,
        additional: additional.unwrap_or_default(),
        ignore_missing: ignore_missing?,
        tombstone_on_empty: tombstone_on_empty?,
        expand: Some(expand?).filter(|_| is_expanded == Some(true)),
        topic_prefix: topic_prefix.clone().unwrap_or_default(),
        context_headers: Vec::new(),
        handling: handling?,
        key_converter: key_converter?,
        value_converter: value_converter?,
        header_converter: header_converter?,
    };
    let context_headers = context_headers?;
    if topic_prefix.is_none() && (options.has_envelope() || context_headers) {
        let example = "\"srv\"";
        reader.missing(&prefix, example);
        return None;
    }
    Some(Debezium {
        options,
        context_headers,
        on_update: on_update?,
    })
}

fn topic(reader: &mut Reader<'_>) -> Option<TopicTemplate> {
    let regex = reader.parsed("router.debezium.route.topic.regex", |regex| {
        TopicTemplate::with_regex(regex, "x")
            .map(|_| regex.to_owned())
            .map_err(|error| error.to_string())
    });
    // A replacement is read with the default expression where the one that is written is none.
    let regex = regex.as_deref().unwrap_or("(?<routedByValue>.*)");
    reader.parsed("router.debezium.route.topic.replacement", |text| {
        topic_replacement(regex, text)
    })
}

fn topic_replacement(regex: &str, text: &str) -> Result<TopicTemplate, String> {
    if text.is_empty() {
        return Err("a topic must not be empty".to_owned());
    }
    let template = TopicTemplate::with_regex(regex, text).map_err(|error| error.to_string())?;
    let literals: Vec<&str> = template.literals().collect();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !literals.iter().all(|literal| literal.chars().all(allowed)) {
        return Err("a topic consists of a-z, A-Z, 0-9, '.', '_' and '-'".to_owned());
    }
    if literals.iter().map(|literal| literal.len()).sum::<usize>() > MAX_TOPIC {
        return Err(format!("a topic has at most {MAX_TOPIC} characters"));
    }
    if text == "." || text == ".." {
        return Err("'.' and '..' are no topics".to_owned());
    }
    Ok(template)
}

fn ignore_missing(reader: &mut Reader<'_>) -> Option<bool> {
    let former = "router.debezium.table.fields.additional.error.on.missing";
    let now = "router.debezium.table.field.additional.missing";
    let choice = reader.choice(now)?;
    if !reader.has(former) {
        return Some(choice == 1);
    }
    if reader.has(now) {
        let what = format!("`{former}` is the former name of `{now}`; write one of them");
        reader.conflict(former, what);
        return None;
    }
    reader.truth(former).map(|error| !error)
}

/// How payloads are expanded, where they are.
fn expand(reader: &mut Reader<'_>) -> Option<Expand> {
    let nulls = reader.choice("router.debezium.table.json.payload.null.behavior");
    let arrays = reader.choice("router.debezium.table.json.payload.empty.array.behavior");
    let names = reader.choice("router.debezium.field.name.adjustment.mode");
    Some(Expand {
        keep_nulls: nulls? == 1,
        keep_empty_arrays: arrays? == 1,
        names: match names? {
            0 => NameAdjustment::None,
            1 => NameAdjustment::Avro,
            _ => NameAdjustment::AvroUnicode,
        },
    })
}

/// The options of Debezium's connector that decide what column values become.
fn handling(reader: &mut Reader<'_>) -> Option<Handling> {
    let time = reader.choice("router.debezium.time.precision.mode");
    let decimal = reader.choice("router.debezium.decimal.handling.mode");
    let binary = reader.choice("router.debezium.binary.handling.mode");
    let interval = reader.choice("router.debezium.interval.handling.mode");
    let hstore = reader.choice("router.debezium.hstore.handling.mode");
    let digits = reader.integer("router.debezium.money.fraction.digits", &(0..=6));
    Some(Handling {
        time: match time? {
            0 => TimePrecision::Adaptive,
            1 => TimePrecision::AdaptiveTimeMicroseconds,
            2 => TimePrecision::Connect,
            3 => TimePrecision::IsoString,
            4 => TimePrecision::Microseconds,
            _ => TimePrecision::Nanoseconds,
        },
        decimal: match decimal? {
            0 => DecimalHandling::Precise,
            1 => DecimalHandling::Double,
            _ => DecimalHandling::String,
        },
        binary: match binary? {
            0 => BinaryHandling::Bytes,
            1 => BinaryHandling::Base64,
            2 => BinaryHandling::Base64UrlSafe,
            _ => BinaryHandling::Hex,
        },
        interval: match interval? {
            0 => IntervalHandling::Numeric,
            _ => IntervalHandling::String,
        },
        hstore: match hstore? {
            0 => HstoreHandling::Json,
            _ => HstoreHandling::Map,
        },
        money_fraction_digits: digits?,
    })
}

/// Choices come in pairs: the short name, and that of the class.
fn converter(reader: &mut Reader<'_>, of: &str) -> Option<Converter> {
    let path = format!("router.converters.{of}.converter");
    let choice = reader.choice(&path);
    let json = json(reader, &path);
    let delegate_path = format!("{path}.delegate.converter.type");
    let delegate_json = self::json(reader, &delegate_path);
    let delegate = if reader.has(&delegate_path) {
        Some(Box::new(match reader.choice(&delegate_path)? / 2 {
            0 => Converter::String,
            _ => Converter::Json(delegate_json?),
        }))
    } else {
        None
    };
    Some(match choice? / 2 {
        0 => Converter::String,
        1 => Converter::Json(json?),
        2 => Converter::ByteArray,
        _ => Converter::BinaryData(delegate),
    })
}

fn header_converter(reader: &mut Reader<'_>) -> Option<Converter> {
    let path = "router.converters.header.converter";
    let choice = reader.choice(path);
    let json = json(reader, path);
    Some(match choice? / 2 {
        0 => Converter::String,
        1 => Converter::Json(json?),
        _ => Converter::Simple,
    })
}

/// The options behind a JSON converter's path.
fn json(reader: &mut Reader<'_>, path: &str) -> Option<JsonOptions> {
    let schemas = reader.truth(&format!("{path}.schemas.enable"));
    let decimals = reader.choice(&format!("{path}.decimal.format"));
    let defaults = reader.truth(&format!("{path}.replace.null.with.default"));
    Some(JsonOptions {
        schemas: schemas?,
        decimal_numbers: decimals? == 1,
        replace_null_with_default: defaults?,
    })
}
