//! `[router.cloudevents]`, and the checks of a schema registry against it and the route.

use walrelay_event_router::{
    CloudEventMode, CloudEvents, Converter, Lookups, Template, TemplateTarget, ValueFormat,
};
use walrelay_settings::{AlreadyReported, Key, Reader, Section, choice, section, text};

use crate::config::templates::full_template;

use super::router::RouterConfig;

const MODE: &str = "router.cloudevents.mode";
const CONTENT_TYPE: &str = "router.cloudevents.datacontenttype";
const MODES: &[(&str, CloudEventMode)] = &[
    ("binary", CloudEventMode::Binary),
    ("structured", CloudEventMode::Structured),
];

section! {
pub(super) struct Keys at "router.cloudevents" {
    /// Makes records CloudEvents: attributes in headers `ce_…`, or one JSON object.
    "mode" mode: Option<CloudEventMode> = choice(MODES).optional();
    /// `source`, a URI reference. Required with `mode`.
    "source" source: Option<Template> = attribute().required_if("\"/orders\"", has_mode);
    /// `type`. Required with `mode`.
    "type" kind: Option<Template> = attribute().required_if("\"com.example.{type}\"", has_mode);
    /// `id`. Unset: the event's id of the route.
    "id" id: Option<Template> = attribute();
    /// `time`, as Postgres prints one; NULL is left out. Unset: the time of the commit.
    "time" time: Option<Template> = attribute();
    /// `subject`; NULL is left out.
    "subject" subject: Option<Template> = attribute();
    /// `datacontenttype`: the media type of the route's value.
    "datacontenttype" content_type: String = text(media_type).or("application/json");
}
}

fn attribute() -> Key<Option<Template>> {
    full_template(TemplateTarget::Header, "an attribute must not be empty").optional()
}

fn has_mode(reader: &Reader<'_>) -> bool {
    reader.has(MODE)
}

fn media_type(text: &str) -> Result<String, String> {
    if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && text.contains('/') {
        Ok(text.to_owned())
    } else {
        Err("a media type is wanted, such as application/json".to_owned())
    }
}

/// Reads the section; `None` without a mode. `encoded`: the format of values in a schema registry.
pub(super) fn cloud_events(
    reader: &mut Reader<'_>,
    encoded: Option<ValueFormat>,
) -> Result<Option<CloudEvents>, AlreadyReported> {
    let keys = Keys::read(reader);
    if !has_mode(reader) {
        for (name, _) in reader.below(Keys::AT) {
            let path = format!("{}.{name}", Keys::AT);
            if path != CONTENT_TYPE {
                reader.no_effect(&path, &format!("while `{MODE}` is not set"));
            }
        }
    }
    let keys = keys?;
    let (Some(mode), Some(source), Some(kind)) = (keys.mode, keys.source, keys.kind) else {
        return Ok(None);
    };
    // The default is that of JSON.
    let content_type = match encoded {
        Some(ValueFormat::Avro) if !reader.has(CONTENT_TYPE) => "application/avro".to_owned(),
        _ => keys.content_type,
    };
    Ok(Some(CloudEvents {
        mode,
        id: keys.id,
        source,
        kind,
        time: keys.time,
        subject: keys.subject,
        content_type,
        lookups: reader.shared::<Lookups>().clone(),
    }))
}

/// Notes settings that cannot be combined with a schema registry.
pub(super) fn with_registry(
    reader: &mut Reader<'_>,
    router: Option<&RouterConfig>,
    events: Option<&CloudEvents>,
) {
    if events.is_some_and(|events| events.mode == CloudEventMode::Structured) {
        let what = format!(
            "`{MODE}` is \"structured\", and a value of a schema registry is no JSON object that a \
             structured event could be: use \"binary\", or leave [router.registry] out"
        );
        reader.conflict(MODE, what);
    }
    if let Some(RouterConfig::Debezium(debezium)) = router
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
