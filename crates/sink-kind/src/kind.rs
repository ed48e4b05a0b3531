//! [`SinkKind`]: a configured sink as commands use it, whatever its kind.

use std::fmt;
use std::sync::Arc;

use crate::check::{Check, CheckInput, SinkChecks};
use crate::dead_letters::DeadLetterStore;
use crate::topics::{ReadableTopics, SinkTopics};
use walrelay_sink::{AnySinkFactory, DeliveryError, Record, SinkStats};

/// Something that a configuration or a command asks of a sink, and that not every sink can do.
/// Displays as the words after "the sink cannot".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// Records name their partition.
    Partitions,
    /// Records have timestamps.
    Timestamps,
    /// Records have no key.
    NullKeys,
    /// Records have a key and no value.
    Tombstones,
    /// Later events of a key follow its dead letter, also after a restart.
    Parking,
    /// Dead letters are read back.
    DeadLetters,
    /// Topics are read.
    ReadTopics,
    /// Topics are read, and created for a while.
    Topics,
}

impl Ability {
    /// All variants.
    pub const ALL: [Self; 8] = [
        Self::Partitions,
        Self::Timestamps,
        Self::NullKeys,
        Self::Tombstones,
        Self::Parking,
        Self::DeadLetters,
        Self::ReadTopics,
        Self::Topics,
    ];
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Partitions => "send a record to a partition",
            Self::Timestamps => "give a record a timestamp",
            Self::NullKeys => "send records without a key",
            Self::Tombstones => "send tombstones",
            Self::Parking => "park the events of a key",
            Self::DeadLetters => "read dead letters back",
            Self::ReadTopics => "read topics",
            Self::Topics => "read and create topics",
        })
    }
}

/// The facts about a kind of sink that hold for every configuration.
#[derive(Debug)]
pub struct KindDescription {
    /// The kind, as `[sink] kind` names it.
    pub name: &'static str,
    /// The kind as texts name it.
    pub title: &'static str,
    /// The item of `walrelay check` for the settings of the sink; `None` if it has none.
    pub settings_item: Option<&'static str>,
    /// The items of `walrelay check` for its servers, in the order of the report.
    pub items: &'static [&'static str],
    /// Abilities that the sink lacks, besides those that [`SinkKind::dead_letters`],
    /// [`SinkKind::readable_topics`] and [`SinkKind::topics`] decide.
    pub cannot: &'static [Ability],
}

/// The terms of a kind's protocol for the figures that every kind has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkTerms {
    /// A server that records are sent to, in the singular.
    pub endpoint: &'static str,
    /// The entries of [`SinkStats::unavailable`], in the plural.
    pub unavailable: &'static str,
}

impl Default for SinkTerms {
    fn default() -> Self {
        Self {
            endpoint: "endpoint",
            unavailable: "destinations that accept no record",
        }
    }
}

/// A configured sink. Commands that work with every kind of sink use this alone.
pub trait SinkKind: Send + Sync {
    /// Returns the facts about the kind.
    fn description(&self) -> &'static KindDescription;

    /// Returns the servers that records go to; `None` if they go to none.
    fn servers(&self) -> Option<String> {
        None
    }

    /// Returns the terms by which its servers are shown.
    fn terms(&self) -> SinkTerms {
        SinkTerms::default()
    }

    /// Returns warnings about settings that are allowed and unwise.
    fn warnings(&self) -> Vec<Check> {
        Vec::new()
    }

    /// Creates a factory of sinks that count in `stats`, or in figures of their own. Returns the
    /// figures too; `None` if the sink has none.
    fn factory(&self, stats: Option<Arc<SinkStats>>) -> (AnySinkFactory, Option<Arc<SinkStats>>);

    /// Returns why a sink refuses a record without asking its servers, for example because it is larger than the
    /// configuration allows; `None` if it would offer the record to them.
    fn refusal(&self, record: &Record<'_>) -> Option<DeliveryError> {
        let _ = record;
        None
    }

    /// Checks the servers, for `walrelay check`. Changes nothing on them. **Blocks**.
    fn check(&self, input: CheckInput<'_>) -> SinkChecks {
        let _ = input;
        Vec::new()
    }

    /// Returns why no dead letter can be written to this topic, as far as its servers report; `None` if
    /// one can be, or if the servers report nothing. Creates nothing. **Blocks**.
    fn dead_letter_obstacle(&self, topic: &str) -> Option<String> {
        let _ = topic;
        None
    }

    /// Returns the settings of the servers by which they may lose acknowledged events, as far as
    /// the relay may see them; `None` if a server does not answer. `topics`: those that records went to.
    /// Changes nothing on them. **Blocks**.
    fn risks(&self, topics: &[String]) -> Option<Vec<Check>> {
        let _ = topics;
        Some(Vec::new())
    }

    /// Returns the dead letters; `None` if they cannot be read back.
    fn dead_letters(&self) -> Option<&dyn DeadLetterStore> {
        None
    }

    /// Returns the topics that can be read, or the reason why none can be.
    fn readable_topics(&self) -> Result<&dyn ReadableTopics, &'static str> {
        Err("the receiver keeps no records that walrelay could read")
    }

    /// Returns the topics; `None` if they cannot be read, or not be created.
    fn topics(&self) -> Option<&dyn SinkTopics> {
        None
    }

    /// Returns the kind, as `[sink] kind` names it.
    fn name(&self) -> &'static str {
        self.description().name
    }

    /// Returns true if the sink has the ability.
    fn can(&self, ability: Ability) -> bool {
        match ability {
            Ability::Parking | Ability::DeadLetters => self.dead_letters().is_some(),
            Ability::ReadTopics => self.readable_topics().is_ok(),
            Ability::Topics => self.topics().is_some(),
            _ => !self.description().cannot.contains(&ability),
        }
    }
}
