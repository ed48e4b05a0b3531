//! Prints and logs the failures that end a command.

use std::io::{self, IsTerminal, Write};

use serde_json::json;
use walrelay_failure::{Exit, Failure};
use walrelay_observe::{colours, printable_lines};

use crate::config::{ConfigError, Problem};

/// Returns the text in a colour or style (SGR of ECMA-48), if there are colours.
pub(crate) fn paint(colours: bool, code: &str, text: &str) -> String {
    if colours {
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

/// Logs a failure as one line.
fn log_one(failure: &Failure) {
    tracing::error!(
        id = failure.id,
        exit_code = failure.exit.code(),
        causes = json!(failure.causes()).to_string(),
        remedy = failure.remedy,
        "{}",
        failure.what.trim_end()
    );
}

/// Prints the failure:
///
/// ```text
/// error: cannot read the configuration file [config-file]
///   cause: No such file or directory (os error 2)
/// help: name another one with --config FILE
/// ```
fn render(failure: &Failure, out: &mut dyn Write, colours: bool) -> io::Result<()> {
    let paint = |code: &str, text: &str| paint(colours, code, text);
    let what = printable_lines(&failure.what);
    let mut lines = what.lines();
    let first = lines.next().unwrap_or_default();
    let id = paint("2", &format!("[{}]", failure.id));
    writeln!(out, "{}: {first} {id}", paint("1;31", "error"))?;
    for line in lines {
        writeln!(out, "{line}")?;
    }
    for text in failure.causes() {
        let text = printable_lines(&text);
        writeln!(out, "  {}: {text}", paint("33", "cause"))?;
    }
    if let Some(remedy) = &failure.remedy {
        writeln!(
            out,
            "{}: {}",
            paint("1;32", "help"),
            printable_lines(remedy)
        )?;
    }
    Ok(())
}

/// Creates one failure for each problem of the configuration, in order.
pub(crate) fn from_config(error: ConfigError) -> Vec<Failure> {
    let problems = error.into_problems().into_iter();
    let failure = |mut problem: Problem| Failure {
        id: problem.id,
        exit: Exit::Config,
        remedy: problem.help.take(),
        what: problem.to_string(),
        source: problem.source.map(Into::into),
    };
    problems.map(failure).collect()
}

/// Writes failures to standard error and returns the exit code of the first.
pub fn report(failures: &[Failure], env: &dyn Fn(&str) -> Option<String>) -> Exit {
    let stderr = io::stderr();
    let colours = colours(stderr.is_terminal(), env);
    let mut out = stderr.lock();
    for failure in failures {
        // Writing fails if standard error is closed.
        let _ = render(failure, &mut out, colours);
    }
    failures.first().map_or(Exit::Ok, |failure| failure.exit)
}

/// Logs failures, each as one line, and returns the exit code of the first.
pub fn log(failures: &[Failure]) -> Exit {
    failures.iter().for_each(log_one);
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
        render(failure, &mut out, colours).unwrap();
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
        let failures = from_config(error);
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
