//! Checks the JSON Schema of the configuration file: `docs/walrelay.schema.json` is that of the code, it accepts the
//! examples of the documents, and refuses misspelt keys and wrong types.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;
use walrelay_settings::{Fallback, Row, Spelling, ValueKind, below};

use super::json_schema;
use super::sections::KEYS;

static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let schema: Value = serde_json::from_str(&json_schema()).expect("JSON");
    jsonschema::validator_for(&schema).expect("a schema")
});

/// Returns what the schema finds wrong with the text of a configuration file.
pub(crate) fn problems(text: &str) -> Vec<String> {
    let file: Value = toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let errors = VALIDATOR.iter_errors(&file);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns a file that sets one key, which is written as a name with quotes.
fn setting(row: &Row, name: &str, value: &str) -> String {
    format!("[{}]\n\"{name}\" = {value}\n", row.section)
}

fn name(row: &Row) -> &str {
    below(&row.path, row.section).expect("a key of its section")
}

#[test]
fn the_schema_in_docs_is_that_of_the_code() {
    let path = root().join("docs/walrelay.schema.json");
    let schema = json_schema();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &schema).unwrap();
    }
    let written = std::fs::read_to_string(path).expect("docs/walrelay.schema.json");
    assert!(
        written == schema,
        "docs/walrelay.schema.json is not that of the code. To rewrite it: UPDATE_DOCS=1 cargo test -p walrelay docs"
    );
}

#[test]
fn the_schema_accepts_every_default_with_quotes_and_without() {
    let mut accepted = 0;
    for row in KEYS.rows() {
        let (Fallback::Is(text) | Fallback::Only(text)) = row.fallback else {
            continue;
        };
        let is_bare = matches!(
            row.kind,
            ValueKind::Bool | ValueKind::Integer { .. } | ValueKind::TextList
        );
        let value = if is_bare {
            text.to_owned()
        } else {
            Value::from(text).to_string()
        };
        let quoted = setting(row, name(row), &value);
        let dotted = format!("[{}]\n{} = {value}\n", row.section, name(row));
        for file in [quoted, dotted] {
            assert_eq!(problems(&file), [""; 0], "{file}");
        }
        accepted += 1;
    }
    assert!(accepted > 50, "{accepted} defaults");
}

#[test]
fn the_schema_refuses_misspelt_keys() {
    for row in KEYS.rows() {
        let is_open = row.section == "sink.kafka" || name(row).starts_with("headers");
        if !is_open {
            let misspelt = setting(row, &format!("{}x", name(row)), "\"text\"");
            assert_ne!(problems(&misspelt), [""; 0], "{misspelt}");
        }
    }
    for file in ["[sinks]\n", "slot = \"x\"\n", "[source.message]\n"] {
        assert_ne!(problems(file), [""; 0], "{file}");
    }
}

#[test]
fn the_schema_refuses_wrong_types_and_accepts_variables() {
    for row in KEYS.rows() {
        let (wrong, right): (&[&str], &[&str]) = match &row.kind {
            _ if matches!(row.fallback, Fallback::Only(_)) => (&["\"other\"", "[]", "1.5"], &[]),
            ValueKind::Text | ValueKind::Secret => (&["1", "true", "[\"a\"]"], &["\"${NAME}\""]),
            ValueKind::Bool => (&["\"true\"", "1"], &["true"]),
            ValueKind::Integer { .. } => (&["\"1\"", "1.5", "-1", "true"], &[]),
            ValueKind::Duration => (
                &["1", "\"1\"", "\"1w\"", "true"],
                &["\"7d\"", "\"${KEEP}\""],
            ),
            ValueKind::Size => (&["1", "\"1\"", "\"1mib\""], &["\"64KiB\"", "\"${A}KiB\""]),
            ValueKind::TextList => (&["\"a\"", "[1]", "[]"], &["[\"a\", \"b\"]"]),
            ValueKind::Names => (&["1", "[1]", "[]"], &["\"a\"", "[\"a\", \"b\"]"]),
            ValueKind::Choice { spelling, .. } => match spelling {
                Spelling::Exact => (&["1", "true", "\"other\""], &["\"${NAME}\""]),
                Spelling::Loose => (&["1", "\"other\""], &["\"${NAME}\""]),
            },
            ValueKind::Scalar => (&["[1]"], &["1", "true", "\"true\"", "1.5"]),
            ValueKind::Template => (&["true", "1", "[]"], &["\"{a}\"", "false"]),
        };
        for value in wrong {
            let file = setting(row, name(row), value);
            assert_ne!(problems(&file), [""; 0], "{file}");
        }
        for value in right {
            let file = setting(row, name(row), value);
            assert_eq!(problems(&file), [""; 0], "{file}");
        }
    }
    let loose = "[router.debezium]\n\"time.precision.mode\" = \" Connect \"\n";
    assert_eq!(problems(loose), [""; 0]);
}

/// Adds the texts of the files with this ending in a folder and below it, each with its name.
fn texts(folder: &Path, ending: &str, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        if path.is_dir() && !matches!(&*name, "target" | "node_modules") {
            texts(&path, ending, found);
        } else if name.ends_with(ending) {
            let text = std::fs::read_to_string(&path).expect("a text");
            found.push((path.display().to_string(), text));
        }
    }
}

#[test]
fn the_schema_accepts_the_examples_of_the_documents() {
    let (mut pages, mut files) = (Vec::new(), Vec::new());
    texts(&root().join("docs"), ".md", &mut pages);
    for folder in ["examples", "deploy"] {
        texts(&root().join(folder), "walrelay.toml", &mut files);
        texts(&root().join(folder), ".md", &mut pages);
    }
    for page in ["README.md", "SECURITY.md"] {
        let text = std::fs::read_to_string(root().join(page)).expect(page);
        pages.push((page.to_owned(), text));
    }
    for (page, text) in &pages {
        for block in text.split("```toml\n").skip(1) {
            let (example, _) = block.split_once("```").expect("its end");
            files.push((page.clone(), example.to_owned()));
        }
    }
    for (file, text) in &files {
        assert_eq!(problems(text), [""; 0], "{file}\n{text}");
    }
    assert!(files.len() >= 20, "{} examples", files.len());
}
