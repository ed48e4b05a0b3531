//! The state of a translation. The first outcome of a setting counts; later ones are ignored.

use std::collections::BTreeMap;
use std::mem;

use crate::draft::{Draft, Line, quoted};
use crate::input::{Input, OUTSIDE_CONFIG, Program, Setting, Value};
use crate::report::{Note, Outcome, Report, Row, Variable};
use crate::{ConfigCheck, Imported, Problem};

/// The input, the outcomes and the configuration. A setting is identified by its number in the
/// input.
pub(crate) struct Translation<'a> {
    pub(crate) program: Program,
    pub(crate) with_secrets: bool,
    pub(crate) draft: Draft,
    config: &'a dyn ConfigCheck,
    settings: Vec<Setting>,
    outcomes: Vec<Option<Outcome>>,
    notes: Vec<Note>,
    variables: Vec<Variable>,
    /// The reasons why no configuration can be written.
    fatal: Vec<String>,
}

impl<'a> Translation<'a> {
    pub(crate) fn new(input: Input, with_secrets: bool, config: &'a dyn ConfigCheck) -> Self {
        let mut translation = Self {
            program: input.program,
            with_secrets,
            draft: Draft::default(),
            config,
            outcomes: input.settings.iter().map(|_| None).collect(),
            settings: input.settings,
            notes: Vec::new(),
            variables: Vec::new(),
            fatal: Vec::new(),
        };
        for number in 0..translation.settings.len() {
            if let Some(why) = translation.overridden(number) {
                translation.ignored(number, why);
            }
        }
        translation
    }

    /// Returns the reason why another setting of the same name overrides this one. The last setting
    /// overrides earlier ones, and the connector's override the worker's. A null setting is treated
    /// as missing.
    fn overridden(&self, number: usize) -> Option<&'static str> {
        let setting = &self.settings[number];
        if setting.value.is_none() {
            let null = !setting.name.starts_with(OUTSIDE_CONFIG);
            return null.then_some("it is null, which is as if it were not there");
        }
        let same = |other: &Setting| other.name == setting.name && other.value.is_some();
        let own = |other: &Setting| other.file.is_none() && same(other);
        if setting.file.is_some() && self.settings.iter().any(own) {
            return Some("the connector's own setting goes before the worker's");
        }
        let mut later = self.settings[number + 1..].iter();
        let again = later.any(|other| other.file == setting.file && same(other));
        again.then_some("it is set again further down, and the last one counts")
    }

    /// Returns the number of the setting of this name, if it has no outcome yet.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.open()
            .find(|number| self.settings[*number].name == name)
    }

    fn open(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.settings.len()).filter(|number| self.outcomes[*number].is_none())
    }

    /// Returns the settings without an outcome whose names begin with `prefix`: their numbers, and
    /// the rest of the names.
    pub(crate) fn below(&self, prefix: &str) -> Vec<(usize, String)> {
        let rest = |number: usize| self.settings[number].name.strip_prefix(prefix);
        let below = self
            .open()
            .filter_map(|number| Some((number, rest(number)?.to_owned())));
        below.collect()
    }

    pub(crate) fn is_of_worker(&self, number: usize) -> bool {
        self.settings[number].file.is_some()
    }

    /// Returns the value of a setting. Null settings have an outcome from the start, so the text is
    /// not used.
    pub(crate) fn value(&self, number: usize) -> Value {
        let value = self.settings[number].value.clone();
        value.unwrap_or_else(|| Value::literal(""))
    }

    /// Returns the trimmed value, if it contains no reference.
    pub(crate) fn text(&self, number: usize) -> Option<String> {
        let value = self.settings[number].value.as_ref()?;
        Some(value.text()?.trim().to_owned())
    }

    /// Returns the trimmed value of the setting of this name; empty if it is missing.
    pub(crate) fn text_of(&self, name: &str) -> String {
        let text = self.find(name).and_then(|number| self.text(number));
        text.unwrap_or_default()
    }

    /// Returns the trimmed value in lower case, for enumerations and booleans.
    pub(crate) fn word(&self, number: usize) -> String {
        self.text(number).unwrap_or_default().to_ascii_lowercase()
    }

    pub(crate) fn ignored(&mut self, number: usize, why: impl Into<String>) {
        let why = why.into();
        self.outcomes[number].get_or_insert(Outcome::NoEffect { why });
    }

    pub(crate) fn unsupported(&mut self, number: usize, remedy: impl Into<String>) {
        let (remedy, breaks) = (remedy.into(), false);
        self.outcomes[number].get_or_insert(Outcome::NotSupported { remedy, breaks });
    }

    /// Sets the outcome "not supported": without the setting, records differ or events are missing.
    pub(crate) fn breaks(&mut self, number: usize, remedy: impl Into<String>) {
        let (remedy, breaks) = (remedy.into(), true);
        self.outcomes[number].get_or_insert(Outcome::NotSupported { remedy, breaks });
    }

    /// Sets the outcome "taken over" into this key, and perhaps into others.
    pub(crate) fn taken(&mut self, number: usize, key: &str, remark: Option<&str>) {
        let outcome = self.outcomes[number].get_or_insert_with(|| Outcome::TakenOver {
            to: Vec::new(),
            remark: None,
        });
        if let Outcome::TakenOver { to, remark: before } = outcome {
            if !to.iter().any(|known| known == key) {
                to.push(key.to_owned());
            }
            if before.is_none() {
                *before = remark.map(str::to_owned);
            }
        }
    }

    /// Writes a line for these settings; `value` is TOML. Without settings the remark becomes
    /// the line's comment.
    pub(crate) fn write(
        &mut self,
        section: &'static str,
        key: &str,
        value: String,
        settings: &[usize],
        remark: Option<&str>,
    ) {
        let path = format!("{section}.{key}");
        if self.draft.has(section, key) {
            let why = "is written already, from another setting: see which of them counts";
            for &number in settings {
                self.unsupported(number, format!("{path} {why}"));
            }
            return;
        }
        for &number in settings {
            self.taken(number, &path, remark);
        }
        let comment = remark.filter(|_| settings.is_empty());
        self.draft.lines.push(Line {
            section,
            key: key.to_owned(),
            value,
            comment: comment.map(str::to_owned),
            settings: settings.to_vec(),
            redundant: None,
        });
    }

    /// Copies the value as text. A property that librdkafka refuses becomes unsupported.
    pub(crate) fn copy(&mut self, number: usize, section: &'static str, key: &str) {
        let value = self.value(number);
        if section == "sink.kafka"
            && let Some(text) = value.text()
            && let Some(why) = self.config.refused_property(key, text.trim())
        {
            self.unsupported(number, why);
            return;
        }
        let value = self.configured(&value);
        self.write(section, key, value, &[number], None);
    }

    /// Copies a secret, see [`Self::secret`].
    pub(crate) fn copy_secret(&mut self, number: usize, key: &str, fallback: &str) {
        let value = self.secret(number, fallback);
        let value = self.configured(&value);
        self.write("sink.kafka", key, value, &[number], None);
    }

    /// Writes the value as a string of TOML; notes the environment variables in it.
    pub(crate) fn configured(&mut self, value: &Value) -> String {
        self.variables_of(value);
        quoted(&value.configured())
    }

    /// Writes a boolean as such, any other value as a string of TOML.
    pub(crate) fn scalar(&mut self, value: &Value) -> String {
        match value.text().map(|text| text.trim().to_ascii_lowercase()) {
            Some(word) if word == "true" || word == "false" => word,
            _ => self.configured(value),
        }
    }

    pub(crate) fn variables_of(&mut self, value: &Value) {
        for variable in value.references() {
            let mut known = self.variables.iter_mut();
            match known.find(|known| known.name == variable.name) {
                Some(known) => known.remark = known.remark.or(variable.remark),
                None => self.variables.push(variable.clone()),
            }
        }
    }

    /// Returns a secret as the variable that the input names, else as the variable `fallback`. With
    /// [`Options::with_secrets`](crate::Options::with_secrets), the secret itself.
    pub(crate) fn secret(&self, number: usize, fallback: &str) -> Value {
        let value = self.value(number);
        match value.text() {
            Some(_) if self.with_secrets => value,
            None if value.is_plain() => value,
            _ => Value::variable(fallback),
        }
    }

    pub(crate) fn note(&mut self, about: &str, text: impl Into<String>, urgent: bool) {
        self.notes.push(Note {
            about: about.to_owned(),
            text: text.into(),
            urgent,
        });
    }

    /// Adds a reason why no configuration can be written.
    pub(crate) fn fatal(&mut self, why: impl Into<String>) {
        self.fatal.push(why.into());
    }

    /// Validates the draft by walrelay's own configuration. Removes the lines that it refuses, and
    /// reports their settings as not supported.
    pub(crate) fn check(&mut self) {
        loop {
            let (toml, entries) = self.draft.render();
            let problems = match self.config.read(&toml) {
                Ok(warnings) => {
                    for warning in warnings {
                        self.note(warning.about, warning.text, true);
                    }
                    return;
                }
                Err(problems) => problems,
            };
            let mut refused = BTreeMap::new();
            let mut without_line = Vec::new();
            for Problem { line, why } in problems {
                let entry = line.and_then(|line| *entries.get(line.checked_sub(1)?)?);
                if let Some(number) = entry {
                    refused.entry(number).or_insert(why);
                } else {
                    without_line.push(why);
                }
            }
            if refused.is_empty() {
                // The rules have reported what is missing where they looked for it.
                self.fatal.extend(without_line);
                return;
            }
            let lines = mem::take(&mut self.draft.lines);
            for (number, line) in lines.into_iter().enumerate() {
                match refused.get(&number) {
                    Some(why) => self.refuse(&line, why),
                    None => self.draft.lines.push(line),
                }
            }
        }
    }

    fn refuse(&mut self, line: &Line, why: &str) {
        if line.settings.is_empty() {
            self.fatal(format!("{}.{}: {why}", line.section, line.key));
        }
        for &number in &line.settings {
            if matches!(self.outcomes[number], Some(Outcome::TakenOver { .. })) {
                self.outcomes[number] = Some(match line.redundant {
                    Some(why) => Outcome::NoEffect { why: why.into() },
                    None => Outcome::NotSupported {
                        remedy: why.to_owned(),
                        breaks: line.affects_records(),
                    },
                });
            }
        }
    }

    /// Returns the result, with the lines of the draft as its TOML.
    pub(crate) fn finish(self) -> Imported {
        let unknown = || Outcome::NotSupported {
            remedy: UNKNOWN.to_owned(),
            breaks: false,
        };
        let rows = self.settings.into_iter().zip(self.outcomes);
        let rows = rows.map(|(setting, outcome)| Row {
            key: setting.key,
            file: setting.file,
            line: setting.line,
            outcome: outcome.unwrap_or_else(unknown),
        });
        let server = self.program == Program::Server;
        let report = Report {
            kind: if server { "server" } else { "connect" },
            rows: rows.collect(),
            notes: self.notes,
            variables: self.variables,
        };
        Imported {
            toml: self.draft.render().0,
            report,
            fatal: self.fatal,
        }
    }
}

/// The remedy of a setting that no rule knows.
const UNKNOWN: &str = "no known option of Debezium, Kafka Connect or the producer; find out its \
    purpose, and whether walrelay needs an equivalent";
