//! walrelay's own configuration, as the import asks it: what is written can be read.

use std::collections::BTreeMap;
use std::error::Error;

use walrelay_debezium_import::{ConfigCheck, Problem, Warning};
use walrelay_kafka_sink::{KafkaConfig, KafkaConfigError, KafkaOptions};

use super::super::connect;
use crate::cli::Failure;
use crate::config::{self, Config, Place, SinkConfig};

pub(super) struct Checker;

impl ConfigCheck for Checker {
    fn refused_property(&self, name: &str, value: &str) -> Option<String> {
        let bootstrap = ("bootstrap.servers".to_owned(), "localhost:9092".to_owned());
        let property = (name.to_owned(), value.to_owned());
        let properties = BTreeMap::from([bootstrap, property]);
        match KafkaConfig::new(properties, KafkaOptions::default()).err()? {
            // What belongs together comes one by one.
            KafkaConfigError::Missing { .. }
            | KafkaConfigError::NoTokens
            | KafkaConfigError::TokensUnused => None,
            error => Some(format!("{error}; {}", error.remedy())),
        }
    }

    fn read(&self, toml: &str) -> Result<Vec<Warning>, Vec<Problem>> {
        // What the environment will have, nobody knows here.
        let env = |_: &str| Some("x".to_owned());
        match Config::parse(toml, "walrelay.toml", &[], &env) {
            Ok(config) => Ok(warnings(&config)),
            Err(error) => Err(error.into_problems().into_iter().map(problem).collect()),
        }
    }
}

fn problem(problem: config::Problem) -> Problem {
    Problem {
        line: match problem.place {
            Place::At { line, .. } => Some(line),
            Place::File { .. } | Place::Set { .. } => None,
        },
        why: match problem.help {
            // Its help guesses at misspellings.
            _ if problem.id == "config-unknown-key" => {
                "this version of walrelay has no such option".to_owned()
            }
            Some(help) => format!("{}; {help}", problem.what),
            None => problem.what,
        },
    }
}

/// What shows only when the configuration is used.
fn warnings(config: &Config) -> Vec<Warning> {
    let source = connect::conn_info(&config.source, &|_| None).map(drop);
    let sink = match &config.sink {
        SinkConfig::Kafka(sink) => connect::kafka(sink, &config.delivery).map(drop),
        SinkConfig::Stdout { .. } => Ok(()),
    };
    let results = [("source.url", source), ("sink.kafka", sink)];
    let failures = results.into_iter().filter_map(|(about, result)| {
        let failure = result.err()?;
        let text = words(&failure);
        Some(Warning { about, text })
    });
    failures.collect()
}

fn words(failure: &Failure) -> String {
    let mut words = failure.what.clone();
    let mut cause = failure.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    match &failure.remedy {
        Some(remedy) => format!("{words}; {remedy}"),
        None => words,
    }
}
