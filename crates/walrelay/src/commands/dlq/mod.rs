//! `walrelay dlq`: dead letters are listed, shown, redriven and dropped.

mod close;
mod filter;
mod look;
mod render;

use std::io::Write;
use std::time::Duration;

use walrelay_kafka_sink::KafkaConfig;
use walrelay_kafka_sink::dlq::{DlqIndex, DlqReplayer};

use super::connect::kafka;
use super::{Ended, Env, load};
use crate::cli::{DlqArgs, DlqCommand, Exit, Failure, LetterArgs};
use crate::config::{Log, LogLevel, SinkConfig};
use crate::failures;
use crate::telemetry::log_to_stderr;

/// How long a broker may take to answer.
const BROKER_PATIENCE: Duration = Duration::from_secs(30);

/// `walrelay dlq`.
pub(crate) fn dlq(args: &DlqArgs, env: Env<'_>) -> Ended {
    match &args.command {
        DlqCommand::List(args) => look::list(args, env),
        DlqCommand::Show(args) => look::show(args, env),
        DlqCommand::Redrive(args) => close::redrive(args, env),
        DlqCommand::Drop(args) => close::drop(args, env),
    }
}

/// The topic of dead letters, as arguments and configuration have it.
struct Letters {
    kafka: KafkaConfig,
    topic: String,
    /// `None`: of all slots.
    slot: Option<String>,
}

impl Letters {
    fn new(args: &LetterArgs, env: Env<'_>) -> Result<Self, Vec<Failure>> {
        let config = load(&args.config, env)?;
        let quiet = Log {
            // What the client goes through on its way is of interest only where it is asked for.
            level: match config.log.level {
                LogLevel::Info => LogLevel::Warn,
                level => level,
            },
            ..config.log
        };
        log_to_stderr(quiet, env);
        let SinkConfig::Kafka(sink) = &config.sink else {
            let failure = Failure::new("dlq-sink", Exit::Config, "only Kafka has dead letters")
                .remedy("set sink.kind = \"kafka\", as for the relay that wrote them");
            return Err(vec![failure]);
        };
        Ok(Self {
            kafka: kafka(sink, &config.delivery)?,
            topic: args
                .dead_letter_topic
                .clone()
                .unwrap_or(config.poison.topic),
            slot: match (&args.slot, args.all_slots) {
                (_, true) => None,
                (Some(slot), false) => Some(slot.clone()),
                (None, false) => Some(config.source.slot),
            },
        })
    }

    /// `None`: there is no such topic, and that was said.
    fn open(&self) -> Result<Option<DlqReplayer>, Failure> {
        let desk = DlqReplayer::open(&self.kafka, &self.topic, BROKER_PATIENCE)
            .map_err(|error| failures::letters(&error))?;
        if desk.is_none() {
            note(&format!(
                "there is no topic {}: nothing was ever a dead letter there",
                self.topic
            ));
        }
        Ok(desk)
    }
}

/// What else lies in the topic.
fn note_foreign(index: &DlqIndex) {
    if index.foreign() > 0 {
        note(&format!(
            "{} records in the topic are no dead letters and were passed over",
            index.foreign()
        ));
    }
}

/// For people, beside what was asked for.
fn note(line: &str) {
    // Nobody is left to be told when standard error is closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn output(error: std::io::Error) -> Failure {
    Failure::new("output", Exit::Unavailable, "cannot write").caused_by(error)
}
