//! Failures that end a command, and how they are printed.

use std::error::Error;
use std::io::{self, IsTerminal, Write};

use serde_json::json;
use walrelay_observe::{colours, printable_lines};

use crate::config::{ConfigError, Problem};

use super::exit::Exit;

/// A failure that ends a command: what is wrong, why, what to do, and the exit code.
///
/// `what` and `remedy` contain names of things, never secrets or row values.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Failure {
    /// A stable id to search for, in lower case with hyphens.
    pub id: &'static str,
    /// The exit code of the program.
    pub exit: Exit,
    /// The cause, without a full stop. Further lines may show where.
    pub what: String,
    /// The cause. Its own chain of sources is printed, too.
    pub source: Option<Box<dyn Error + Send + Sync>>,
    /// The remedy for the operator.
    pub remedy: Option<String>,
}

/// Returns the text in a colour or style (SGR of ECMA-48), if there are colours.
pub(crate) fn paint(colours: bool, code: &str, text: &str) -> String {
    if colours {
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

impl Failure {
    /// Creates a failure without cause and remedy.
    pub fn new(id: &'static str, exit: Exit, what: impl Into<String>) -> Self {
        Self {
            id,
            exit,
            what: what.into(),
            source: None,
            remedy: None,
        }
    }

    /// Sets the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Returns what is wrong and the causes, the outer first, on one line.
    pub(crate) fn finding(&self) -> String {
        let mut parts = vec![self.what.clone()];
        parts.extend(self.causes());
        let lines = parts.iter().flat_map(|part| part.lines()).map(str::trim);
        lines.collect::<Vec<_>>().join(": ")
    }

    /// Returns the causes, the outer first.
    fn causes(&self) -> Vec<String> {
        let mut causes = Vec::new();
        let mut cause = Error::source(self);
        let mut before = self.what.clone();
        while let Some(error) = cause {
            let text = error.to_string();
            // Transparent errors, and some sources, repeat the text of the error above.
            if !before.contains(&text) {
                causes.push(text.clone());
            }
            before = text;
            cause = error.source();
        }
        causes
    }

    /// Logs the failure as one line.
    fn log(&self) {
        tracing::error!(
            id = self.id,
            exit_code = self.exit.code(),
            causes = json!(self.causes()).to_string(),
            remedy = self.remedy,
            "{}",
            self.what.trim_end()
        );
    }

    /// Prints the failure:
    ///
    /// ```text
    /// error: cannot read the configuration file [config-file]
    ///   cause: No such file or directory (os error 2)
    /// help: name another one with --config FILE
    /// ```
    pub fn render(&self, out: &mut dyn Write, colours: bool) -> io::Result<()> {
        let paint = |code: &str, text: &str| paint(colours, code, text);
        let what = printable_lines(&self.what);
        let mut lines = what.lines();
        let first = lines.next().unwrap_or_default();
        let id = paint("2", &format!("[{}]", self.id));
        writeln!(out, "{}: {first} {id}", paint("1;31", "error"))?;
        for line in lines {
            writeln!(out, "{line}")?;
        }
        for text in self.causes() {
            let text = printable_lines(&text);
            writeln!(out, "  {}: {text}", paint("33", "cause"))?;
        }
        if let Some(remedy) = &self.remedy {
            writeln!(
                out,
                "{}: {}",
                paint("1;32", "help"),
                printable_lines(remedy)
            )?;
        }
        Ok(())
    }
}

impl Failure {
    /// Creates one failure for each problem of the configuration, in order.
    pub(crate) fn from_config(error: ConfigError) -> Vec<Self> {
        let problems = error.into_problems().into_iter();
        let failure = |mut problem: Problem| Self {
            id: problem.id,
            exit: Exit::Config,
            remedy: problem.help.take(),
            what: problem.to_string(),
            source: problem.source.map(Into::into),
        };
        problems.map(failure).collect()
    }
}

/// Writes failures to standard error and returns the exit code of the first.
pub fn report(failures: &[Failure], env: &dyn Fn(&str) -> Option<String>) -> Exit {
    let stderr = io::stderr();
    let colours = colours(stderr.is_terminal(), env);
    let mut out = stderr.lock();
    for failure in failures {
        // Writing fails if standard error is closed.
        let _ = failure.render(&mut out, colours);
    }
    failures.first().map_or(Exit::Ok, |failure| failure.exit)
}

/// Logs failures, each as one line, and returns the exit code of the first.
pub fn log(failures: &[Failure]) -> Exit {
    failures.iter().for_each(Failure::log);
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
    fn a_failure_is_rendered_with_causes_remedy_and_id() {
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
    fn repeated_causes_are_left_out_and_control_characters_are_escaped() {
        let failure = Failure::new("x", Exit::Internal, "it\u{1b}[31m failed: inner\nmore\n")
            .caused_by(io::Error::other("inner"));
        assert_eq!(
            rendered(&failure, false),
            "error: it\\u{1b}[31m failed: inner [x]\n  more\n"
        );
    }

    #[test]
    fn every_problem_of_a_configuration_is_a_failure_of_its_own() {
        let text = "[source]\nurl = \"postgres://db/app\"\ntables = [\"a.b\"]\nslto = \"x\"\n";
        let error = Config::parse(text, "walrelay.toml", &[], &|_| None).unwrap_err();
        let failures = Failure::from_config(error);
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
}
