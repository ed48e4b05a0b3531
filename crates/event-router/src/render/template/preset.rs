//! Presets: routes for common outbox tables, as texts of templates.
//!
//! A configuration could contain the same route; [`Preset::routes`] parses the texts.

use super::ast::{Lookups, Member, Object, Template, TemplateTarget, ValueTemplate};
use super::error::TemplateError;
use super::templates::Templates;

/// The texts of a route for a common outbox table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Name in the configuration.
    pub name: &'static str,
    /// Column of the event's id.
    pub id: &'static str,
    /// Template of the topic.
    pub topic: &'static str,
    /// Template of the key.
    pub key: &'static str,
    /// Templates of the value.
    pub value: PresetValue,
    /// Names and templates of the headers.
    pub headers: &'static [(&'static str, &'static str)],
}

/// The value of a [`Preset`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresetValue {
    /// A template of the whole value.
    Text(&'static str),
    /// A JSON object: names and templates of its members.
    Object(&'static [(&'static str, &'static str)]),
}

impl Preset {
    /// The preset for the columns `id bigserial, aggregate_id uuid, type text` (such as
    /// `order.placed`), `payload jsonb, created_at, dispatched_at`.
    pub const EVENTS_OUTBOX: Self = Self {
        name: "events_outbox",
        id: "id",
        topic: "{type | before('.')}",
        key: "{aggregate_id}",
        value: PresetValue::Text("{payload}"),
        headers: &[("event_id", "{id}")],
    };

    /// The preset for the columns `id uuid, aggregate_id, event_type, payload, occurred_at,
    /// dispatched_at, attempts, last_error`, or `id, aggregate_id, event_type, payload, status,
    /// attempts, created_at, updated_at, sent_at`.
    pub const OUTBOX_EVENTS: Self = Self {
        name: "outbox_events",
        id: "id",
        topic: "{event_type | before('.')}",
        key: "{aggregate_id}",
        value: PresetValue::Text("{payload}"),
        headers: &[("x-outbox-event-id", "{id}")],
    };

    /// The preset for the columns `id uuid, aggregate_type, aggregate_id, event_type, payload
    /// jsonb, metadata jsonb, created_at, …`.
    pub const OUTBOX: Self = Self {
        name: "outbox",
        id: "id",
        topic: "{aggregate_type | lower}.events",
        key: "{aggregate_id}",
        value: PresetValue::Object(&[
            ("event_id", "{id}"),
            ("event_type", "{event_type}"),
            ("aggregate_type", "{aggregate_type}"),
            ("aggregate_id", "{aggregate_id}"),
            ("payload", "{payload}"),
            ("metadata", "{metadata}"),
            ("timestamp", "{created_at}"),
        ]),
        headers: &[
            ("event-type", "{event_type}"),
            ("aggregate-id", "{aggregate_id}"),
        ],
    };

    /// All presets.
    pub const ALL: [Self; 3] = [Self::EVENTS_OUTBOX, Self::OUTBOX_EVENTS, Self::OUTBOX];

    /// Parses the texts into a route.
    ///
    /// # Errors
    /// A text is not a template, which is true of none of the presets here.
    pub fn routes(&self) -> Result<Templates, TemplateError> {
        let none = Lookups::new();
        let template = |text, place| Template::parse(text, place, &none);
        let value = match self.value {
            PresetValue::Text(text) => ValueTemplate::Text(template(text, TemplateTarget::Value)?),
            PresetValue::Object(members) => {
                let members = members.iter().map(|(name, text)| {
                    let member = Member::Template(template(text, TemplateTarget::Member)?);
                    Ok(((*name).to_owned(), member))
                });
                ValueTemplate::Object(Object {
                    members: members.collect::<Result<_, _>>()?,
                })
            }
        };
        let headers = self
            .headers
            .iter()
            .map(|(name, text)| Ok(((*name).to_owned(), template(text, TemplateTarget::Header)?)));
        Ok(Templates {
            id: Some(self.id.to_owned()),
            topic: template(self.topic, TemplateTarget::Topic)?,
            key: Some(template(self.key, TemplateTarget::Key)?),
            value,
            headers: headers.collect::<Result<_, _>>()?,
            partition: None,
            timestamp: None,
            lookups: none,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_of_every_preset_is_a_template() {
        for preset in Preset::ALL {
            let routes = preset.routes().unwrap();
            assert_eq!(preset.topic.parse().as_ref(), Ok(&routes.topic));
            assert!(
                routes.columns().contains(&"aggregate_id"),
                "{}",
                preset.name
            );
        }
        let names = Preset::ALL.map(|preset| preset.name);
        assert_eq!(names, ["events_outbox", "outbox_events", "outbox"]);
    }
}
