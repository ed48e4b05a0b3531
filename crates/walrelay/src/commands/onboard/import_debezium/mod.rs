//! `walrelay import-debezium`: reads a Debezium configuration, translates it with
//! `walrelay-debezium-import`, and writes the configuration and the report.

mod checker;
mod http;
#[cfg(test)]
mod tests;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use walrelay_debezium_import::{Imported, Input, Options, translate};
use walrelay_failure::{Exit, Failure};

use crate::cli::{ImportArgs, Output};
use crate::commands::{CommandResult, print_text};
use checker::Checker;

/// Runs `walrelay import-debezium`.
pub(crate) fn import_debezium(args: &ImportArgs) -> CommandResult {
    if let Some(path) = args.output_file.as_deref().filter(|path| path.exists())
        && !args.force
    {
        let what = format!("{} exists already", path.display());
        let exists = Failure::new("import-output", Exit::Usage, what);
        return Err(vec![exists.remedy("--force replaces it")]);
    }
    let text = read_input(&args.input)?;
    let worker = args.worker.as_deref().map(read_file).transpose()?;
    let input = Input::parse(&text, worker.as_deref()).map_err(|error| {
        Failure::new("import-syntax", Exit::Config, "the input cannot be read")
            .caused_by(error)
            .remedy(
                "it is to be the JSON of a connector of Kafka Connect, or Debezium Server's \
                 application.properties",
            )
    })?;
    let options = Options {
        tables: &args.table,
        with_secrets: args.with_secrets,
    };
    let imported = translate(input, options, &Checker);

    let report = match args.output {
        Output::Table => imported.report.text(),
        Output::Json => imported.report.json(),
    };
    match &args.report {
        Some(path) => fs::write(path, report).map_err(|error| not_written(path, error))?,
        None => print(&mut io::stderr(), &report)?,
    }
    let failures = failures(&imported, args.partial);
    if !failures.is_empty() {
        return Err(failures);
    }
    match &args.output_file {
        Some(path) => {
            replace_file(path, &imported.toml).map_err(|error| not_written(path, error))?;
        }
        None => print_text(&imported.toml)?,
    }
    Ok(())
}

/// Returns the failures for which no configuration is written. `partial`: unsupported settings may
/// be left out.
fn failures(imported: &Imported, partial: bool) -> Vec<Failure> {
    let refused = |why: &String| {
        Failure::new("import-refused", Exit::Config, why.clone()).remedy(
            "import the configuration of an outbox router that reads Postgres; for another one write yours with walrelay \
             new",
        )
    };
    let mut failures: Vec<Failure> = imported.fatal.iter().map(refused).collect();
    let keys: Vec<&str> = imported.report.breaking().collect();
    if failures.is_empty() && !keys.is_empty() && !partial {
        let what = format!(
            "consumers would get other records: not supported is {}",
            keys.join(", ")
        );
        failures.push(
            Failure::new("import-unsupported", Exit::Config, what).remedy(
                "the report has a remedy for each; --partial writes the configuration without them",
            ),
        );
    }
    failures
}

/// Reads the input: a URL, standard input, or a file.
fn read_input(input: &str) -> Result<String, Failure> {
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
            let what = "Kafka Connect did not give the connector";
            Failure::new("import-input", exit, what)
                .caused_by(error)
                .remedy(remedy)
        });
    }
    if input != "-" {
        return read_file(Path::new(input));
    }
    io::read_to_string(io::stdin()).map_err(|error| {
        let what = "cannot read standard input";
        Failure::new("import-input", Exit::Unavailable, what)
            .caused_by(error)
            .remedy("pipe the connector's JSON into it, in UTF-8, or name a file")
    })
}

fn read_file(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| {
        let what = format!("cannot read {}", path.display());
        Failure::new("import-input", Exit::Unavailable, what)
            .caused_by(error)
            .remedy(
                "name a file that you may read, a URL of Kafka Connect, or - for standard input",
            )
    })
}

fn print(stream: &mut dyn Write, text: &str) -> Result<(), Failure> {
    let written = stream.write_all(text.as_bytes());
    written.and_then(|()| stream.flush()).map_err(|error| {
        Failure::new("import-output", Exit::Unavailable, "cannot write")
            .caused_by(error)
            .remedy("write the configuration into a file: --output-file FILE")
    })
}

fn not_written(path: &Path, error: io::Error) -> Failure {
    let what = format!("cannot write {}", path.display());
    Failure::new("import-output", Exit::Unavailable, what)
        .caused_by(error)
        .remedy("name a file in a folder that you may write to")
}

/// Replaces the file atomically. Only its owner can read it, as it may contain passwords.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    let written = options.open(&temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let replaced = written.and_then(|()| fs::rename(&temporary, path));
    if replaced.is_err() {
        // The file was created here and is not complete.
        let _ = fs::remove_file(&temporary);
    }
    replaced
}
