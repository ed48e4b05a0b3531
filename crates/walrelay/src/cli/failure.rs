//! Failures that end a command, and how they are printed.

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};

use crate::config::ConfigError;

use super::exit::Exit;

/// A failure that ends a command: what is wrong, why, what to do, and the exit code.
///
/// `what` and `remedy` name things, never secrets and never row values.
#[derive(Debug)]
pub struct Failure {
    /// A stable name to search for, in lower case with hyphens.
    pub id: &'static str,
    /// How the program ends.
    pub exit: Exit,
    /// What is wrong, without a full stop. Further lines may show where.
    pub what: String,
    /// What led to it. Boxed and not flattened: all causes are shown.
    pub source: Option<Box<dyn Error + Send + Sync>>,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Failure {
    /// A failure without cause and remedy.
    pub fn new(id: &'static str, exit: Exit, what: impl Into<String>) -> Self {
        Self {
            id,
            exit,
            what: what.into(),
            source: None,
            remedy: None,
        }
    }

    /// With its cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// With what to do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Prints the failure:
    ///
    /// ```text
    /// error: cannot read the configuration file [config-file]
    ///   cause: No such file or directory (os error 2)
    /// help: name another one with --config FILE
    /// ```
    pub fn render(&self, out: &mut dyn Write, colours: bool) -> io::Result<()> {
        let paint = |code: &str, text: &str| {
            if colours {
                format!("\u{1b}[{code}m{text}\u{1b}[0m")
            } else {
                text.to_owned()
            }
        };
        let what = printable(&self.what);
        let (first, more) = match what.split_once('\n') {
            Some((first, more)) => (first, Some(more)),
            None => (what.as_str(), None),
        };
        let id = paint("2", &format!("[{}]", self.id));
        writeln!(out, "{}: {first} {id}", paint("1;31", "error"))?;
        if let Some(more) = more {
            writeln!(out, "{more}")?;
        }
        let mut cause = Error::source(self);
        let mut before = what;
        while let Some(error) = cause {
            let text = printable(&error.to_string());
            // Transparent errors, and some sources, repeat the text of the error above.
            if !before.contains(&text) {
                writeln!(out, "  {}: {text}", paint("33", "cause"))?;
            }
            before = text;
            cause = error.source();
        }
        if let Some(remedy) = &self.remedy {
            writeln!(out, "{}: {}", paint("1;32", "help"), printable(remedy))?;
        }
        Ok(())
    }
}

/// Texts of servers and files may contain control characters, which a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    let safe = |c: char| match c {
        '\n' => '\n',
        c if c.is_control() => ' ',
        c => c,
    };
    text.trim_end().chars().map(safe).collect()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn Error + 'static))
    }
}

/// A configuration may be wrong in several places: one failure for each, in order.
impl From<ConfigError> for Vec<Failure> {
    fn from(error: ConfigError) -> Self {
        error
            .into_problems()
            .into_iter()
            .map(|mut problem| Failure {
                id: problem.id,
                exit: Exit::Config,
                remedy: problem.help.take(),
                what: problem.to_string(),
                source: problem.source.map(Into::into),
            })
            .collect()
    }
}

/// Whether output may be coloured: to a terminal, unless `NO_COLOR` is set
/// (<https://no-color.org>: present and not empty).
pub fn colours(terminal: bool, env: &dyn Fn(&str) -> Option<String>) -> bool {
    let refused = env("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = env("TERM").is_some_and(|value| value == "dumb");
    terminal && !refused && !dumb
}

/// Writes failures to standard error and gives the exit code of the first.
pub fn report(failures: &[Failure], env: &dyn Fn(&str) -> Option<String>) -> Exit {
    let stderr = io::stderr();
    let colours = colours(stderr.is_terminal(), env);
    let mut out = stderr.lock();
    for failure in failures {
        // Standard error may be closed.
        let _ = failure.render(&mut out, colours);
    }
    failures.first().map_or(Exit::Ok, |failure| failure.exit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    fn rendered(failure: &Failure, colours: bool) -> String {
        let mut out = Vec::new();
        failure.render(&mut out, colours).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_causes_remedy_and_id_are_shown() {
        let failure = Failure::new("sink-unreachable", Exit::Unavailable, "no broker answers")
            .caused_by(Outer(io::Error::other("inner")))
            .remedy("check bootstrap.servers");
        assert_eq!(
            rendered(&failure, false),
            "error: no broker answers [sink-unreachable]\n  cause: outer\n  cause: inner\n\
             help: check bootstrap.servers\n"
        );
        assert!(rendered(&failure, true).starts_with("\u{1b}[1;31merror\u{1b}[0m: no broker"));
    }

    #[test]
    fn repeated_causes_and_control_characters_are_left_out() {
        let failure = Failure::new("x", Exit::Internal, "it\u{1b}[31m failed: inner\nmore\n")
            .caused_by(io::Error::other("inner"));
        assert_eq!(
            rendered(&failure, false),
            "error: it [31m failed: inner [x]\nmore\n"
        );
    }

    #[test]
    fn every_problem_of_a_configuration_is_a_failure_of_its_own() {
        let text = "[source]\nurl = \"postgres://db/app\"\ntables = [\"a.b\"]\nslto = \"x\"\n";
        let error = Config::parse(text, "walrelay.toml", &[], &|_| None).unwrap_err();
        let failures: Vec<Failure> = error.into();
        let shown: Vec<String> = failures.iter().map(|f| rendered(f, false)).collect();
        assert_eq!(
            shown,
            [
                "error: walrelay.toml:4:1: unknown key `source.slto` [config-unknown-key]\n  \
                 4 | slto = …\n    | ^^^^\nhelp: did you mean `source.slot`?\n",
                "error: walrelay.toml: missing key `sink.kafka.bootstrap.servers` \
                 [config-missing-key]\nhelp: add to [sink.kafka]: \"bootstrap.servers\" = \
                 \"localhost:9092\"\n",
            ]
        );
        assert!(failures.iter().all(|failure| failure.exit == Exit::Config));
    }

    #[test]
    fn no_colours_unless_a_terminal_wants_them() {
        let with = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then(|| value.to_owned())
        };
        assert!(colours(true, &|_| None));
        assert!(!colours(false, &|_| None));
        assert!(!colours(true, &with("NO_COLOR", "1")));
        assert!(colours(true, &with("NO_COLOR", "")));
        assert!(!colours(true, &with("TERM", "dumb")));
    }
}
