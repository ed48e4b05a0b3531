//! Asks the servers of a sink beside a running relay about what the stream of records does not tell.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tracing::{info, warn};
use walrelay_observe::Telemetry;
use walrelay_sink::{OTHER_TOPICS, SinkStats, in_current_span};
use walrelay_sink_kind::SinkKind;
use walrelay_sink_kind::check::Check;

/// Time between two questions about dead letters while they cannot be written.
const WHILE_MISSING: Duration = Duration::from_secs(30);
/// Time between two questions about dead letters otherwise.
const USUAL: Duration = Duration::from_secs(300);
/// Time between two questions about settings.
const SETTINGS: Duration = Duration::from_secs(60);
/// The same at most while they are not seen.
const LONGEST: Duration = Duration::from_secs(3600);

/// Ends the thread when it is dropped. A question that is under way is not waited for.
#[derive(Debug)]
pub(crate) struct SinkWatch {
    _stop: Sender<()>,
}

impl SinkWatch {
    /// Watches whether dead letters can be written: without their topic the relay stops at the first
    /// event that cannot be delivered.
    pub(crate) fn on_dead_letters(
        sink: Box<dyn SinkKind>,
        topic: String,
        telemetry: Option<Arc<Telemetry>>,
    ) -> io::Result<Self> {
        let mut before = None;
        Self::start("dlq-topic", move || {
            let obstacle = sink.dead_letter_obstacle(&topic);
            match &obstacle {
                Some(error) if before != obstacle => {
                    let remedy = REMEDY;
                    warn!(topic, error, remedy, "no dead letter can be written");
                }
                None if before.is_some() => info!(topic, "dead letters can be written"),
                _ => {}
            }
            if let Some(telemetry) = &telemetry {
                telemetry.dead_letter_obstacle(obstacle.clone());
            }
            before = obstacle;
            if before.is_some() {
                WHILE_MISSING
            } else {
                USUAL
            }
        })
    }

    /// Watches the settings by which the servers may lose what they have acknowledged.
    pub(crate) fn on_risks(
        sink: Box<dyn SinkKind>,
        stats: Option<Arc<SinkStats>>,
        telemetry: Option<Arc<Telemetry>>,
    ) -> io::Result<Self> {
        let mut before: Vec<Check> = Vec::new();
        let mut pause = SETTINGS;
        Self::start("sink-risks", move || {
            let topics = stats.iter().flat_map(|stats| stats.topics());
            let topics = topics.map(|(topic, _)| topic);
            let topics: Vec<String> = topics.filter(|topic| topic != OTHER_TOPICS).collect();
            // What is not seen is not known to be repaired. A server may log each refusal.
            let Some(risks) = sink.risks(&topics) else {
                pause = (2 * pause).min(LONGEST);
                return pause;
            };
            for risk in risks.iter().filter(|risk| !before.contains(risk)) {
                let (finding, remedy) = (&risk.finding, risk.remedy.as_deref());
                warn!(
                    finding,
                    remedy, "the destination may lose events that it has acknowledged"
                );
            }
            if risks.is_empty() && !before.is_empty() {
                info!("the destination's settings keep acknowledged events");
            }
            if let Some(telemetry) = &telemetry {
                telemetry.sink_risks(risks.clone());
            }
            before = risks;
            pause = SETTINGS;
            pause
        })
    }

    /// Starts a thread that asks, and asks again after the returned time. It logs in the caller's span.
    fn start(thread: &str, mut ask: impl FnMut() -> Duration + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let watch = move || while stopped.recv_timeout(ask()) == Err(RecvTimeoutError::Timeout) {};
        thread::Builder::new()
            .name(thread.to_owned())
            .spawn(in_current_span(watch))?;
        Ok(Self { _stop: stop })
    }
}

const REMEDY: &str = "create it if it is missing, or give the relay the right to write to it: \
                      docs/operate/alerts.md, \"WalrelayDeadLetterTopic\"";
