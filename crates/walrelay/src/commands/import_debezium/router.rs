//! `[router.debezium]`: the transforms, and what of the connector shapes records.

use super::draft::{Refused, Toml};
use super::import::Import;
use super::settings::Kind;
use super::value::Value;

const ROUTER: &str = "io.debezium.transforms.outbox.EventRouter";
const SECTION: &str = "router.debezium";

pub(super) fn router(import: &mut Import) {
    transforms(import);
    connector(import);
}

fn list(text: &str) -> Vec<String> {
    let names = text.split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

fn transforms(import: &mut Import) {
    let number = import.find("transforms");
    let names = number
        .and_then(|number| import.text(number))
        .map(|text| list(&text))
        .unwrap_or_default();
    let class = |import: &Import, name: &str| {
        let number = import.find(&format!("transforms.{name}.type"))?;
        import.text(number)
    };
    let routers: Vec<&String> = names
        .iter()
        .filter(|name| class(import, name).as_deref() == Some(ROUTER))
        .collect();
    let router = match routers.as_slice() {
        [router] => Some((*router).clone()),
        [] => {
            import.fatal(format!(
                "no transform is the outbox event router ({ROUTER}): walrelay relays outbox tables, \
                 and nothing else that Debezium captures"
            ));
            None
        }
        _ => {
            import.fatal("two transforms are outbox event routers: import them one by one");
            None
        }
    };
    let conditional = router
        .as_ref()
        .and_then(|router| import.find(&format!("transforms.{router}.predicate")))
        .is_some();
    if let Some(number) = number {
        if names.len() > 1 {
            import.breaks(
                number,
                "the router is not the only transform, and walrelay has no others: each of them is \
                 named below",
            );
        } else {
            import.taken(number, "router.preset", None);
        }
    }
    for (number, rest) in import.below("transforms.") {
        let owner = names.iter().find(|name| {
            rest.strip_prefix(name.as_str())
                .is_some_and(|option| option.starts_with('.'))
        });
        match (owner, &router) {
            (Some(owner), Some(router)) if owner == router => {
                let option = rest[owner.len() + 1..].to_owned();
                option_of_router(import, number, &option);
            }
            (Some(owner), _) => {
                let option = &rest[owner.len() + 1..];
                if option == "type" {
                    let what = import.text(number).unwrap_or_default();
                    import.breaks(number, other_transform(&what));
                } else {
                    let why =
                        format!("it belongs to the transform {owner}, which is not supported");
                    import.unsupported(number, why);
                }
            }
            (None, _) => import.none(number, "it belongs to no transform in `transforms`"),
        }
    }
    predicates(import, conditional);
    if router.is_some() {
        import.draft.add(super::draft::Line {
            section: "router",
            key: "preset".to_owned(),
            value: Toml::Text("debezium".to_owned()),
            comment: None,
            from: Vec::new(),
            refused: Refused::Breaks,
        });
    }
}

/// Transforms that people put beside the router, and what stands in for them.
fn other_transform(class: &str) -> String {
    let short = class.rsplit('.').next().unwrap_or(class);
    let instead = match short.split('$').next().unwrap_or(short) {
        "ExtractNewRecordState" => {
            "the router makes flat records of outbox rows by itself; behind it this transform does \
             nothing to them, so remove it if it serves no other table"
        }
        "Filter" => {
            "give the publication a row filter (CREATE PUBLICATION … WHERE, Postgres 15 and newer)"
        }
        "RegexRouter" | "ByLogicalTableRouter" | "TopicRegexRouter" | "TimestampRouter" => {
            "say the topic with route.topic.regex and route.topic.replacement of the router"
        }
        "InsertHeader" | "HeaderFrom" | "DropHeaders" | "InsertField" | "HeaderToValue" => {
            "say headers and members of envelopes with table.fields.additional.placement of the \
             router"
        }
        "PartitionRouting" => "say the partition with a placement `column:partition` of the router",
        "DecodeLogicalDecodingMessageContent" => {
            "it feeds messages of pg_logical_emit_message to the router: [source.messages] in \
             docs/CONFIGURATION.md has walrelay's way"
        }
        "ActivateTracingSpan" => "the router's own tracing options do the same",
        _ => "do what it does where the row is written, or in the consumer",
    };
    format!("the transform {short}: walrelay has no transform but the router; {instead}")
}

fn predicates(import: &mut Import, conditional: bool) {
    let mut numbers: Vec<usize> = import.find("predicates").into_iter().collect();
    numbers.extend(
        import
            .below("predicates.")
            .iter()
            .map(|(number, _)| *number),
    );
    for number in numbers {
        if conditional {
            import.unsupported(
                number,
                "walrelay has no predicates; see the router's `predicate`",
            );
        } else {
            import.none(
                number,
                "no transform that is taken over asks for a predicate",
            );
        }
    }
}

fn option_of_router(import: &mut Import, number: usize, option: &str) {
    let server = import.kind == Kind::Server;
    match option {
        "type" => import.taken(number, "router.preset", None),
        "predicate" => import.breaks(
            number,
            "the router is behind a predicate, and walrelay routes every row of its tables: if the \
             predicate holds for all of them, remove it and import again; if not, name in `tables` \
             those for which it does",
        ),
        "negate" => import.breaks(number, "it belongs to the router's predicate, see there"),
        "table.field.event.timestamp" if server => import.none(
            number,
            "Debezium Server's sink for Kafka sends no timestamps, so it is left out: records carry \
             the producer's time, as before. walrelay would honour it",
        ),
        "table.fields.additional.placement" if server => placement_of_server(import, number),
        _ => {
            let value = option_value(import, number, option);
            import.line(SECTION, option, value, &[number], Refused::Breaks);
        }
    }
}

/// Debezium reads the names of its choices in any case.
fn option_value(import: &mut Import, number: usize, option: &str) -> Toml {
    let choice = option.rsplit('.').next() == Some("mode")
        || option.rsplit('.').next() == Some("behavior")
        || option == "table.field.additional.missing";
    let digits = option == "money.fraction.digits";
    match import.word(number) {
        word if choice && !word.is_empty() => Toml::Text(Value::literal(word).configured()),
        word if digits && word.parse::<i64>().is_ok() => {
            Toml::Integer(word.parse().unwrap_or_default())
        }
        _ => {
            let value = import.value(number);
            scalar(import, &value)
        }
    }
}

/// Debezium Server's sink for Kafka sends no partition: honouring it now would move keys.
fn placement_of_server(import: &mut Import, number: usize) {
    let Some(text) = import.text(number) else {
        let value = import.value(number);
        let value = import.configured(&value);
        let key = "table.fields.additional.placement";
        import.line(SECTION, key, value, &[number], Refused::Breaks);
        return;
    };
    let partition = |part: &&str| {
        part.split(':')
            .nth(1)
            .is_some_and(|place| place.trim().eq_ignore_ascii_case("partition"))
    };
    let all: Vec<&str> = text.split(',').collect();
    let kept: Vec<&str> = all
        .iter()
        .filter(|part| !partition(part))
        .copied()
        .collect();
    let remark = (kept.len() < all.len()).then_some(
        "without the placement `partition`: Debezium Server's sink for Kafka ignores it, and keys \
         would move to other partitions. walrelay would honour it",
    );
    if let (true, Some(remark)) = (kept.is_empty(), remark) {
        import.none(number, remark);
        return;
    }
    let key = "table.fields.additional.placement";
    let value = Toml::Text(Value::literal(kept.join(",")).configured());
    import.line_with(SECTION, key, value, &[number], Refused::Breaks, remark);
}

/// A truth value as such, all else as text.
pub(super) fn scalar(import: &mut Import, value: &Value) -> Toml {
    match value.text().map(|text| text.trim().to_ascii_lowercase()) {
        Some(word) if word == "true" => Toml::Bool(true),
        Some(word) if word == "false" => Toml::Bool(false),
        _ => import.configured(value),
    }
}

/// Options of the connector that show in the router's records, with their defaults.
const SHAPING: &[(&str, &str)] = &[
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

fn connector(import: &mut Import) {
    let prefix = import
        .find("topic.prefix")
        // Its name before Debezium 2.0.
        .or_else(|| import.find("database.server.name"));
    if let Some(number) = prefix {
        let value = import.value(number);
        let value = import.configured(&value);
        import.line(SECTION, "topic.prefix", value, &[number], Refused::Breaks);
    }
    if let Some(number) = import.find("database.server.name") {
        import.none(
            number,
            "topic.prefix is its name since Debezium 2.0, and goes before it",
        );
    }
    for (name, default) in SHAPING {
        let Some(number) = import.find(name) else {
            continue;
        };
        let refused = if import.word(number) == *default {
            Refused::Harmless("it is Debezium's default, and what walrelay does".to_owned())
        } else {
            Refused::Breaks
        };
        let value = option_value(import, number, name);
        import.line(SECTION, name, value, &[number], refused);
    }
    context_headers(import);
}

/// Debezium adds them unless it is told not to; walrelay does on request.
fn context_headers(import: &mut Import) {
    const NAME: &str = "extended.headers.enabled";
    match import.find(NAME) {
        Some(number) if import.word(number) == "true" => {
            import.line(SECTION, NAME, Toml::Bool(true), &[number], Refused::Breaks);
        }
        Some(number) => import.none(number, "it is walrelay's default"),
        None => import.draft.add(super::draft::Line {
            section: SECTION,
            key: NAME.to_owned(),
            value: Toml::Bool(true),
            comment: Some(
                "Debezium's default since 3.2: headers __debezium.context.*; false if nobody reads \
                 them"
                .to_owned(),
            ),
            from: Vec::new(),
            refused: Refused::Soft,
        }),
    }
}
