//! `[router.route]` and `[router.lookup]`: presets of templates, and what changes them.

use std::collections::BTreeMap;

use walrelay_event_router::{
    Lookups, Member, Object, Place, Preset, Scalar, Template, TemplateError, TemplateProblem,
    Templates, ValueTemplate,
};

use super::document::{Entry, Origin, Value};
use super::keys::{HEADERS, LOOKUPS, MEMBERS};
use super::reader::Reader;
use super::table_name;

/// By the index of the key's choices: Debezium's, which is none of templates, the presets, custom.
const DEBEZIUM: usize = 0;

/// The templates, unless the preset is Debezium's; `None` also where a problem was noted.
pub(super) fn templates(
    reader: &mut Reader<'_>,
    preset: Option<usize>,
    lookups: &Lookups,
) -> Option<Templates> {
    let preset = preset?;
    if preset == DEBEZIUM {
        let when = "while `router.preset` is \"debezium\"";
        refuse(reader, "router.route", when);
        // Other templates than the route's may look things up.
        if !["router.cloudevents.mode", "router.registry.record"]
            .iter()
            .any(|path| reader.has(path))
        {
            refuse(reader, LOOKUPS, when);
        }
        return None;
    }
    for section in ["router.debezium", "router.converters"] {
        refuse(reader, section, "unless `router.preset` is \"debezium\"");
    }
    let base = Preset::ALL.get(preset - 1);
    let mut parts = Parts {
        reader,
        lookups,
        fine: true,
    };
    let mut templates = match base {
        Some(preset) => match preset.routes() {
            Ok(templates) => templates,
            Err(error) => unreachable!("a preset is no template: {error}"),
        },
        None => custom(&mut parts)?,
    };
    parts.id(&mut templates.id);
    if let Some(topic) = parts.part("router.route.topic", Place::Topic) {
        templates.topic = topic;
    }
    parts.part_or_none("router.route.key", Place::Key, &mut templates.key);
    if let Some(value) = parts.value() {
        templates.value = value;
    }
    if let Some(headers) = parts.headers() {
        templates.headers = headers;
    }
    let partition = &mut templates.partition;
    parts.part_or_none("router.route.partition", Place::Partition, partition);
    let timestamp = &mut templates.timestamp;
    parts.part_or_none("router.route.timestamp", Place::Timestamp, timestamp);
    let fine = parts.fine;
    fine.then_some(Templates {
        lookups: lookups.clone(),
        ..templates
    })
}

/// A section that has no effect misleads.
fn refuse(reader: &mut Reader<'_>, section: &str, when: &str) {
    for (name, entry) in reader.entries_below(section) {
        let what = format!("`{section}.{name}` has no effect {when}");
        reader.note(&entry.origin, None, "config-conflict", what, None);
    }
}

/// Nothing but what must be said.
fn custom(parts: &mut Parts<'_, '_>) -> Option<Templates> {
    let mut complete = true;
    for (path, example) in [
        ("router.route.topic", "\"{type}\""),
        (MEMBERS, "\"{payload}\""),
    ] {
        let there = parts.reader.has(path)
            || (path == MEMBERS && !parts.reader.entries_below(MEMBERS).is_empty());
        if !there {
            parts.reader.missing(path, example);
            complete = false;
        }
    }
    // Replaced at once, where there is something to replace them by.
    let nothing = |place| Template::parse("?", place, &Lookups::new()).ok();
    let topic = nothing(Place::Topic)?;
    let value = nothing(Place::Value)?;
    parts.fine &= complete;
    Some(Templates {
        id: None,
        topic,
        key: None,
        value: ValueTemplate::Text(value),
        headers: Vec::new(),
        partition: None,
        timestamp: None,
        lookups: Lookups::new(),
    })
}

/// `[router.lookup]`, for all templates.
pub(super) fn lookups(reader: &mut Reader<'_>) -> Lookups {
    let mut lookups = Lookups::new();
    for (path, entry) in reader.entries_below(LOOKUPS) {
        let whole = format!("{LOOKUPS}.{path}");
        let Some((table, value)) = path.split_once('.') else {
            let what = format!("`{whole}` is a table, not a value");
            let help = format!("write [{whole}] on a line of its own, values below");
            reader.note(&entry.origin, None, "config-wrong-type", what, Some(help));
            continue;
        };
        let text = match entry.value {
            Value::Text(text) | Value::Float(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Bool(value) => value.to_string(),
            Value::Broken => continue,
            Value::List(_) | Value::Other(_) => {
                reader.wrong_type(&whole, &entry, None);
                continue;
            }
        };
        let rows: &mut BTreeMap<String, String> = lookups.entry(table.to_owned()).or_default();
        rows.insert(value.to_owned(), text);
    }
    lookups
}

struct Parts<'r, 'd> {
    reader: &'r mut Reader<'d>,
    lookups: &'r Lookups,
    fine: bool,
}

/// A part that the configuration speaks of.
enum Said {
    Template(Template),
    /// `false`.
    None,
}

impl Parts<'_, '_> {
    fn id(&mut self, id: &mut Option<String>) {
        let path = "router.route.id";
        if self.reader.has(path) {
            *id = self.reader.parsed(path, |text| {
                table_name::identifier(text).map(|()| text.to_owned())
            });
            self.fine &= id.is_some();
        }
    }

    fn part(&mut self, path: &str, place: Place) -> Option<Template> {
        let entry = self.reader.entry_of(path)?;
        match self.said(path, &entry, place)? {
            Said::Template(template) => Some(template),
            Said::None => {
                self.wrong_type(path, &entry);
                None
            }
        }
    }

    fn part_or_none(&mut self, path: &str, place: Place, part: &mut Option<Template>) {
        let Some(entry) = self.reader.entry_of(path) else {
            return;
        };
        match self.said(path, &entry, place) {
            Some(Said::Template(template)) => *part = Some(template),
            Some(Said::None) => *part = None,
            None => {}
        }
    }

    fn value(&mut self) -> Option<ValueTemplate> {
        if self.reader.has(MEMBERS) {
            return self.part(MEMBERS, Place::Value).map(ValueTemplate::Text);
        }
        let entries = self.reader.entries_below(MEMBERS);
        if entries.is_empty() {
            return None;
        }
        let mut object = Object::default();
        for (path, entry) in entries {
            let whole = format!("{MEMBERS}.{path}");
            let member = match &entry.value {
                Value::Bool(value) => Member::Literal(Scalar::Boolean(*value)),
                Value::Integer(number) => Member::Literal(Scalar::Integer(*number)),
                _ => match self.said(&whole, &entry, Place::Member) {
                    Some(Said::Template(template)) => Member::Template(template),
                    Some(Said::None) | None => continue,
                },
            };
            let fits = segments(&path).is_some_and(|path| insert(&mut object, &path, member));
            if !fits {
                let why = "the name is not one, or another member has it";
                self.reader.invalid(&whole, &entry.origin, why);
                self.fine = false;
            }
        }
        Some(ValueTemplate::Object(object))
    }

    fn headers(&mut self) -> Option<Vec<(String, Template)>> {
        if let Some(entry) = self.reader.entry_of(HEADERS) {
            if entry.value != Value::Bool(false) {
                self.wrong_type(HEADERS, &entry);
            }
            return Some(Vec::new());
        }
        let entries = self.reader.entries_below(HEADERS);
        if entries.is_empty() {
            return None;
        }
        let mut headers = Vec::with_capacity(entries.len());
        for (name, entry) in entries {
            let path = format!("{HEADERS}.{name}");
            match self.said(&path, &entry, Place::Header) {
                Some(Said::Template(template)) => headers.push((name, template)),
                Some(Said::None) => self.wrong_type(&path, &entry),
                None => {}
            }
        }
        Some(headers)
    }

    fn said(&mut self, path: &str, entry: &Entry, place: Place) -> Option<Said> {
        match &entry.value {
            Value::Text(text) => match Template::parse(text, place, self.lookups) {
                Ok(template) => return Some(Said::Template(template)),
                Err(error) => self.refused(path, &entry.origin, text, &error),
            },
            Value::Bool(false) => return Some(Said::None),
            Value::Broken => {}
            _ => self.wrong_type(path, entry),
        }
        self.fine = false;
        None
    }

    fn wrong_type(&mut self, path: &str, entry: &Entry) {
        self.reader.wrong_type(path, entry, None);
        self.fine = false;
    }

    /// With a caret under the character, where the text stands in the file as it is.
    fn refused(&mut self, path: &str, origin: &Origin, text: &str, error: &TemplateError) {
        let mut what = format!("invalid value of `{path}`: {error}");
        if !self.reader.is_as_written(origin, text)
            && matches!(
                error.problem,
                TemplateProblem::UnknownFilter { .. } | TemplateProblem::UnknownTable { .. }
            )
        {
            // The name may be a variable's value.
            let position = error.position;
            what = format!(
                "invalid value of `{path}`: character {position}: no filter or lookup table of \
                 that name"
            );
        }
        let item = self.reader.literal_at(origin, text).map(|start| {
            let mut chars = text.char_indices().skip(error.position - 1);
            let (at, length) = chars
                .next()
                .map_or((text.len(), 1), |(at, c)| (at, c.len_utf8()));
            start + at..start + at + length
        });
        let help = Some("templates are explained in docs/CONFIGURATION.md".to_owned());
        self.reader
            .note(origin, item.as_ref(), "config-invalid-value", what, help);
    }
}

/// `a."b.c".d` taken apart.
fn segments(path: &str) -> Option<Vec<String>> {
    let mut segments = Vec::new();
    let mut rest = path;
    loop {
        let (segment, tail) = match rest.strip_prefix('"') {
            None => match rest.split_once('.') {
                Some((segment, tail)) => (segment.to_owned(), Some(tail)),
                None => (rest.to_owned(), None),
            },
            Some(inner) => {
                let (segment, tail) = quoted(inner)?;
                match tail.strip_prefix('.') {
                    Some(tail) => (segment, Some(tail)),
                    None if tail.is_empty() => (segment, None),
                    None => return None,
                }
            }
        };
        segments.push(segment);
        match tail {
            Some(tail) => rest = tail,
            None => return Some(segments),
        }
    }
}

/// What stands before the closing quote, doubled ones undone, and what after it.
fn quoted(inner: &str) -> Option<(String, &str)> {
    let mut segment = String::new();
    let mut rest = inner;
    loop {
        let (before, after) = rest.split_once('"')?;
        segment.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                segment.push('"');
                rest = after;
            }
            None => return Some((segment, after)),
        }
    }
}

/// Puts a member at the end of the path; `false` where there is one already, or no object on the way.
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
    use super::super::keys::{self, Kind};
    use super::super::{Config, Router};
    use super::*;

    const REST: &str =
        "[source]\nurl = \"postgres://db/app\"\ntables = [\"o\"]\n[sink]\nkind = \"stdout\"\n";

    fn read(text: &str, set: &[&str]) -> Result<Templates, String> {
        let set: Vec<String> = set.iter().map(|text| (*text).to_owned()).collect();
        let env = |name: &str| Some(format!("value_of_{name}"));
        let whole = format!("{text}\n{REST}");
        match Config::parse(&whole, "t.toml", &set, &env) {
            Ok(config) => match config.router {
                Router::Templates(templates) => Ok(*templates),
                Router::Debezium(_) => panic!("Debezium's"),
            },
            Err(error) => {
                let problems = error.problems().iter();
                let all = problems.map(|problem| format!("[{}] {problem}", problem.id));
                Err(all.collect::<Vec<_>>().join("\n"))
            }
        }
    }

    fn header(templates: &Templates) -> Vec<(&str, String)> {
        let headers = templates.headers.iter();
        headers
            .map(|(name, template)| (name.as_str(), template.to_string()))
            .collect()
    }

    #[test]
    fn the_choices_of_the_key_are_the_presets_that_there_are() {
        let Kind::Choice { here, .. } = keys::find("router.preset").unwrap().kind else {
            panic!("not a choice")
        };
        let names = Preset::ALL.map(|preset| preset.name);
        let [first, last] = [&["debezium"][..], &["custom"]];
        assert_eq!(here, [first, &names, last].concat());
    }

    #[test]
    fn a_preset_is_what_it_says_until_a_part_is_changed() {
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
            changed.topic.to_string(),
            "{aggregate_type | lookup('topics', keep)}"
        );
        assert_eq!(changed.key, None);
        let ValueTemplate::Text(value) = &changed.value else {
            panic!("{:?}", changed.value)
        };
        assert_eq!(value.to_string(), "{payload}");
        assert!(changed.partition.is_some() && changed.timestamp.is_some());
        assert_eq!(
            header(&changed),
            [("b", "{id}".to_owned()), ("a.b", "x".to_owned())]
        );
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
            ValueTemplate::Text(text) => panic!("{text}"),
        };
        let names = |object: &Object| -> Vec<String> {
            let members = object.members.iter();
            members.map(|(name, _)| name.clone()).collect()
        };
        let read = object(&[]);
        assert_eq!(names(&read), ["z", "specversion", "v", "ok", "a.b", "data"]);
        assert_eq!(read.members[2].1, Member::Literal(Scalar::Integer(3)));
        assert_eq!(read.members[3].1, Member::Literal(Scalar::Boolean(true)));
        let Member::Object(data) = &read.members[5].1 else {
            panic!("{read:?}")
        };
        assert_eq!(names(data), ["y", "q\""]);
        assert_eq!(data.members[1].1, Member::Literal(Scalar::Boolean(false)));

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
    fn mistakes_are_pointed_at() {
        let wrong =
            |text: &str| read(&format!("[router]\npreset = \"outbox\"\n{text}"), &[]).unwrap_err();
        assert_eq!(
            wrong("[router.route]\ntopic = \"é{aggregate_type | lowr}\""),
            "[config-invalid-value] t.toml:4:29: invalid value of `router.route.topic`: character \
             20: there is no filter \"lowr\"; did you mean \"lower\"?; filters are lower, upper, \
             before, after, replace, default, json, lookup, text, optional\n  \
             4 | topic = \"é{aggregate_type | lowr}\"\n    |                             ^"
        );
        let lookup = wrong(
            "[router.route]\nkey = '{a | lookup(''topic'')}'\n[router.lookup.topics]\na = \"b\"",
        );
        assert!(lookup.contains("config-syntax"), "{lookup}");
        let lookup = wrong(
            "[router.route]\nkey = \"{a | lookup('topic')}\"\n[router.lookup.topics]\na = \"b\"",
        );
        assert!(
            lookup.contains("t.toml:4:13: ") && lookup.contains("did you mean \"topics\"?"),
            "{lookup}"
        );
        let end = wrong("[router.route]\nkey = \"{a\"");
        assert!(
            end.contains("t.toml:4:8: ") && end.contains("is not closed by a }"),
            "{end}"
        );
        let number = wrong("[router.route]\ntopic = 5");
        assert!(
            number.contains("wants a template, found an integer"),
            "{number}"
        );
        let topic = wrong("[router.route]\ntopic = false");
        assert!(
            topic.contains("wants a template, found a boolean"),
            "{topic}"
        );
        let header = wrong("[router.route.headers]\nx = 5");
        assert!(
            header.contains("`router.route.headers.x` wants a template"),
            "{header}"
        );
        let table = wrong("[router.lookup]\ntopics = \"x\"");
        assert!(
            table.contains("`router.lookup.topics` is a table, not a value"),
            "{table}"
        );
        let unknown = wrong("[router.route]\ntopik = \"x\"");
        assert!(
            unknown.contains("unknown key `router.route.topik`"),
            "{unknown}"
        );
    }

    #[test]
    fn what_has_no_effect_is_refused() {
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
    fn what_stands_in_the_environment_is_not_shown() {
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
