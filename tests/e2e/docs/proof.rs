//! The tests by promise of docs/trust/proof.md, generated from `promises.txt` in this folder, and the table
//! of the promises of sinks there.

use std::fmt::Write as _;
use std::fs;
use std::sync::Mutex;

use walrelay_testkit::conformance::PROMISES;
use walrelay_testkit::lock;

use super::{root, text};

const DOCUMENT: &str = "docs/trust/proof.md";
const WIDTH: usize = 120;

/// The sinks that run the conformance suite, with the file that says so by `conformance!`.
const SINKS: &[(&str, &str)] = &[
    ("Kafka", "tests/e2e/conformance.rs"),
    ("HTTP/1.1", "crates/http-sink/tests/it/http1.rs"),
    ("HTTP/2", "crates/http-sink/tests/it/http2.rs"),
    ("RabbitMQ", "crates/rabbitmq-sink/tests/it/classic.rs"),
    ("Redis", "crates/redis-sink/tests/it/position.rs"),
    ("NATS", "crates/nats-sink/tests/it/stream.rs"),
    (
        "NATS, `exclusive_stream`",
        "crates/nats-sink/tests/it/exclusive_stream.rs",
    ),
    ("stdout", "crates/walrelay/src/sinks/stdout/conformance.rs"),
];

#[derive(Debug)]
enum Line {
    Promise(&'static str),
    Claim(&'static str),
    /// `file::name`, or `::name` for a further test of the same file.
    Test(&'static str),
}

fn list() -> Vec<Line> {
    include_str!("promises.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            if let Some(test) = line.strip_prefix("    ") {
                return Line::Test(test);
            }
            let promise = line
                .strip_prefix('[')
                .and_then(|name| name.strip_suffix(']'));
            promise.map_or(Line::Claim(line), Line::Promise)
        })
        .collect()
}

/// The tests as the page names them: without `tests/`, `crates/` and `.rs`. Tests that differ only
/// in the version of Postgres become one.
pub(super) fn names(tests: &[&str]) -> Vec<String> {
    let mut shown: Vec<String> = Vec::new();
    let mut last = "";
    for test in tests {
        let (_, name) = test.split_once("::").expect("a file and a name");
        let version = name.strip_prefix(last).filter(|_| !last.is_empty());
        if let (Some(version), Some(before)) = (version, shown.last_mut()) {
            before.insert_str(before.len() - 1, &format!(", {version}"));
            continue;
        }
        let short = test.replacen(".rs::", "::", 1);
        let short = ["tests/", "crates/"]
            .iter()
            .find_map(|folder| short.strip_prefix(folder))
            .unwrap_or(&short);
        shown.push(format!("`{short}`"));
        let digits = name.trim_end_matches(|c: char| c.is_ascii_digit());
        last = if digits.ends_with("_on_postgres_") || digits.ends_with("_on_") {
            digits
        } else {
            ""
        };
    }
    shown
}

/// An item of a numbered list, wrapped.
fn item(number: usize, text: &str) -> String {
    let mut lines = format!("{number}.");
    let indent = " ".repeat(lines.len());
    let mut column = lines.len();
    for word in text.split(' ') {
        let length = word.chars().count();
        if column + 1 + length > WIDTH && column > indent.len() + 1 {
            lines.push('\n');
            lines.push_str(&indent);
            column = indent.len();
        }
        lines.push(' ');
        lines.push_str(word);
        column += 1 + length;
    }
    lines.push('\n');
    lines
}

/// Returns a part of the page that is folded until a reader opens it.
pub(super) fn folded(summary: &str, content: &str) -> String {
    format!("<details><summary>{summary}</summary>\n\n{content}\n</details>\n")
}

/// The claims of each promise, then their tests under the same numbers, folded.
fn generated() -> String {
    let mut page = String::new();
    let mut lines = list().into_iter().peekable();
    while let Some(line) = lines.next() {
        let Line::Promise(promise) = line else {
            panic!("no promise before {line:?}");
        };
        let (mut claims, mut tests) = (String::new(), String::new());
        let (mut number, mut test_count) = (0, 0);
        while let Some(&Line::Claim(claim)) = lines.peek() {
            lines.next();
            let mut of_claim = Vec::new();
            while let Some(&Line::Test(test)) = lines.peek() {
                lines.next();
                of_claim.push(test);
            }
            number += 1;
            test_count += of_claim.len();
            if of_claim.is_empty() {
                claims.push_str(&item(number, &format!("{claim}: **no test**")));
                tests.push_str(&item(number, "no test"));
            } else {
                claims.push_str(&item(number, claim));
                tests.push_str(&item(number, &names(&of_claim).join(", ")));
            }
        }
        let gap = if page.is_empty() { "" } else { "\n" };
        let name = promise.split(' ').next().unwrap_or(promise);
        let summary = format!("{test_count} tests of {name}, by the number of the claim");
        let tests = folded(&summary, &tests);
        let _ = write!(page, "{gap}### {promise}\n\n{claims}\n{tests}");
    }
    page
}

/// Compares a part of the page with what is generated; with `UPDATE_DOCS`, rewrites it.
#[track_caller]
pub(super) fn assert_shown(begin: &str, end: &str, generated: &str) {
    // The tests of this file rewrite the same page.
    static PAGE: Mutex<()> = Mutex::new(());
    let _page = lock(&PAGE);
    let document = text(DOCUMENT);
    let (before, rest) = document.split_once(begin).expect("the begin mark");
    let (shown, after) = rest.split_once(end).expect("the end mark");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let page = format!("{before}{begin}{generated}{end}{after}");
        fs::write(root().join(DOCUMENT), page).expect("written");
        return;
    }
    assert_eq!(shown, generated, "rewrite {DOCUMENT} with UPDATE_DOCS=1");
}

/// `UPDATE_DOCS=1 cargo test -p walrelay --test e2e docs::proof` rewrites the list.
#[test]
fn tests_by_promise_are_those_of_the_list() {
    assert_shown("<!-- proof -->\n", "<!-- end of proof -->", &generated());
}

/// The same command rewrites the table.
#[test]
fn promises_of_sinks_are_those_of_the_conformance_suite() {
    for entry in fs::read_dir(root().join("crates")).expect("the crates") {
        let name = entry.expect("an entry").file_name();
        let name = name.to_str().expect("UTF-8");
        let here = format!("crates/{name}/");
        let runs = SINKS.iter().any(|(_, file)| file.starts_with(&here));
        // Kafka's is in the end-to-end tests, which share a broker.
        let is_listed = runs || name == "kafka-sink" || !name.ends_with("-sink");
        assert!(is_listed, "no line of SINKS for {name}");
    }
    let mut table = String::from("| promise of a sink | test |");
    for (sink, _) in SINKS {
        let _ = write!(table, " {sink} |");
    }
    let _ = writeln!(table, "\n|---|---|{}", "---|".repeat(SINKS.len()));
    for promise in PROMISES {
        let _ = write!(table, "| {} | `{}` |", promise.rule, promise.name);
        for (sink, file) in SINKS {
            // The macro makes a test of each promise.
            let runs = text(file).contains("\nconformance!(");
            assert!(runs, "{file} does not run the suite for {sink}");
            table.push_str(" yes |");
        }
        table.push('\n');
    }
    assert_shown("<!-- sinks -->\n", "<!-- end of sinks -->", &table);
}

/// Asserts that a test exists: `file::name`, or `::name` in the last `file`.
#[track_caller]
pub(super) fn assert_exists<'t>(file: &mut &'t str, test: &'t str) {
    let (path, name) = test.split_once("::").expect("a file and a name");
    if !path.is_empty() {
        *file = path;
    }
    assert!(
        text(file).contains(&format!("fn {name}(")),
        "no test {name} in {file}"
    );
}

#[test]
fn tests_of_the_promises_exist() {
    let mut file = "";
    let mut found = 0;
    for line in list() {
        let Line::Test(test) = line else {
            continue;
        };
        assert_exists(&mut file, test);
        found += 1;
    }
    assert!(found >= 100, "only {found} tests are named");
}
