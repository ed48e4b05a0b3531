//! `[sink]`, and the table of the kinds of sinks.

#[cfg(feature = "http")]
mod http;
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
mod stdout;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use walrelay_event_router::Address;
use walrelay_failure::Failure;
use walrelay_settings::{AlreadyReported, Reader, Row, Section, ValueKind, choice, section};
use walrelay_sink::{Record, SinkOptions};
use walrelay_sink_kind::{KindDescription, SinkKind};

use super::delivery::{Delivery, Poison};

pub(crate) use stdout::StdoutSection;

/// The kinds of sinks. What a new kind needs besides a line here: "A kind of sink" in
/// `docs/contributing/architecture.md`.
const KINDS: &[KindEntry] = &[
    kind::<walrelay_kafka_sink::KafkaSection>(),
    #[cfg(feature = "http")]
    kind::<walrelay_http_sink::HttpSection>(),
    #[cfg(feature = "rabbitmq")]
    kind::<rabbitmq::Rabbitmq>(),
    #[cfg(feature = "redis")]
    kind::<redis::Redis>(),
    #[cfg(feature = "nats")]
    kind::<nats::Nats>(),
    kind::<StdoutSection>(),
];

/// The parts of a record's destination, each with the term of the sink's protocol.
pub(crate) type Destination = Vec<(&'static str, String)>;

/// The sections of one kind of sink, as they were read.
pub(crate) trait SinkSettings: Any + fmt::Debug + Send + Sync {
    /// Makes the sink.
    ///
    /// # Errors
    /// If a section cannot be used.
    fn make(&self, delivery: &Delivery, poison: &Poison) -> Result<Box<dyn SinkKind>, Failure>;

    /// Returns true if the slot itself is read and confirmed, false if a temporary copy is read.
    fn confirms(&self) -> bool {
        true
    }

    /// Returns the templates of the address of a record; `None`: the topic of the route is the
    /// address.
    ///
    /// # Errors
    /// If a template is wrong, which was reported to `reader`.
    fn address(&self, reader: &mut Reader<'_>) -> Result<Option<Address>, AlreadyReported> {
        let _ = reader;
        Ok(None)
    }

    /// Returns the parts of a record's destination, each with its term.
    ///
    /// # Errors
    /// Why the record has none.
    fn destination(&self, record: &Record<'_>) -> Result<Destination, String> {
        Ok(vec![("topic", record.topic.to_owned())])
    }

    /// Checks what the actions of `[poison]` need of the section.
    ///
    /// # Errors
    /// If a key is missing, which was reported to `reader`.
    fn check_poison(
        &self,
        reader: &mut Reader<'_>,
        poison: &Poison,
    ) -> Result<(), AlreadyReported> {
        let _ = (reader, poison);
        Ok(())
    }
}

/// Declares and reads the sections of one kind of sink.
pub(crate) trait SinkSection: SinkSettings + Sized {
    /// The facts about the kind.
    const DESCRIPTION: &'static KindDescription;

    /// Its sections whose keys are not known, each with the type of the values.
    const OPEN: &'static [(&'static str, ValueKind)] = &[];

    /// The question and the lines of `walrelay new`; `None`: it writes the kind alone.
    const SAMPLE: Option<Sample> = None;

    /// Declares its keys.
    fn rows(rows: &mut Vec<Row>);

    /// Reads its sections. Those of a kind that is not `chosen` may stay in the file as they are.
    ///
    /// # Errors
    /// If a problem was reported to `reader` that leaves a key without a value.
    fn read(reader: &mut Reader<'_>, chosen: bool) -> Result<Self, AlreadyReported>;

    /// Finds out why a topic cannot have this name; `None` if it can.
    fn topic_problem(topic: &str) -> Option<String> {
        let _ = topic;
        None
    }
}

/// The part of a first configuration that `walrelay new` writes about a kind of sink.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// The question for the servers.
    pub(crate) question: &'static str,
    /// The option that answers it.
    pub(crate) option: &'static str,
    /// Makes the lines of the sections, of the answer as a TOML string. Those that are commented out
    /// are valid, too.
    pub(crate) lines: fn(&str) -> String,
}

/// The sections of a kind that is known at run time.
type AnySettings = Arc<dyn SinkSettings>;

/// A kind of sink: a line of the table.
struct KindEntry {
    description: &'static KindDescription,
    open: &'static [(&'static str, ValueKind)],
    sample: Option<Sample>,
    rows: fn(&mut Vec<Row>),
    read: fn(&mut Reader<'_>, bool) -> Result<AnySettings, AlreadyReported>,
    topic_problem: fn(&str) -> Option<String>,
}

const fn kind<T: SinkSection>() -> KindEntry {
    fn read<T: SinkSection>(
        reader: &mut Reader<'_>,
        chosen: bool,
    ) -> Result<AnySettings, AlreadyReported> {
        Ok(Arc::new(T::read(reader, chosen)?))
    }
    KindEntry {
        description: T::DESCRIPTION,
        open: T::OPEN,
        sample: T::SAMPLE,
        rows: T::rows,
        read: read::<T>,
        topic_problem: T::topic_problem,
    }
}

/// The configured sink: its kind, and the sections of the kind.
#[derive(Clone)]
pub struct SinkConfig {
    description: &'static KindDescription,
    topic_problem: fn(&str) -> Option<String>,
    section: AnySettings,
}

impl SinkConfig {
    fn new(kind: &KindEntry, section: AnySettings) -> Self {
        Self {
            description: kind.description,
            topic_problem: kind.topic_problem,
            section,
        }
    }

    /// Makes the configuration of a section, for tests.
    #[cfg(test)]
    pub(crate) fn from_section<T: SinkSection>(section: T) -> Self {
        Self::new(&kind::<T>(), Arc::new(section))
    }

    /// Returns the facts about the kind.
    pub fn description(&self) -> &'static KindDescription {
        self.description
    }

    /// Finds out why a topic cannot have this name; `None` if it can.
    pub fn topic_problem(&self, topic: &str) -> Option<String> {
        (self.topic_problem)(topic)
    }

    /// Makes the sink.
    ///
    /// # Errors
    /// If a section cannot be used.
    pub fn make(&self, delivery: &Delivery, poison: &Poison) -> Result<Box<dyn SinkKind>, Failure> {
        self.section.make(delivery, poison)
    }

    /// Returns the parts of a record's destination, each with its term.
    ///
    /// # Errors
    /// Why the record has none.
    pub(crate) fn destination(&self, record: &Record<'_>) -> Result<Destination, String> {
        self.section.destination(record)
    }

    /// Returns true if the slot itself is read and confirmed, false if a temporary copy is read.
    pub fn confirms(&self) -> bool {
        self.section.confirms()
    }

    /// Returns the section, if the sink is of its kind.
    #[cfg(test)]
    pub(crate) fn section<T: SinkSection>(&self) -> Option<&T> {
        let section: &dyn Any = &*self.section;
        section.downcast_ref()
    }
}

impl fmt::Debug for SinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SinkConfig").field(&self.section).finish()
    }
}

/// Returns what `[delivery]` and `[poison]` decide about a sink.
#[allow(dead_code, reason = "the sinks that use it are features")]
fn options(delivery: &Delivery, poison: &Poison) -> SinkOptions {
    SinkOptions {
        max_in_flight_records: u64::from(delivery.max_in_flight_records),
        max_in_flight_bytes: delivery.max_in_flight_bytes,
        max_retrying_bytes: delivery.max_retrying_bytes,
        max_retrying_keys: delivery.max_retrying_keys,
        backoff_initial: delivery.backoff.initial,
        backoff_max: delivery.backoff.max,
        retry_for: poison.retry_for,
        dead_letters: poison.topic.clone(),
    }
}

/// Returns the names of the kinds, as `[sink] kind` has them.
pub fn sink_names() -> impl Iterator<Item = &'static str> + Clone {
    descriptions().map(|description| description.name)
}

/// Returns what `walrelay new` writes about the kind of this name; `None`: the kind alone.
pub(crate) fn sample(name: &str) -> Option<Sample> {
    let kind = KINDS.iter().find(|kind| kind.description.name == name)?;
    kind.sample
}

/// The kind of a configuration that names none.
pub(crate) const DEFAULT_KIND: &str = "kafka";

/// Returns the facts about each kind.
pub(crate) fn descriptions() -> impl Iterator<Item = &'static KindDescription> + Clone {
    KINDS.iter().map(|kind| kind.description)
}

/// The names of the kinds, each with its index in the table.
const NAMES: &[(&str, usize)] = &{
    let mut names = [("", 0); KINDS.len()];
    let mut index = 0;
    while index < KINDS.len() {
        names[index] = (KINDS[index].description.name, index);
        index += 1;
    }
    names
};

section! {
pub(super) struct Keys at "sink" {
    /// Where records go.
    "kind" kind: usize = choice(NAMES).or(DEFAULT_KIND);
}
}

/// Declares the keys of all kinds.
pub(super) fn rows(rows: &mut Vec<Row>) {
    Keys::declare(rows);
    for kind in KINDS {
        (kind.rows)(rows);
    }
}

/// Returns the sections of all kinds whose keys are not known.
pub(super) fn open() -> impl Iterator<Item = (&'static str, ValueKind)> {
    KINDS.iter().flat_map(|kind| kind.open.iter().cloned())
}

pub(super) fn sink(reader: &mut Reader<'_>) -> Result<SinkConfig, AlreadyReported> {
    let keys = Keys::read(reader);
    let chosen = keys.as_ref().ok().map(|keys| keys.kind);
    // All are read before the first error returns, so that all problems are noted.
    let read = KINDS.iter().enumerate().map(|(index, kind)| {
        let section = (kind.read)(reader, chosen == Some(index));
        (kind, section)
    });
    let mut read: Vec<_> = read.collect();
    let (kind, section) = read.swap_remove(keys?.kind);
    Ok(SinkConfig::new(kind, section?))
}

/// Returns the templates of the address of a record; `None`: the topic of the route is the address.
pub(super) fn address(
    reader: &mut Reader<'_>,
    sink: Option<&SinkConfig>,
) -> Result<Option<Address>, AlreadyReported> {
    sink.map_or(Ok(None), |sink| sink.section.address(reader))
}

/// Checks what the actions of `[poison]` need of the sink's section.
pub(super) fn check_poison(
    reader: &mut Reader<'_>,
    sink: Option<&SinkConfig>,
    poison: Option<&Poison>,
) -> Result<(), AlreadyReported> {
    let both = sink.zip(poison);
    both.map_or(Ok(()), |(sink, poison)| {
        sink.section.check_poison(reader, poison)
    })
}
