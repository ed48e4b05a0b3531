//! `[router.converters]`: the converters of keys, values and headers.

use super::Rule::{Breaks, Ignore, When};
use super::{Rules, lookup, matches, rule, short_name};
use crate::draft::quoted;
use crate::input::Program;
use crate::translation::Translation;

const SECTION: &str = "router.converters";

/// walrelay's names of converters by Java class.
const CLASSES: &[(&str, &str)] = &[
    ("org.apache.kafka.connect.storage.StringConverter", "string"),
    ("org.apache.kafka.connect.json.JsonConverter", "json"),
    (
        "org.apache.kafka.connect.converters.ByteArrayConverter",
        "bytearray",
    ),
    ("io.debezium.converters.BinaryDataConverter", "binarydata"),
    // Names of the class before Debezium 2.0.
    ("io.debezium.converters.ByteArrayConverter", "binarydata"),
    ("io.debezium.converters.ByteBufferConverter", "binarydata"),
    (
        "org.apache.kafka.connect.storage.SimpleHeaderConverter",
        "simple",
    ),
];

/// walrelay's names of converters by format of Debezium Server.
const FORMATS: &[(&str, &str)] = &[
    ("json|jsonbytearray", "json"),
    ("simplestring", "string"),
    ("binary", "binarydata"),
];

/// The replacements for other converters, by class without its package or by format.
const INSTEAD: &[(&str, &str)] = &[
    (
        "AvroConverter|avro|ProtobufConverter|protobuf|JsonSchemaConverter|ExtJsonConverter",
        "it makes up schemas and registers them, where walrelay encodes by those that the registry \
         has: Avro and JSON Schema are configured by hand in [router.registry], see \
         docs/reference/configuration.md",
    ),
    (
        "CloudEventsConverter|cloudevents",
        "CloudEvents are configured by hand in [router.cloudevents], see docs/reference/configuration.md",
    ),
    (
        "*",
        "records would have other bytes; choose one that both know",
    ),
];

/// Options that walrelay's converters have too, as `<converter>.<option>`.
const SAME: &str = "json.schemas.enable|json.decimal.format|json.replace.null.with.default|\
    binarydata.delegate.converter.type*";

/// All other options of converters, as `<converter>.<option>`.
const OPTIONS: Rules = rules! {
    "*.schemas.cache.size" => Ignore("it is the size of a cache of Java's");
    "string.converter.type|json.converter.type|bytearray.converter.type|\
        binarydata.converter.type|simple.converter.type" => Ignore("Kafka Connect sets it itself");
    "string.converter.encoding|simple.converter.encoding" => When(rules! {
        "utf8|utf-8" => Ignore("walrelay writes UTF-8");
        "*" => Breaks("walrelay writes UTF-8: records would have other bytes");
    });
    "json.*" => Breaks("no option that walrelay knows of it");
    "*" => Ignore("the converter has no such option");
};

/// The converter of keys, values or headers.
#[derive(Clone, Copy)]
struct Converter {
    /// `key`, `value` or `header`.
    part: &'static str,
    /// walrelay's name; `None` if the converter is not supported, which has been reported.
    name: Option<&'static str>,
    /// True if the connector names the converter, not the worker.
    own: bool,
}

impl Converter {
    /// Takes an option over if walrelay's converter has it; returns whether it has.
    fn take_option(&self, translation: &mut Translation<'_>, number: usize, option: &str) -> bool {
        let Self { part, name, .. } = self;
        let same = name.is_some_and(|name| matches(SAME, &format!("{name}.{option}")));
        if same {
            let value = translation.scalar(&translation.value(number));
            let key = format!("{part}.converter.{option}");
            translation.write(SECTION, &key, value, &[number], None);
        }
        same
    }
}

pub(super) fn apply(translation: &mut Translation<'_>) {
    let found = ["key", "value", "header"].map(|part| converter(translation, part));
    for converter in found {
        options(translation, converter);
    }
    // Options of Debezium Server that apply to all converters without such an option of their own.
    for (number, option) in translation.below("converter.") {
        for converter in found {
            let key = format!("{}.converter.{option}", converter.part);
            if !translation.draft.has(SECTION, &key) && translation.text(number).is_some() {
                converter.take_option(translation, number, &option);
            }
        }
        translation.ignored(number, "no converter here has such an option");
    }
    for Converter { part, name, .. } in found {
        let key = format!("{part}.converter.schemas.enable");
        if name == Some("json") && !translation.draft.has(SECTION, &key) {
            let comment = Some("the converter's default");
            translation.write(SECTION, &key, "true".to_owned(), &[], comment);
        }
    }
}

fn converter(translation: &mut Translation<'_>, part: &'static str) -> Converter {
    let option = format!("{part}.converter");
    let server = translation.program == Program::Server;
    let (class, format) = if server {
        let class = translation.find(&format!("{option}.class"));
        (class, translation.find(&format!("format.{part}")))
    } else {
        (translation.find(&option), None)
    };
    let Some(number) = class.or(format) else {
        return default(translation, part, &option);
    };
    if let (Some(_), Some(format)) = (class, format) {
        translation.ignored(format, "the class that is named goes before the format");
    }
    let names = if class.is_some() { CLASSES } else { FORMATS };
    let text = translation.text(number).unwrap_or_default();
    let own = server || !translation.is_of_worker(number);
    let name = lookup(names, &text);
    if let Some(name) = name {
        translation.write(SECTION, &option, quoted(name), &[number], None);
    } else {
        let short = short_name(&text);
        let instead = lookup(INSTEAD, short).unwrap_or_default();
        let why = format!(
            "walrelay has the converters String, JSON, ByteArray, BinaryData and, for headers, \
             Simple, but no {short}: {instead}"
        );
        translation.breaks(number, why);
    }
    Converter { part, name, own }
}

/// Returns the converter of a part that the input does not name. Debezium Server has a default;
/// Kafka Connect uses the worker's configuration.
fn default(translation: &mut Translation<'_>, part: &'static str, option: &str) -> Converter {
    let own = translation.program == Program::Server;
    let (name, comment, note) = match (own, part) {
        (true, "header") => (
            "json",
            "Debezium Server's default",
            "Debezium Server writes headers as JSON, with schemas unless told otherwise; Kafka \
             Connect writes them as plain text. This is Debezium Server's way",
        ),
        (true, _) => ("json", "Debezium Server's default", ""),
        (false, "header") => (
            "simple",
            "Kafka Connect's default, unless the worker has another",
            "",
        ),
        (false, _) => (
            "string",
            "NOT KNOWN: the worker's applies",
            "the connector does not name it, so the worker's applies, which is not known here. \
             StringConverter was written: compare it with the worker's file, or name that with \
             --worker FILE. With another one, every record has other bytes",
        ),
    };
    for (number, _) in translation.below(&format!("{option}.")) {
        if !own && !translation.is_of_worker(number) {
            let why = "Kafka Connect reads it only beside";
            let why = format!("{why} {option} in the same configuration, which is missing");
            translation.ignored(number, why);
        }
    }
    if !note.is_empty() {
        translation.note(option, note, !own);
    }
    translation.write(SECTION, option, quoted(name), &[], Some(comment));
    let name = Some(name);
    Converter { part, name, own }
}

/// Applies the rules for the options of one converter. The connector's options are ignored if the
/// converter is the worker's.
fn options(translation: &mut Translation<'_>, converter: Converter) {
    for (number, option) in translation.below(&format!("{}.converter.", converter.part)) {
        let Some(name) = converter.name else {
            translation.unsupported(number, "it belongs to a converter that is not supported");
            continue;
        };
        let counts = converter.own || translation.is_of_worker(number);
        if counts
            && !converter.take_option(translation, number, &option)
            && let Some(rule) = rule(OPTIONS, &format!("{name}.{option}"))
        {
            rule.apply(translation, number);
        }
    }
}
