//! `walrelay dlq`: dead letters are listed, shown, redriven and dropped.

mod close;
mod filter;
mod look;
mod render;

use std::io::{self, Write};
use std::time::Duration;

use walrelay_kafka_sink::KafkaConfig;
use walrelay_kafka_sink::dlq::{DlqIndex, DlqRecord, DlqReplayer, Listed};

use super::connect::kafka;
use super::{Ended, Env, load, log_warnings, output};
use crate::cli::{DlqArgs, DlqCommand, DlqTopicArgs, Exit, Failure};
use crate::config::SinkConfig;
use crate::failures;

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
struct DlqTopic {
    kafka: KafkaConfig,
    topic: String,
    /// `None`: of all slots.
    slot: Option<String>,
}

impl DlqTopic {
    fn new(args: &DlqTopicArgs, env: Env<'_>) -> Result<Self, Vec<Failure>> {
        let config = load(&args.config, env)?;
        log_warnings(&config, None, env);
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
            slot: (!args.all_slots).then(|| args.slot.clone().unwrap_or(config.source.slot)),
        })
    }

    /// `None`: there is no such topic, and that was said.
    fn open(&self) -> Result<Option<DlqReplayer>, Failure> {
        let replayer = DlqReplayer::open(&self.kafka, &self.topic, BROKER_PATIENCE)
            .map_err(|error| failures::dead_letters(&error))?;
        if replayer.is_none() {
            note(&format!(
                "there is no topic {}: nothing was ever a dead letter there",
                self.topic
            ));
        }
        Ok(replayer)
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
    let _ = writeln!(io::stderr(), "{line}");
}

/// Calls `show` with each of these dead letters and the dead letter itself, until it fails; gone ones are left out.
fn show_each(
    replayer: &mut DlqReplayer,
    listed: &[Listed],
    mut show: impl FnMut(&Listed, &DlqRecord) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut written = Ok(());
    replayer
        .each(listed, |listed, record| {
            if let Some(record) = record.filter(|_| written.is_ok()) {
                written = show(listed, record);
            }
        })
        .map_err(|error| failures::dead_letters(&error))?;
    written.map_err(output)
}
