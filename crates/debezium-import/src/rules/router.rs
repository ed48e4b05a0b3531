//! `[router.debezium]`: the transforms, and the connector's options that affect records.

use super::Absent::Write;
use super::Rule::{Breaks, Call, Copy, Ignore, Set, When};
use super::{Rules, apply_each, rule};
use crate::draft::quoted;
use crate::input::{Program, Value};
use crate::translation::Translation;

const ROUTER: &str = "io.debezium.transforms.outbox.EventRouter";
const SECTION: &str = "router.debezium";
const PLACEMENT: &str = "table.fields.additional.placement";

/// Options of the connector that affect the router's records, with their defaults.
const RECORD_OPTIONS: &[(&str, &str)] = &[
    ("binary.handling.mode", "bytes"),
    ("decimal.handling.mode", "precise"),
    ("time.precision.mode", "adaptive"),
    ("interval.handling.mode", "numeric"),
    ("hstore.handling.mode", "json"),
    ("money.fraction.digits", "2"),
    ("schema.name.adjustment.mode", "none"),
    ("include.unknown.datatypes", "false"),
    (
        "unavailable.value.placeholder",
        "__debezium_unavailable_value",
    ),
];

/// Options of a router that a predicate applies to.
const CONDITIONS: Rules = rules! {
    "predicate" =>
        Breaks("the router is behind a predicate, and walrelay routes every row of its tables: if \
            the predicate holds for all of them, remove it and import again; if not, name in \
            `tables` those for which it does");
    "negate" => Breaks("it belongs to the router's predicate, see there");
};

/// Options of the router that Debezium Server's sink ignores.
const SERVER: Rules = rules! {
    "table.field.event.timestamp" =>
        Ignore("Debezium Server's sink for Kafka sends no timestamps, so it is left out: records \
            carry the producer's time, as before. walrelay would honour it");
    "table.fields.additional.placement" => Call(placement_of_server);
};

const TOPIC_PREFIX: Rules = rules! {
    "topic.prefix" => Copy(SECTION, "topic.prefix");
    "database.server.name" => Call(|translation, number| {
        let rule = if translation.draft.has(SECTION, "topic.prefix") {
            Ignore("topic.prefix is its name since Debezium 2.0, and goes before it")
        } else {
            Copy(SECTION, "topic.prefix")
        };
        rule.apply(translation, number);
    });
};

/// Debezium adds these headers by default, walrelay only on request.
const CONTEXT_HEADERS: Rules = rules! {
    "extended.headers.enabled" => When(rules! {
        "true" => Set(SECTION, "extended.headers.enabled", "true");
        "*" => Ignore("it is walrelay's default");
    }), absent Write(SECTION, "extended.headers.enabled", "true",
        "Debezium's default since 3.2: headers __debezium.context.*; false if no consumer reads them");
};

pub(super) fn apply(translation: &mut Translation<'_>) {
    transforms(translation);
    apply_each(translation, TOPIC_PREFIX);
    for (name, default) in RECORD_OPTIONS {
        let Some(number) = translation.find(name) else {
            continue;
        };
        let is_default = translation.word(number) == *default;
        option(translation, number, name);
        if is_default
            && let Some(line) = translation.draft.lines.last_mut()
            && line.settings == [number]
        {
            line.redundant = Some("it is Debezium's default, and walrelay's behaviour");
        }
    }
    apply_each(translation, CONTEXT_HEADERS);
}

fn transforms(translation: &mut Translation<'_>) {
    let text = translation.text_of("transforms");
    let names = text.split(',').map(str::trim);
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    let class = |name: &str| translation.text_of(&format!("transforms.{name}.type"));
    let routers = names.iter().filter(|name| class(name) == ROUTER);
    let routers: Vec<&str> = routers.copied().collect();
    match routers.len() {
        1 => translation.write("router", "preset", quoted("debezium"), &[], None),
        0 => translation.fatal(format!(
            "no transform is the outbox event router ({ROUTER}): walrelay relays outbox tables, \
             and nothing else that Debezium captures"
        )),
        _ => translation.fatal("two transforms are outbox event routers: import them one by one"),
    }
    let router = routers.first().filter(|_| routers.len() == 1);
    if let Some(number) = translation.find("transforms") {
        if names.len() > 1 {
            let why = "the router is not the only transform, and walrelay has no others: each of \
                them is named below";
            translation.breaks(number, why);
        } else {
            translation.taken(number, "router.preset", None);
        }
    }
    predicates(translation, router.copied());
    for (number, rest) in translation.below("transforms.") {
        let mut owners = names.iter().filter_map(|name| {
            let option = rest.strip_prefix(name)?.strip_prefix('.')?;
            Some((name, option))
        });
        match owners.next() {
            Some((owner, option)) if Some(owner) == router => {
                option_of_router(translation, number, option);
            }
            Some((_, "type")) => {
                let class = translation.text(number).unwrap_or_default();
                let short = super::short_name(&class);
                let transform = short.split('$').next().unwrap_or(short);
                let instead = super::lookup(INSTEAD, transform).unwrap_or_default();
                let why = format!(
                    "the transform {short}: walrelay has no transform but the router; {instead}"
                );
                translation.breaks(number, why);
            }
            Some((owner, _)) => {
                let why = format!("it belongs to the transform {owner}, which is not supported");
                translation.unsupported(number, why);
            }
            None => translation.ignored(number, "it belongs to no transform in `transforms`"),
        }
    }
}

/// Transforms that are common beside the router, and their replacements.
const INSTEAD: &[(&str, &str)] = &[
    (
        "ExtractNewRecordState",
        "the router makes flat records of outbox rows by itself; behind it this transform does \
         nothing to them, so remove it if it serves no other table",
    ),
    (
        "Filter",
        "give the publication a row filter (CREATE PUBLICATION … WHERE, Postgres 15 and newer)",
    ),
    (
        "RegexRouter|ByLogicalTableRouter|TopicRegexRouter|TimestampRouter",
        "say the topic with route.topic.regex and route.topic.replacement of the router",
    ),
    (
        "InsertHeader|HeaderFrom|DropHeaders|InsertField|HeaderToValue",
        "say headers and members of envelopes with table.fields.additional.placement of the router",
    ),
    (
        "PartitionRouting",
        "say the partition with a placement `column:partition` of the router",
    ),
    (
        "DecodeLogicalDecodingMessageContent",
        "it feeds messages of pg_logical_emit_message to the router: [source.messages] in \
         docs/reference/configuration.md has walrelay's way",
    ),
    (
        "ActivateTracingSpan",
        "the router's own tracing options do the same",
    ),
    (
        "*",
        "do its work where the row is written, or in the consumer",
    ),
];

/// Predicates are not supported if the router has one; else they are left to the other rules.
fn predicates(translation: &mut Translation<'_>, router: Option<&str>) {
    let conditional = router.is_some_and(|router| {
        let predicate = format!("transforms.{router}.predicate");
        translation.find(&predicate).is_some()
    });
    for (number, rest) in translation.below("predicates") {
        if conditional && (rest.is_empty() || rest.starts_with('.')) {
            let why = "walrelay has no predicates; see the router's `predicate`";
            translation.unsupported(number, why);
        }
    }
}

fn option_of_router(translation: &mut Translation<'_>, number: usize, name: &str) {
    let server = translation.program == Program::Server;
    if name == "type" {
        translation.taken(number, "router.preset", None);
    } else if let Some(rule) =
        rule(CONDITIONS, name).or_else(|| rule(SERVER, name).filter(|_| server))
    {
        rule.apply(translation, number);
    } else {
        option(translation, number, name);
    }
}

/// Writes an option under its own name. Debezium ignores the case of an option's choices.
fn option(translation: &mut Translation<'_>, number: usize, name: &str) {
    let choice = matches!(name.rsplit('.').next(), Some("mode" | "behavior"))
        || name == "table.field.additional.missing";
    let digits = name == "money.fraction.digits";
    let word = translation.word(number);
    let value = match word.parse::<i64>() {
        Ok(count) if digits => count.to_string(),
        _ if choice && !word.is_empty() => quoted(&Value::literal(word).configured()),
        _ => translation.scalar(&translation.value(number)),
    };
    translation.write(SECTION, name, value, &[number], None);
}

/// Translates the placement of the event router. Debezium Server's sink for Kafka ignores the
/// placement `partition`: with it, keys would move to other partitions.
fn placement_of_server(translation: &mut Translation<'_>, number: usize) {
    const REMARK: &str = "without the placement `partition`: Debezium Server's sink for Kafka \
        ignores it, and keys would move to other partitions. walrelay would honour it";
    let Some(text) = translation.text(number) else {
        return translation.copy(number, SECTION, PLACEMENT);
    };
    let is_partition = |part: &&str| {
        let place = part.split(':').nth(1).unwrap_or_default();
        place.trim().eq_ignore_ascii_case("partition")
    };
    let (left_out, kept): (Vec<_>, Vec<_>) = text.split(',').partition(is_partition);
    if kept.is_empty() {
        return translation.ignored(number, REMARK);
    }
    let remark = (!left_out.is_empty()).then_some(REMARK);
    let value = quoted(&Value::literal(kept.join(",")).configured());
    translation.write(SECTION, PLACEMENT, value, &[number], remark);
}
