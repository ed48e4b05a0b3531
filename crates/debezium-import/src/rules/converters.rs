//! `[router.converters]`: how keys, values and headers become bytes.

use crate::draft::quoted;
use crate::input::Kind;
use crate::translation::Translation;

const SECTION: &str = "router.converters";
const PARTS: [&str; 3] = ["key", "value", "header"];

/// walrelay's short name of a converter, by Java's class or by Debezium Server's format.
fn known(class: &str, format: bool) -> Option<&'static str> {
    Some(match class {
        "json" | "jsonbytearray" if format => "json",
        "simplestring" if format => "string",
        "binary" if format => "binarydata",
        _ if format => return None,
        "org.apache.kafka.connect.storage.StringConverter" => "string",
        "org.apache.kafka.connect.json.JsonConverter" => "json",
        "org.apache.kafka.connect.converters.ByteArrayConverter" => "bytearray",
        "io.debezium.converters.BinaryDataConverter"
        // Its names before Debezium 2.0.
        | "io.debezium.converters.ByteArrayConverter"
        | "io.debezium.converters.ByteBufferConverter" => "binarydata",
        "org.apache.kafka.connect.storage.SimpleHeaderConverter" => "simple",
        _ => return None,
    })
}

fn unknown(class: &str) -> String {
    let short = super::short_name(class);
    let instead = match short {
        "AvroConverter"
        | "avro"
        | "ProtobufConverter"
        | "protobuf"
        | "JsonSchemaConverter"
        | "ExtJsonConverter" => {
            "it makes up schemas and registers them, where walrelay encodes by those that the \
             registry has: Avro and JSON Schema are configured by hand in [router.registry], see \
             docs/CONFIGURATION.md"
        }
        "CloudEventsConverter" | "cloudevents" => {
            "CloudEvents are configured by hand in [router.cloudevents], see docs/CONFIGURATION.md"
        }
        _ => "records would have other bytes; choose one that both know",
    };
    format!(
        "walrelay has the converters String, JSON, ByteArray, BinaryData and, for headers, Simple, \
         but no {short}: {instead}"
    )
}

/// The converter of a part.
#[derive(Clone, Copy)]
struct Converter {
    /// `key`, `value` or `header`.
    part: &'static str,
    /// walrelay's short name; `None` if it is not supported, which was reported.
    name: Option<&'static str>,
    /// Whether the connector names it, and not the worker.
    own: bool,
}

pub(super) fn apply(translation: &mut Translation<'_>) {
    let found = PARTS.map(|part| converter(translation, part));
    for converter in found {
        options(translation, converter);
    }
    for (number, option) in translation.below("converter.") {
        common_option(translation, &found, number, &option);
    }
    for Converter { part, name, .. } in found {
        let key = format!("{part}.converter.schemas.enable");
        if name == Some("json") && !translation.draft.has(SECTION, &key) {
            let comment = Some("the converter's default");
            translation.write_default(SECTION, &key, "true".to_owned(), comment);
        }
    }
}

fn converter(translation: &mut Translation<'_>, part: &'static str) -> Converter {
    let option = format!("{part}.converter");
    let server = translation.kind == Kind::Server;
    let (class, format) = if server {
        let class = translation.find(&format!("{option}.class"));
        (class, translation.find(&format!("format.{part}")))
    } else {
        (translation.find(&option), None)
    };
    let Some(number) = class.or(format) else {
        return if server {
            of_server(translation, part)
        } else {
            of_worker(translation, part)
        };
    };
    if let (Some(_), Some(format)) = (class, format) {
        let why = "the class that is named goes before the format";
        translation.ignored(format, why);
    }
    let text = translation.text(number).unwrap_or_default();
    let own = server || !translation.of_worker(number);
    let name = known(&text, class.is_none());
    match name {
        Some(name) => translation.write(SECTION, &option, quoted(name), &[number], None),
        None => translation.breaks(number, unknown(&text)),
    }
    Converter { part, name, own }
}

/// Kafka Connect falls back on the worker's configuration.
fn of_worker(translation: &mut Translation<'_>, part: &'static str) -> Converter {
    let option = format!("{part}.converter");
    for (number, _) in translation.below(&format!("{option}.")) {
        if !translation.of_worker(number) {
            let why = format!(
                "Kafka Connect reads it only beside {option} in the same configuration, and that is \
                 not there"
            );
            translation.ignored(number, why);
        }
    }
    let (name, comment) = if part == "header" {
        (
            "simple",
            "Kafka Connect's default, unless the worker has another",
        )
    } else {
        translation.note(
            &option,
            "the connector does not name it, so the worker's applies, which is not known here. \
             StringConverter was written: compare it with the worker's file, or name that with \
             --worker FILE. With another one, every record has other bytes",
            true,
        );
        ("string", "NOT KNOWN: the worker's applies")
    };
    translation.write_default(SECTION, &option, quoted(name), Some(comment));
    Converter {
        part,
        name: Some(name),
        own: false,
    }
}

/// Debezium Server has a default of its own.
fn of_server(translation: &mut Translation<'_>, part: &'static str) -> Converter {
    let option = format!("{part}.converter");
    let comment = Some("Debezium Server's default");
    translation.write_default(SECTION, &option, quoted("json"), comment);
    if part == "header" {
        translation.note(
            &option,
            "Debezium Server writes headers as JSON, with schemas unless told otherwise; Kafka \
             Connect writes them as plain text. This is Debezium Server's way",
            false,
        );
    }
    Converter {
        part,
        name: Some("json"),
        own: true,
    }
}

/// The options of one converter. Of the connector's none counts where the converter is the worker's.
fn options(translation: &mut Translation<'_>, converter: Converter) {
    let Converter { part, name, own } = converter;
    for (number, option) in translation.below(&format!("{part}.converter.")) {
        let Some(name) = name else {
            let why = "it belongs to a converter that is not supported";
            translation.unsupported(number, why);
            continue;
        };
        if !own && !translation.of_worker(number) {
            continue;
        }
        if understood(name, &option) {
            take(translation, part, number, &option);
            continue;
        }
        let utf8 = matches!(translation.word(number).as_str(), "utf8" | "utf-8");
        match (name, option.as_str()) {
            (_, "schemas.cache.size") => {
                translation.ignored(number, "it is the size of a cache of Java's");
            }
            (_, "converter.type") => translation.ignored(number, "Kafka Connect sets it itself"),
            ("string" | "simple", "converter.encoding") if utf8 => {
                translation.ignored(number, "walrelay writes UTF-8");
            }
            ("string" | "simple", "converter.encoding") => translation.breaks(
                number,
                "walrelay writes UTF-8: records would have other bytes",
            ),
            ("json", _) => translation.breaks(number, "no option that walrelay knows of it"),
            _ => translation.ignored(number, "the converter has no such option"),
        }
    }
}

/// An option of Debezium Server for all converters that have none of their own.
fn common_option(
    translation: &mut Translation<'_>,
    converters: &[Converter],
    number: usize,
    option: &str,
) {
    for Converter { part, name, .. } in converters {
        let own = translation
            .draft
            .has(SECTION, &format!("{part}.converter.{option}"));
        if name.is_some_and(|name| understood(name, option))
            && !own
            && translation.text(number).is_some()
        {
            take(translation, part, number, option);
        }
    }
    translation.ignored(number, "no converter here has such an option");
}

fn take(translation: &mut Translation<'_>, part: &str, number: usize, option: &str) {
    let value = translation.scalar(&translation.value(number));
    let key = format!("{part}.converter.{option}");
    translation.write(SECTION, &key, value, &[number], None);
}

fn understood(converter: &str, option: &str) -> bool {
    match converter {
        "json" => matches!(
            option,
            "schemas.enable" | "decimal.format" | "replace.null.with.default"
        ),
        "binarydata" => option.starts_with("delegate.converter.type"),
        _ => false,
    }
}
