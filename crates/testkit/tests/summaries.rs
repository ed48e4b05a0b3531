//! Holds the rules of CONTRIBUTING.md for the words of the code: the summary of a function begins with a
//! verb in the third person, that of a type or a constant with a noun; a summary can be read without
//! that of its neighbour; no function is called "of". The code is read as rustfmt writes it.

#![allow(
    clippy::expect_used,
    reason = "a test's helpers may panic as the test itself may"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// First words that begin neither a verb nor a noun with its attributes. This list and the next are
/// of those that were used, not of all.
const NEITHER: [&str; 19] = [
    "Also", "As", "By", "For", "From", "How", "If", "In", "Of", "Same", "To", "What", "When",
    "Where", "Whether", "Which", "Whose", "Why", "With",
];

/// First words that begin a noun with its attributes.
const NOUNS: [&str; 8] = ["A", "All", "An", "Called", "Each", "Number", "One", "The"];

/// Returns true if the line begins a function.
fn begins_function(line: &str) -> bool {
    let (before, named) = match line.split_once("fn ") {
        Some((before, after)) => (before, after.starts_with(|c: char| c.is_ascii_alphabetic())),
        None => return false,
    };
    let mut words = before.split_whitespace();
    named
        && words.all(|word| word.starts_with("pub") || ["const", "async", "unsafe"].contains(&word))
}

/// Returns true if the line begins a type, a trait, a constant or a static.
fn begins_type(line: &str) -> bool {
    let mut words = line.split(' ').filter(|word| !word.starts_with("pub"));
    let begins = ["struct", "enum", "trait", "type", "const", "static"];
    words.next().is_some_and(|word| begins.contains(&word))
}

/// Returns true if the summary stands for that of its neighbour, as "The same with another limit" does.
fn repeats(summary: &str) -> bool {
    let Some(rest) = summary.strip_prefix("The same") else {
        return false;
    };
    let next = rest.split_whitespace().next().unwrap_or_default();
    let joining = ["as", "by", "for", "if", "in", "of", "once", "when", "with"];
    rest.starts_with(['.', ',']) || joining.contains(&next)
}

/// Lists the summaries of functions that do not begin with a verb, those of types and constants that do
/// not begin with a noun, and those that stand for another one, each with its line.
fn wrong(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut summary: Option<(usize, &str)> = None;
    for (index, line) in source.lines().map(str::trim).enumerate() {
        if let Some(text) = line.strip_prefix("///") {
            summary.get_or_insert((index + 1, text.trim()));
            continue;
        }
        if line.starts_with("#[") {
            // The summary of a test says what holds.
            summary = summary.filter(|_| !line.ends_with("test]"));
            continue;
        }
        let Some((number, text)) = summary.take() else {
            continue;
        };
        let first = text.split_whitespace().next().unwrap_or_default();
        let neither = NEITHER.contains(&first);
        let wrong = if begins_function(line) {
            let upper = first.starts_with(|c: char| c.is_ascii_uppercase());
            neither || NOUNS.contains(&first) || !upper
        } else {
            begins_type(line) && neither
        };
        if wrong || repeats(text) {
            found.push((number, text.to_owned()));
        }
    }
    found
}

/// Returns true if the line begins a function called `of` or `of_…`. The name of a test may go on with
/// that of its module: it takes and returns nothing.
fn is_called_of(line: &str) -> bool {
    let Some((_, name)) = line.split_once("fn of").filter(|_| begins_function(line)) else {
        return false;
    };
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let rest = name.trim_start_matches(word);
    (name.starts_with('_') || name.len() == rest.len()) && !rest.starts_with("() {")
}

/// Adds the Rust files of a folder, and of those below it.
fn add_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            add_files(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn summaries_begin_with_a_verb_or_a_noun() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for entry in fs::read_dir(crates).expect("the folder of the crates") {
        let source = entry.expect("an entry").path().join("src");
        if source.is_dir() {
            add_files(&source, &mut files);
        }
    }
    assert!(files.len() > 300, "not all sources were found");
    let mut all = Vec::new();
    for file in files {
        for (line, summary) in wrong(&fs::read_to_string(&file).expect("UTF-8")) {
            all.push(format!("{}:{line}: {summary}", file.display()));
        }
    }
    assert!(
        all.is_empty(),
        "these begin neither with the verb of a function nor with the noun of a type, or say what their \
         neighbour says:\n{}",
        all.join("\n")
    );
}

#[test]
fn no_function_is_called_of() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for folder in ["crates", "tests", "fuzz/fuzz_targets"] {
        add_files(&root.join(folder), &mut files);
    }
    let mut all = Vec::new();
    for file in files {
        let source = fs::read_to_string(&file).expect("UTF-8");
        let lines = source.lines().map(str::trim).enumerate();
        let found = lines.filter(|(_, line)| is_called_of(line));
        all.extend(found.map(|(at, line)| format!("{}:{}: {line}", file.display(), at + 1)));
    }
    assert!(
        all.is_empty(),
        "a constructor is called from_… or new, another function by its verb or what it returns:\n{}",
        all.join("\n")
    );
    for (line, is_found) in [
        ("fn of(text: &str) -> Self {", true),
        ("pub(crate) fn of_slot(", true),
        ("async fn of<'n>(&'n self) {", true),
        ("pub fn of_rows() -> Self {", true),
        ("fn of_a_backlog() {", false),
        ("fn offset(&self) -> u64 {", false),
        ("let of = names.of(name);", false),
    ] {
        assert_eq!(is_called_of(line), is_found, "{line}");
    }
}

#[test]
fn a_summary_without_a_verb_or_a_noun_is_found() {
    let source = "\
/// Whether it is.
#[must_use]
pub(crate) const fn is() -> bool {}
    /// Returns it.
    ///
    /// The rest.
    async fn get() {}
/// The name of it.
struct Name;
/// `walrelay run`.
pub fn run() {}
/// Why it failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// How long it took.
    Slow(u64),
    /// The same of another one.
    Other,
    /// The same event.
    Again,
}
/// How long it takes.
const TIME: u64 = 1;
/// The same.
pub static OTHER: u64 = 1;
";
    let found = wrong(source).into_iter().map(|(line, _)| line);
    assert_eq!(found.collect::<Vec<_>>(), [1, 10, 12, 17, 22, 24]);
}
