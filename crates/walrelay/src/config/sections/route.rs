//! `[router.route]` and `[router.lookup]`: templates that replace parts of a preset.

use walrelay_event_router::{
    Lookups, Member, Object, Preset, Template, TemplateTarget, Templates, ValueTemplate,
};
use walrelay_postgres_source::table_name::{owned_identifier as column, quoted};
use walrelay_settings::{AlreadyReported, Entry, Reader, Section, Value, section, text};

use crate::config::templates::{self, Part, only_false, template, template_or_false};

/// The section whose keys are names of headers.
pub(super) const HEADERS: &str = "router.route.headers";
/// The section whose keys are members of the value. A dot leads into an object, so a member's name
/// with a dot or a quote is quoted.
pub(super) const MEMBERS: &str = "router.route.value";
/// The section whose keys are lookup tables and their values.
pub(super) const LOOKUPS: &str = "router.lookup";

section! {
pub(super) struct Keys at "router.route" {
    /// The column of the event's id.
    "id" id: Option<String> = text(column).optional();
    /// The topic.
    "topic" topic: Option<Template> = template(TemplateTarget::Topic).optional();
    /// The key; `false` is the null key for all.
    "key" key: Option<Part> = template_or_false(TemplateTarget::Key).optional();
    /// The value; or a section, `[router.route.value]`, with a JSON object's members.
    "value" value: Option<Template> = template(TemplateTarget::Value).optional();
    /// A section, `[router.route.headers]`, with a template for each header; `false` for none.
    "headers" no_headers: Option<()> = only_false().optional();
    /// The partition's number; without it the key decides.
    "partition" partition: Option<Part> = template_or_false(TemplateTarget::Partition).optional();
    /// A point in time, or milliseconds since 1970. Unset: the time of production.
    "timestamp" timestamp: Option<Part> = template_or_false(TemplateTarget::Timestamp).optional();
}
}

/// Returns the templates of a preset, or of none, with the changes of the configuration.
pub(super) fn templates(
    reader: &mut Reader<'_>,
    preset: Option<Preset>,
) -> Result<Templates, AlreadyReported> {
    for section in ["router.debezium", "router.converters"] {
        refuse(reader, section, "unless `router.preset` is \"debezium\"");
    }
    let keys = Keys::read(reader);
    // `--set` of the whole value, or `headers=false`, replaces the sections of members and headers.
    let object = (!reader.has(MEMBERS)).then(|| object(reader)).flatten();
    let headers = (!reader.has(HEADERS)).then(|| headers(reader)).flatten();
    if preset.is_none() {
        if !reader.has("router.route.topic") {
            reader.missing("router.route.topic", "\"{type}\"");
        }
        if !reader.has(MEMBERS) && object.is_none() {
            reader.missing(MEMBERS, "\"{payload}\"");
        }
    }
    let keys = keys?;
    let headers = keys.no_headers.map(|()| Vec::new()).or(headers);
    let value = match keys.value {
        Some(template) => Some(ValueTemplate::Text(template)),
        None => object.map(ValueTemplate::Object),
    };
    let mut templates = match preset {
        Some(preset) => match preset.routes() {
            Ok(templates) => templates,
            Err(error) => unreachable!("a preset is no template: {error}"),
        },
        None => Templates {
            id: None,
            topic: keys.topic.clone().ok_or(AlreadyReported)?,
            key: None,
            value: value.clone().ok_or(AlreadyReported)?,
            headers: Vec::new(),
            partition: None,
            timestamp: None,
            lookups: Lookups::new(),
        },
    };
    replace(&mut templates.id, keys.id.map(Some));
    replace(&mut templates.topic, keys.topic);
    replace(&mut templates.key, keys.key.map(|part| part.0));
    replace(&mut templates.value, value);
    replace(&mut templates.headers, headers);
    replace(&mut templates.partition, keys.partition.map(|part| part.0));
    replace(&mut templates.timestamp, keys.timestamp.map(|part| part.0));
    templates.lookups = reader.shared::<Lookups>().clone();
    Ok(templates)
}

fn replace<T>(part: &mut T, by: Option<T>) {
    if let Some(by) = by {
        *part = by;
    }
}

/// Refuses the keys of templates if the preset is Debezium's.
pub(super) fn refuse_templates(reader: &mut Reader<'_>) {
    let when = "while `router.preset` is \"debezium\"";
    refuse(reader, "router.route", when);
    // Templates of other sections may name lookup tables.
    if !["router.cloudevents.mode", "router.registry.record"]
        .iter()
        .any(|path| reader.has(path))
    {
        refuse(reader, LOOKUPS, when);
    }
}

/// Refuses the keys of a section that has no effect.
fn refuse(reader: &mut Reader<'_>, section: &str, when: &str) {
    for (name, _) in reader.below(section) {
        let path = format!("{section}.{name}");
        reader.no_effect(&path, when);
    }
}

/// Reads `[router.lookup]` into the reader, for all templates.
pub(super) fn lookups(reader: &mut Reader<'_>) {
    for (name, entry) in reader.below(LOOKUPS) {
        let path = format!("{LOOKUPS}.{name}");
        let Some((table, value)) = name.split_once('.') else {
            let what = format!("`{path}` is a table, not a value");
            let help = format!("write [{path}] on a line of its own, values below");
            reader.note(&entry.origin, "config-wrong-type", what, Some(help));
            continue;
        };
        if let Ok(text) = reader.scalar(&path, &entry) {
            let rows = reader
                .shared::<Lookups>()
                .entry(table.to_owned())
                .or_default();
            rows.insert(value.to_owned(), text);
        }
    }
}

/// Reads `[router.route.value]`; `None` if it is absent.
fn object(reader: &mut Reader<'_>) -> Option<Object> {
    let entries = reader.below(MEMBERS);
    if entries.is_empty() {
        return None;
    }
    let mut object = Object::default();
    for (name, entry) in entries {
        let path = format!("{MEMBERS}.{name}");
        let Ok(member) = member(reader, &path, &entry) else {
            continue;
        };
        if !segments(&name).is_some_and(|name| insert(&mut object, &name, member)) {
            let why = "the name is not one, or another member has it";
            reader.invalid(&path, &entry, why);
        }
    }
    Some(object)
}

fn member(reader: &mut Reader<'_>, path: &str, entry: &Entry) -> Result<Member, AlreadyReported> {
    Ok(match &entry.value {
        Value::Bool(value) => Member::Boolean(*value),
        Value::Integer(number) => Member::Integer(*number),
        _ => Member::Template(
            templates::parse(reader, path, entry, TemplateTarget::Member)?
                .ok_or(AlreadyReported)?,
        ),
    })
}

/// Reads `[router.route.headers]`; `None` if it is absent.
fn headers(reader: &mut Reader<'_>) -> Option<Vec<(String, Template)>> {
    let entries = reader.below(HEADERS);
    if entries.is_empty() {
        return None;
    }
    let mut headers = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let path = format!("{HEADERS}.{name}");
        match templates::parse(reader, &path, &entry, TemplateTarget::Header) {
            Ok(Some(template)) => headers.push((name, template)),
            Ok(None) => _ = reader.wrong_type(&path, &entry),
            Err(AlreadyReported) => {}
        }
    }
    Some(headers)
}

/// Splits `a."b.c".d` into its segments.
fn segments(path: &str) -> Option<Vec<String>> {
    let mut segments = Vec::new();
    let mut rest = path;
    loop {
        let (segment, tail) = if let Some(inner) = rest.strip_prefix('"') {
            quoted(inner).ok()?
        } else {
            let (segment, tail) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
            (segment.to_owned(), tail)
        };
        segments.push(segment);
        match tail.strip_prefix('.') {
            Some(tail) => rest = tail,
            None if tail.is_empty() => return Some(segments),
            None => return None,
        }
    }
}

/// Inserts a member at a path, and creates the objects on the way. `false` if the path is taken, or
/// leads through a member that is no object.
fn insert(object: &mut Object, path: &[String], member: Member) -> bool {
    let Some((name, rest)) = path.split_first() else {
        return false;
    };
    let place = object.members.iter().position(|(known, _)| known == name);
    if rest.is_empty() {
        if place.is_some() {
            return false;
        }
        object.members.push((name.clone(), member));
        return true;
    }
    let place = place.unwrap_or_else(|| {
        let inner = Member::Object(Object::default());
        object.members.push((name.clone(), inner));
        object.members.len() - 1
    });
    match object.members.get_mut(place) {
        Some((_, Member::Object(inner))) => insert(inner, rest, member),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::cases;
    use crate::config::{Config, RouterConfig};

    const REST: &str =
        "[source]\nurl = \"postgres://db/app\"\ntables = [\"o\"]\n[sink]\nkind = \"stdout\"\n";

    fn read(text: &str, set: &[&str]) -> Result<Templates, String> {
        let set: Vec<String> = set.iter().map(|text| (*text).to_owned()).collect();
        let env = |name: &str| Some(format!("value_of_{name}"));
        let whole = format!("{text}\n{REST}");
        match Config::parse(&whole, "t.toml", &set, &env) {
            Ok(config) => match config.pipeline.router {
                RouterConfig::Templates(templates) => Ok(*templates),
                RouterConfig::Debezium(_) => panic!("Debezium's"),
            },
            Err(error) => {
                let problems = error.problems().iter();
                let all = problems.map(|problem| format!("[{}] {problem}", problem.id));
                Err(all.collect::<Vec<_>>().join("\n"))
            }
        }
    }

    fn template(text: &str) -> Template {
        text.parse().unwrap()
    }

    #[test]
    fn each_part_of_a_preset_can_be_replaced() {
        let outbox = read("[router]\npreset = \"outbox\"", &[]).unwrap();
        assert_eq!(outbox, Preset::OUTBOX.routes().unwrap());

        let changed = read(
            "[router]\npreset = \"outbox\"\n[router.route]\nid = \"event_id\"\n\
             topic = \"{aggregate_type | lookup('topics', keep)}\"\nkey = false\nvalue = \"{payload}\"\n\
             partition = \"{shard}\"\ntimestamp = \"{created_at}\"\n\
             [router.route.headers]\nb = \"{id}\"\n\"a.b\" = \"x\"\n\
             [router.lookup.topics]\n\"order.placed\" = \"orders\"\nother.thing = 5\n",
            &[],
        )
        .unwrap();
        assert_eq!(changed.id.as_deref(), Some("event_id"));
        assert_eq!(
            changed.topic,
            template("{aggregate_type | lookup('topics', keep)}")
        );
        assert_eq!(changed.key, None);
        assert_eq!(changed.value, ValueTemplate::Text(template("{payload}")));
        assert!(changed.partition.is_some() && changed.timestamp.is_some());
        let headers = [("b", "{id}"), ("a.b", "x")];
        let headers = headers.map(|(name, text)| (name.to_owned(), template(text)));
        assert_eq!(changed.headers, headers);
        let topics = &changed.lookups["topics"];
        assert_eq!(topics["order.placed"], "orders");
        assert_eq!(topics["other.thing"], "5");

        let set = ["router.route.key=false", "router.route.headers=false"];
        let bare = read("[router]\npreset = \"outbox\"", &set).unwrap();
        assert_eq!((bare.key, bare.headers), (None, Vec::new()));
    }

    #[test]
    fn members_keep_their_order_and_nest() {
        let text = "[router]\npreset = \"custom\"\n[router.route]\ntopic = \"t\"\n\
                    [router.route.value]\nz = \"{a}\"\nspecversion = \"1.0\"\nv = 3\nok = true\n\
                    \"a.b\" = \"{a}\"\n[router.route.value.data]\ny = \"{b}\"\n\"q\\\"\" = false\n";
        let object = |set: &[&str]| match read(text, set).unwrap().value {
            ValueTemplate::Object(object) => object,
            ValueTemplate::Text(text) => panic!("{text:?}"),
        };
        let names = |object: &Object| -> Vec<String> {
            let members = object.members.iter();
            members.map(|(name, _)| name.clone()).collect()
        };
        let read = object(&[]);
        assert_eq!(names(&read), ["z", "specversion", "v", "ok", "a.b", "data"]);
        assert_eq!(read.members[2].1, Member::Integer(3));
        assert_eq!(read.members[3].1, Member::Boolean(true));
        let Member::Object(data) = &read.members[5].1 else {
            panic!("{read:?}")
        };
        assert_eq!(names(data), ["y", "q\""]);
        assert_eq!(data.members[1].1, Member::Boolean(false));

        let more = object(&[
            "router.route.value.data.\"x.y\"={c}",
            "router.route.value.z=0",
        ]);
        assert_eq!(names(&more), ["specversion", "v", "ok", "a.b", "data", "z"]);
        let Member::Object(data) = &more.members[4].1 else {
            panic!("{more:?}")
        };
        assert_eq!(names(data), ["y", "q\"", "x.y"]);
    }

    #[test]
    fn errors_show_their_place() {
        let wrong =
            |text: &str| read(&format!("[router]\npreset = \"outbox\"\n{text}"), &[]).unwrap_err();
        assert_eq!(
            wrong("[router.route]\ntopic = \"é{aggregate_type | lowr}\""),
            "[config-invalid-value] t.toml:4:29: invalid value of `router.route.topic`: character \
             20: there is no filter \"lowr\"; did you mean \"lower\"?; filters are lower, upper, \
             before, after, replace, default, json, lookup, map, text, optional\n  \
             4 | topic = \"é{aggregate_type | lowr}\"\n    |                             ^"
        );
        for [text, place, words] in cases(
            r#"
            [router.route]; key = "{a | lookup('topic')}"; [router.lookup.topics]; a = "b"   => t.toml:4:13: => did you mean "topics"?
            [router.route]; key = '{a | lookup(''topic'')}'; [router.lookup.topics]; a = "b" => t.toml:      => config-syntax
            [router.route]; key = "{a"      => t.toml:4:8: => is not closed by a }
            [router.route]; topic = 5       => t.toml:     => wants a template, found an integer
            [router.route]; topic = false   => t.toml:     => wants a template, found a boolean
            [router.route.headers]; x = 5   => t.toml:     => `router.route.headers.x` wants a template
            [router.lookup]; topics = "x"   => t.toml:     => `router.lookup.topics` is a table, not a value
            [router.route]; topik = "x"     => t.toml:     => unknown key `router.route.topik`
            "#,
        ) {
            let error = wrong(&text.replace("; ", "\n"));
            assert!(error.contains(place) && error.contains(words), "{error}");
        }
    }

    #[test]
    fn keys_without_effect_are_refused() {
        let error = read(
            "[router.route]\ntopic = \"x\"\n[router.lookup.a]\nb = \"c\"",
            &[],
        );
        let error = error.unwrap_err();
        for path in ["router.route.topic", "router.lookup.a.b"] {
            let said = format!("`{path}` has no effect while `router.preset` is \"debezium\"");
            assert!(error.contains(&said), "{error}");
        }
        let error = read(
            "[router]\npreset = \"outbox\"\n[router.converters]\n\"key.converter\" = \"string\"",
            &[],
        );
        assert!(error.unwrap_err().contains(
            "`router.converters.key.converter` has no effect unless `router.preset` is \"debezium\""
        ));
    }

    #[test]
    fn custom_needs_topic_and_value() {
        let error = read("[router]\npreset = \"custom\"", &[]).unwrap_err();
        assert!(
            error.contains("missing key `router.route.topic`")
                && error.contains("missing key `router.route.value`"),
            "{error}"
        );
    }

    #[test]
    fn values_of_variables_are_not_shown() {
        let text = "[router]\npreset = \"outbox\"\n[router.route]\nkey = \"{a | ${FILTER}}\"";
        let error = read(text, &[]).unwrap_err();
        assert!(!error.contains("value_of"), "{error}");
        let text = "[router]\npreset = \"outbox\"\n[router.route]\nkey = \"{a | lookup('${T}')}\"";
        let error = read(text, &[]).unwrap_err();
        assert!(!error.contains("value_of"), "{error}");
        assert!(
            error.contains("no filter or lookup table of that name"),
            "{error}"
        );
    }
}
