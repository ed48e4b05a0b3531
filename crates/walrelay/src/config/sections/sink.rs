//! `[sink]` and `[sink.stdout]`. Kafka's sections are in `walrelay-kafka-sink`.

use walrelay_event_router::Address;
use walrelay_kafka_sink::KafkaSection;
use walrelay_settings::{AlreadyReported, Reader, Section, boolean, choice, section};

/// `[sink]`.
#[derive(Debug, Clone)]
pub enum SinkConfig {
    /// Kafka.
    Kafka(KafkaSection),
    /// Standard output, one JSON object per line.
    Stdout {
        /// Whether the slot itself is read, and printed events are confirmed in it.
        confirm: bool,
    },
}

impl SinkConfig {
    /// The settings of Kafka; `None` for another kind.
    pub fn kafka(&self) -> Option<&KafkaSection> {
        match self {
            Self::Kafka(section) => Some(section),
            Self::Stdout { .. } => None,
        }
    }

    /// Returns true if the slot itself is read and confirmed, false if a temporary copy is read.
    pub fn confirms(&self) -> bool {
        !matches!(self, Self::Stdout { confirm: false })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KindKey {
    Kafka,
    Stdout,
}

const KINDS: &[(&str, KindKey)] = &[("kafka", KindKey::Kafka), ("stdout", KindKey::Stdout)];

section! {
pub(super) struct Keys at "sink" {
    /// Where records go.
    "kind" kind: KindKey = choice(KINDS).or("kafka");
    /// Whether `kind = "stdout"` reads the slot itself and confirms what it prints.
    "stdout.confirm" confirm: bool = boolean().or("false");
}
}

pub(super) fn sink(reader: &mut Reader<'_>) -> Result<SinkConfig, AlreadyReported> {
    let keys = Keys::read(reader);
    let kind = keys.as_ref().ok().map(|keys| keys.kind);
    // Kafka's settings may stay in the file while the sink is standard output.
    let kafka = KafkaSection::read(reader, kind == Some(KindKey::Kafka));
    let keys = keys?;
    Ok(match keys.kind {
        KindKey::Stdout => SinkConfig::Stdout {
            confirm: keys.confirm,
        },
        KindKey::Kafka => SinkConfig::Kafka(kafka?),
    })
}

/// The templates of the address of a sink that has them in its section.
pub(super) fn address(
    _reader: &mut Reader<'_>,
    sink: Option<&SinkConfig>,
) -> Result<Option<Address>, AlreadyReported> {
    match sink {
        // A record of Kafka has the topic of the route, and standard output shows it.
        Some(SinkConfig::Kafka(_) | SinkConfig::Stdout { .. }) | None => Ok(None),
    }
}
