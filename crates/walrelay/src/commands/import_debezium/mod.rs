//! `walrelay import-debezium`: the configuration of a connector of Debezium's as one of walrelay's.
//!
//! What goes where is in one module for each part: `source`, `router`, `converters`, `kafka`; `known`
//! has what is left. Each setting of the input is settled once (`import`), and `report` says for all
//! of them what became of them. Lines that walrelay's own configuration refuses are taken out again
//! and reported so: what is written can be read.

mod converters;
mod draft;
mod http;
mod import;
mod jaas;
mod json;
mod kafka;
mod known;
mod properties;
mod report;
mod router;
mod settings;
mod source;
#[cfg(test)]
mod tests;
mod value;

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use import::Import;
use report::Report;
use settings::{Input, Kind};

use super::{Ended, connect};
use crate::cli::{Exit, Failure, ImportArgs, Output};
use crate::config::{Config, Place, SinkConfig};

/// `walrelay import-debezium`.
pub(crate) fn import_debezium(args: &ImportArgs) -> Ended {
    if let Some(path) = args.output_file.as_deref().filter(|path| path.exists())
        && !args.force
    {
        return Err(vec![exists(path)]);
    }
    let text = read(&args.input)?;
    let worker = match &args.worker {
        Some(path) => Some(file(path)?),
        None => None,
    };
    let input = settings::read(&text, worker.as_deref()).map_err(|error| {
        Failure::new("import-syntax", Exit::Config, "the input cannot be read")
            .caused_by(error)
            .remedy(
                "it is to be the JSON of a connector of Kafka Connect, or Debezium Server's \
                 application.properties",
            )
    })?;
    let imported = translate(input, &args.table, args.with_secrets);
    tell(args, &imported.report)?;
    let failures = imported.failures(args.partial);
    if !failures.is_empty() {
        return Err(failures);
    }
    match &args.output_file {
        Some(path) => write(path, &imported.toml).map_err(|error| {
            let what = format!("cannot write {}", path.display());
            Failure::new("import-output", Exit::Unavailable, what).caused_by(error)
        })?,
        None => out(&mut io::stdout(), &imported.toml)?,
    }
    Ok(())
}

fn exists(path: &Path) -> Failure {
    let what = format!("{} exists already", path.display());
    Failure::new("import-output", Exit::Usage, what).remedy("--force replaces it")
}

/// The text of the argument: a URL, standard input, or a file.
fn read(input: &str) -> Result<String, Failure> {
    if http::is_url(input) {
        return http::get(input).map_err(|error| {
            let (exit, remedy) = match &error {
                http::HttpError::Status {
                    status: 401 | 403, ..
                } => (
                    Exit::Denied,
                    "give user and password in the URL: http://user:password@host:8083/…",
                ),
                http::HttpError::Url => (
                    Exit::Usage,
                    "for example http://host:8083/connectors/outbox; signs in a password are \
                     percent-encoded",
                ),
                _ => (
                    Exit::Unavailable,
                    "the URL is that of a connector: http://host:8083/connectors/NAME",
                ),
            };
            Failure::new(
                "import-input",
                exit,
                "Kafka Connect did not give the connector",
            )
            .caused_by(error)
            .remedy(remedy)
        });
    }
    if input == "-" {
        let mut text = String::new();
        let read = io::stdin().read_to_string(&mut text);
        return read.map(|_| text).map_err(|error| {
            Failure::new(
                "import-input",
                Exit::Unavailable,
                "cannot read standard input",
            )
            .caused_by(error)
        });
    }
    file(Path::new(input))
}

fn file(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| {
        let what = format!("cannot read {}", path.display());
        Failure::new("import-input", Exit::Unavailable, what).caused_by(error)
    })
}

fn tell(args: &ImportArgs, report: &Report) -> Result<(), Failure> {
    let text = match args.output {
        Output::Table => report.text(),
        Output::Json => report.json(),
    };
    match &args.report {
        Some(path) => fs::write(path, text).map_err(|error| {
            let what = format!("cannot write {}", path.display());
            Failure::new("import-output", Exit::Unavailable, what).caused_by(error)
        }),
        None => out(&mut io::stderr(), &text),
    }
}

fn out(stream: &mut dyn Write, text: &str) -> Result<(), Failure> {
    let written = stream
        .write_all(text.as_bytes())
        .and_then(|()| stream.flush());
    written.map_err(|error| {
        Failure::new("import-output", Exit::Unavailable, "cannot write").caused_by(error)
    })
}

/// As a whole, and for nobody else's eyes: it may hold passwords.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    let written = options.open(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let placed = written.and_then(|()| fs::rename(&beside, path));
    if placed.is_err() {
        // It is ours, and half of a file at most.
        let _ = fs::remove_file(&beside);
    }
    placed
}

/// What an import comes to.
struct Imported {
    toml: String,
    report: Report,
    fatal: Vec<String>,
}

impl Imported {
    /// Why nothing is written. `partial`: somebody wants what there is.
    fn failures(&self, partial: bool) -> Vec<Failure> {
        let mut failures: Vec<Failure> = self
            .fatal
            .iter()
            .map(|why| Failure::new("import-refused", Exit::Config, why.clone()))
            .collect();
        let keys: Vec<&str> = self
            .report
            .breaking()
            .map(|(row, _)| row.key.as_str())
            .collect();
        if failures.is_empty() && !keys.is_empty() && !partial {
            let what = format!(
                "consumers would get other records: not supported is {}",
                keys.join(", ")
            );
            failures.push(
                Failure::new("import-unsupported", Exit::Config, what).remedy(
                    "the report says for each what to do; --partial writes the configuration \
                     without them",
                ),
            );
        }
        failures
    }
}

/// The whole of it, without input and output.
fn translate(input: Input, tables: &[String], with_secrets: bool) -> Imported {
    let heading = heading(&input);
    let mut import = Import::new(input, with_secrets);
    source::source(&mut import, tables);
    router::router(&mut import);
    converters::converters(&mut import);
    kafka::kafka(&mut import);
    known::rest(&mut import);
    check(&mut import);
    let (draft, report, fatal) = import.finish();
    let toml = draft.render(&with_omissions(heading, &report)).0;
    Imported {
        toml,
        report,
        fatal,
    }
}

fn heading(input: &Input) -> String {
    let from = match (input.kind, &input.name) {
        (Kind::Connect, Some(name)) => format!("the connector {name} of Kafka Connect"),
        (Kind::Connect, None) => "a connector of Kafka Connect".to_owned(),
        (Kind::Server, _) => "Debezium Server's application.properties".to_owned(),
    };
    format!(
        "{}\nThe hand-over, step by step: docs/MIGRATING-FROM-DEBEZIUM.md.",
        report::printable(&format!(
            "Written by `walrelay import-debezium` from {from}."
        ))
    )
}

fn with_omissions(mut heading: String, report: &Report) -> String {
    let mut rows = report
        .rows
        .iter()
        .filter(|row| matches!(row.outcome, report::Outcome::Unsupported { .. }))
        .peekable();
    if rows.peek().is_some() {
        heading.push_str("\n\nNot supported and left out; the report says what to do instead:");
    }
    for row in rows {
        heading.push_str("\n  ");
        heading.push_str(&report::printable(&row.key));
    }
    heading
}

/// Lets walrelay's own configuration read the draft, and takes out what it refuses.
fn check(import: &mut Import) {
    // What the environment will have, nobody knows here.
    let env = |_: &str| Some("x".to_owned());
    loop {
        let (text, places) = import.draft.render("");
        let problems = match Config::parse(&text, "walrelay.toml", &[], &env) {
            Ok(config) => return check_further(import, &config),
            Err(error) => error.into_problems(),
        };
        let mut gone = Vec::new();
        let mut elsewhere = Vec::new();
        for problem in problems {
            let why = match &problem.help {
                // Its help guesses at misspellings.
                _ if problem.id == "config-unknown-key" => {
                    "this version of walrelay has no such option".to_owned()
                }
                Some(help) => format!("{}; {help}", problem.what),
                None => problem.what.clone(),
            };
            let number = match problem.place {
                Place::At { line, .. } => places.get(line - 1).copied().flatten(),
                Place::File { .. } | Place::Set { .. } => None,
            };
            match number {
                Some(number) if gone.iter().any(|(known, _)| *known == number) => {}
                Some(number) => gone.push((number, why)),
                None => elsewhere.push(why),
            }
        }
        if gone.is_empty() {
            // What is missing was said already where it was looked for.
            for why in elsewhere {
                import.fatal(why);
            }
            return;
        }
        take_out(import, gone);
    }
}

fn take_out(import: &mut Import, mut gone: Vec<(usize, String)>) {
    gone.sort();
    let numbers: Vec<usize> = gone.iter().map(|(number, _)| *number).collect();
    let lines = import.draft.remove(&numbers);
    for (line, (_, why)) in lines.into_iter().zip(gone) {
        import.refused(&line, &why);
    }
}

/// What the configuration leaves to those who use it.
fn check_further(import: &mut Import, config: &Config) {
    let words = |failure: &Failure| {
        let mut words = failure.what.clone();
        let mut cause = std::error::Error::source(failure);
        while let Some(error) = cause {
            words = format!("{words}: {error}");
            cause = error.source();
        }
        match &failure.remedy {
            Some(remedy) => format!("{words}; {remedy}"),
            None => words,
        }
    };
    if let Err(failure) = connect::conn_info(&config.source, &|_| None) {
        import.urgent("source.url", words(&failure));
    }
    if let SinkConfig::Kafka(sink) = &config.sink
        && let Err(failure) = connect::kafka(sink, &config.delivery)
    {
        import.urgent("sink.kafka", words(&failure));
    }
}
