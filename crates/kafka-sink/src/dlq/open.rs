use std::fmt;
use std::thread;
use std::time::Duration;

use walrelay_sink_kind::dead_letters::{DeadLetterEvent, DeadLetterEvents, OpenEvents};

use super::reader::DlqReader;
use crate::{KafkaConfig, KafkaError};

/// The number of times that a missing topic is looked for, and the interval: a broker may not know yet a topic that
/// was just made.
const LOOKS: u32 = 3;
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Reads the open dead letters of one slot: see [`OpenEvents`].
pub struct OpenDeadLetters {
    config: KafkaConfig,
    topic: String,
    patience: Duration,
    reader: Option<DlqReader>,
    /// The topic was found to be missing.
    missing: bool,
    /// The epoch of that, if it had one.
    missing_in: Option<(i32, u64)>,
    events: OpenEvents,
}

impl OpenDeadLetters {
    /// Creates a set of which nothing is read yet. `patience`: how long a broker may take for a response, and how long
    /// reading may make no progress. Does not connect.
    pub fn new(config: KafkaConfig, topic: String, slot: String, patience: Duration) -> Self {
        Self {
            config,
            topic,
            patience,
            reader: None,
            missing: false,
            missing_in: None,
            events: OpenEvents::new(slot),
        }
    }

    /// Reads the topic to its present end, the first time from its beginning.
    ///
    /// `epoch`: if the caller knows when somebody may have written a dead letter, a number that has
    /// changed since. In the same epoch a missing topic is not looked for again; in a new one a
    /// broker may not know it yet, so it is looked for several times.
    ///
    /// **Blocks** until all are read.
    ///
    /// # Errors
    /// If brokers do not answer, the principal may not read the topic, or the topic was deleted or
    /// made anew since it was read. The next read begins at the beginning and with no events.
    pub fn read(&mut self, epoch: Option<(i32, u64)>) -> Result<(), KafkaError> {
        let read = self.try_read(epoch);
        if read.is_err() {
            self.reader = None;
            self.missing = false;
            self.events.clear();
        }
        read
    }

    fn try_read(&mut self, epoch: Option<(i32, u64)>) -> Result<(), KafkaError> {
        if self.missing && epoch.is_some() && self.missing_in == epoch {
            return Ok(());
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(DlqReader::connect(
                &self.config,
                &self.topic,
                self.patience,
            )?),
        };
        // Without epochs, the first look is enough to know that the topic was not just made.
        let known = self.missing && self.missing_in.is_none();
        let looks = if known { 1 } else { LOOKS };
        for look in 1..=looks {
            if reader.find()? {
                self.missing = false;
                return reader.read(|entry| self.events.add(entry));
            }
            if look < looks {
                thread::sleep(LOOK_INTERVAL);
            }
        }
        (self.missing, self.missing_in) = (true, epoch);
        Ok(())
    }

    /// Iterates over the events of the open dead letters that were read.
    pub fn events(&self) -> impl Iterator<Item = &DeadLetterEvent> {
        self.events.iter()
    }

    /// Returns the events of all dead letters that were read.
    pub fn all(&self) -> DeadLetterEvents {
        self.events.all()
    }
}

impl fmt::Debug for OpenDeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenDeadLetters")
            .field("topic", &self.topic)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}
