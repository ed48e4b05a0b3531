use std::collections::HashMap;
use std::fmt;
use std::thread;
use std::time::Duration;

use walrelay_sink::EventPosition;
use walrelay_sink::dead_letters::{DlqRecord, OpenDeadLetter};

use super::entry::Entry;
use super::reader::DlqReader;
use crate::{KafkaConfig, KafkaError};

/// How often a missing topic is looked for, and the interval: a broker may not know yet a topic that
/// was just made.
const LOOKS: u32 = 3;
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The open dead letters of one slot: dead letters that were neither redriven nor dropped. Their
/// events are in the topic of dead letters alone, and without a value not even there.
///
/// Memory: some 50 bytes for each dead letter in the topic, and for an open one another 150 and its
/// event id.
pub struct OpenDeadLetters {
    config: KafkaConfig,
    topic: String,
    slot: String,
    patience: Duration,
    reader: Option<DlqReader>,
    /// The topic was found to be missing.
    missing: bool,
    /// The epoch of that, if it had one.
    missing_in: Option<(i32, u64)>,
    /// `None`: resolved. A repeat of a resolved dead letter is resolved, too.
    events: HashMap<EventPosition, Option<OpenDeadLetter>>,
}

impl OpenDeadLetters {
    /// Nothing is read yet. `patience`: how long a broker may take for a response, and how long
    /// reading may make no progress. Does not connect.
    pub fn new(config: KafkaConfig, topic: String, slot: String, patience: Duration) -> Self {
        Self {
            config,
            topic,
            slot,
            patience,
            reader: None,
            missing: false,
            missing_in: None,
            events: HashMap::new(),
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
                let (slot, events) = (&self.slot, &mut self.events);
                return reader.read(|entry| add(slot, events, entry));
            }
            if look < looks {
                thread::sleep(LOOK_INTERVAL);
            }
        }
        (self.missing, self.missing_in) = (true, epoch);
        Ok(())
    }

    /// The events of the open dead letters that were read.
    pub fn events(&self) -> impl Iterator<Item = &OpenDeadLetter> {
        self.events.values().flatten()
    }
}

fn add(slot: &str, events: &mut HashMap<EventPosition, Option<OpenDeadLetter>>, entry: Entry) {
    match entry {
        Entry::DlqRecord(dead_letter) if dead_letter.slot == slot => {
            let DlqRecord {
                id,
                table,
                event_id,
                xid,
                ..
            } = *dead_letter;
            events.entry(id).or_insert(Some(OpenDeadLetter {
                table,
                id: event_id,
                xid,
            }));
        }
        Entry::Resolution(resolution) if resolution.slot == slot => {
            events.insert(resolution.id, None);
        }
        // Another slot's, or no dead letter.
        Entry::DlqRecord(_) | Entry::Resolution(_) | Entry::Foreign(_) => {}
    }
}

impl fmt::Debug for OpenDeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenDeadLetters")
            .field("topic", &self.topic)
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}
