//! The table of faults of docs/trust/proof.md, and what shows each, generated from `shown.txt` in this
//! folder.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::proof::{assert_exists, assert_shown, folded, names};
use super::text;

/// A line of the list, with its tests.
struct Fault {
    name: &'static str,
    /// The state, or the id of an error in back quotes; empty if no relay runs.
    state: &'static str,
    alerts: Vec<&'static str>,
    items: Vec<&'static str>,
    tests: Vec<&'static str>,
}

fn list() -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    for line in include_str!("shown.txt").lines() {
        if let Some(test) = line.strip_prefix("    ") {
            faults.last_mut().expect("a fault").tests.push(test);
        } else if !line.is_empty() && !line.starts_with('#') {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [name, state, alerts, items] = cells[..] else {
                panic!("{line}");
            };
            let several = |cell: &'static str| {
                let parts = cell.split(", ").filter(|part| !part.is_empty());
                parts.collect()
            };
            faults.push(Fault {
                name,
                state,
                alerts: several(alerts),
                items: several(items),
                tests: Vec::new(),
            });
        }
    }
    faults
}

/// The alerts, and how long their expressions are true before they fire.
fn alerts() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut alert = String::new();
    for line in text("deploy/prometheus/alerts.yml").lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            name.clone_into(&mut alert);
            found.insert(alert.clone(), String::new());
        } else if let Some(time) = line.strip_prefix("for: ") {
            found.insert(alert.clone(), format!(", {time}"));
        }
    }
    found
}

/// `UPDATE_DOCS=1 cargo test -p walrelay --test e2e docs::shown` rewrites the table.
#[test]
fn faults_are_those_of_the_list() {
    let alerts = alerts();
    let mut table =
        "| fault | state or error | alert, after | `check` |\n|---|---|---|---|\n".to_owned();
    let mut tests = String::new();
    for fault in list() {
        let after = fault.alerts.iter().map(|alert| {
            let time = alerts.get(*alert);
            format!(
                "`{alert}`{}",
                time.unwrap_or_else(|| panic!("no alert {alert}"))
            )
        });
        let after: Vec<String> = after.collect();
        let items: Vec<String> = fault.items.iter().map(|item| format!("`{item}`")).collect();
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} |",
            fault.name,
            fault.state,
            after.join("; "),
            items.join(", ")
        );
        let names = names(&fault.tests).join(", ");
        let _ = writeln!(tests, "- {}: {names}", fault.name);
    }
    let tests = folded("The tests of each fault", &tests);
    let _ = write!(table, "\n{tests}");
    assert_shown("<!-- shown -->\n", "<!-- end of shown -->", &table);
}

/// Whether a test looks at a fault in each view, or in those that are left of a relay that has ended.
fn looks_at_views(test: &str) -> bool {
    let Some((file, name)) = test.split_once("::") else {
        return false;
    };
    let code = text(file);
    let body = code.split_once(&format!("fn {name}() {{"));
    let body = body.and_then(|(_, rest)| rest.split_once("\n}\n"));
    let looks = [
        "views.show",
        ".show(",
        ".show_problem(",
        "ended(",
        "is_outage_shown(",
        "is_refusal_shown(",
        "is_shown_until_it_is_accepted(",
    ];
    body.is_some_and(|(body, _)| looks.iter().any(|look| body.contains(look)))
}

#[test]
fn what_the_list_names_exists() {
    let (errors, items) = (
        text("docs/reference/errors.md"),
        text("docs/operate/check.md"),
    );
    let faults = list();
    assert!(faults.len() >= 54, "only {} faults", faults.len());
    for Fault {
        name,
        state,
        items: named,
        tests,
        alerts,
    } in faults
    {
        assert!(!tests.is_empty(), "no test of {name}");
        let is_looked_at = alerts.is_empty() || tests.iter().any(|test| looks_at_views(test));
        assert!(is_looked_at, "no test looks at {name} in each view");
        if state.starts_with('`') {
            assert!(errors.contains(&format!("\n| {state} |")), "{state}");
        }
        for item in named {
            let (group, item) = item.split_once('/').expect("group/item");
            assert!(
                items.contains(&format!("\n| {group} | `{item}` |")),
                "{group}/{item}"
            );
        }
        let mut file = "";
        for test in tests {
            assert_exists(&mut file, test);
        }
    }
}
