//! Holds the rules of CONTRIBUTING.md for the words of the documents and of the program's strings: counts some
//! patterns on each page, and fails when a page misses the target and has become worse than `wording.txt` records.
//! The strings in the code of a crate count as one page.
//!
//! `UPDATE_DOCS=1 cargo test -p walrelay-testkit --test wording` records the counts of now.

#![allow(
    clippy::expect_used,
    reason = "a test's helpers may panic as the test itself may"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};

const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wording.txt");

/// A pattern, and how often a page should have it.
struct Pattern {
    name: &'static str,
    /// Words, or pairs of words.
    words: &'static [&'static str],
    target: Target,
}

/// Occurrences among 10,000 words.
#[derive(Clone, Copy)]
enum Target {
    AtLeast(usize),
    AtMost(usize),
}

const PATTERNS: [Pattern; 8] = [
    Pattern {
        name: "you",
        words: &["you", "your", "yours"],
        target: Target::AtLeast(30),
    },
    Pattern {
        name: "for-example",
        words: &["for example", "such as"],
        target: Target::AtLeast(15),
    },
    Pattern {
        name: "that-is",
        words: &["that is", "that are"],
        target: Target::AtMost(20),
    },
    Pattern {
        name: "what",
        words: &["what"],
        target: Target::AtMost(15),
    },
    Pattern {
        name: "take",
        words: &["take", "takes"],
        target: Target::AtMost(6),
    },
    Pattern {
        name: "anew",
        words: &["anew"],
        target: Target::AtMost(0),
    },
    Pattern {
        name: "nobody",
        words: &["nobody", "somebody", "everybody"],
        target: Target::AtMost(0),
    },
    Pattern {
        name: "of-then",
        words: &["of then", "of now", "of today"],
        target: Target::AtMost(0),
    },
];

type Counts = [usize; PATTERNS.len()];

/// Returns the text without the parts between `begin` and `end`.
fn without(text: &str, begin: &str, end: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(begin) {
        kept.push_str(before);
        kept.push(' ');
        rest = after.split_once(end).map_or("", |(_, rest)| rest);
    }
    kept + rest
}

/// Returns the words of a page in lower case, without blocks of code, code in a line, targets of links, and
/// parts that are generated or compared with the code: they stand between a comment and `<!-- end… -->`.
fn words(page: &str) -> Vec<String> {
    let page = without(page, "```", "\n```");
    let mut parts = page.split("<!-- ");
    let mut prose = parts.next().unwrap_or_default().to_owned();
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        let is_generated = parts.peek().is_some_and(|next| next.starts_with("end"));
        if !is_generated {
            prose.push_str(part.split_once("-->").map_or("", |(_, rest)| rest));
        }
    }
    let prose = without(&without(&prose, "](", ")"), "`", "`").to_lowercase();
    let letter = |c: char| c.is_alphanumeric() || c == '\'';
    let words = prose.split(|c| !letter(c)).filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

fn counts(words: &[String]) -> Counts {
    PATTERNS.each_ref().map(|pattern| {
        let single = words
            .iter()
            .filter(|word| pattern.words.contains(&word.as_str()));
        let pairs = words.windows(2).map(|pair| pair.join(" "));
        single.count()
            + pairs
                .filter(|pair| pattern.words.contains(&pair.as_str()))
                .count()
    })
}

/// Returns the pages of the root, of `examples`, `docs` and the folders of `docs` but `adr`, by their paths, without the
/// table of contents.
fn pages() -> BTreeMap<String, String> {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = BTreeMap::new();
    let mut folders = ["", "docs", "examples"].map(PathBuf::from).to_vec();
    for entry in fs::read_dir(root.join("docs")).expect("a folder") {
        let entry = entry.expect("an entry");
        if entry.path().is_dir() && entry.file_name() != "adr" {
            folders.push(Path::new("docs").join(entry.file_name()));
        }
    }
    for folder in folders {
        for entry in fs::read_dir(root.join(&folder)).expect("a folder") {
            let path = folder.join(entry.expect("an entry").file_name());
            if path.extension().is_some_and(|end| end == "md") && !path.ends_with("SUMMARY.md") {
                let name = path.to_str().expect("UTF-8").to_owned();
                pages.insert(name, fs::read_to_string(root.join(&path)).expect("UTF-8"));
            }
        }
    }
    pages
}

/// Crates that are no part of the program.
const FOR_TESTS: [&str; 3] = ["bench", "testkit", "throwaway"];

/// Returns the strings in the code of each crate of the program, by the crate's folder.
fn strings() -> BTreeMap<String, String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut strings = BTreeMap::new();
    for entry in fs::read_dir(crates).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("UTF-8");
        if !FOR_TESTS.contains(&name.as_str()) {
            let mut text = String::new();
            add_strings_of_files(&entry.path().join("src"), &mut text);
            strings.insert(format!("crates/{name}/src"), text);
        }
    }
    strings
}

fn add_strings_of_files(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        if stem.is_some_and(|stem| stem.ends_with("tests")) {
            continue;
        }
        if path.is_dir() {
            add_strings_of_files(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let source = fs::read_to_string(&path).expect("UTF-8");
            let tokens: TokenStream = source.parse().expect("tokens of Rust");
            add_strings(tokens, text);
        }
    }
}

/// Appends each string of the code, on a line, without documentation and modules of tests.
fn add_strings(tokens: TokenStream, text: &mut String) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (index, token) in tokens.iter().enumerate() {
        let before = |steps: usize| index.checked_sub(steps).map(|at| tokens[at].to_string());
        match token {
            TokenTree::Group(group) => {
                let inner = group.stream();
                let is_documentation =
                    before(1).as_deref() == Some("#") && inner.to_string().starts_with("doc =");
                let is_tests = before(2).as_deref() == Some("mod");
                let is_tests = is_tests && before(1).is_some_and(|name| name.ends_with("tests"));
                if !is_documentation && !is_tests {
                    add_strings(inner, text);
                }
            }
            TokenTree::Literal(literal) => {
                let literal = literal.to_string();
                if literal.starts_with(['"', 'r']) {
                    // Marks of a page mean nothing here.
                    let plain = literal.replace("\\n", "\n").replace("](", " ");
                    text.push_str(&plain.replace(['`', '<'], " "));
                    text.push('\n');
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Reads the recorded counts by page.
fn recorded() -> BTreeMap<String, Counts> {
    let text = fs::read_to_string(RECORD).expect("the record");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let rows = lines.map(|line| {
        let mut cells = line.split_whitespace();
        let page = cells.next().expect("a page").to_owned();
        let numbers = cells.map(|cell| cell.parse().expect("a count"));
        let numbers: Vec<usize> = numbers.collect();
        (page, numbers.try_into().expect("a count of each pattern"))
    });
    rows.collect()
}

/// Returns what is wrong with a page, if it misses a target and is worse than recorded. A page without a
/// record has to meet the targets.
fn worse(page: &str, length: usize, now: Counts, before: Option<Counts>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, Pattern { name, target, .. }) in PATTERNS.iter().enumerate() {
        let count = now[index];
        let before = before.map(|before| before[index]);
        match target {
            Target::AtLeast(rate) => {
                let needed = (rate * length).div_ceil(10_000);
                let needed = before.map_or(needed, |before| before.min(needed));
                if count < needed {
                    wrong.push(format!(
                        "{page}: {name} {count} times, at least {needed} are needed"
                    ));
                }
            }
            Target::AtMost(rate) => {
                let allowed = (rate * length).div_ceil(10_000);
                let allowed = before.map_or(allowed, |before| before.max(allowed));
                if count > allowed {
                    wrong.push(format!(
                        "{page}: {name} {count} times, {allowed} are allowed"
                    ));
                }
            }
        }
    }
    wrong
}

#[test]
fn no_page_reads_worse_than_recorded() {
    let mut pages = pages();
    assert!(pages.len() > 25, "not all pages were found");
    let strings = strings();
    assert!(strings.len() > 15, "not all crates were found");
    pages.extend(strings);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let names = PATTERNS.each_ref().map(|pattern| pattern.name);
        let mut text = format!(
            "# Generated: UPDATE_DOCS=1 cargo test -p walrelay-testkit --test wording\n# page {}\n",
            names.join(" ")
        );
        for (page, content) in &pages {
            let counts = counts(&words(content)).map(|count| count.to_string());
            let _ = writeln!(text, "{page} {}", counts.join(" "));
        }
        fs::write(RECORD, text).expect("written");
    }
    let recorded = recorded();
    let mut wrong = Vec::new();
    for page in recorded.keys().filter(|page| !pages.contains_key(*page)) {
        wrong.push(format!("{page} is recorded and missing"));
    }
    for (page, content) in &pages {
        let words = words(content);
        let before = recorded.get(page).copied();
        wrong.extend(worse(page, words.len(), counts(&words), before));
    }
    assert!(
        wrong.is_empty(),
        "see \"English\" in CONTRIBUTING.md\n{}",
        wrong.join("\n")
    );
}

#[test]
fn patterns_are_counted_in_prose_only() {
    let page = "# Page\n\nWhat you send, for example `what`, is [that is](what.md).\n\n\
                ```sh\nwhat anew\n```\n\n<!-- keys: a -->\n| what | take |\n<!-- end -->\n\n\
                <!-- run: x -->\n```sql\nwhat\n```\nSomebody takes it anew, as of\nthen.\n";
    let words = words(page);
    assert_eq!(counts(&words), [1, 1, 1, 1, 1, 1, 1, 1], "{words:?}");
}

#[test]
fn strings_are_read_from_code_only() {
    let source = "/// That is anew.\n#[error(\"what {0} \\\n  takes\")]\nfn f() { g(\"`anew\", 'x', 1); } // anew\n\
                  #[cfg(test)]\nmod more_tests { const A: &str = \"nobody\"; }";
    let mut text = String::new();
    add_strings(source.parse().expect("tokens"), &mut text);
    assert_eq!(words(&text), ["what", "0", "takes", "anew"]);
}

#[test]
fn only_a_page_that_has_become_worse_is_named() {
    let page = |now, before| worse("p", 1_000, now, before).len();
    let good = [3, 2, 2, 2, 1, 0, 0, 0];
    assert_eq!(page(good, None), 0);
    assert_eq!(page([2, 2, 2, 3, 1, 1, 0, 0], None), 3);
    // As bad as recorded, better, worse.
    let recorded = Some([0, 0, 9, 9, 9, 1, 1, 1]);
    assert_eq!(page([0, 0, 9, 9, 9, 1, 1, 1], recorded), 0);
    assert_eq!(page([1, 0, 5, 5, 5, 0, 0, 0], recorded), 0);
    assert_eq!(page([0, 0, 10, 9, 9, 2, 1, 1], recorded), 2);
    // A page that was better than the targets may fall back to them.
    assert_eq!(page(good, Some([9, 9, 0, 0, 0, 0, 0, 0])), 0);
}
