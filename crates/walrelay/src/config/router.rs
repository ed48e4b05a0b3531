//! `[router]`, `[router.debezium]`, `[router.converters]`.

use super::reader::Reader;
use super::route;
use super::table_name;
use super::types::{Debezium, Router};

/// What stands for the value of `route.by.field`.
const ROUTED: &str = "${routedByValue}";
/// Kafka's limit for the name of a topic.
const MAX_TOPIC: usize = 249;

pub(super) fn router(reader: &mut Reader<'_>) -> Option<Router> {
    let preset = reader.choice("router.preset");
    let templates = route::templates(reader, preset);
    let debezium = debezium(reader);
    match preset? {
        0 => debezium.map(Router::Debezium),
        _ => templates.map(|templates| Router::Templates(Box::new(templates))),
    }
}

fn debezium(reader: &mut Reader<'_>) -> Option<Debezium> {
    // One choice each in this version: checked, and nothing to keep.
    let checked = [
        "router.debezium.table.op.invalid.behavior",
        "router.converters.key.converter",
        "router.converters.value.converter",
        "router.converters.header.converter",
    ]
    .map(|path| reader.choice(path));
    let mut column = |option: &str| {
        reader.parsed(&format!("router.debezium.{option}"), |text| {
            table_name::identifier(text).map(|()| text.to_owned())
        })
    };
    let id = column("table.field.event.id");
    let key = column("table.field.event.key");
    let event_type = column("table.field.event.type");
    let payload = column("table.field.event.payload");
    let route_by = column("route.by.field");
    let topic = reader.parsed("router.debezium.route.topic.replacement", topic_replacement);
    let topic_prefix = reader.parsed("router.debezium.topic.prefix", |text| {
        if text.is_empty() {
            Err("it must not be empty".to_owned())
        } else {
            Ok(text.to_owned())
        }
    });
    for choice in checked {
        choice?;
    }
    Some(Debezium {
        id: id?,
        key: key?,
        event_type: event_type?,
        payload: payload?,
        route_by: route_by?,
        topic_replacement: topic?,
        topic_prefix,
    })
}

fn topic_replacement(text: &str) -> Result<String, String> {
    let literal = text.replace(ROUTED, "");
    if text.is_empty() {
        return Err("a topic must not be empty".to_owned());
    }
    if literal.contains('$') {
        return Err(format!(
            "{ROUTED} is the only reference that this version of walrelay knows"
        ));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !literal.chars().all(allowed) {
        return Err("a topic consists of a-z, A-Z, 0-9, '.', '_' and '-'".to_owned());
    }
    if literal.len() > MAX_TOPIC {
        return Err(format!("a topic has at most {MAX_TOPIC} characters"));
    }
    if text == "." || text == ".." {
        return Err("'.' and '..' are no topics".to_owned());
    }
    Ok(text.to_owned())
}
