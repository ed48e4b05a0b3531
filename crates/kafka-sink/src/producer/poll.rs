//! The thread `kafka-poll`: serves librdkafka's events (reports, errors, tokens) and purges the
//! queues of a broken producer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, Producer, PurgeConfig};

use crate::producer::context::Context;
use crate::producer::rebootstrap::Rebootstrap;
use crate::worker::Worker;
use crate::{KafkaError, ffi};

/// The time for which a poll serves events before the stop flag is checked. Not shorter, because rdkafka
/// spins for the last millisecond of each poll.
const POLL: Duration = Duration::from_millis(200);
/// The times after its start at which the poll thread requests metadata. librdkafka sends nothing without a
/// producer id, and requests one when metadata arrive, or else half a second after its start. The
/// first metadata mostly arrive before a broker can be asked for an id. Each request may take
/// [`METADATA_TIMEOUT`].
const METADATA_REQUESTS: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(60),
    Duration::from_millis(120),
    Duration::from_millis(240),
];
const METADATA_TIMEOUT: Duration = Duration::from_millis(20);
/// The interval at which a refused token is replaced by a new one of the source.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(2);
/// The interval at which the cluster's id is noted: the address may lead to another cluster.
const CLUSTER_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which new connections are made to end by a reset, while records are in flight. Shorter than
/// [`POLL`], so at each poll that serves no event.
const RESET_INTERVAL: Duration = Duration::from_millis(100);
/// After a failure, how long brokers may still acknowledge requests in flight.
const BROKEN_GRACE: Duration = Duration::from_secs(1);

/// A handle of the poll thread, which holds a reference to the producer until the handle is
/// dropped.
pub(crate) struct PollThread(Worker);

impl PollThread {
    pub(crate) fn start(producer: Arc<BaseProducer<Context>>) -> Result<Self, KafkaError> {
        Worker::start("kafka-poll", move |stop| poll(&producer, stop)).map(Self)
    }

    /// Stops and joins the thread.
    pub(crate) fn stop(&mut self) {
        // The thread has not panicked: `AbortOnPanic` would have ended the process.
        let _ = self.0.stop();
    }
}

impl Drop for PollThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Aborts the process if the thread panics, as the release profile does by itself. Without the poll
/// thread no record is ever reported, and the relay would wait for ever; a process that ends is
/// restarted.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

fn poll(producer: &BaseProducer<Context>, stop: &AtomicBool) {
    let _abort = AbortOnPanic;
    let mut broken_since: Option<Instant> = None;
    let started = Instant::now();
    let (mut renewed, mut noted, mut reset) = (started, started, started);
    let mut requests = METADATA_REQUESTS.iter().peekable();
    let mut rebootstrap = Rebootstrap::default();
    let context = producer.context();
    while !stop.load(SeqCst) {
        if requests.next_if(|at| started.elapsed() >= **at).is_some() {
            // A failure needs no handling: librdkafka retries by itself.
            let _ = ffi::topic_states(producer, METADATA_TIMEOUT);
        }
        let wait = requests
            .peek()
            .map_or(POLL, |at| at.saturating_sub(started.elapsed()).min(POLL));
        if renewed.elapsed() > RENEWAL_INTERVAL {
            renewed = Instant::now();
            context.renew_refused_token(producer);
        }
        let in_flight = producer.in_flight_count() > 0 && !context.shared.broken();
        if in_flight && reset.elapsed() > RESET_INTERVAL {
            reset = Instant::now();
            context.reset_connections();
        }
        if rebootstrap.is_due(in_flight, context.take_reported(), Instant::now()) {
            context.rebootstrap(producer);
        }
        if noted.elapsed() > CLUSTER_INTERVAL && context.shared.acknowledged() {
            noted = Instant::now();
            context.shared.note_cluster();
        }
        context.reconnect(producer, METADATA_TIMEOUT);
        serve_events(producer, wait, &mut broken_since);
    }
}

fn serve_events(
    producer: &BaseProducer<Context>,
    poll: Duration,
    broken_since: &mut Option<Instant>,
) {
    let shared = &producer.context().shared;
    producer.poll(poll);
    if shared.queue_full.swap(false, SeqCst) {
        shared.wake_sender();
    }
    if broken_since.is_none() {
        // Polled, because the event of a fatal error has the code of its cause, as an ordinary
        // error has.
        if let Some((code, reason)) = producer.client().fatal_error() {
            if !shared.closing() {
                tracing::error!(%code, reason, "the Kafka producer is broken and must be rebuilt");
            }
            shared.break_off();
        }
        *broken_since = shared.broken().then(Instant::now);
    }
    if let Some(since) = broken_since
        && producer.in_flight_count() > 0
    {
        // Purge repeatedly: a record may have been accepted at the same moment, and records in
        // flight to a broker that does not answer must be reported, too.
        let purge = PurgeConfig::default().queue().non_blocking();
        producer.purge(if since.elapsed() < BROKEN_GRACE {
            purge
        } else {
            purge.inflight()
        });
    }
}
