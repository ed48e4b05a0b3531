//! The rules that give each setting its outcome: tables of names and rules, and code for settings
//! that depend on each other.

/// Builds `Rules` from lines `"pattern" => rule;` or `"name" => rule, absent …;`.
macro_rules! rules {
    ($($pattern:literal => $rule:expr $(, absent $absent:expr)?;)*) => {
        &[$(($pattern, $rule, rules!(@ $($absent)?))),*]
    };
    (@) => { $crate::rules::Absent::Nothing };
    (@ $absent:expr) => { $absent };
}

mod connector;
mod converters;
mod jaas;
mod producer;
mod router;
mod sinks;
mod source;

use crate::draft::quoted;
use crate::translation::Translation;

/// Gives every setting an outcome.
pub(crate) fn apply(translation: &mut Translation<'_>, tables: &[String]) {
    source::apply(translation, tables);
    router::apply(translation);
    converters::apply(translation);
    producer::apply(translation);
    connector::apply(translation);
}

/// The way by which a setting gets its outcome.
#[derive(Clone, Copy)]
enum Rule {
    /// Not needed: the reason.
    Ignore(&'static str),
    /// Not supported: the remedy.
    Unsupported(&'static str),
    /// Not supported, and without it records differ or events are missing: the remedy.
    Breaks(&'static str),
    /// As [`Rule::Breaks`] says, and no configuration can be written: the remedy, and the reason.
    Fatal(&'static str, &'static str),
    /// The value is copied into this section and key.
    Copy(&'static str, &'static str),
    /// The value, a secret, is copied into this key of `[sink.kafka]`; the variable that can
    /// replace it.
    Secret(&'static str, &'static str),
    /// Section, key, and the value that is written there.
    Set(&'static str, &'static str, &'static str),
    /// The rule for the value in lower case; the first matching pattern counts.
    When(Rules),
    /// The function gives the setting its outcome.
    Call(fn(&mut Translation<'_>, usize)),
}

/// The effect of a missing setting.
#[derive(Clone, Copy)]
enum Absent {
    /// No effect.
    Nothing,
    /// Writes Debezium's default, which is not walrelay's: section, key, value and comment.
    Write(&'static str, &'static str, &'static str, &'static str),
    /// Adds a note: the default, and what follows from it.
    Note(&'static str, &'static str),
    /// Adds an urgent note: the default, and what follows from it.
    Urgent(&'static str, &'static str),
    /// No configuration can be written: the reason.
    Fatal(&'static str),
}

/// Patterns of names (see [`matches`]), the rule of such a setting, and what happens if it is
/// missing. The first matching pattern counts.
type Rules = &'static [(&'static str, Rule, Absent)];

/// Returns true if a name matches a pattern: names separated by `|`, with `*` at one end for any
/// text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut patterns = pattern.split('|');
    patterns.any(
        |pattern| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
            (Some(end), _) => name.ends_with(end),
            (None, Some(start)) => name.starts_with(start),
            (None, None) => name == pattern,
        },
    )
}

fn rule(rules: Rules, name: &str) -> Option<Rule> {
    let mut rules = rules.iter();
    let (_, rule, _) = rules.find(|(pattern, ..)| matches(pattern, name))?;
    Some(*rule)
}

/// Returns the text of the first matching pattern.
fn lookup(texts: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    let mut texts = texts.iter();
    let (_, text) = texts.find(|(pattern, _)| matches(pattern, name))?;
    Some(text)
}

/// Returns the name of a Java class without its package.
fn short_name(class: &str) -> &str {
    class.rsplit('.').next().unwrap_or(class)
}

impl Rule {
    fn apply(self, translation: &mut Translation<'_>, number: usize) {
        match self {
            Self::Ignore(why) => translation.ignored(number, why),
            Self::Unsupported(remedy) => translation.unsupported(number, remedy),
            Self::Breaks(remedy) => translation.breaks(number, remedy),
            Self::Fatal(remedy, why) => {
                translation.breaks(number, remedy);
                translation.fatal(why);
            }
            Self::Copy(section, key) => translation.copy(number, section, key),
            Self::Secret(key, variable) => translation.copy_secret(number, key, variable),
            Self::Set(section, key, value) => {
                translation.write(section, key, literal(value), &[number], None);
            }
            // The text of a value with references is unknown: only `*` matches.
            Self::When(cases) => {
                let text = translation.text(number);
                let text = text.map_or("*".to_owned(), |text| text.to_ascii_lowercase());
                if let Some(rule) = rule(cases, &text) {
                    rule.apply(translation, number);
                }
            }
            Self::Call(settle) => settle(translation, number),
        }
    }
}

/// Writes the value in TOML: a boolean as such, any other value as a string.
fn literal(value: &str) -> String {
    match value {
        "true" | "false" => value.to_owned(),
        text => quoted(text),
    }
}

/// Applies rules to the settings whose names begin with `prefix`, in the order of the input.
fn apply_all(translation: &mut Translation<'_>, prefix: &str, rules: Rules) {
    for (number, name) in translation.below(prefix) {
        if let Some(rule) = rule(rules, &name) {
            rule.apply(translation, number);
        }
    }
}

/// Applies rules to single settings, in the order of the table.
fn apply_each(translation: &mut Translation<'_>, rules: Rules) {
    for (name, rule, absent) in rules {
        if let Some(number) = translation.find(name) {
            rule.apply(translation, number);
            continue;
        }
        match absent {
            Absent::Nothing => {}
            Absent::Write(section, key, value, comment) => {
                translation.write(section, key, literal(value), &[], Some(comment));
            }
            Absent::Note(why, what) => translation.note(name, format!("{why}{what}"), false),
            Absent::Urgent(why, what) => translation.note(name, format!("{why}{what}"), true),
            Absent::Fatal(why) => translation.fatal(*why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rule_hides_another() {
        for rules in [connector::RULES, producer::PROPERTIES, producer::SINK] {
            for (at, (patterns, ..)) in rules.iter().enumerate() {
                for pattern in patterns.split('|') {
                    let name = pattern.trim_end_matches('*');
                    let first = rules.iter().position(|(other, ..)| matches(other, name));
                    assert_eq!(first, Some(at), "{pattern}");
                }
            }
        }
    }
}
