//! `[router.cloudevents]`: what records are, beside what the route makes of them.

use walrelay_event_router::{CloudEventMode, CloudEvents, Lookups, Place, Template};

use super::reader::Reader;

const SECTION: &str = "router.cloudevents";
const TEMPLATES: [&str; 5] = ["id", "source", "type", "time", "subject"];

/// `None` without the section, and when a problem was noted.
pub(super) fn cloud_events(reader: &mut Reader<'_>) -> Option<CloudEvents> {
    let path = |name: &str| format!("{SECTION}.{name}");
    let lookups = Lookups::new();
    let [id, source, kind, time, subject] = TEMPLATES.map(|name| {
        reader.parsed(&path(name), |text| {
            if text.is_empty() {
                return Err("an attribute must not be empty".to_owned());
            }
            Template::parse(text, Place::Header, &lookups).map_err(|error| error.to_string())
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
        content_type: content_type?,
        lookups,
    })
}
