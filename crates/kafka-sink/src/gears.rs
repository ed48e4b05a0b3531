//! Two producers for one stream of records: one that sends at once, one that fills its requests.
//!
//! librdkafka makes a request of what one partition has when its turn comes, and a broker pays for
//! each request by itself: without a `linger.ms` some ten seconds of CPU for a million records, with
//! one of 50 ms one to two. But a linger is fixed when a producer is made, and while records come one
//! by one it would only make them late. So there is a producer for either case, and
//! [`Sink::favour`] says which it is (docs/adr/0013-two-gears.md).
//!
//! # Order
//! A record goes to the other producer **only when everything given to the first was reported**: what
//! was acknowledged is in the log, and nothing of the first can come after it. A record that was not
//! delivered breaks the producer that had it; nothing more is taken then, by neither.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use walrelay_sink::{Deliveries, Disposition, Favour, Record, SendError, Sink, SinkFactory};

use crate::sink::Requests;
use crate::{KafkaConfig, KafkaError, KafkaSink};

/// How long the second producer is kept when it is not wanted: its threads and connections cost a
/// little, making it anew costs a little too.
const KEPT: Duration = Duration::from_secs(10);

/// Makes [`GearedSink`]s of one configuration.
#[derive(Debug)]
pub struct GearedSinkFactory {
    config: KafkaConfig,
}

impl GearedSinkFactory {
    /// A factory; talks to nobody yet.
    pub fn new(config: KafkaConfig) -> Self {
        Self { config }
    }
}

impl SinkFactory for GearedSinkFactory {
    type Sink = GearedSink;
    type Error = KafkaError;

    fn create(&mut self, deliveries: Arc<dyn Deliveries>) -> Result<GearedSink, KafkaError> {
        let linger = self.config.bulk_linger();
        // One that is alone fills requests while others are on their way, and goes without gates.
        let prompt = match linger {
            Some(_) => KafkaSink::gated(
                &self.config,
                self.config.client_config(),
                Arc::clone(&deliveries),
            )?,
            None => KafkaSink::new(&self.config, Arc::clone(&deliveries))?,
        };
        Ok(GearedSink {
            prompt,
            bulk: Bulk::None,
            linger,
            config: self.config.clone(),
            deliveries,
            favoured: Favour::Latency,
            gear: Favour::Latency,
            unused_since: None,
            kept: KEPT,
            stale: false,
        })
    }

    fn disposition(error: &KafkaError) -> Disposition {
        error.disposition()
    }
}

/// A Kafka producer that changes gear. Made by [`GearedSinkFactory`].
///
/// The second producer is made when it is first wanted and given up when it was not for a while.
/// Dropping the sink blocks as dropping a [`KafkaSink`] does.
pub struct GearedSink {
    pub(crate) prompt: KafkaSink,
    pub(crate) bulk: Bulk,
    config: KafkaConfig,
    /// `None`: there is one gear.
    linger: Option<Duration>,
    deliveries: Arc<dyn Deliveries>,
    /// What was asked for last.
    favoured: Favour,
    /// Whose turn it is: the producer that has, or may have, records in flight.
    pub(crate) gear: Favour,
    unused_since: Option<Instant>,
    pub(crate) kept: Duration,
    /// The second producer's gates were not opened: it has none from now on.
    stale: bool,
}

pub(crate) enum Bulk {
    None,
    Up(KafkaSink),
    /// Dropping a producer blocks for a moment: not here.
    Closing(JoinHandle<()>),
}

impl GearedSink {
    /// Records that were accepted and not yet reported.
    pub fn in_flight(&self) -> u64 {
        self.current().in_flight()
    }

    fn current(&self) -> &KafkaSink {
        match (&self.bulk, self.gear) {
            (Bulk::Up(bulk), Favour::Throughput) => bulk,
            _ => &self.prompt,
        }
    }

    pub(crate) fn current_mut(&mut self) -> &mut KafkaSink {
        match (&mut self.bulk, self.gear) {
            (Bulk::Up(bulk), Favour::Throughput) => bulk,
            _ => &mut self.prompt,
        }
    }

    /// Changes over if that is wanted and possible. False: not before what is in flight was reported,
    /// which calls [`Deliveries::capacity`].
    fn change(&mut self) -> bool {
        // Such a producer is left, and another one made in its place.
        let stale = self.gear == Favour::Throughput && self.current().is_stale();
        let to = if stale {
            Favour::Latency
        } else {
            self.favoured
        };
        if self.gear == to {
            return true;
        }
        if to == Favour::Throughput && !self.engage() {
            // It goes on as it is.
            self.favoured = self.gear;
            return true;
        }
        // What stands behind gates must get through before anything is settled.
        self.current_mut().nudge();
        // In this order: a failure breaks the producer before its record counts as reported, so one
        // that is settled and not broken has delivered everything.
        let settled = self.current().settled_or_wakes();
        if self.current().is_broken() {
            // It says so itself, to whoever offers it a record.
            return true;
        }
        if settled {
            self.gear = to;
            tracing::debug!(gear = ?self.gear, "changed gear");
        }
        match (settled, stale) {
            (true, true) => {
                tracing::debug!("one request at a time: timestamps are too old for more");
                self.stale = true;
                self.release();
            }
            // One by one, what stands there would take a linger each.
            (false, true) => self.current().hurry(),
            (_, false) => {}
        }
        settled
    }

    /// Sees to the second producer. False: there is none for now.
    fn engage(&mut self) -> bool {
        if let Bulk::Closing(thread) = &self.bulk
            && !thread.is_finished()
        {
            return false;
        }
        if matches!(self.bulk, Bulk::Up(_)) {
            return true;
        }
        self.reap();
        let Some(linger) = self.linger else {
            return false;
        };
        let client = self.config.client_config_lingering(linger);
        let (config, deliveries) = (&self.config, Arc::clone(&self.deliveries));
        let made = if self.prompt.is_stale() || self.stale {
            KafkaSink::with_client(config, &client, Requests::One, deliveries)
        } else {
            KafkaSink::gated(config, client, deliveries)
        };
        match made {
            Ok(bulk) => {
                self.bulk = Bulk::Up(bulk);
                true
            }
            // The same configuration made the first one: this is want of memory or threads, and
            // nothing is lost but speed.
            Err(error) => {
                tracing::warn!(%error, "the producer for throughput could not be made");
                self.linger = None;
                false
            }
        }
    }

    /// Gives the second producer up.
    fn release(&mut self) {
        let Bulk::Up(bulk) = std::mem::replace(&mut self.bulk, Bulk::None) else {
            return;
        };
        let thread = thread::Builder::new().name("kafka-close".to_owned());
        match thread.spawn(move || drop(bulk)) {
            Ok(thread) => self.bulk = Bulk::Closing(thread),
            // Then the sink went with the closure, here.
            Err(error) => tracing::warn!(%error, "no thread to close a producer with"),
        }
    }

    /// Waits for the thread of [`release`](Self::release), if there is one.
    fn reap(&mut self) {
        if let Bulk::Closing(thread) = std::mem::replace(&mut self.bulk, Bulk::None)
            && thread.join().is_err()
        {
            tracing::error!("closing a producer panicked");
        }
    }
}

impl Sink for GearedSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        if !self.change() {
            return Err(SendError::Full);
        }
        self.current_mut().try_send(record, seq)
    }

    fn nudge(&mut self) {
        self.current_mut().nudge();
        if self.gear == Favour::Throughput || self.favoured == Favour::Throughput {
            self.unused_since = None;
            // What lags can change over while nothing is sent.
            if self.favoured == Favour::Latency {
                self.change();
            }
            return;
        }
        if matches!(self.bulk, Bulk::Up(_))
            && self.unused_since.get_or_insert_with(Instant::now).elapsed() >= self.kept
        {
            self.release();
        }
    }

    fn favour(&mut self, favour: Favour) {
        if self.linger.is_some() {
            self.favoured = favour;
        }
    }

    fn close(mut self, grace: Duration) {
        // What is in flight is in one of them only.
        let until = Instant::now() + grace;
        if let Bulk::Up(bulk) = std::mem::replace(&mut self.bulk, Bulk::None) {
            bulk.close(grace);
        }
        self.reap();
        let grace = until.saturating_duration_since(Instant::now());
        self.prompt.close(grace);
    }
}

impl fmt::Debug for GearedSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GearedSink")
            .field("gear", &self.gear)
            .field("favoured", &self.favoured)
            .field("prompt", &self.prompt)
            .finish_non_exhaustive()
    }
}
