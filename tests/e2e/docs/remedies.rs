//! Each error has a remedy of its own words, as the sources have them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::texts::{
    ids_of_the_code, is_of_failures, is_of_setup, makers_of_failures, sources_of_errors,
};

/// Errors that share a remedy, and why.
const SHARED: &[(&[&str], &str)] = &[
    (&["audit-id", "stuck-id"], "both need the column of the id"),
    (
        &["ledger", "protocol", "undecodable"],
        "only their versions help",
    ),
    (
        &["move-not-agreed", "slots-not-agreed"],
        "the same question",
    ),
    (
        &["prune-not-agreed", "resend-not-agreed"],
        "the same question",
    ),
    (
        &["tail-sink", "verify-topic-sink"],
        "both read the topic of a relay",
    ),
];
/// Words that help with nothing.
const GENERIC: &[&str] = &[
    "begin it again",
    "try again",
    "see the log",
    "see the cause",
];

/// What the sources say of each id.
#[derive(Default)]
struct Remedies {
    /// The ids of each text.
    ids: BTreeMap<String, BTreeSet<String>>,
    /// Ids that have a remedy, a literal or not.
    with: BTreeSet<String>,
    /// Places of errors without one.
    without: Vec<String>,
}

impl Remedies {
    fn add(&mut self, id: &str, given: &[(&str, Vec<String>)]) {
        self.with.insert(id.to_owned());
        for (code, literals) in given {
            // A constant has a text, too. Others are made elsewhere.
            let is_constant = code.to_uppercase() == *code;
            let text = match literals.as_slice() {
                [] if is_constant => (*code).to_owned(),
                literals => literals.join(" … "),
            };
            if !text.is_empty() {
                self.ids.entry(text).or_default().insert(id.to_owned());
            }
        }
    }
}

/// Returns the code up to the end of the expression at its beginning, and its string literals.
fn expression(code: &str) -> (&str, Vec<String>) {
    let mut literals = Vec::new();
    let mut depth = 0;
    let mut chars = code.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        match char {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' | ',' | ';' if depth == 0 => return (&code[..at], literals),
            ')' | ']' | '}' => depth -= 1,
            '"' => literals.push(literal(&mut chars)),
            '/' if code[at..].starts_with("//") => {
                while chars.next_if(|(_, char)| *char != '\n').is_some() {}
            }
            '\'' => {
                // A character, not a lifetime.
                let is_char = code[at..].chars().nth(2) == Some('\'');
                if is_char {
                    chars.nth(1);
                }
            }
            _ => {}
        }
    }
    (code, literals)
}

/// Reads a string literal after its first quote, without line breaks.
fn literal(chars: &mut impl Iterator<Item = (usize, char)>) -> String {
    let mut text = String::new();
    while let Some((_, char)) = chars.next() {
        match char {
            '"' => break,
            '\\' => match chars.next() {
                Some((_, '\n')) => text.push('\n'),
                Some((_, char)) => text.push(char),
                None => break,
            },
            char => text.push(char),
        }
    }
    // A line that continues has no indentation.
    let lines: Vec<&str> = text.split('\n').map(str::trim_start).collect();
    lines.concat()
}

/// Returns the arguments of a call, each with its string literals.
fn arguments(code: &str) -> Vec<(&str, Vec<String>)> {
    let mut arguments = Vec::new();
    let mut rest = code;
    loop {
        let (argument, literals) = expression(rest);
        arguments.push((argument.trim(), literals));
        match rest[argument.len()..].strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    arguments.retain(|(argument, _)| !argument.is_empty());
    arguments
}

/// Reads the constructors of failures: their remedy follows in the same expression, or soon after.
fn add_failures(all: &mut Remedies, path: &Path, code: &str) {
    let makers = makers_of_failures(path).iter();
    for rest in makers.flat_map(|maker| code.split(maker).skip(1)) {
        let Some(id) = id_of(&arguments(rest)) else {
            continue;
        };
        let near: String = rest.chars().take(700).collect();
        let Some((_, remedy)) = near.split_once("remedy") else {
            all.without.push(format!("{id} in {}", path.display()));
            continue;
        };
        let given = remedy.strip_prefix('(').map(arguments).unwrap_or_default();
        all.add(&id, &given);
    }
}

/// Reads failed items of `check`, and the tables and words in the folders of failures: the last argument is the remedy.
fn add_last_arguments(all: &mut Remedies, start: &str, code: &str) {
    for rest in code.split(start).skip(1) {
        let given = arguments(rest);
        if let Some(id) = id_of(&given) {
            all.add(&id, given.split_at(given.len() - 1).1);
        }
    }
}

/// Returns the literal with which the first argument begins.
fn id_of(arguments: &[(&str, Vec<String>)]) -> Option<String> {
    let (code, literals) = arguments.first()?;
    let is_literal = code.trim_start_matches('(').starts_with('"');
    literals.first().filter(|_| is_literal).cloned()
}

/// Reads the arms of `id` and `remedy` of a part of `SetupError`.
fn add_setup(all: &mut Remedies, code: &str) {
    let arms = |function: &str| {
        let (_, body) = code.split_once(function).expect("a function");
        let (body, _) = body.split_once("\n    }\n").expect("its end");
        let arms = body.split("\n            Self::").skip(1);
        arms.map(|arm| {
            let name = arm.split(|char: char| !char.is_alphanumeric()).next();
            (name.unwrap_or_default().to_owned(), arm.to_owned())
        })
        .collect::<Vec<_>>()
    };
    let remedies = arms("fn remedy(&self)");
    for (name, arm) in arms("fn id(&self)") {
        let id = arm.split('"').nth(1).expect("an id").to_owned();
        let of_name = remedies.iter().filter(|(of, _)| *of == name);
        let found: Vec<_> = of_name.collect();
        assert!(!found.is_empty(), "{name} has no remedy");
        for (_, arm) in found {
            let (_, arm) = arm.split_once("=>").expect("an arm");
            all.add(&id, &arguments(arm)[..1]);
        }
    }
}

#[test]
fn each_error_has_a_remedy_of_its_own() {
    let mut all = Remedies::default();
    for (path, code) in sources_of_errors() {
        add_failures(&mut all, &path, &code);
        if is_of_failures(&path) {
            add_last_arguments(&mut all, "=> (", &code);
            add_last_arguments(&mut all, " of(", &code);
        }
        add_last_arguments(&mut all, "Check::fail(", &code);
        if is_of_setup(&path) {
            add_setup(&mut all, &code);
        }
    }
    assert!(all.without.is_empty(), "no remedy: {:#?}", all.without);
    let shared: BTreeMap<_, _> = all.ids.iter().filter(|(_, ids)| ids.len() > 1).collect();
    let allowed: BTreeSet<BTreeSet<String>> = SHARED
        .iter()
        .map(|(ids, _)| ids.iter().map(|id| (*id).to_owned()).collect())
        .collect();
    let found: BTreeSet<BTreeSet<String>> = shared.values().map(|ids| (*ids).clone()).collect();
    assert_eq!(found, allowed, "{shared:#?}");
    for (remedy, ids) in &all.ids {
        assert!(!GENERIC.contains(&remedy.as_str()), "{ids:?}: {remedy}");
    }
    // Errors of the configuration name file, line and key, and most of them how the value is written.
    let missing: Vec<String> = ids_of_the_code()
        .into_iter()
        .filter(|id| !id.starts_with("config-") && !all.with.contains(id))
        .collect();
    assert!(missing.is_empty(), "no remedy is found of {missing:?}");
}
