//! The configured sink, and why a configuration or a command cannot use it.

#[cfg(test)]
pub(crate) mod recording;
mod refusal;

pub(crate) use refusal::{check_abilities, refused};

use walrelay_failure::Failure;
use walrelay_sink_kind::SinkKind;

use crate::config::PipelineConfig;

/// Makes the sink of a configuration.
///
/// # Errors
/// If its section cannot be used.
pub(crate) fn any_sink(config: &PipelineConfig) -> Result<Box<dyn SinkKind>, Failure> {
    config.sink.make(&config.delivery, &config.poison)
}

/// Makes the sink of a configuration that it can carry out.
///
/// # Errors
/// If its section cannot be used, or the configuration asks for what the sink cannot do.
pub(crate) fn configured_sink(config: &PipelineConfig) -> Result<Box<dyn SinkKind>, Failure> {
    let sink = any_sink(config)?;
    check_abilities(config, &*sink)?;
    Ok(sink)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use walrelay_sink::{Deliveries, Record, Sink as _, SinkFactory as _};
    use walrelay_sink_kind::Ability;
    use walrelay_testkit::Reports;

    use super::recording::Recording;
    use super::*;

    /// What `run` and `resend` do with a sink, and which configurations they refuse.
    #[test]
    fn a_kind_that_no_command_names_is_made_from_its_configuration() {
        let recording = Recording::default();
        let mut config = recording.config();
        assert!(config.sink.confirms());
        let sink = configured_sink(&config).expect("it can do what is asked");
        let (mut factory, stats) = sink.factory(None);
        assert!(stats.is_none());
        let reports = Arc::<Reports>::default();
        let deliveries = Arc::clone(&reports) as Arc<dyn Deliveries>;
        let mut made = factory.create(None, deliveries).expect("a sink");
        let record = Record {
            topic: "orders",
            ..Record::default()
        };
        made.try_send(&record, 7).expect("accepted");
        assert_eq!(*recording.0.lock().unwrap(), ["orders"]);
        assert!(reports.is(|state| state.is_delivered(7) && state.outcomes.len() == 1));
        config.poison.park_key = true;
        let Err(failure) = configured_sink(&config) else {
            panic!("it cannot park keys")
        };
        assert_eq!(
            failure.what,
            "the sink recording cannot park the events of a key"
        );
        assert!(!sink.can(Ability::DeadLetters));
    }
}
