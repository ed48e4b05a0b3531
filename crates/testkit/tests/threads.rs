//! Compares the table of threads in `docs/contributing/architecture.md` with the names that the sources give to
//! the threads of a relay.

#![allow(
    clippy::expect_used,
    reason = "a test's helpers may panic as the test itself may"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Calls whose first argument is the name of a thread.
const NAMING: [&str; 5] = [
    ".name(",
    "spawn(",
    "Worker::start(",
    "Background::start(",
    "SinkThread::start(",
];

/// Crates and files whose threads are those of other programs, or of commands that measure.
const OTHERS: [&str; 6] = [
    "crates/bench",
    "crates/measure",
    "crates/testkit",
    "crates/throwaway",
    "crates/kafka-sink/src/embedded.rs",
    "crates/walrelay/src/commands/measure",
];

/// Returns the rest of the code after its attributes `#[cfg(test)]` with a module were cut off.
fn code(source: &str) -> &str {
    let code = source.split("#[cfg(test)]\nmod tests {").next();
    code.unwrap_or_default()
}

/// Adds the names that a source gives to threads.
fn add_names(source: &str, names: &mut BTreeSet<String>) {
    for call in NAMING {
        for argument in code(source).split(call).skip(1) {
            let text = argument.trim_start().strip_prefix('"');
            if let Some((name, rest)) = text.and_then(|text| text.split_once('"'))
                // Other builders have a method `name`, too.
                && (call != ".name(" || rest.starts_with(".to_owned()"))
            {
                names.insert(name.to_owned());
            }
        }
    }
}

/// Adds the sources of a folder, and of those below it.
fn add_sources(root: &Path, folder: &str, sources: &mut Vec<String>) {
    for entry in fs::read_dir(root.join(folder)).expect("a folder") {
        let name = entry.expect("an entry").file_name();
        let path = format!("{folder}/{}", name.to_str().expect("UTF-8"));
        if OTHERS.contains(&&*path) || path.contains("/testing") || path.ends_with("tests") {
            continue;
        }
        if root.join(&path).is_dir() {
            add_sources(root, &path, sources);
        } else if path.contains("/src/") && Path::new(&path).extension() == Some("rs".as_ref()) {
            sources.push(fs::read_to_string(root.join(&path)).expect("a source"));
        }
    }
}

#[test]
fn threads_of_the_architecture_are_those_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page =
        fs::read_to_string(root.join("docs/contributing/architecture.md")).expect("the page");
    let (_, table) = page
        .split_once("| thread | lives | does |\n|---|---|---|\n")
        .expect("the table");
    let mut listed: BTreeSet<String> = BTreeSet::from(["pipeline".to_owned()]);
    for row in table.lines().take_while(|line| !line.is_empty()) {
        let cell = row.split('|').nth(1).expect("a cell");
        listed.extend(cell.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    let mut sources = Vec::new();
    add_sources(&root, "crates", &mut sources);
    assert!(sources.len() > 300, "not all sources were found");
    let mut named = BTreeSet::new();
    for source in &sources {
        add_names(source, &mut named);
    }
    let missing: Vec<&String> = named.difference(&listed).collect();
    assert!(
        missing.is_empty(),
        "not in docs/contributing/architecture.md: {missing:?}"
    );
    // A name may reach the call by a variable.
    let literal = |name: &str| {
        sources
            .iter()
            .any(|text| code(text).contains(&format!("\"{name}\"")))
    };
    let gone: Vec<&String> = listed.iter().filter(|name| !literal(name)).collect();
    assert!(
        gone.is_empty(),
        "only in docs/contributing/architecture.md: {gone:?}"
    );
}

#[test]
fn a_name_is_found_behind_each_call() {
    let mut names = BTreeSet::new();
    let source = "thread::Builder::new()\n    .name(\"a\".to_owned())\n    .spawn(work);\n\
                  Worker::start(\n    \"b\",\n    work)?;\nother.name(first).name(\"c\");\n";
    add_names(source, &mut names);
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a", "b"]);
}
