//! Helpers of the configuration's tests: texts, the environment, files and tables of cases.

use std::io;
use std::path::Path;
use std::time::Duration;

use secrecy::ExposeSecret;

use walrelay_event_router::{Converter, JsonOptions, Options, TimePrecision, TopicTemplate};

use super::*;

mod one_section;
mod overrides;
mod values;
mod whole;
mod wrong_keys;

/// A minimal configuration.
const LEAST: &str = r#"
[source]
url = "postgres://relay:${PGPASSWORD}@db:5432/app"
tables = ["public.outbox"]

[sink.kafka]
"bootstrap.servers" = "broker:9092"
"#;

const PASSWORD: &str = "hunter2";

fn env(name: &str) -> Option<String> {
    match name {
        "PGPASSWORD" => Some(PASSWORD.to_owned()),
        "BAD" => Some("Not A Slot".to_owned()),
        "SLOT" => Some("from_env".to_owned()),
        _ => None,
    }
}

fn files(path: &Path) -> io::Result<String> {
    match path.to_str() {
        Some("/run/secrets/pw") => Ok(format!("{PASSWORD}\n")),
        Some("/run/secrets/crlf") => Ok(format!("{PASSWORD}\r\n")),
        Some("/run/secrets/two") => Ok(format!("{PASSWORD}\n\n")),
        Some("/run/secrets/empty") => Ok("\n".to_owned()),
        Some("/etc/walrelay/url") => Ok(format!("postgres://relay:{PASSWORD}@db/app")),
        _ => Err(ErrorKind::NotFound.into()),
    }
}

fn parse_set(text: &str, overrides: &[&str]) -> Result<Config, ConfigError> {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    let file = "/etc/walrelay/walrelay.toml";
    let result = parse_with(text, file, &overrides, &env, &files);
    // Every test checks that no secret is shown.
    let shown = match &result {
        Ok(config) => format!("{config:?}"),
        Err(error) => format!("{error} {error:?}"),
    };
    assert!(!shown.contains(PASSWORD), "a secret is shown: {shown}");
    assert!(
        !shown.contains("Not A Slot"),
        "the environment is shown: {shown}"
    );
    result
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    parse_set(text, &[])
}

/// Returns the problems, each as id, place, text and help.
fn problems(result: Result<Config, ConfigError>) -> Vec<(String, String, String, String)> {
    let problems = result.expect_err("accepted").into_problems();
    assert!(!problems.is_empty());
    problems
        .into_iter()
        .map(|problem| {
            (
                problem.id.to_owned(),
                problem.place.to_string().replace("/etc/walrelay/", ""),
                problem.what,
                problem.help.unwrap_or_default(),
            )
        })
        .collect()
}

fn only(result: Result<Config, ConfigError>) -> (String, String, String, String) {
    let mut problems = problems(result);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems.remove(0)
}

/// Splits a table of cases into lines, and each line into columns at `=>`.
pub(super) fn cases<const N: usize>(table: &str) -> Vec<[&str; N]> {
    let lines = table.lines().filter(|line| !line.trim().is_empty());
    let columns = |line| str::split(line, "=>").map(str::trim).collect::<Vec<_>>();
    lines
        .map(|line| columns(line).try_into().expect("another number of columns"))
        .collect()
}

/// Checks that each override is refused, with the id, the place and a part of the message.
fn refused_overrides(table: &str) {
    for [set, id, at, words] in cases(table) {
        let (found, place, what, _) = only(parse_set(LEAST, &[set]));
        assert_eq!(found, id, "{set}: {what}");
        let at = if at == "same" { set } else { at };
        assert_eq!(place, format!("--set {at}"));
        assert!(what.contains(words), "{set}: {what}");
    }
}

/// Checks that keys of `section` (lines, separated by `;`) are refused with a part of the message.
fn refused_lines(section: &str, table: &str) {
    for [lines, words] in cases(table) {
        let lines = lines.replace("; ", "\n");
        let error = parse(&with_section(section, &lines))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{lines}: {error}");
    }
}

fn with_section(section: &str, lines: &str) -> String {
    format!(
        "[source]\nurl = 'postgres://db'\ntables = ['o']\n[sink]\nkind = 'stdout'\n\
         [{section}]\n{lines}\n"
    )
}

/// Returns the options of a configuration whose router is Debezium's.
fn debezium(config: &Config) -> &Debezium {
    let RouterConfig::Debezium(debezium) = &config.pipeline.router else {
        panic!("{:?}", config.pipeline.router)
    };
    debezium
}

/// Returns the options of a sink that is Kafka.
fn kafka(sink: &SinkConfig) -> walrelay_kafka_sink::KafkaSection {
    sink.section().cloned().expect("Kafka")
}
