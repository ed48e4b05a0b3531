//! Types of values that are templates over columns.
//!
//! Lookup tables are read before any template, into [`Reader::shared`].

use walrelay_event_router::{Lookups, Template, TemplateError, TemplateProblem, TemplateTarget};
use walrelay_settings::{AlreadyReported, Entry, Origin, Reader, Type, Value, ValueKind};

/// Reads a template; `false` is not allowed.
pub(super) fn template(place: TemplateTarget) -> Type<Template> {
    Type::new(ValueKind::Template, move |reader, path, entry| {
        let template = parse(reader, path, entry, place)?;
        template.ok_or_else(|| reader.wrong_type(path, entry))
    })
}

/// Reads a template that must not be the empty text.
pub(super) fn full_template(place: TemplateTarget, why: &'static str) -> Type<Template> {
    let template = template(place);
    Type::new(
        ValueKind::Template,
        move |reader, path, entry| match &entry.value {
            Value::Text(text) if text.is_empty() => Err(reader.invalid(path, entry, why)),
            _ => template.convert(reader, path, entry),
        },
    )
}

/// Reads a template, or `false` for none.
pub(super) fn template_or_false(place: TemplateTarget) -> Type<Part> {
    Type::new(ValueKind::Template, move |reader, path, entry| {
        parse(reader, path, entry, place).map(Part)
    })
}

/// Reads only `false`. Other values belong in the section of the same name.
pub(super) fn only_false() -> Type<()> {
    Type::new(ValueKind::Template, |reader, path, entry| {
        match entry.value {
            Value::Bool(false) => Ok(()),
            _ => Err(reader.wrong_type(path, entry)),
        }
    })
}

/// The template of a part of a record; `None` if the configuration has `false`.
pub(super) struct Part(pub(super) Option<Template>);

/// Parses a template; `None` for `false`.
pub(super) fn parse(
    reader: &mut Reader<'_>,
    path: &str,
    entry: &Entry,
    place: TemplateTarget,
) -> Result<Option<Template>, AlreadyReported> {
    match &entry.value {
        Value::Text(text) => {
            let parsed = Template::parse(text, place, reader.shared::<Lookups>());
            match parsed {
                Ok(template) => Ok(Some(template)),
                Err(error) => Err(wrong_template(reader, path, &entry.origin, text, &error)),
            }
        }
        Value::Bool(false) => Ok(None),
        _ => Err(reader.wrong_type(path, entry)),
    }
}

/// Notes a template's error, with a caret under the character if the template is written
/// literally in the file.
fn wrong_template(
    reader: &mut Reader<'_>,
    path: &str,
    origin: &Origin,
    text: &str,
    error: &TemplateError,
) -> AlreadyReported {
    let shows_name = matches!(
        error.problem,
        TemplateProblem::UnknownFilter { .. } | TemplateProblem::UnknownTable { .. }
    );
    let why = if shows_name && !reader.is_as_written(origin, text) {
        // The error would show the name, which may be the value of an environment variable.
        let position = error.position;
        format!("character {position}: no filter or lookup table of that name")
    } else {
        error.to_string()
    };
    let part = reader.literal_at(origin, text).map(|start| {
        let mut chars = text.char_indices().skip(error.position - 1);
        let (at, length) = chars
            .next()
            .map_or((text.len(), 1), |(at, c)| (at, c.len_utf8()));
        Origin::File(start + at..start + at + length)
    });
    let help = Some("templates are explained in docs/reference/configuration.md".to_owned());
    reader.invalid_part(path, part.as_ref().unwrap_or(origin), &why, help)
}
