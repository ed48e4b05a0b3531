use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use walrelay_event_router::Routed;
use walrelay_pgoutput::PgTimestamp;
use walrelay_sink::dlq_shape::DlqShape;
use walrelay_sink::{DeliveryError, Parking, Poison, Record, dlq_headers};

/// The action for an event that cannot be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoisonAction {
    /// Stop the pipeline before the event.
    #[default]
    Halt,
    /// Send a dead letter in its place, which must be acknowledged like any record.
    DeadLetter,
    /// Skip the event; it is counted and logged.
    Skip,
}

/// A clock for texts, which the core does not read by itself.
pub type WallClock = fn() -> PgTimestamp;

/// Returns why the sink refuses a record without asking its servers; `None` if it would offer the record to them.
type Refuses = dyn Fn(&Record<'_>) -> Option<DeliveryError> + Send + Sync;

/// The limits of a sink that are known without its servers.
#[derive(Clone)]
pub struct SinkLimits(Arc<Refuses>);

impl SinkLimits {
    /// Creates the limits from the answer of the sink.
    pub fn new(
        refuses: impl Fn(&Record<'_>) -> Option<DeliveryError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(refuses))
    }

    /// Returns why a record is too large for the sink, whatever its topic is.
    pub(crate) fn oversize(&self, record: &Record<'_>) -> Option<String> {
        let refusal = (self.0)(record)?;
        (refusal.poison == Some(Poison::Oversize)).then_some(refusal.reason)
    }
}

impl fmt::Debug for SinkLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkLimits").finish_non_exhaustive()
    }
}

/// The configured poison policy.
#[derive(Debug, Clone)]
pub struct PoisonPolicy {
    /// The action for [`Poison::Unroutable`].
    pub unroutable: PoisonAction,
    /// The action for [`Poison::Oversize`].
    pub oversize: PoisonAction,
    /// The action for [`Poison::Rejected`].
    pub rejected: PoisonAction,
    /// The action for [`Poison::Undecodable`].
    pub undecodable: PoisonAction,
    /// The topic of dead letters.
    pub topic: Arc<str>,
    /// The name of the replication slot, for the headers of dead letters.
    pub slot: Arc<str>,
    /// The time for which an event is retried before the action is taken, if its refusal may pass:
    /// a topic may be created, a permission may be granted.
    pub retry_for: Duration,
    /// The shape of the values of dead letters, and the clock for it; `None`: the values are the events'.
    pub shape: Option<(Arc<DlqShape>, WallClock)>,
    /// The keys that are parked behind dead letters; `None`: dead letters park nothing.
    pub parking: Option<Arc<Parking>>,
    /// The limits of the sink; `None`: none are known.
    pub limits: Option<SinkLimits>,
}

impl Default for PoisonPolicy {
    fn default() -> Self {
        Self {
            unroutable: PoisonAction::Halt,
            oversize: PoisonAction::Halt,
            rejected: PoisonAction::Halt,
            undecodable: PoisonAction::Halt,
            topic: Arc::from("walrelay.dead-letters"),
            slot: Arc::from("walrelay"),
            retry_for: Duration::from_secs(300),
            shape: None,
            parking: None,
            limits: None,
        }
    }
}

/// The part of an event that is reserved for dead letters. The row chose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservedPart {
    /// The topic is the one that dead letters are written to.
    Topic,
    /// A header has a name that begins with [`dlq_headers::PREFIX`].
    Header,
}

impl fmt::Display for ReservedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Topic => "its topic is the one of dead letters",
            Self::Header => "a header has a name of dead letters (walrelay.dlq.…)",
        })
    }
}

impl PoisonPolicy {
    /// Returns the part of an event that is reserved for dead letters. A header counts whatever the topic
    /// is, because the row may name the topic of another pipeline's dead letters. The topic counts if this
    /// pipeline writes dead letters.
    #[expect(
        clippy::inline_always,
        reason = "a call costs each row more than the check"
    )]
    #[inline(always)]
    pub(crate) fn reserved_part(&self, routed: &Routed<'_>) -> Option<ReservedPart> {
        for header in routed.headers() {
            if header.name.starts_with(dlq_headers::PREFIX) {
                return Some(ReservedPart::Header);
            }
        }
        let is_dlq_topic = *routed.topic() == *self.topic && self.writes_dead_letters();
        is_dlq_topic.then_some(ReservedPart::Topic)
    }

    // Apart from `reserved_part`, so that the comparison of the topics is inlined.
    #[cold]
    fn writes_dead_letters(&self) -> bool {
        let writes = |poison| self.action(poison) == PoisonAction::DeadLetter;
        Poison::ALL.into_iter().any(writes)
    }

    /// Returns the action for an event of this class.
    pub fn action(&self, poison: Poison) -> PoisonAction {
        match poison {
            Poison::Unroutable => self.unroutable,
            Poison::Oversize => self.oversize,
            Poison::Rejected => self.rejected,
            Poison::Undecodable => self.undecodable,
        }
    }
}

/// The reason why an event is diverted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The event cannot be delivered.
    Poison(Poison),
    /// An earlier event of its key is a dead letter.
    Parked,
}

impl Class {
    /// Returns the name in dead letters and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Poison(poison) => poison.name(),
            Self::Parked => dlq_headers::PARKED,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
