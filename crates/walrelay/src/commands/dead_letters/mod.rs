//! `walrelay dlq`: lists, shows, redrives and drops dead letters.

mod close;
mod filter;
mod read;
mod render;

use std::ops::ControlFlow;
use std::time::Duration;

use walrelay_failure::Failure;
use walrelay_sink_kind::dead_letters::{DeadLetters, DlqRecord, Listed};
use walrelay_sink_kind::{Ability, SinkKind};

use crate::cli::{DlqCommand, DlqTopicArgs, FilterArgs};
use crate::commands::assembly::sink::{any_sink, refused};
use crate::commands::{
    CommandResult, EnvVars, load, log_warnings, print_bytes, print_notice, print_part,
};
use filter::Filter;

/// Timeout of one request to a server of the sink.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs `walrelay dlq`.
pub(crate) fn dlq(command: &DlqCommand, env: EnvVars<'_>) -> CommandResult {
    match command {
        DlqCommand::List(args) => read::list(args, env),
        DlqCommand::Show(args) => read::show(args, env),
        DlqCommand::Redrive(args) => close::redrive(args, env),
        DlqCommand::Drop(args) => close::drop(args, env),
    }
}

/// The topic of dead letters and the slot, by arguments and configuration.
struct DlqTopic {
    sink: Box<dyn SinkKind>,
    topic: String,
    /// `None` for dead letters of all slots.
    slot: Option<String>,
}

impl DlqTopic {
    fn new(args: &DlqTopicArgs, env: EnvVars<'_>) -> Result<Self, Vec<Failure>> {
        let config = load(&args.config, env)?;
        log_warnings(config.process.log, None, env);
        let config = config.pipeline;
        Ok(Self {
            sink: any_sink(&config)?,
            topic: args
                .dead_letter_topic
                .clone()
                .unwrap_or(config.poison.topic),
            slot: (!args.all_slots).then(|| args.slot.clone().unwrap_or(config.source.slot)),
        })
    }

    /// Selects dead letters of this slot.
    fn filter<'a>(&'a self, args: &'a FilterArgs) -> Filter<'a> {
        let slot = self.slot.as_deref();
        Filter { args, slot }
    }

    /// Opens the topic; prints a notice and returns `None` if it does not exist.
    fn open(&self) -> Result<Option<Box<dyn DeadLetters>>, Failure> {
        let store = self.sink.dead_letters().ok_or_else(|| {
            refused("dlq-sink", &*self.sink, Ability::DeadLetters)
                .remedy("set sink.kind to that of the relay that wrote them")
        })?;
        let opened = store.open(&self.topic, REQUEST_TIMEOUT)?;
        if opened.is_none() {
            print_notice(&format!(
                "there is no topic {}: nothing was ever a dead letter there",
                self.topic
            ));
        }
        Ok(opened)
    }
}

/// Prints how many records in the topic are no dead letters, if there are any.
fn print_foreign(dead_letters: &dyn DeadLetters) {
    let foreign = dead_letters.foreign();
    if foreign > 0 {
        print_notice(&format!(
            "{foreign} records in the topic are no dead letters and were passed over"
        ));
    }
}

/// Calls `show` with each of these dead letters until it fails or breaks. Dead letters that the topic
/// no longer has are left out.
fn show_each(
    dead_letters: &mut dyn DeadLetters,
    listed: &[Listed],
    mut show: impl FnMut(&Listed, &DlqRecord) -> Result<ControlFlow<()>, Failure>,
) -> Result<(), Failure> {
    let mut written = Ok(());
    dead_letters.each(listed, &mut |listed, record| {
        let Some(record) = record else {
            return ControlFlow::Continue(());
        };
        show(listed, record).unwrap_or_else(|failure| {
            written = Err(failure);
            ControlFlow::Break(())
        })
    })?;
    written
}

#[cfg(test)]
mod tests {
    use walrelay_sink::EventPosition;
    use walrelay_sink_kind::topics::Position;

    use super::*;

    #[test]
    fn a_sink_without_dead_letters_is_refused_by_name() {
        use crate::commands::assembly::sink::recording::Recording;
        let topic = DlqTopic {
            sink: Box::new(Recording::default()),
            topic: "letters".to_owned(),
            slot: None,
        };
        let Err(failure) = topic.open() else {
            panic!("it has no dead letters")
        };
        assert_eq!(failure.id, "dlq-sink");
        assert_eq!(
            failure.what,
            "the sink recording cannot read dead letters back"
        );
    }

    /// Returns a dead letter with a value for most fields.
    pub(crate) fn record() -> DlqRecord {
        DlqRecord {
            id: EventPosition::in_first_epoch(16, 2),
            slot: "orders".into(),
            system: Some("7".into()),
            class: "oversize".into(),
            cause: Some("too\u{1b}[31mlarge".into()),
            xid: Some(771),
            commit_time: Some("2026-01-02T03:04:05.678900Z".into()),
            table: Some("public.outbox".into()),
            event_id: Some(b"\xff".to_vec()),
            topic: None,
            partition: None,
            timestamp_ms: Some(5),
            omitted_bytes: None,
            is_exact: true,
            unrestored: None,
            key: Some(b"row-key".to_vec()),
            value: Some(b"row-value".to_vec()),
            headers: vec![
                ("id".into(), Some(b"row-header".to_vec())),
                ("n".into(), None),
            ],
            position: Position {
                partition: 1,
                offset: 7,
            },
        }
    }
}
