//! [`SinkKind`]: the configured sink as commands use it, whatever its kind.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use walrelay_postgres_source::ReadOpen;
use walrelay_sink::{AnySinkFactory, Parking, SinkStats};

use crate::cli::Failure;
use crate::config::Config;

/// Where the dead letters of a relay are.
pub(crate) struct DeadLetterStore<'a> {
    /// `[poison] topic`.
    pub(crate) topic: &'a str,
    /// The slot whose dead letters count.
    pub(crate) slot: &'a str,
}

impl<'a> DeadLetterStore<'a> {
    /// Names the store of the configured relay.
    pub(crate) fn configured(config: &'a Config) -> Self {
        Self {
            topic: &config.poison.topic,
            slot: &config.source.slot,
        }
    }
}

/// The process id and the number of dead letters of the walsender that reads the slot; `None` if no
/// relay writes dead letters meanwhile.
pub(crate) type Epoch = Box<dyn Fn() -> Option<(i32, u64)> + Send>;

/// A configured sink. Commands that work with every kind of sink use this alone.
pub(crate) trait SinkKind {
    /// The kind, as `[sink] kind` names it.
    fn name(&self) -> &'static str;

    /// The servers that records go to; `None` if they go to none.
    fn servers(&self) -> Option<String>;

    /// Texts about settings that are allowed and unwise.
    fn warnings(&self) -> Vec<String>;

    /// Creates a factory of sinks that count in `stats`, or in figures of their own. Returns the
    /// figures too; `None` if the sink has none.
    fn factory(&self, stats: Option<Arc<SinkStats>>) -> (AnySinkFactory, Option<Arc<SinkStats>>);

    /// Returns true if a topic has, or had, records. Blocks for `timeout` at most.
    ///
    /// # Errors
    /// If no server answers.
    fn was_written_to(&self, topic: &str, timeout: Duration) -> Result<bool, Failure>;

    /// Keeps the keys of open dead letters in `parking` until the returned value is dropped.
    ///
    /// # Errors
    /// If the store cannot be watched.
    fn watch_dead_letters(
        &self,
        store: &DeadLetterStore<'_>,
        parking: Arc<Parking>,
    ) -> Result<Box<dyn Any>, Failure>;

    /// Returns a function that reads the open dead letters; `None` if dead letters cannot be read back.
    /// `writes`: this configuration writes dead letters, so the right to read them is needed.
    fn read_dead_letters(
        &self,
        store: &DeadLetterStore<'_>,
        writes: bool,
        epoch: Epoch,
    ) -> Option<ReadOpen>;
}
