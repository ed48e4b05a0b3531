//! `docs/CONFIGURATION.md` is checked against the code: its tables are those that follow from the
//! key table, and its examples are read.

use std::fmt::Write as _;
use std::path::Path;

use super::keys::{Fallback, KEYS, Key, Kind, Support};
use super::*;
use crate::cli::Exit;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIGURATION.md");

fn reference() -> String {
    std::fs::read_to_string(PATH).expect("docs/CONFIGURATION.md")
}

/// What stands between `<!-- name -->` and `<!-- end -->`.
fn marked<'a>(text: &'a str, name: &str) -> &'a str {
    let begin = format!("<!-- {name} -->\n");
    let (_, rest) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("docs/CONFIGURATION.md has no {begin}"));
    rest.split_once("<!-- end -->").expect("not closed").0
}

fn section_of(key: &Key) -> &'static str {
    [
        "source.messages",
        "router.route",
        "router.cloudevents",
        "router.registry",
        "router.debezium",
        "router.converters",
        "sink.stdout",
        "sink.oauthbearer",
        "sink.topics",
    ]
    .into_iter()
    .find(|section| key.path.starts_with(&format!("{section}.")))
    .unwrap_or_else(|| key.path.split_once('.').expect("a section").0)
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn kind(kind: Kind) -> String {
    match kind {
        Kind::Choice { here, .. } => {
            let choices: Vec<String> = here.iter().map(|choice| code(choice)).collect();
            choices.join(" or ")
        }
        kind => {
            let (_article, name) = kind.wanted().split_once(' ').unwrap();
            name.to_owned()
        }
    }
}

fn default(key: &Key) -> String {
    match key.default {
        Fallback::Required(_) => "required".to_owned(),
        Fallback::Unset => "unset".to_owned(),
        Fallback::Is(text) => code(text),
    }
}

fn table(section: &str) -> String {
    let mut out = String::from("| key | type | default | |\n|---|---|---|---|\n");
    let keys = KEYS
        .iter()
        .filter(|key| key.support == Support::Full && section_of(key) == section);
    for key in keys {
        let name = &key.path[section.len() + 1..];
        let (name, kind, default) = (code(name), kind(key.kind), default(key));
        writeln!(out, "| {name} | {kind} | {default} | {} |", key.doc).unwrap();
    }
    out
}

fn refused() -> String {
    let mut out = String::from("| key | accepted | |\n|---|---|---|\n");
    for key in KEYS.iter().filter(|key| key.support != Support::Full) {
        let accepted = match (key.support, key.default) {
            (Support::DefaultOnly, Fallback::Is(text)) => format!("only `{text}`"),
            _ => "no".to_owned(),
        };
        writeln!(out, "| `{}` | {accepted} | {} |", key.path, key.doc).unwrap();
    }
    for key in KEYS {
        if let Kind::Choice { later, .. } = key.kind
            && !later.is_empty()
        {
            let later: Vec<String> = later.iter().map(|choice| code(choice)).collect();
            let path = key.path;
            writeln!(out, "| `{path}` | not {} | {} |", later.join(", "), key.doc).unwrap();
        }
    }
    out
}

fn exit_codes() -> String {
    let mut out = String::from("| code | meaning |\n|---|---|\n");
    for exit in Exit::ALL {
        writeln!(out, "| {} | {} |", exit.code(), exit.meaning()).unwrap();
    }
    out
}

#[test]
fn the_tables_of_the_reference_follow_from_the_code() {
    let mut text = reference();
    let mut expected = vec![
        ("refused".to_owned(), refused()),
        ("exit codes".to_owned(), exit_codes()),
    ];
    let mut sections: Vec<&str> = KEYS
        .iter()
        .filter(|key| key.support == Support::Full)
        .map(section_of)
        .collect();
    sections.dedup();
    for section in sections {
        expected.push((format!("keys: {section}"), table(section)));
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let mut updated = text.clone();
        for (name, table) in &expected {
            let mark = |table: &str| format!("<!-- {name} -->\n{table}<!-- end -->");
            updated = updated.replace(&mark(marked(&text, name)), &mark(table));
        }
        std::fs::write(PATH, &updated).unwrap();
        text = updated;
    }
    for (name, table) in &expected {
        assert!(
            marked(&text, name) == table,
            "docs/CONFIGURATION.md, {name}, is not what the code says. To rewrite the tables: \
             UPDATE_DOCS=1 cargo test -p walrelay docs\n{table}"
        );
    }
    let marks = text.matches("<!-- end -->").count();
    assert_eq!(marks, expected.len(), "a table that no code stands behind");
}

#[test]
fn the_examples_of_the_reference_are_read() {
    let text = reference();
    let env = |_: &str| Some("value".to_owned());
    let files = |path: &Path| {
        let schema = path
            .extension()
            .is_some_and(|extension| extension == "avsc");
        let text = if schema {
            "\"string\""
        } else {
            "postgres://relay@db/app"
        };
        Ok(text.to_owned())
    };
    let mut examples = 0;
    for block in text.split("```toml\n").skip(1) {
        let example = block.split("```").next().expect("not closed");
        let mut whole = example.to_owned();
        if !example.contains("[source]") {
            whole.push_str(
                "\n[source]\nurl = \"postgres://db/app\"\ntables = [\"public.outbox\"]\n",
            );
        }
        if !example.contains("[sink") {
            whole.push_str("\n[sink]\nkind = \"stdout\"\n");
        }
        if let Err(error) = parse_with(&whole, "example.toml", &[], &env, &files) {
            panic!("an example of docs/CONFIGURATION.md is refused: {error}\n{whole}");
        }
        examples += 1;
    }
    assert!(examples >= 4, "only {examples} examples");
}

#[test]
fn every_default_is_a_value_of_its_kind() {
    let text = "[source]\nurl = \"postgres://db\"\ntables = [\"o\"]\n[sink]\nkind = \"stdout\"\n";
    for key in KEYS.iter().filter(|key| key.support == Support::Full) {
        if let Fallback::Is(default) = key.default {
            let mut overrides = vec![format!("{}={default}", key.path)];
            overrides.push("sink.kind=stdout".to_owned());
            // What a section cannot do without.
            if key.path.starts_with("router.registry.") {
                let needed = ["url=http://r:8081", "format=avro"];
                overrides.extend(needed.map(|needed| format!("router.registry.{needed}")));
            }
            parse_with(text, "t", &overrides, &|_| None, &|_| Ok(String::new())).unwrap();
        }
    }
}

#[test]
fn no_key_stands_in_the_table_twice() {
    for (index, key) in KEYS.iter().enumerate() {
        assert!(
            KEYS[index + 1..].iter().all(|other| other.path != key.path),
            "{}",
            key.path
        );
        assert!(
            !key.doc.contains('|') && !key.doc.contains('\n'),
            "{}",
            key.path
        );
    }
}
