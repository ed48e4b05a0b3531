//! The import while it goes on: each setting is settled once.

use super::draft::{Draft, Line, Refused, Toml};
use super::report::{Note, Outcome, Report, Row};
use super::settings::{Input, Kind, Setting};
use super::value::Value;

/// What was read, what has become of it, and what has been written.
pub(super) struct Import {
    pub(super) kind: Kind,
    pub(super) with_secrets: bool,
    pub(super) draft: Draft,
    settings: Vec<Setting>,
    outcomes: Vec<Option<Outcome>>,
    notes: Vec<Note>,
    variables: Vec<(String, Option<&'static str>)>,
    /// Why there can be no configuration at all.
    fatal: Vec<String>,
}

impl Import {
    pub(super) fn new(input: Input, with_secrets: bool) -> Self {
        let mut import = Self {
            kind: input.kind,
            with_secrets,
            draft: Draft::default(),
            outcomes: input.settings.iter().map(|_| None).collect(),
            settings: input.settings,
            notes: Vec::new(),
            variables: Vec::new(),
            fatal: Vec::new(),
        };
        import.settle_overridden();
        import
    }

    /// Of settings of one name the last counts, those of the connector before the worker's. Null
    /// is as if it were not there.
    fn settle_overridden(&mut self) {
        for number in 0..self.settings.len() {
            let setting = &self.settings[number];
            let same = |other: &Setting| other.name == setting.name && other.value.is_some();
            if setting.value.is_none() {
                if !setting.name.starts_with(super::settings::BESIDE) {
                    self.none(number, "it is null, which is as if it were not there");
                }
            } else if setting.file.is_some() {
                let own = self.settings.iter().any(|o| o.file.is_none() && same(o));
                if own {
                    self.none(
                        number,
                        "the connector's own setting goes before the worker's",
                    );
                } else if self.settings[number + 1..].iter().any(same) {
                    self.none(
                        number,
                        "it is set again further down, and the last one counts",
                    );
                }
            } else if self.settings[number + 1..]
                .iter()
                .any(|other| other.file.is_none() && same(other))
            {
                self.none(
                    number,
                    "it is set again further down, and the last one counts",
                );
            }
        }
    }

    /// The setting of this name, unless it is settled.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.open()
            .find(|number| self.settings[*number].name == name)
    }

    /// All settings that are not settled.
    pub(super) fn open(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.settings.len()).filter(|number| self.outcomes[*number].is_none())
    }

    /// Those of them whose names begin so, with the rest of the name.
    pub(super) fn below(&self, prefix: &str) -> Vec<(usize, String)> {
        self.open()
            .filter_map(|number| {
                let rest = self.settings[number].name.strip_prefix(prefix)?;
                Some((number, rest.to_owned()))
            })
            .collect()
    }

    pub(super) fn name(&self, number: usize) -> &str {
        &self.settings[number].name
    }

    pub(super) fn of_worker(&self, number: usize) -> bool {
        self.settings[number].file.is_some()
    }

    /// Null was settled before anybody could ask.
    pub(super) fn value(&self, number: usize) -> Value {
        self.settings[number]
            .value
            .clone()
            .unwrap_or_else(|| Value::literal(""))
    }

    /// The value, trimmed, if nothing has to be put in.
    pub(super) fn text(&self, number: usize) -> Option<String> {
        let value = self.settings[number].value.as_ref()?;
        value.text().map(|text| text.trim().to_owned())
    }

    /// The value in lower case, for enumerations and truth values.
    pub(super) fn word(&self, number: usize) -> String {
        self.text(number).unwrap_or_default().to_ascii_lowercase()
    }

    /// What becomes of a setting; only the first word counts.
    fn settle(&mut self, number: usize, outcome: Outcome) {
        if self.outcomes[number].is_none() {
            self.outcomes[number] = Some(outcome);
        }
    }

    pub(super) fn none(&mut self, number: usize, why: impl Into<String>) {
        self.settle(number, Outcome::NoEffect { why: why.into() });
    }

    pub(super) fn unsupported(&mut self, number: usize, remedy: impl Into<String>) {
        let remedy = remedy.into();
        let breaks = false;
        self.settle(number, Outcome::Unsupported { remedy, breaks });
    }

    /// Not supported, and records would be others, or events missing, without it.
    pub(super) fn breaks(&mut self, number: usize, remedy: impl Into<String>) {
        let remedy = remedy.into();
        let breaks = true;
        self.settle(number, Outcome::Unsupported { remedy, breaks });
    }

    /// It went into these keys.
    pub(super) fn taken(&mut self, number: usize, key: &str, remark: Option<&str>) {
        match &mut self.outcomes[number] {
            Some(Outcome::Taken { to, remark: before }) => {
                if !to.iter().any(|known| known == key) {
                    to.push(key.to_owned());
                }
                if before.is_none() {
                    *before = remark.map(str::to_owned);
                }
            }
            Some(_) => {}
            slot @ None => {
                *slot = Some(Outcome::Taken {
                    to: vec![key.to_owned()],
                    remark: remark.map(str::to_owned),
                });
            }
        }
    }

    /// Writes a line that settings are taken over into.
    pub(super) fn line(
        &mut self,
        section: &'static str,
        key: &str,
        value: Toml,
        from: &[usize],
        refused: Refused,
    ) {
        self.line_with(section, key, value, from, refused, None);
    }

    /// The same with a remark for the report.
    pub(super) fn line_with(
        &mut self,
        section: &'static str,
        key: &str,
        value: Toml,
        from: &[usize],
        refused: Refused,
        remark: Option<&str>,
    ) {
        if self.draft.has(section, key) {
            for number in from {
                let why = format!(
                    "{section}.{key} is written already, from another setting: see which of them \
                     counts"
                );
                self.unsupported(*number, why);
            }
            return;
        }
        for number in from {
            self.taken(*number, &format!("{section}.{key}"), remark);
        }
        self.draft.add(Line {
            section,
            key: key.to_owned(),
            value,
            comment: None,
            from: from.to_vec(),
            refused,
        });
    }

    /// Writes a line that no setting asks for.
    pub(super) fn line_of_default(
        &mut self,
        section: &'static str,
        key: &str,
        value: Toml,
        comment: &str,
    ) {
        self.draft.add(Line {
            section,
            key: key.to_owned(),
            value,
            comment: Some(comment.to_owned()),
            from: Vec::new(),
            refused: Refused::Breaks,
        });
    }

    /// As a string of the configuration; its variables are noted.
    pub(super) fn configured(&mut self, value: &Value) -> Toml {
        self.variables_of(value);
        Toml::Text(value.configured())
    }

    pub(super) fn variables_of(&mut self, value: &Value) {
        for reference in value.references() {
            let found = self
                .variables
                .iter_mut()
                .find(|v| v.0 == reference.variable);
            match found {
                Some(known) => known.1 = known.1.or(reference.remark),
                None => self
                    .variables
                    .push((reference.variable.clone(), reference.remark)),
            }
        }
    }

    /// What stands for a secret: the variable that the input names itself, or else `fallback`; the
    /// secret itself only where somebody asked for it.
    pub(super) fn secret(&self, number: usize, fallback: &str) -> Value {
        let value = self.value(number);
        let literal = value.text().is_some();
        let plain = value
            .references()
            .all(|reference| reference.remark.is_none());
        if (literal && self.with_secrets) || (!literal && plain) {
            value
        } else {
            Value::variable(fallback)
        }
    }

    pub(super) fn note(&mut self, about: &str, text: impl Into<String>) {
        self.add_note(about, text.into(), false);
    }

    /// What somebody has to look at before walrelay takes over.
    pub(super) fn urgent(&mut self, about: &str, text: impl Into<String>) {
        self.add_note(about, text.into(), true);
    }

    fn add_note(&mut self, about: &str, text: String, urgent: bool) {
        self.notes.push(Note {
            about: about.to_owned(),
            text,
            urgent,
        });
    }

    /// There can be no configuration.
    pub(super) fn fatal(&mut self, why: impl Into<String>) {
        self.fatal.push(why.into());
    }

    /// walrelay refused this line.
    pub(super) fn refused(&mut self, line: &Line, why: &str) {
        let path = line.path();
        for number in &line.from {
            let mut to = match self.outcomes[*number].take() {
                Some(Outcome::Taken { to, .. }) => to,
                other => {
                    self.outcomes[*number] = other;
                    continue;
                }
            };
            to.retain(|key| *key != path);
            match &line.refused {
                Refused::Breaks => self.breaks(*number, why),
                Refused::Soft => self.unsupported(*number, why),
                Refused::Harmless(reason) if to.is_empty() => self.none(*number, reason.clone()),
                Refused::Harmless(_) => {
                    let remark = None;
                    self.settle(*number, Outcome::Taken { to, remark });
                }
            }
        }
        if line.from.is_empty() {
            match &line.refused {
                Refused::Harmless(_) => {}
                Refused::Soft => {
                    let what = line.comment.as_deref().unwrap_or_default();
                    self.urgent(&path, format!("not written, for {why}; {what}"));
                }
                Refused::Breaks => self.fatal(format!("{path}: {why}")),
            }
        }
    }

    /// The report, and why there can be no configuration.
    pub(super) fn finish(self) -> (Draft, Report, Vec<String>) {
        let rows = self.settings.into_iter().zip(self.outcomes);
        let rows = rows.map(|(setting, outcome)| Row {
            key: setting.key,
            file: setting.file,
            line: setting.line,
            outcome: outcome.unwrap_or_else(|| Outcome::Unsupported {
                remedy: UNKNOWN.to_owned(),
                breaks: false,
            }),
        });
        let report = Report {
            kind: match self.kind {
                Kind::Connect => "connect",
                Kind::Server => "server",
            },
            rows: rows.collect(),
            notes: self.notes,
            variables: self.variables,
        };
        (self.draft, report, self.fatal)
    }
}

/// Of a setting that nobody has heard of.
pub(super) const UNKNOWN: &str = "no option of Debezium, Kafka Connect or the producer that is known here; see what it does, and \
     whether walrelay needs an equivalent";
