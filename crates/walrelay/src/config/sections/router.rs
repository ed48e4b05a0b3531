//! `[router]`: the preset, headers from columns, and the position header.

use std::fmt;
use walrelay_settings::{
    AlreadyReported, Reader, Section, choice, names, not_empty, section, text,
};

use walrelay_event_router::{CloudEvents, ColumnNames, HeadersFrom, Preset, Templates};
use walrelay_postgres_source::table_name::owned_identifier;
use walrelay_sink::dlq_headers;

use super::debezium::{self, Debezium};
use super::route;

/// `[router]`.
#[derive(Clone, PartialEq, Eq)]
pub enum RouterConfig {
    /// Preset `debezium`.
    Debezium(Box<Debezium>),
    /// Another preset, or none, with the changes of `[router.route]`.
    Templates(Box<Templates>),
}

/// Without templates, which may contain values of environment variables.
impl fmt::Debug for RouterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debezium(debezium) => debezium.fmt(f),
            Self::Templates(_) => f.debug_tuple("Templates").finish_non_exhaustive(),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum PresetKey {
    Debezium,
    Templates(Preset),
    Custom,
}

const PRESETS: &[(&str, PresetKey)] = &[
    ("debezium", PresetKey::Debezium),
    (
        Preset::EVENTS_OUTBOX.name,
        PresetKey::Templates(Preset::EVENTS_OUTBOX),
    ),
    (
        Preset::OUTBOX_EVENTS.name,
        PresetKey::Templates(Preset::OUTBOX_EVENTS),
    ),
    (Preset::OUTBOX.name, PresetKey::Templates(Preset::OUTBOX)),
    ("custom", PresetKey::Custom),
];

/// Returns the names of the presets that have a table.
pub fn preset_names() -> impl Iterator<Item = &'static str> {
    let presets = PRESETS.iter();
    let of_tables = presets.filter(|(_, preset)| !matches!(preset, PresetKey::Custom));
    of_tables.map(|(name, _)| *name)
}

/// The section whose keys are columns, with their former names.
pub(super) const FORMER_COLUMNS: &str = "router.former_columns";

section! {
pub(super) struct Keys at "router" {
    /// The shape of the outbox tables and of the records made of them.
    "preset" preset: PresetKey = choice(PRESETS).or("debezium");
}
}

section! {
pub(super) struct HeaderColumns at "router" {
    /// The column with [more headers](#headers-from-a-column), or the two with their names and values.
    "headers_from" columns: Option<Vec<String>> = names(owned_identifier).optional();
}
}

section! {
pub(super) struct PositionHeader at "router" {
    /// The name of a header with [each event's position](#the-position-header).
    "position_header" name: Option<String> = text(header_name).optional();
}
}

fn header_name(name: &str) -> Result<String, String> {
    if name.starts_with(dlq_headers::PREFIX) {
        // `walrelay dlq redrive` removes headers with such names.
        let prefix = dlq_headers::PREFIX;
        return Err(format!(
            "names that begin with `{prefix}` are those of dead letters"
        ));
    }
    not_empty(name, "the name of a header must not be empty")
}

pub(super) fn router(reader: &mut Reader<'_>) -> Result<RouterConfig, AlreadyReported> {
    match Keys::read(reader)?.preset {
        PresetKey::Debezium => {
            route::refuse_templates(reader);
            debezium::debezium(reader).map(|debezium| RouterConfig::Debezium(Box::new(debezium)))
        }
        PresetKey::Templates(preset) => templates(reader, Some(preset)),
        PresetKey::Custom => templates(reader, None),
    }
}

/// Reads `[router.former_columns]` into the reader.
pub(super) fn former_columns(reader: &mut Reader<'_>) {
    let names = names(owned_identifier);
    for (column, entry) in reader.below(FORMER_COLUMNS) {
        let path = format!("{FORMER_COLUMNS}.{column}");
        if let Ok(former) = names.convert(reader, &path, &entry) {
            reader.shared::<ColumnNames>().add(&column, former);
        }
    }
}

fn templates(
    reader: &mut Reader<'_>,
    preset: Option<Preset>,
) -> Result<RouterConfig, AlreadyReported> {
    route::templates(reader, preset).map(|templates| RouterConfig::Templates(Box::new(templates)))
}

/// Returns the columns that give the records more headers.
pub(super) fn headers_from(
    reader: &mut Reader<'_>,
) -> Result<Option<HeadersFrom>, AlreadyReported> {
    let Some(columns) = HeaderColumns::read(reader)?.columns else {
        return Ok(None);
    };
    match &*columns {
        [column] => Ok(Some(HeadersFrom::Column(column.clone()))),
        [names, values] => Ok(Some(HeadersFrom::Arrays {
            names: names.clone(),
            values: values.clone(),
        })),
        _ => {
            let what = "`router.headers_from` names one column, or two: that of the names and \
                        that of the values";
            Err(reader.conflict("router.headers_from", what.to_owned()))
        }
    }
}

/// Returns the name of the header that carries each event's position. No other header of the
/// records may have it.
pub(super) fn position_header(
    reader: &mut Reader<'_>,
    router: Option<&RouterConfig>,
    events: Option<&CloudEvents>,
) -> Result<Option<String>, AlreadyReported> {
    let Some(name) = PositionHeader::read(reader)?.name else {
        return Ok(None);
    };
    let of_route = match router {
        Some(RouterConfig::Debezium(debezium)) => {
            debezium.options.has_header(&name)
                || debezium.context_headers && name.starts_with("__debezium.context.")
        }
        Some(RouterConfig::Templates(templates)) => {
            templates.headers.iter().any(|(known, _)| *known == name)
        }
        None => false,
    };
    if of_route || events.is_some_and(|events| events.has_header(&name)) {
        let path = "router.position_header";
        let what =
            format!("`{path}` names a header that records have already: choose another name");
        return Err(reader.conflict(path, what));
    }
    Ok(Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_offers_every_preset() {
        let choices = PRESETS.iter().map(|(name, _)| *name);
        let names = Preset::ALL.iter().map(|preset| preset.name);
        assert!(choices.eq(["debezium"].into_iter().chain(names).chain(["custom"])));
    }
}
