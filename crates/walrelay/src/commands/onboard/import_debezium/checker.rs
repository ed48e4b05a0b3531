//! Checks imported settings and configurations by walrelay's own parser.

use std::collections::BTreeMap;

use walrelay_debezium_import::{ConfigCheck, Problem, Warning};
use walrelay_failure::Failure;
use walrelay_kafka_sink::{KafkaConfig, KafkaConfigError, KafkaOptions};
use walrelay_relay::Chain;

use crate::commands::assembly;
use crate::commands::assembly::sink::configured_sink;
use crate::config::{self, Config, Location, PipelineConfig};

pub(super) struct Checker;

impl ConfigCheck for Checker {
    fn refused_property(&self, name: &str, value: &str) -> Option<String> {
        let bootstrap = ("bootstrap.servers".to_owned(), "localhost:9092".to_owned());
        let property = (name.to_owned(), value.to_owned());
        let properties = BTreeMap::from([bootstrap, property]);
        match KafkaConfig::new(properties, KafkaOptions::default()).err()? {
            // Properties are checked one by one, so others that belong to this one are missing.
            KafkaConfigError::Missing { .. }
            | KafkaConfigError::NoTokens
            | KafkaConfigError::TokensUnused => None,
            error => Some(format!("{error}; {}", error.remedy())),
        }
    }

    fn read(&self, toml: &str) -> Result<Vec<Warning>, Vec<Problem>> {
        // The environment of the relay is not known here: any value will do that can be a secret, too.
        let env = |_: &str| Some("x".repeat(32));
        match Config::parse(toml, "walrelay.toml", &[], &env) {
            Ok(config) => Ok(warnings(&config.pipeline)),
            Err(error) => Err(error.into_problems().into_iter().map(problem).collect()),
        }
    }
}

fn problem(problem: config::Problem) -> Problem {
    Problem {
        line: match problem.place {
            Location::At { line, .. } => Some(line),
            Location::File { .. } | Location::Set { .. } => None,
        },
        why: match problem.help {
            // The help would suggest a similar key, but the key is not misspelled.
            _ if problem.id == "config-unknown-key" => {
                "this version of walrelay has no such option".to_owned()
            }
            Some(help) => format!("{}; {help}", problem.what),
            None => problem.what,
        },
    }
}

/// Failures that show only when connection string and Kafka properties are used.
fn warnings(config: &PipelineConfig) -> Vec<Warning> {
    let source = assembly::conn_info(&config.source, &|_| None).map(drop);
    let sink = configured_sink(config).map(drop);
    let of_sink = match config.sink.description().name {
        "kafka" => "sink.kafka",
        _ => "sink",
    };
    let results = [("source.url", source), (of_sink, sink)];
    let failures = results.into_iter().filter_map(|(about, result)| {
        let failure = result.err()?;
        let text = one_line(&failure);
        Some(Warning { about, text })
    });
    failures.collect()
}

/// Returns the failure, its causes and its remedy in one line.
fn one_line(failure: &Failure) -> String {
    let chain = Chain(failure);
    match &failure.remedy {
        Some(remedy) => format!("{chain}; {remedy}"),
        None => chain.to_string(),
    }
}
