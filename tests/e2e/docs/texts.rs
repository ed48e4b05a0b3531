//! Compares the documents with the code and with each other, without servers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{blocks, root, text};
use crate::rig::{output, stdout};

/// Blocks that no test here runs, and what runs them instead.
const NOT_RUN: &[(&str, &str)] = &[
    ("make", ".ci/run runs make demo, and the lanes of make test"),
    ("enable", "the tests' servers are started with it"),
];

/// The rows of the table between `<!-- name -->` and `<!-- end -->`, as cells.
fn table(document: &str, name: &str) -> Vec<Vec<String>> {
    let text = text(document);
    let mark = format!("<!-- {name} -->\n");
    let (_, rest) = text.split_once(&mark).expect("the table's mark");
    let (table, _) = rest.split_once("<!-- end -->").expect("the table's end");
    table
        .lines()
        .skip(2)
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            cells.map(|cell| cell.trim().to_owned()).collect()
        })
        .collect()
}

/// The non-test code of a folder, by file.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let is_rust = path.extension().is_some_and(|end| end == "rs");
            if !is_rust || stem.is_none_or(|stem| stem.ends_with("tests")) {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a source");
            let code = text
                .split("#[cfg(test)]\nmod tests {")
                .next()
                .unwrap_or_default();
            found.push((path, code.to_owned()));
        }
    }
}

/// The string literal at the beginning of `text`, after white space.
fn literal(text: &str) -> Option<&str> {
    text.trim_start().strip_prefix('"')?.split('"').next()
}

/// The sources of these crates, and of those of all sinks.
fn sources_with_sinks(crates: &[&str]) -> Vec<(PathBuf, String)> {
    let folder = root().join("crates");
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).expect("the crates") {
        let name = entry.expect("an entry").file_name();
        let name = name.to_str().expect("UTF-8");
        if name.ends_with("-sink") || crates.contains(&name) {
            sources(&folder.join(name).join("src"), &mut found);
        }
    }
    found
}

/// The sources of the crates that make errors with ids.
pub(super) fn sources_of_errors() -> Vec<(PathBuf, String)> {
    sources_with_sinks(&[
        "walrelay",
        "settings",
        "postgres-source",
        "walsender",
        "observe",
        "sink",
        "sink-kind",
    ])
}

/// Returns true for modules called `failure` or `failures`, and those in such a folder.
pub(super) fn is_of_failures(path: &Path) -> bool {
    let folder = path.parent();
    folder.is_some_and(|folder| folder.ends_with("failures"))
        || path.ends_with("failures.rs")
        || path.ends_with("failure.rs")
}

/// Returns the calls whose first argument is an id. `refused`, of an ability that a sink lacks, is a function of the
/// binary; in other crates the name means something else.
pub(super) fn makers_of_failures(path: &Path) -> &'static [&'static str] {
    if path.starts_with(root().join("crates/walrelay")) {
        &["Failure::new(", "refused("]
    } else {
        &["Failure::new("]
    }
}

/// Returns true for the modules of the parts of `SetupError`, each of which has ids and remedies.
pub(super) fn is_of_setup(path: &Path) -> bool {
    ["publication", "server", "slot", "table"]
        .iter()
        .any(|part| path.ends_with(format!("postgres-source/src/error/setup/{part}.rs")))
}

/// Ids that the program can print in brackets: those of `Failure::new`, `refused` and `Check::fail`, of the arms of
/// `id` of the parts of `SetupError` and of the tables and words in modules called `failure` or `failures`, and the names of errors of
/// the configuration.
pub(super) fn ids_of_the_code() -> BTreeSet<String> {
    let files = sources_of_errors();
    let mut ids = BTreeSet::new();
    for (path, code) in files {
        let mut add = |id: Option<&str>| {
            if let Some(id) = id {
                ids.insert(id.to_owned());
            }
        };
        for maker in makers_of_failures(&path) {
            for rest in code.split(maker).skip(1) {
                add(literal(rest));
            }
        }
        // The second argument begins with the id.
        for rest in code.split("Check::fail(").skip(1) {
            add(rest.split('(').nth(1).and_then(literal));
        }
        for rest in code.split("\"config-").skip(1) {
            let name = rest.split('"').next().unwrap_or_default();
            add(Some(&format!("config-{name}")));
        }
        if is_of_failures(&path) {
            for start in ["=> (", " of("] {
                for rest in code.split(start).skip(1) {
                    add(literal(rest));
                }
            }
        }
        if is_of_setup(&path) {
            let (_, id) = code.split_once("fn id(&self)").expect("fn id");
            let (id, _) = id.split_once("\n    }").expect("its end");
            for rest in id.split("=>").skip(1) {
                add(literal(rest));
            }
        }
    }
    ids
}

#[test]
fn errors_of_the_list_are_those_of_the_code() {
    let code = ids_of_the_code();
    // Test the search itself: one id of each place that it reads.
    for id in [
        "slot-lost",
        "password",
        "config-file",
        "column-missing",
        "demo-postgres",
        "kafka-access",
        "dlq-no-answer",
    ] {
        assert!(code.contains(id), "{id}: {code:?}");
    }
    let listed: Vec<String> = table("docs/reference/errors.md", "errors")
        .iter()
        .map(|row| row[0].trim_matches('`').to_owned())
        .collect();
    let sorted: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(
        listed,
        sorted.iter().cloned().collect::<Vec<_>>(),
        "sorted, each once"
    );
    assert_eq!(
        sorted, code,
        "left: docs/reference/errors.md, right: the code"
    );
}

/// A supervisor restarts the relay only for exit codes that a restart can repair.
#[test]
fn exit_codes_and_supervisors_agree() {
    let rows = table("docs/operate/running.md", "exit codes");
    let help = stdout(&output(&["--help"]));
    let (_, codes) = help.split_once("Exit codes:\n").expect("exit codes");
    let known: Vec<&str> = codes
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(rows.iter().map(|row| &row[0]).collect::<Vec<_>>(), known);
    let stay_down: Vec<&str> = rows
        .iter()
        .filter(|row| row[2] == "no" && row[0] != "0")
        .map(|row| row[0].as_str())
        .collect();
    let operations = text("docs/operate/running.md");
    let line = format!("\nRestartPreventExitStatus={}\n", stay_down.join(" "));
    let unit = text("deploy/systemd/walrelay.service");
    assert!(unit.contains(&line), "{line}");
    // A panic in any thread ends the released binary by SIGABRT, and systemd restarts it.
    let workspace: toml::Table = text("Cargo.toml").parse().expect("TOML");
    let release = &workspace["profile"]["release"];
    assert_eq!(release["panic"].as_str(), Some("abort"));
    assert!(operations.contains("134 is SIGABRT, which a panic ends in"));
    assert!(unit.contains("\nRestart=on-failure\n"));
    for row in table("docs/reference/errors.md", "errors") {
        for code in row[1].split(", ") {
            assert!(known.contains(&code), "{row:?}");
        }
    }

    // A drain may take drain_timeout, and the last status update ten seconds more.
    let configuration = text("docs/reference/configuration.md");
    let (_, drain) = configuration
        .split_once("| `drain_timeout` | duration | `")
        .expect("drain_timeout");
    let (drain, _) = drain.split_once("s`").expect("seconds");
    let drain: u64 = drain.parse().expect("a number");
    for (text, setting) in [
        (&unit, "\nTimeoutStopSec="),
        (&operations, "stop_grace_period: "),
        (&operations, "terminationGracePeriodSeconds: "),
    ] {
        let (_, value) = text.split_once(setting).expect(setting);
        let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
        let seconds: u64 = digits.parse().expect("seconds");
        assert!(seconds > drain + 10, "{setting}{seconds}");
    }
}

/// The unit of one relay and that of several differ in the name alone.
#[test]
fn units_of_systemd_differ_in_the_name() {
    let one = text("deploy/systemd/walrelay.service");
    let several = text("deploy/systemd/walrelay@.service");
    let settings = |unit: &str| -> Vec<String> {
        let lines = unit.lines().filter(|line| !line.starts_with("# "));
        lines.map(str::to_owned).collect()
    };
    let named = several
        .replace("%i/state", "state")
        .replace("walrelay/%i\n", "walrelay\n")
        .replace("/%i.postgres-password", "/postgres-password")
        .replace(" (%i)", "")
        .replace("%i", "walrelay");
    assert_eq!(settings(&named), settings(&one));
}

#[test]
fn log_lines_are_those_of_the_code() {
    let files = sources_with_sinks(&["walrelay", "relay", "postgres-source", "observe", "sink"]);
    let code: String = files.into_iter().map(|(_, code)| code).collect();
    // Join literals that are broken over lines.
    let code = code.replace("\\\n", "");
    let code: String = code.split_whitespace().collect::<Vec<_>>().join(" ");
    for row in table("docs/reference/errors.md", "log") {
        let words = row[0].trim_matches('`');
        assert!(code.contains(words), "no line of the code says {words:?}");
    }
}

#[test]
fn every_block_is_run_or_said_not_to_be() {
    let tests = text("tests/e2e/docs.rs")
        + &text("tests/e2e/formats.rs")
        + &text("tests/e2e/check/configuration.rs")
        + &text("tests/e2e/docs/cutting_over.rs")
        + &text("tests/e2e/docs/event_stores.rs")
        + &text("tests/e2e/docs/libraries.rs")
        + &text("tests/e2e/docs/migrating.rs")
        + &text("tests/e2e/docs/patterns.rs")
        + &text("tests/e2e/docs/preset_tables.rs")
        + &text("tests/e2e/docs/pruning.rs")
        + &text("tests/e2e/docs/slo.rs")
        + &text("tests/e2e/docs/recipes.rs")
        + &text("tests/e2e/docs/replaying.rs")
        + &text("tests/e2e/docs/snapshots.rs")
        + &text("tests/e2e/docs/scaling.rs")
        + &text("tests/e2e/dead_letters.rs")
        + &text("tests/e2e/moves.rs")
        + &text("tests/e2e/moves/fences.rs")
        + &text("tests/e2e/postgres_19.rs")
        + &text("tests/e2e/event_page.rs")
        + &text("tests/e2e/stuck.rs")
        + &text("tests/e2e/whereabouts.rs");
    for document in [
        "README.md",
        "docs/how-to/pruning.md",
        "docs/how-to/recipes.md",
        "docs/how-to/replay.md",
        "docs/how-to/scaling.md",
        "docs/how-to/snapshots.md",
        "docs/how-to/verify.md",
        "docs/how-to/move.md",
        "docs/how-to/where.md",
        "docs/operate/alerts.md",
        "docs/operate/check.md",
        "docs/operate/dead-letters.md",
        "docs/operate/monitoring.md",
        "docs/operate/postgres.md",
        "docs/operate/running.md",
        "docs/operate/troubleshooting.md",
        "docs/start/cutover.md",
        "docs/start/debezium.md",
        "docs/start/pattern.md",
        "docs/start/presets.md",
    ] {
        let all = text(document);
        for (name, _) in blocks(document) {
            let taken = tests.contains(&format!("\"{name}\""));
            let said = NOT_RUN.iter().any(|(not_run, _)| *not_run == name);
            assert!(
                taken != said,
                "{document}: nothing runs the block {name}, or it is said not to be run"
            );
        }
        for language in ["sh", "sql", "toml"] {
            let fence = format!("```{language}\n");
            let marked = format!(" -->\n{fence}");
            let (fences, marks) = (all.matches(&fence).count(), all.matches(&marked).count());
            assert_eq!(fences, marks, "{document}: a {language} block has no name");
        }
    }
    for (name, why) in NOT_RUN {
        assert!(blocks("README.md").contains_key(*name), "{name}: {why}");
    }
}

#[test]
fn files_that_compose_mounts_exist() {
    let compose = text("docker-compose.yml");
    let lines = compose.lines().map(str::trim);
    let mounted = lines.filter_map(|line| line.strip_prefix("- ./")?.split(':').next());
    let mounted: Vec<&str> = mounted.collect();
    assert!(mounted.len() >= 4, "{mounted:?}");
    for path in mounted {
        assert!(root().join(path).exists(), "docker-compose.yml: {path}");
    }
}

/// `make test-packages` runs the commands of the page, which need a machine of their own.
#[test]
fn commands_of_the_installation_are_run_or_said_not_to_be() {
    let page = text("docs/start/install.md");
    let script = text("scripts/test-packages.sh");
    let mut before = "";
    let mut run = 0;
    for line in page.lines() {
        if line == "```sh" {
            let name = before.strip_prefix("<!-- run: ");
            let name = name.and_then(|rest| rest.strip_suffix(" -->"));
            match name {
                Some(name) => {
                    let call = format!("run_block {name}\n");
                    assert!(script.contains(&call), "nothing runs the block {name}");
                    run += 1;
                }
                None => assert!(before.starts_with("<!-- not run: "), "{before}"),
            }
        }
        before = line;
    }
    assert!(run > 0, "no block is run");
}

/// Every Markdown page of the root folder, `fuzz`, `examples` and `docs`.
fn documents() -> Vec<String> {
    let mut found = Vec::new();
    for folder in [
        "",
        "fuzz",
        "examples",
        "docs",
        "docs/sinks",
        "docs/adr",
        "docs/adr/measurements",
    ] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            let path = Path::new(folder).join(name);
            if path.extension().is_some_and(|end| end == "md") {
                found.push(path.to_str().expect("text").to_owned());
            }
        }
    }
    found
}

#[test]
fn links_lead_somewhere() {
    for document in documents() {
        let document = document.as_str();
        let all = text(document);
        let folder = root().join(document);
        let folder = folder.parent().expect("a folder");
        for link in all.split("](").skip(1) {
            let target = link.split(')').next().expect("an end");
            if target.contains("://") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() {
                root().join(document)
            } else {
                folder.join(path)
            };
            assert!(file.exists(), "{document}: {target}");
            if !anchor.is_empty() {
                let text = fs::read_to_string(&file).expect("a document");
                let found = text
                    .lines()
                    .filter(|line| line.starts_with('#'))
                    .any(|line| slug(line) == anchor);
                assert!(found, "{document}: no heading for {target}");
            }
        }
    }
}

/// Sources that a document names in code spans, relative to the root or to `crates`.
#[test]
fn sources_of_the_documents_exist() {
    let mut wrong = Vec::new();
    for document in documents() {
        let all = text(&document);
        for code in all.split('`').skip(1).step_by(2) {
            let path = code.split("::").next().unwrap_or_default();
            let is_source = Path::new(path).extension().is_some_and(|end| end == "rs");
            if !is_source || path.contains(char::is_whitespace) || path.contains('{') {
                continue;
            }
            let Some((top, _)) = path.split_once('/') else {
                continue;
            };
            let known = root().join("crates").join(top).is_dir();
            let path = if known {
                format!("crates/{path}")
            } else {
                path.to_owned()
            };
            let from_root = known || matches!(top, "crates" | "tests" | "fuzz");
            if from_root && !root().join(&path).exists() {
                wrong.push(format!("{document}: {path}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The anchor that GitHub makes of a heading.
fn slug(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// Each constructor of a position that may be confirmed is called where its documentation says. The
/// constructors are public, so the compiler does not hold it.
#[test]
fn commit_ends_are_made_by_their_callers_alone() {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("crates")).expect("crates") {
        sources(&entry.expect("a crate").path().join("src"), &mut found);
    }
    let callers = |constructor: &str| -> Vec<String> {
        let calls = |line: &str| {
            let is_comment = line.trim_start().starts_with("//");
            // Zero confirms nothing.
            !is_comment && line.replace("(Lsn::ZERO)", "").contains(constructor)
        };
        let calling = found.iter().filter(|(_, code)| code.lines().any(calls));
        let relative = calling.map(|(path, _)| path.strip_prefix(root().join("crates")));
        let paths = relative.map(|path| path.expect("in crates").display().to_string());
        let sorted: BTreeSet<String> = paths.collect();
        sorted.into_iter().collect()
    };
    assert_eq!(callers("::from_commit_message"), ["pgoutput/src/decode.rs"]);
    assert_eq!(
        callers("::from_idle_keepalive"),
        ["checkpoint/src/ledger/mod.rs"]
    );
    assert_eq!(
        callers("::from_slot("),
        [
            "postgres-source/src/source/copy.rs",
            "postgres-source/src/source/notes/mod.rs",
            "postgres-source/src/source/opening/mod.rs",
            "postgres-source/src/state_file/mod.rs",
            "postgres-source/src/state_file/writer.rs",
            "relay/src/pipeline/continuity.rs",
        ]
    );
}

/// Files that the code includes are in the build context of the image, which CI does not build.
#[test]
fn included_files_are_in_the_context_of_the_image() {
    let ignored = text(".dockerignore");
    let let_in: Vec<&str> = ignored
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("crates")).expect("crates") {
        sources(&entry.expect("a crate").path().join("src"), &mut found);
    }
    let mut included = 0;
    for (path, code) in &found {
        for macro_name in ["include_str!(", "include_bytes!("] {
            for file in code.split(macro_name).skip(1).filter_map(literal) {
                let file = path.parent().expect("a folder").join(file);
                let file = file.canonicalize().expect("an included file");
                let project = root().canonicalize().expect("the project");
                let file = file.strip_prefix(project).expect("of the project");
                let is_in = let_in.iter().any(|part| file.starts_with(part));
                assert!(
                    is_in,
                    "{}: .dockerignore lacks {}",
                    path.display(),
                    file.display()
                );
                included += 1;
            }
        }
    }
    assert!(included > 10, "{included} included files");
}

/// The arrows of docs/contributing/architecture.md are the dependencies in the manifests.
#[test]
fn arrows_of_the_architecture_are_those_of_cargo() {
    let architecture = text("docs/contributing/architecture.md");
    let (_, map) = architecture
        .split_once("| crate | what it is | → |\n|---|---|---|\n")
        .expect("the code map");
    let mut above: Vec<String> = Vec::new();
    for row in map.lines().take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells[0].trim_matches('`');
        let said: BTreeSet<String> = if cells[2].starts_with("all above") {
            let but = cells[2].split('`').nth(1).unwrap_or_default();
            let others = above.iter().filter(|other| *other != but);
            others.cloned().collect()
        } else {
            let names = cells[2].split('`').skip(1).step_by(2);
            names.map(str::to_owned).collect()
        };
        let manifest = text(&format!("crates/{name}/Cargo.toml"));
        let (_, dependencies) = manifest.split_once("[dependencies]\n").unwrap_or(("", ""));
        let cargo: BTreeSet<String> = dependencies
            .lines()
            .take_while(|line| !line.starts_with('['))
            .filter_map(|line| line.strip_prefix("walrelay-"))
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .map(str::to_owned)
            .collect();
        assert_eq!(
            said, cargo,
            "{name}; left: docs/contributing/architecture.md, right: Cargo.toml"
        );
        above.push(name.to_owned());
    }
    let folders = fs::read_dir(root().join("crates")).expect("crates").count();
    assert_eq!(above.len(), folders, "each crate has a row");
}

#[test]
fn contents_list_every_section() {
    for document in [
        "docs/reference/configuration.md",
        "docs/operate/running.md",
        "docs/operate/monitoring.md",
        "docs/operate/alerts.md",
        "docs/operate/troubleshooting.md",
        "docs/operate/dead-letters.md",
        "docs/operate/postgres.md",
    ] {
        let text = text(document);
        let mut sections = Vec::new();
        let mut in_block = false;
        for line in text.lines() {
            in_block ^= line.starts_with("```");
            let heading = line.trim_start_matches('#');
            let level = line.len() - heading.len();
            let heading = heading.trim();
            if !in_block && (2..=3).contains(&level) {
                let indent = "  ".repeat(level - 2);
                sections.push(format!("{indent}- [{heading}](#{})", slug(heading)));
            }
        }
        let (_, rest) = text.split_once("<!-- contents -->\n").expect("contents");
        let (listed, _) = rest
            .split_once("<!-- end of contents -->")
            .expect("the end of the contents");
        let listed: Vec<&str> = listed.lines().collect();
        assert_eq!(listed, sections, "{document}");
    }
}
