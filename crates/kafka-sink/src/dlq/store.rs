use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::{Failure, ToFailure as _};
use walrelay_sink::{Parking, Record, any_factory};
use walrelay_sink_kind::dead_letters::{
    Answer, DeadLetterEvents, DeadLetterStore, DeadLetters, DlqAddress, DlqEntry, DlqLog,
    DlqRecord, DlqReplayer, Epoch, ReadOpen, RecordSender,
};
use walrelay_sink_kind::topics::Position;

use super::reader::DlqReader;
use super::{DlqWatcher, OpenDeadLetters};
use crate::failures::dead_letters;
use crate::{KafkaConfig, KafkaSinkFactory};

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

    pub(super) fn replayer(
        &self,
        topic: &str,
        patience: Duration,
    ) -> Result<Option<DlqReplayer<TopicLog>>, Failure> {
        let reader = DlqReader::open(&self.0, topic, patience);
        let reader = reader.map_err(|error| dead_letters(&error))?;
        // A topic that is missing now is reported, and the next dead letter is tried.
        let factory = KafkaSinkFactory::new(self.0.clone().without_patience()).with_one_producer();
        Ok(reader.map(|reader| {
            let sender = RecordSender::new(any_factory(factory));
            DlqReplayer::new(topic, TopicLog { reader, sender })
        }))
    }
}

impl DeadLetterStore for KafkaDeadLetters {
    fn open(
        &self,
        topic: &str,
        patience: Duration,
    ) -> Result<Option<Box<dyn DeadLetters>>, Failure> {
        let replayer = self.replayer(topic, patience)?;
        Ok(replayer.map(|replayer| Box::new(replayer) as Box<dyn DeadLetters>))
    }

    fn watch(
        &self,
        address: DlqAddress<'_>,
        parking: Arc<Parking>,
    ) -> Result<Box<dyn Any>, Failure> {
        let watcher = DlqWatcher::start(&self.0, address.topic, address.slot, parking);
        Ok(Box::new(watcher.map_err(|error| error.to_failure())?))
    }

    fn read_open(&self, address: DlqAddress<'_>, writes: bool, epoch: Epoch) -> ReadOpen {
        let (topic, slot) = (address.topic.to_owned(), address.slot.to_owned());
        let mut open = OpenDeadLetters::new(self.0.clone(), topic, slot, OPEN_TIMEOUT);
        Box::new(move || match open.read(epoch()) {
            Ok(()) => Ok(open.all()),
            // A relay that writes no dead letters needs no right to read them.
            Err(error) if error.is_denied() && !writes => Ok(DeadLetterEvents::default()),
            Err(error) => Err(error.into()),
        })
    }
}

/// A topic of dead letters.
pub(super) struct TopicLog {
    reader: DlqReader,
    sender: RecordSender,
}

impl DlqLog for TopicLog {
    fn start_at(&mut self, timestamp_ms: i64) -> Result<(), Failure> {
        let started = self.reader.start_at(timestamp_ms);
        started.map_err(|error| dead_letters(&error))
    }

    fn read(&mut self, each: &mut dyn FnMut(DlqEntry)) -> Result<(), Failure> {
        self.reader.read(each).map_err(|error| dead_letters(&error))
    }

    fn fetch(&mut self, positions: &[Position]) -> Result<HashMap<Position, DlqRecord>, Failure> {
        let found = self.reader.fetch(positions.iter().copied());
        found.map_err(|error| dead_letters(&error))
    }

    fn send(&mut self, record: &Record<'_>, patience: Duration) -> Answer {
        self.sender.send(record, patience)
    }
}
