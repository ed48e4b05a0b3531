//! `[delivery]`, `[poison]` and `[log]`.

use std::sync::Arc;
use std::time::Duration;

use walrelay_settings::{
    AlreadyReported, Reader, SECOND, Section, boolean, choice, choice_and_later, duration, integer,
    nested, section, size, string, text, why,
};

use walrelay_relay::PoisonAction;
use walrelay_sink::dlq_shape::DlqShape;

/// The guarantee to consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarantee {
    /// Every event is delivered at least once.
    AtLeastOnce,
}

const MILLISECOND: Duration = Duration::from_millis(1);

section! {
/// `[delivery]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery at "delivery" {
    /// What consumers may rely on.
    "guarantee" guarantee: Guarantee = choice_and_later(&[("at-least-once", Guarantee::AtLeastOnce)], &["exactly-once"]).or("at-least-once");
    /// Records in flight at most, 1 to 16777216.
    "max_in_flight_records" max_in_flight_records: u32 = integer::<u32>(1..=16_777_216).or("65536");
    /// Their bytes at most, with the client library's own, 64KiB to 1GiB.
    "max_in_flight_bytes" max_in_flight_bytes: u64 = size((64 << 10)..=(1 << 30)).or("12MiB");
    /// Events from the first unacknowledged one on, 1 to 16777216; with more, all events wait. It counts acknowledged ones too, which need no room in flight, so one event that waits stops no other one before. The greater of it and `max_in_flight_records` counts.
    "max_unconfirmed_records" max_unconfirmed_records: u32 = integer::<u32>(1..=16_777_216).or("524288");
    /// Keys of one destination whose event may be sent again, 1 to 1000000; with more, the other keys of that destination wait too. A destination is a URL's host and path, an exchange or a subject; a topic of Kafka, a stream of Redis and an `exclusive_stream` of NATS wait as a whole.
    "max_retrying_keys" max_retrying_keys: u32 = integer::<u32>(1..=1_000_000).or("1000");
    /// Bytes of events that wait because they, an event of their key, or their destination is refused, 0B to 1GiB. When the sink is full, they leave the bounds of events in flight, so that others have room; beyond this, all events wait.
    "max_retrying_bytes" max_retrying_bytes: u64 = size(0..=(1 << 30)).or("64MiB");
    /// How long requests are filled while the relay is behind, at most 1s; for Kafka alone. `0ms`: never, as with a `linger.ms` in `[sink.kafka]`.
    "bulk_linger" bulk_linger: Duration = duration(Duration::ZERO..=SECOND).or("50ms");
    /// How long a stop waits for acknowledgements, at least 1s.
    "drain_timeout" drain_timeout: Duration = duration(SECOND..).or("30s");
    /// Pauses between retries.
    "" backoff: BackoffLimits = nested::<BackoffLimits>();
}
}

section! {
/// The limits of pauses between retries: from `initial`, doubling, to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffLimits at "" {
    /// The first pause before a retry, at least 1ms; pauses double, with jitter.
    "backoff_initial" initial: Duration = duration(MILLISECOND..).or("100ms");
    /// The longest pause before a retry.
    "backoff_max" max: Duration = duration(MILLISECOND..).or("10s");
}
}

pub(super) fn delivery(reader: &mut Reader<'_>) -> Result<Delivery, AlreadyReported> {
    let delivery = Delivery::read(reader)?;
    let BackoffLimits { initial, max } = delivery.backoff;
    if initial > max {
        // At least one of them is set, because the defaults are consistent.
        let paths = ["delivery.backoff_max", "delivery.backoff_initial"];
        let path = paths
            .into_iter()
            .find(|path| reader.has(path))
            .ok_or(AlreadyReported)?;
        let what = "`delivery.backoff_max` is shorter than `delivery.backoff_initial`".to_owned();
        return Err(reader.conflict(path, what));
    }
    Ok(delivery)
}

const ACTIONS: &[(&str, PoisonAction)] = &[
    ("halt", PoisonAction::Halt),
    ("dead-letter", PoisonAction::DeadLetter),
    ("skip", PoisonAction::Skip),
];

section! {
/// `[poison]`: what happens to events that cannot be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poison at "poison" {
    /// The routing column is missing, NULL, or gives a name that no event's topic can have; or the topic, or the name of a header, is one of dead letters.
    "unroutable" unroutable: PoisonAction = choice(ACTIONS).or("halt");
    /// The event is larger than the sink takes.
    "oversize" oversize: PoisonAction = choice(ACTIONS).or("halt");
    /// The sink refuses the event, or its topic is missing or not writable for `retry_for`.
    "rejected" rejected: PoisonAction = choice(ACTIONS).or("halt");
    /// A column cannot be read as its type.
    "undecodable" undecodable: PoisonAction = choice(ACTIONS).or("halt");
    /// The [topic of dead letters](../operate/dead-letters.md#dead-letters).
    "topic" topic: String = string().or("walrelay.dead-letters");
    /// A [template of JSON](../operate/dead-letters.md#a-value-of-your-own-shape) for the value of a dead letter; without it, the value is that of the event. `{attempts}` is 1. Without `{value}`, such dead letters cannot be redriven.
    "value" value: Option<Arc<DlqShape>> = text(shape).optional();
    /// Whether later events of a key follow its dead letter, to keep the order per key.
    "park_key" park_key: bool = boolean().or("false");
    /// How long a refusal that may pass is retried, at least 1s.
    "retry_for" retry_for: Duration = duration(SECOND..).or("5m");
}
}

impl Poison {
    /// Returns true if any class of events becomes dead letters.
    pub fn writes_dead_letters(&self) -> bool {
        let actions = [
            self.unroutable,
            self.oversize,
            self.rejected,
            self.undecodable,
        ];
        actions.contains(&PoisonAction::DeadLetter)
    }
}

fn shape(template: &str) -> Result<Arc<DlqShape>, String> {
    DlqShape::parse(template).map(Arc::new).map_err(why)
}

/// Reads `[poison]`. `topic_problem`: the sink's rule for the names of topics.
pub(super) fn poison(
    reader: &mut Reader<'_>,
    topic_problem: impl FnOnce(&str) -> Option<String>,
) -> Result<Poison, AlreadyReported> {
    let poison = Poison::read(reader)?;
    if let Some(entry) = reader.raw("poison.topic")
        && let Some(why) = topic_problem(&poison.topic)
    {
        return Err(reader.invalid("poison.topic", &entry, &why));
    }
    if poison.value.is_some() && !poison.writes_dead_letters() {
        return Err(reader.no_effect("poison.value", "while nothing becomes a dead letter"));
    }
    if poison.park_key && !poison.writes_dead_letters() {
        return Err(reader.no_effect("poison.park_key", "while nothing becomes a dead letter"));
    }
    Ok(poison)
}
