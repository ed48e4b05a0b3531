//! `[router.cloudevents]` and `router.position_header`: what records are, beside what the route makes of
//! them; and whether that goes together with the rest.

use walrelay_event_router::{
    CloudEventMode, CloudEvents, Converter, Lookups, Place, Template, ValueFormat,
};
use walrelay_sink::dlq_headers;

use super::reader::Reader;
use super::types::{Registry, Router};

const SECTION: &str = "router.cloudevents";
const TEMPLATES: [&str; 5] = ["id", "source", "type", "time", "subject"];

/// `None` without the section, and when a problem was noted.
pub(super) fn cloud_events(
    reader: &mut Reader<'_>,
    lookups: &Lookups,
    encoded: Option<ValueFormat>,
) -> Option<CloudEvents> {
    let path = |name: &str| format!("{SECTION}.{name}");
    let [id, source, kind, time, subject] = TEMPLATES.map(|name| {
        reader.parsed(&path(name), |text| {
            if text.is_empty() {
                return Err("an attribute must not be empty".to_owned());
            }
            Template::parse(text, Place::Header, lookups).map_err(|error| error.to_string())
        })
    });
    let content_type = reader.parsed(&path("datacontenttype"), |text| {
        let plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if plain && text.contains('/') {
            Ok(text.to_owned())
        } else {
            Err("a media type is wanted, such as application/json".to_owned())
        }
    });
    let mode = path("mode");
    if !reader.has(&mode) {
        for name in TEMPLATES {
            let path = path(name);
            if reader.has(&path) {
                let what = format!("`{path}` has no effect while `{mode}` is not set");
                reader.conflict(&path, what);
            }
        }
        return None;
    }
    let mode = match reader.choice(&mode)? {
        0 => CloudEventMode::Binary,
        _ => CloudEventMode::Structured,
    };
    for (name, example) in [
        ("source", "\"/orders\""),
        ("type", "\"com.example.{type}\""),
    ] {
        if !reader.has(&path(name)) {
            reader.missing(&path(name), example);
        }
    }
    Some(CloudEvents {
        mode,
        id,
        source: source?,
        kind: kind?,
        time,
        subject,
        // What the route's value is, until something else is made of it.
        content_type: match encoded.map(content_type_of) {
            Some(encoded) if !reader.has(&path("datacontenttype")) => encoded.to_owned(),
            _ => content_type?,
        },
        lookups: lookups.clone(),
    })
}

/// Notes what excludes each other.
pub(super) fn agree(
    reader: &mut Reader<'_>,
    router: Option<&Router>,
    registry: Option<&Registry>,
    events: Option<&CloudEvents>,
) {
    if registry.is_none() {
        return;
    }
    let mode = "router.cloudevents.mode";
    if events.is_some_and(|events| events.mode == CloudEventMode::Structured) {
        let what = format!(
            "`{mode}` is \"structured\", and a value of a schema registry is no JSON object that a \
             structured event could be: use \"binary\", or leave [router.registry] out"
        );
        reader.conflict(mode, what);
    }
    if let Some(Router::Debezium(debezium)) = router
        && let Converter::Json(json) = &debezium.options.value_converter
        && json.schemas
    {
        let path = "router.converters.value.converter";
        let what = format!(
            "`{path}` writes each value's schema beside it, and [router.registry] has it in the \
             registry: set `{path}.schemas.enable` to false"
        );
        reader.conflict(path, what);
    }
}

/// The name of the header that carries positions; `None` when unset, and when a problem was noted.
pub(super) fn position_header(
    reader: &mut Reader<'_>,
    router: Option<&Router>,
    events: Option<&CloudEvents>,
) -> Option<String> {
    let path = "router.position_header";
    let name = reader.parsed(path, |text| {
        if text.is_empty() {
            Err("the name of a header must not be empty".to_owned())
        } else if text.starts_with(dlq_headers::PREFIX) {
            // `walrelay dlq redrive` removes headers of such names.
            Err(format!(
                "names that begin with `{}` are those of dead letters",
                dlq_headers::PREFIX
            ))
        } else {
            Ok(text.to_owned())
        }
    })?;
    let of_route = match router {
        Some(Router::Debezium(debezium)) => {
            debezium.options.has_header(&name)
                || debezium.context_headers && name.starts_with("__debezium.context.")
        }
        Some(Router::Templates(templates)) => {
            templates.headers.iter().any(|(known, _)| *known == name)
        }
        None => false,
    };
    if of_route || events.is_some_and(|events| events.has_header(&name)) {
        let what =
            format!("`{path}` names a header that records have already: choose another name");
        reader.conflict(path, what);
        return None;
    }
    Some(name)
}

/// What a value is called that is encoded so.
fn content_type_of(format: ValueFormat) -> &'static str {
    match format {
        ValueFormat::Avro => "application/avro",
        ValueFormat::Json => "application/json",
    }
}
