//! Holds the rule of CONTRIBUTING.md that the modules of a folder do not import each other in a
//! circle, and the order of the modules of `relay` in `docs/contributing/architecture.md`. The code is read as
//! rustfmt writes it.
//!
//! Holds the limit for the length of a file, too.
//!
//! The dependencies between crates are compared with `docs/contributing/architecture.md` by
//! `tests/e2e/docs/texts.rs`.

#![allow(
    clippy::unwrap_used,
    reason = "a test's helpers may panic as the test itself may"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Reads a file of a crate's source; `None` if there is none.
type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A path that a module names.
struct Import {
    path: Vec<String>,
    /// The name that a `use` gives it in the module; `None` if it is no `use`.
    name: Option<String>,
    /// File and line.
    place: String,
}

/// The imports of each module of a crate. A module is its path from the crate's root.
type Modules = BTreeMap<Vec<String>, Vec<Import>>;

/// The folder of an import, and the two modules directly below it, of which the first uses the
/// second.
type Arrow = [String; 3];

/// The lines of code, with their numbers, without comments and items marked `#[cfg(test)]`.
fn lines_of_code(source: &str) -> Vec<(usize, &str)> {
    let mut tested_indent = None;
    let mut found = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        if line.trim() == "#[cfg(test)]" {
            tested_indent = Some(indent);
        } else if tested_indent.is_none() {
            found.push((number + 1, line.split("//").next().unwrap().trim()));
        } else if tested_indent == Some(indent) && line.ends_with([';', '}', ',']) {
            tested_indent = None;
        }
    }
    found
}

/// The paths of a `use`, each with the name that it gives.
fn expand(prefix: &str, tree: &str, found: &mut Vec<(String, String)>) {
    let Some((before, inner)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path = format!("{prefix}{}", path.trim()).replace("::self", "");
        let last = path.rsplit("::").next().unwrap().to_owned();
        found.push((
            path,
            if name.is_empty() {
                last
            } else {
                name.trim().to_owned()
            },
        ));
        return;
    };
    let prefix = format!("{prefix}{}", before.trim());
    let (mut depth, mut start) = (0, 0);
    for (at, sign) in inner.char_indices() {
        if depth == 0 && matches!(sign, ',' | '}') {
            if !inner[start..at].trim().is_empty() {
                expand(&prefix, &inner[start..at], found);
            }
            start = at + 1;
        }
        depth += i32::from(sign == '{') - i32::from(sign == '}');
    }
}

/// Reads a module and those that it declares.
fn load(read: Read<'_>, module: &[String], modules: &mut Modules) {
    let path = module.join("/");
    let mut files = match &*path {
        "" => vec!["lib.rs".to_owned(), "main.rs".to_owned()],
        path => vec![format!("{path}.rs"), format!("{path}/mod.rs")],
    };
    files.retain(|file| read(file).is_some());
    let source = read(&files[0]).unwrap();
    let mut imports = Vec::new();
    let mut lines = lines_of_code(&source).into_iter();
    while let Some((number, line)) = lines.next() {
        let is_visible = |before: &str| before.is_empty() || before.starts_with("pub");
        let item = |word: &str| {
            line.split_once(word)
                .filter(|(before, _)| is_visible(before))
        };
        let mut found = Vec::new();
        if let Some((_, tree)) = item("use ") {
            let mut tree = tree.to_owned();
            while !tree.ends_with(';') {
                tree.push_str(lines.next().unwrap().1);
            }
            let mut paths = Vec::new();
            expand("", tree.trim_end_matches(';'), &mut paths);
            found.extend(paths.into_iter().map(|(path, name)| (path, Some(name))));
        } else if let Some(name) = item("mod ").and_then(|(_, name)| name.strip_suffix(';')) {
            load(read, &[module, &[name.to_owned()]].concat(), modules);
        } else {
            let words = line.split(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | ':'));
            let paths = words.filter(|word| word.contains("::"));
            found.extend(paths.map(|path| (path.to_owned(), None)));
        }
        imports.extend(found.into_iter().map(|(path, name)| Import {
            path: path.split("::").map(str::to_owned).collect(),
            name,
            place: format!("{}:{number}", files[0]),
        }));
    }
    modules.insert(module.to_vec(), imports);
}

/// The path from the crate's root; `None` if it is that of another crate, or of a name in sight.
fn absolute(modules: &Modules, module: &[String], path: &[String]) -> Option<Vec<String>> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    match &*path[0] {
        "crate" => Some(path[1..].to_vec()),
        "super" => Some([&module[..module.len() - supers], &path[supers..]].concat()),
        "self" => Some([module, &path[1..]].concat()),
        _ => Some([module, path].concat())
            .filter(|path| modules.contains_key(&path[..=module.len()])),
    }
}

/// The arrow of an import. A name that a folder re-exports stands for the module that it comes
/// from; what the folder's own code imports or defines is no arrow.
fn arrow(modules: &Modules, from: &[String], import: &Import) -> Option<Arrow> {
    let mut path = absolute(modules, from, &import.path)?;
    let mut depth = 0;
    while depth < path.len().min(from.len()) {
        let (folder, below) = (&path[..depth], &path[..=depth]);
        if from.starts_with(below) {
            depth += 1;
        } else if modules.contains_key(below) {
            return Some([folder.join("/"), from[depth].clone(), path[depth].clone()]);
        } else {
            let name = Some(&path[depth]);
            let export = modules[folder]
                .iter()
                .find(|import| import.name.as_ref() == name)?;
            let rest = &path[depth + 1..];
            path = [&absolute(modules, folder, &export.path)?, rest].concat();
            depth = 0;
        }
    }
    None
}

/// The arrows of a crate, each with the places of its imports.
fn arrows(read: Read<'_>) -> BTreeMap<Arrow, Vec<String>> {
    let mut modules = Modules::new();
    load(read, &[], &mut modules);
    let mut arrows: BTreeMap<Arrow, Vec<String>> = BTreeMap::new();
    for (from, imports) in &modules {
        for import in imports {
            if let Some(arrow) = arrow(&modules, from, import) {
                arrows.entry(arrow).or_default().push(import.place.clone());
            }
        }
    }
    arrows
}

/// The arrows of a crate that are part of a circle.
fn circles(read: Read<'_>) -> BTreeMap<Arrow, Vec<String>> {
    let mut arrows = arrows(read);
    // Drop the arrows from modules that none uses, and to modules that use none, until none is left.
    loop {
        let all: Vec<Arrow> = arrows.keys().cloned().collect();
        arrows.retain(|[folder, from, to], _| {
            let mut others = all.iter().filter(|[other, ..]| other == folder);
            others.clone().any(|[_, _, used]| used == from) && others.any(|[_, user, _]| user == to)
        });
        if arrows.len() == all.len() {
            return arrows;
        }
    }
}

#[test]
fn modules_of_a_folder_do_not_import_each_other_in_a_circle() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = String::new();
    for entry in fs::read_dir(&crates).unwrap() {
        let source = entry.unwrap().path().join("src");
        let name = source.strip_prefix(&crates).unwrap().display();
        let read = |file: &str| fs::read_to_string(source.join(file)).ok();
        for ([folder, from, to], places) in circles(&read) {
            let folder = format!("{name}/{folder}");
            let folder = folder.trim_end_matches('/');
            let _ = writeln!(wrong, "{folder}: {from} uses {to}: {}", places.join(", "));
        }
    }
    assert!(
        wrong.is_empty(),
        "these imports are part of a circle:\n{wrong}"
    );
}

/// Each module of `relay` uses only modules of lower rows of the table in docs/contributing/architecture.md.
#[test]
fn modules_of_relay_use_only_those_below_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/contributing/architecture.md")).unwrap();
    let (_, table) = page
        .split_once("| module | what it is |\n|---|---|\n")
        .unwrap();
    let mut rows: BTreeMap<String, usize> = BTreeMap::new();
    for (row, line) in table
        .lines()
        .take_while(|line| !line.is_empty())
        .enumerate()
    {
        let cell = line.split('|').nth(1).unwrap();
        for name in cell.split('`').skip(1).step_by(2) {
            let name = name.trim_end_matches(".rs").trim_end_matches('/');
            rows.insert(name.to_owned(), row);
        }
    }
    let read = |file: &str| fs::read_to_string(root.join("crates/relay/src").join(file)).ok();
    let source = read("lib.rs").unwrap();
    let modules = source.lines().filter_map(|line| line.strip_prefix("mod "));
    let modules: BTreeSet<&str> = modules.map(|name| name.trim_end_matches(';')).collect();
    let listed: BTreeSet<&str> = rows.keys().map(String::as_str).collect();
    assert_eq!(
        listed, modules,
        "left: docs/contributing/architecture.md, right: lib.rs"
    );
    let upwards = arrows(&read)
        .into_iter()
        .filter(|([folder, from, to], _)| folder.is_empty() && rows[from] >= rows[to]);
    assert_eq!(upwards.collect::<Vec<_>>(), []);
}

/// The most lines of a file, without those of its tests: CONTRIBUTING.md says some 500.
const MOST_LINES: usize = 510;

/// Files that may be longer, and why.
const LONGER: &[(&str, &str)] = &[(
    "kafka-sink/src/ffi.rs",
    "unsafe code of the product stands in one file",
)];

/// The number of lines without items marked `#[cfg(test)]`.
fn lines_without_tests(source: &str) -> usize {
    let mut tested_indent = None;
    let mut lines = 0;
    for line in source.lines() {
        let indent = line.len() - line.trim_start().len();
        if line.trim() == "#[cfg(test)]" {
            tested_indent = Some(indent);
        } else if tested_indent.is_none() {
            lines += 1;
        } else if tested_indent == Some(indent) && line.ends_with([';', '}', ',']) {
            tested_indent = None;
        }
    }
    lines
}

/// Adds the sources below a folder, without modules of tests.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy();
        if stem.ends_with("tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// A file has one reason to change. Clippy's `too_many_lines` is the same limit for functions.
#[test]
fn no_file_of_the_product_is_too_long() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for entry in fs::read_dir(&crates).unwrap() {
        let folder = entry.unwrap().path();
        if folder.file_name().unwrap() != "testkit" {
            sources(&folder.join("src"), &mut files);
        }
    }
    let mut longer = Vec::new();
    for file in files {
        let lines = lines_without_tests(&fs::read_to_string(&file).unwrap());
        if lines > MOST_LINES {
            longer.push(file.strip_prefix(&crates).unwrap().display().to_string());
        }
    }
    let allowed: Vec<&str> = LONGER.iter().map(|(file, _)| *file).collect();
    assert_eq!(
        longer, allowed,
        "left: files of more than {MOST_LINES} lines; cut them by meaning"
    );
}

#[test]
fn lines_of_tests_are_not_counted() {
    let source =
        "mod a;\n#[cfg(test)]\nmod b;\nfn c() {}\n\n#[cfg(test)]\nmod tests {\n    fn d() {}\n}\n";
    assert_eq!(lines_without_tests(source), 3);
}

/// The circles of a crate of these files, each as `folder: from uses to: places`.
#[track_caller]
fn finds(files: &[(&str, &str)], expected: &[&str]) {
    let read = |path: &str| {
        let file = files.iter().find(|(name, _)| *name == path);
        file.map(|(_, text)| (*text).to_owned())
    };
    let found: Vec<String> = circles(&read)
        .into_iter()
        .map(|([folder, from, to], at)| format!("{folder}: {from} uses {to}: {}", at.join(", ")))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn a_circle_of_three_modules_is_found_with_its_lines() {
    finds(
        &[
            (
                "lib.rs",
                "mod a;\nmod b;\nmod c;\nmod leaf;\npub use c::inner::Thing as Other;\n",
            ),
            (
                "a.rs",
                "use std::fmt;\n\nuse crate::leaf;\nuse crate::{\n    b::{Error as E, f},\n};\n",
            ),
            (
                "b.rs",
                "fn f() {\n    // crate::a\n    crate::Other::new(self::x::<u8>());\n}\n",
            ),
            (
                "c/mod.rs",
                "mod inner;\nfn g() -> super::a::A {\n    inner::h()\n}\n",
            ),
            ("c/inner.rs", "use crate::leaf::X;\nuse super::g;\n"),
            (
                "leaf.rs",
                "//! [`b`](crate::b)\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n",
            ),
        ],
        &[
            ": a uses b: a.rs:4, a.rs:4",
            ": b uses c: b.rs:3",
            ": c uses a: c/mod.rs:2",
        ],
    );
}

#[test]
fn a_circle_inside_a_folder_is_found_through_the_folders_exports() {
    finds(
        &[
            ("lib.rs", "mod folder;\nmod user;\n"),
            (
                "folder/mod.rs",
                "mod first;\nmod second;\npub(crate) use first::{One, Two};\n",
            ),
            ("folder/first.rs", "use super::second::*;\n"),
            ("folder/second.rs", "use super::Two;\n"),
            ("user.rs", "use crate::folder::One;\n"),
        ],
        &[
            "folder: first uses second: folder/first.rs:1",
            "folder: second uses first: folder/second.rs:1",
        ],
    );
}
