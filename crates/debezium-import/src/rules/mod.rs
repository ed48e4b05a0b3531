//! What becomes of each setting: tables of names and rules, and code where settings depend on each
//! other.

/// Tables as text: `"pattern" => rule;` or `"name" => rule, absent …;`.
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
mod source;

use crate::draft::quoted;
use crate::translation::Translation;

/// Settles every setting.
pub(crate) fn apply(translation: &mut Translation<'_>, tables: &[String]) {
    source::apply(translation, tables);
    router::apply(translation);
    converters::apply(translation);
    producer::apply(translation);
    connector::apply(translation);
}

/// What becomes of a setting.
#[derive(Clone, Copy)]
enum Rule {
    /// walrelay has no use for it, and why.
    Ignore(&'static str),
    /// Not supported, and what to do instead.
    Unsupported(&'static str),
    /// Not supported, and records would be others, or events missing, without it.
    Breaks(&'static str),
    /// [`Rule::Breaks`], and why there can be no configuration at all.
    Fatal(&'static str, &'static str),
    /// The value goes into this section and key.
    Copy(&'static str, &'static str),
    /// The same with a secret, into `[sink.kafka]`; the variable that stands for it.
    Secret(&'static str, &'static str),
    /// This value goes into this section and key.
    Set(&'static str, &'static str, &'static str),
    /// By the value in lower case; the first pattern that fits counts.
    When(Rules),
    /// Whatever the function makes of it.
    Call(fn(&mut Translation<'_>, usize)),
}

/// What the lack of a setting means.
#[derive(Clone, Copy)]
enum Absent {
    /// Nothing.
    Nothing,
    /// Debezium's default, which is not walrelay's: section, key, value and comment.
    Write(&'static str, &'static str, &'static str, &'static str),
    /// Something to know: the default, and what follows from it.
    Note(&'static str, &'static str),
    /// The same, to look at before walrelay takes over.
    Urgent(&'static str, &'static str),
    /// There can be no configuration.
    Fatal(&'static str),
}

/// Patterns of names, see [`matches`], and what becomes of such a setting; the first that fits
/// counts.
type Rules = &'static [(&'static str, Rule, Absent)];

/// Whether a name fits a pattern: names separated by `|`, where `*` at one end stands for any text.
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

/// The text of the first pattern that fits.
fn lookup(texts: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    let mut texts = texts.iter();
    let (_, text) = texts.find(|(pattern, _)| matches(pattern, name))?;
    Some(text)
}

/// Of a Java class.
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
            // A value that has to be put in is unknown: only `*` fits.
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

/// Truth values as such, all else as text.
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

/// Applies rules of single settings in the order of the table.
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
