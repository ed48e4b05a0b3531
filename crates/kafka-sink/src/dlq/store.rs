use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use walrelay_sink::dead_letters::{
    DeadLetterStore, DeadLetters, DlqAddress, DlqRecord, Epoch, Listed, OutOfOrder, ReadOpen,
    ReplayOptions, ReplaySummary, Step,
};
use walrelay_sink::{FailureClass, Parking, SinkFailure, ToFailure};

use super::{DlqReplayer, DlqWatcher, OpenDeadLetters, ReplayError};
use crate::KafkaConfig;
use crate::failures::dead_letters;

/// Timeout of one request to a broker about open dead letters. A stop waits for it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The topics of dead letters of a cluster.
#[derive(Debug)]
pub struct KafkaDeadLetters(KafkaConfig);

impl KafkaDeadLetters {
    /// Creates the store. Does not connect.
    pub fn new(config: KafkaConfig) -> Self {
        Self(config)
    }
}

impl DeadLetterStore for KafkaDeadLetters {
    fn open(
        &self,
        topic: &str,
        patience: Duration,
    ) -> Result<Option<Box<dyn DeadLetters>>, SinkFailure> {
        let opened = DlqReplayer::open(&self.0, topic, patience);
        let opened = opened.map_err(|error| dead_letters(&error))?;
        Ok(opened.map(|replayer| Box::new(replayer) as Box<dyn DeadLetters>))
    }

    fn watch(
        &self,
        address: DlqAddress<'_>,
        parking: Arc<Parking>,
    ) -> Result<Box<dyn Any>, SinkFailure> {
        let watcher = DlqWatcher::start(&self.0, address.topic, address.slot, parking);
        Ok(Box::new(watcher.map_err(|error| error.to_failure())?))
    }

    fn read_open(&self, address: DlqAddress<'_>, writes: bool, epoch: Epoch) -> ReadOpen {
        let (topic, slot) = (address.topic.to_owned(), address.slot.to_owned());
        let mut open = OpenDeadLetters::new(self.0.clone(), topic, slot, OPEN_TIMEOUT);
        Box::new(move || match open.read(epoch()) {
            Ok(()) => Ok(open.events().cloned().collect()),
            // A relay that writes no dead letters needs no right to read them.
            Err(error) if error.is_denied() && !writes => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        })
    }
}

impl DeadLetters for DlqReplayer {
    fn start_at(&mut self, timestamp_ms: i64) -> Result<(), SinkFailure> {
        let started = self.start_at(timestamp_ms);
        started.map_err(|error| dead_letters(&error))
    }

    fn read(&mut self, select: &dyn Fn(&DlqRecord) -> bool) -> Result<(), SinkFailure> {
        let read = self.read(select);
        read.map_err(|error| dead_letters(&error))
    }

    fn foreign(&self) -> u64 {
        self.index().foreign()
    }

    fn selected(&self, resolved: bool) -> Vec<Listed> {
        self.index().selected(resolved)
    }

    fn out_of_order(&self) -> Vec<OutOfOrder> {
        self.out_of_order()
    }

    fn plan(&self, options: &ReplayOptions) -> Vec<Listed> {
        self.plan(options)
    }

    fn each(
        &mut self,
        listed: &[Listed],
        show: &mut dyn FnMut(&Listed, Option<&DlqRecord>) -> ControlFlow<()>,
    ) -> Result<(), SinkFailure> {
        let shown = self.each(listed, show);
        shown.map_err(|error| dead_letters(&error))
    }

    fn carry_out(
        &mut self,
        options: &ReplayOptions,
        select: &dyn Fn(&DlqRecord) -> bool,
        report: &mut dyn FnMut(Step<'_>),
    ) -> Result<ReplaySummary, SinkFailure> {
        let carried = self.carry_out(options, select, report);
        carried.map_err(|error| error.to_failure())
    }
}

impl ToFailure for ReplayError {
    fn to_failure(&self) -> SinkFailure {
        let what = self.to_string();
        match self {
            Self::Kafka(error) => dead_letters(error),
            Self::NoAnswer { source, .. } => SinkFailure {
                source: source.clone().map(Into::into),
                ..SinkFailure::new("dlq-no-answer", FailureClass::Unavailable, what).remedy(
                    "see to the broker, then run it again: what was done is not repeated, but this \
                     one dead letter may be",
                )
            },
            Self::NotRecorded { source, .. } => SinkFailure::new(
                "dlq-not-recorded",
                FailureClass::Unavailable,
                what,
            )
            .caused_by(source.clone())
            .remedy(
                "allow the principal WRITE on the topic of dead letters, then run it again: \
                         this one dead letter is repeated",
            ),
        }
    }
}
