//! Finds the record of an event in topics of the sink, and its dead letters.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use walrelay_failure::Failure;
use walrelay_sink_kind::dead_letters::DlqRecord;
use walrelay_sink_kind::topics::ReadRecord;

use super::with_causes;
use crate::cli::RecordPlace;
use crate::commands::assembly::sink::any_sink;
use crate::commands::inspect::behind_slot::Sighting;
use crate::commands::topics::place::event_id;
use crate::commands::topics::reading::TopicReader;
use crate::config::PipelineConfig;

/// Timeout of one request to a server of the sink.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Dead letters are read from so long before the time that topics are read from: they are written later
/// than the row, and clocks differ.
const CLOCK_DIFFERENCE_MS: i64 = 86_400_000;

/// A dead letter of the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeadLetter {
    /// The position by which `walrelay dlq` names it.
    pub(super) name: String,
    pub(super) class: String,
    pub(super) cause: Option<String>,
    /// How it was resolved; `None`: it is open.
    pub(super) outcome: Option<&'static str>,
}

/// The record of the event in a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Delivered {
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) entry_id: Option<String>,
    pub(super) written_ms: Option<i64>,
}

/// The part of a topic that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Topic {
    pub(super) name: String,
    /// Whether it exists.
    pub(super) exists: bool,
    /// The first record of the event.
    pub(super) record: Option<Delivered>,
    /// It was read from the asked time to its end. `false`: only a part was read.
    pub(super) is_whole: bool,
    /// The topic has lost its first records, although they were asked for.
    pub(super) is_trimmed: bool,
    pub(super) records_read: u64,
}

/// The part that was read of each topic, or the reason why it was not.
pub(super) type Topics = Vec<(String, Result<Topic, String>)>;

/// Returns the name of the topic, or stream, that a record of this address is in.
pub(super) fn topic_of(sighting: &Sighting) -> Option<String> {
    match (&*sighting.topic, &sighting.routing_key) {
        // The default exchange of AMQP has every queue by its name.
        ("", Some(queue)) => Some(queue.clone()),
        ("", None) => None,
        (topic, _) => Some(topic.to_owned()),
    }
}

/// The event that is looked for, and the places.
pub(super) struct Search<'a> {
    pub(super) event: &'a str,
    pub(super) topics: Vec<String>,
    pub(super) place: Option<&'a RecordPlace>,
    /// Milliseconds since 1970; 0: from the oldest record.
    pub(super) from_ms: i64,
    pub(super) timeout: Duration,
}

impl Search<'_> {
    /// Looks for dead letters of the event. `None`: the sink has no topic of dead letters.
    pub(super) fn dead_letters(
        &self,
        config: &PipelineConfig,
    ) -> Result<Option<Vec<DeadLetter>>, Failure> {
        let sink = any_sink(config)?;
        let Some(store) = sink.dead_letters() else {
            return Ok(None);
        };
        let Some(mut dead_letters) = store.open(&config.poison.topic, REQUEST_TIMEOUT)? else {
            return Ok(Some(Vec::new()));
        };
        let from = self.from_ms.saturating_sub(CLOCK_DIFFERENCE_MS);
        if from > 0 {
            dead_letters.start_at(from)?;
        }
        let is_of_event = |record: &DlqRecord| {
            record.slot == config.source.slot
                && record.event_id.as_deref() == Some(self.event.as_bytes())
        };
        dead_letters.read(&is_of_event)?;
        let listed = dead_letters.selected(true);
        let mut of_event = Vec::new();
        dead_letters.each(&listed, &mut |listed, record| {
            of_event.extend(record.map(|record| {
                DeadLetter {
                    name: listed.name.id.to_string(),
                    class: record.class.clone(),
                    cause: record.cause.clone(),
                    outcome: listed
                        .outcome
                        .map(walrelay_sink_kind::dead_letters::Outcome::name),
                }
            }));
            ControlFlow::Continue(())
        })?;
        Ok(Some(of_event))
    }

    /// Looks for the event's record in each topic.
    ///
    /// # Errors
    /// Why no topic can be looked at.
    pub(super) fn records(&self, config: &PipelineConfig) -> Result<Topics, String> {
        let sink = any_sink(config).map_err(|failure| with_causes(&failure))?;
        let topics = sink.readable_topics().map_err(str::to_owned)?;
        let mut names = self.topics.clone();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Err(
                "it is not known to which topic the event goes: name one with --topic".to_owned(),
            );
        }
        let look = |name: &String| {
            let reader = |from_ms| TopicReader::new(topics, from_ms, self.place.cloned());
            let mut topic = reader(self.from_ms).and_then(|reader| self.record(name, reader));
            // Some streams do not tell times: all of them is read then.
            if topic.is_err() && self.from_ms > 0 {
                topic = reader(0).and_then(|reader| self.record(name, reader));
            }
            topic.map_err(|failure| with_causes(&failure))
        };
        Ok(names
            .iter()
            .map(|name| (name.clone(), look(name)))
            .collect())
    }

    fn record(&self, name: &str, mut reader: TopicReader) -> Result<Topic, Failure> {
        let mut topic = Topic {
            name: name.to_owned(),
            exists: reader.follow(name)?,
            record: None,
            is_whole: false,
            is_trimmed: false,
            records_read: 0,
        };
        let partitions = reader.partitions(name).unwrap_or_default();
        topic.is_trimmed = self.from_ms <= 0 && partitions.iter().any(|of| of.start > 0);
        let deadline = Instant::now() + self.timeout;
        let (mut record, mut count) = (None, 0);
        reader.read_until(Some(deadline), |_, read| {
            count += 1;
            if event_id(self.place, read).as_deref() == Some(self.event) {
                record = Some(delivered(read));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        topic.is_whole = record.is_some() || reader.is_at_ends();
        topic.record = record;
        topic.records_read = count;
        Ok(topic)
    }
}

fn delivered(record: &ReadRecord) -> Delivered {
    Delivered {
        partition: record.partition,
        offset: record.offset,
        entry_id: record.entry_id.clone(),
        written_ms: record.written_ms,
    }
}
