//! `[router.converters]`: how keys, values and headers become bytes.

use super::draft::{Refused, Toml};
use super::import::Import;
use super::router::scalar;
use super::settings::Kind;

const SECTION: &str = "router.converters";

/// What is converted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Key,
    Value,
    Header,
}

impl Part {
    const ALL: [Self; 3] = [Self::Key, Self::Value, Self::Header];

    fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Value => "value",
            Self::Header => "header",
        }
    }

    /// The name of the option that names its converter.
    fn option(self) -> &'static str {
        match self {
            Self::Key => "key.converter",
            Self::Value => "value.converter",
            Self::Header => "header.converter",
        }
    }
}

/// Converters that both sides know, by walrelay's short names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Converter {
    String,
    Json,
    ByteArray,
    BinaryData,
    Simple,
}

impl Converter {
    fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Json => "json",
            Self::ByteArray => "bytearray",
            Self::BinaryData => "binarydata",
            Self::Simple => "simple",
        }
    }

    /// Of a class of Java's.
    fn of_class(class: &str) -> Option<Self> {
        Some(match class {
            "org.apache.kafka.connect.storage.StringConverter" => Self::String,
            "org.apache.kafka.connect.json.JsonConverter" => Self::Json,
            "org.apache.kafka.connect.converters.ByteArrayConverter" => Self::ByteArray,
            "io.debezium.converters.BinaryDataConverter"
            // Its name before Debezium 2.0.
            | "io.debezium.converters.ByteArrayConverter"
            | "io.debezium.converters.ByteBufferConverter" => Self::BinaryData,
            "org.apache.kafka.connect.storage.SimpleHeaderConverter" => Self::Simple,
            _ => return None,
        })
    }

    /// Of a format of Debezium Server's.
    fn of_format(format: &str) -> Option<Self> {
        Some(match format {
            "json" | "jsonbytearray" => Self::Json,
            "simplestring" => Self::String,
            "binary" => Self::BinaryData,
            _ => return None,
        })
    }
}

pub(super) fn converters(import: &mut Import) {
    let mut found = Vec::new();
    for part in Part::ALL {
        found.push((part, converter(import, part)));
    }
    for (part, converter) in &found {
        let Some(converter) = converter else {
            for (number, option) in import.below(&format!("{}.", part.option())) {
                let _ = option;
                import.unsupported(number, "it belongs to a converter that is not supported");
            }
            continue;
        };
        let mut options = import.below(&format!("{}.", part.option()));
        // Of the connector's options none counts where the converter is the worker's.
        if !converter.1 {
            options.retain(|(number, _)| import.of_worker(*number));
        }
        for (number, option) in options {
            converter_option(import, *part, converter.0, &[number], &option);
        }
    }
    let common = import.below("converter.");
    for (number, option) in &common {
        for (part, converter) in &found {
            let own = import
                .draft
                .has(SECTION, &format!("{}.{option}", part.option()));
            if let (Some(converter), false) = (converter, own) {
                shared_option(import, *part, converter.0, *number, option);
            }
        }
        import.none(*number, "no converter here has such an option");
    }
    for (part, converter) in found {
        let key = format!("{}.schemas.enable", part.option());
        if matches!(converter, Some((Converter::Json, _))) && !import.draft.has(SECTION, &key) {
            import.line_of_default(SECTION, &key, Toml::Bool(true), "the converter's default");
        }
    }
}

/// The converter of a part, and whether it is the connector's own choice. `None`: it is not
/// supported, and that was said.
fn converter(import: &mut Import, part: Part) -> Option<(Converter, bool)> {
    let class = import.find(part.option());
    let (number, converter, own) = match (import.kind, class) {
        (Kind::Connect, Some(number)) => {
            let class = import.text(number).unwrap_or_default();
            let own = !import.of_worker(number);
            (number, Converter::of_class(&class), own)
        }
        (Kind::Connect, None) => return Some((unnamed(import, part), false)),
        (Kind::Server, _) => return of_server(import, part),
    };
    write(import, part, number, converter).map(|converter| (converter, own))
}

fn write(
    import: &mut Import,
    part: Part,
    number: usize,
    converter: Option<Converter>,
) -> Option<Converter> {
    let Some(converter) = converter else {
        let class = import.text(number).unwrap_or_default();
        import.breaks(number, other_converter(&class));
        return None;
    };
    let name = Toml::Text(converter.name().to_owned());
    import.line(SECTION, part.option(), name, &[number], Refused::Breaks);
    Some(converter)
}

fn other_converter(class: &str) -> String {
    let short = class.rsplit('.').next().unwrap_or(class);
    let instead = match short {
        "AvroConverter"
        | "avro"
        | "ProtobufConverter"
        | "protobuf"
        | "JsonSchemaConverter"
        | "ExtJsonConverter" => {
            "it makes up schemas and registers them, where walrelay encodes by those that the registry \
             has: Avro and JSON Schema are configured by hand in [router.registry], see \
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

/// Kafka Connect falls back on the worker's configuration.
fn unnamed(import: &mut Import, part: Part) -> Converter {
    let option = part.option();
    for (number, _) in import.below(&format!("{option}.")) {
        if !import.of_worker(number) {
            let why = format!(
                "Kafka Connect reads it only beside {option} in the same configuration, and that is \
                 not there"
            );
            import.none(number, why);
        }
    }
    let converter = match part {
        Part::Header => Converter::Simple,
        Part::Key | Part::Value => Converter::String,
    };
    let comment = match part {
        Part::Header => "Kafka Connect's default, unless the worker has another".to_owned(),
        Part::Key | Part::Value => {
            import.urgent(
                option,
                "the connector does not name it, so the worker's applies, which is not known here. \
                 StringConverter was written: compare it with the worker's file, or name that with \
                 --worker FILE. With another one, every record has other bytes",
            );
            "NOT KNOWN: the worker's applies".to_owned()
        }
    };
    let name = Toml::Text(converter.name().to_owned());
    import.line_of_default(SECTION, option, name, &comment);
    converter
}

/// `debezium.format.key`, and `debezium.format.key.class` before it.
fn of_server(import: &mut Import, part: Part) -> Option<(Converter, bool)> {
    let format = import.find(&format!("format.{}", part.name()));
    let class = import.find(&format!("{}.class", part.option()));
    if let Some(number) = class {
        if let Some(format) = format {
            import.none(format, "the class that is named goes before the format");
        }
        let class = import.text(number).unwrap_or_default();
        let converter = Converter::of_class(&class);
        return write(import, part, number, converter).map(|converter| (converter, true));
    }
    if let Some(number) = format {
        let format = import.text(number).unwrap_or_default();
        let converter = Converter::of_format(&format);
        return write(import, part, number, converter).map(|converter| (converter, true));
    }
    let name = Toml::Text(Converter::Json.name().to_owned());
    let comment = "Debezium Server's default";
    import.line_of_default(SECTION, part.option(), name, comment);
    if part == Part::Header {
        import.note(
            "header.converter",
            "Debezium Server writes headers as JSON, with schemas unless told otherwise; Kafka \
             Connect writes them as plain text. This is Debezium Server's way",
        );
    }
    Some((Converter::Json, true))
}

/// What the common options of Debezium Server mean for one part.
fn shared_option(
    import: &mut Import,
    part: Part,
    converter: Converter,
    number: usize,
    option: &str,
) {
    if understood(converter, option) && import.text(number).is_some() {
        converter_option(import, part, converter, &[number], option);
    }
}

fn understood(converter: Converter, option: &str) -> bool {
    match converter {
        Converter::Json => matches!(
            option,
            "schemas.enable" | "decimal.format" | "replace.null.with.default"
        ),
        Converter::BinaryData => option.starts_with("delegate.converter.type"),
        Converter::String | Converter::ByteArray | Converter::Simple => false,
    }
}

fn converter_option(
    import: &mut Import,
    part: Part,
    converter: Converter,
    from: &[usize],
    option: &str,
) {
    if understood(converter, option) {
        let key = format!("{}.{option}", part.option());
        for number in from {
            let value = import.value(*number);
            let value = scalar(import, &value);
            import.line(SECTION, &key, value, &[*number], Refused::Breaks);
        }
        return;
    }
    for number in from {
        match (converter, option) {
            (_, "schemas.cache.size") => {
                import.none(*number, "it is the size of a cache of Java's");
            }
            (_, "converter.type") => import.none(*number, "Kafka Connect sets it itself"),
            (Converter::String | Converter::Simple, "converter.encoding")
                if !matches!(import.word(*number).as_str(), "utf8" | "utf-8") =>
            {
                import.breaks(
                    *number,
                    "walrelay writes UTF-8: records would have other bytes",
                );
            }
            (Converter::String | Converter::Simple, "converter.encoding") => {
                import.none(*number, "walrelay writes UTF-8");
            }
            (Converter::Json, _) => import.breaks(*number, "no option that walrelay knows of it"),
            _ => import.none(*number, "the converter has no such option"),
        }
    }
}
