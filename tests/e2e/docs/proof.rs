//! The tests by promise of docs/PROOF.md, generated from `promises.txt` in this folder.

use std::fmt::Write as _;
use std::fs;

use super::{root, text};

const DOCUMENT: &str = "docs/PROOF.md";
const BEGIN: &str = "<!-- proof -->\n";
const END: &str = "<!-- end of proof -->";
const WIDTH: usize = 120;

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
fn names(tests: &[&str]) -> Vec<String> {
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

/// A list item, wrapped.
fn item(claim: &str, tests: &[&str]) -> String {
    let shown = names(tests);
    let shown = if shown.is_empty() {
        "**no test**".to_owned()
    } else {
        shown.join(", ")
    };
    let mut lines = String::from("-");
    let mut column = 1;
    for word in format!("{claim}: {shown}").split(' ') {
        let length = word.chars().count();
        if column + 1 + length > WIDTH && column > 2 {
            lines.push_str("\n ");
            column = 1;
        }
        lines.push(' ');
        lines.push_str(word);
        column += 1 + length;
    }
    lines.push('\n');
    lines
}

fn generated() -> String {
    let mut page = String::new();
    let mut lines = list().into_iter().peekable();
    while let Some(line) = lines.next() {
        match line {
            Line::Promise(name) => {
                let gap = if page.is_empty() { "" } else { "\n" };
                let _ = writeln!(page, "{gap}### {name}\n");
            }
            Line::Claim(claim) => {
                let mut tests = Vec::new();
                while let Some(Line::Test(test)) = lines.peek() {
                    tests.push(*test);
                    lines.next();
                }
                page.push_str(&item(claim, &tests));
            }
            Line::Test(test) => panic!("no claim before {test}"),
        }
    }
    page
}

/// `UPDATE_DOCS=1 cargo test -p walrelay --test e2e docs::proof` rewrites the list.
#[test]
fn tests_by_promise_are_those_of_the_list() {
    let document = text(DOCUMENT);
    let (before, rest) = document.split_once(BEGIN).expect("the mark of the list");
    let (shown, after) = rest.split_once(END).expect("the end of the list");
    let generated = generated();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let page = format!("{before}{BEGIN}{generated}{END}{after}");
        fs::write(root().join(DOCUMENT), page).expect("written");
        return;
    }
    assert_eq!(shown, generated, "rewrite {DOCUMENT} with UPDATE_DOCS=1");
}

#[test]
fn tests_of_the_promises_exist() {
    let mut file = "";
    let mut found = 0;
    for line in list() {
        let Line::Test(test) = line else {
            continue;
        };
        let (path, name) = test.split_once("::").expect("a file and a name");
        if !path.is_empty() {
            file = path;
        }
        assert!(
            text(file).contains(&format!("fn {name}(")),
            "no test {name} in {file}"
        );
        found += 1;
    }
    assert!(found >= 100, "only {found} tests are named");
}
