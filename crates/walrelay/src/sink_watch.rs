//! Asks beside a running relay whether dead letters can be written: without their topic the relay
//! stops at the first event that cannot be delivered.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tracing::{info, warn};
use walrelay_observe::Telemetry;
use walrelay_sink::{SinkKind, in_current_span};

/// Time between two questions while dead letters cannot be written.
const WHILE_MISSING: Duration = Duration::from_secs(30);
/// Time between two questions otherwise.
const USUAL: Duration = Duration::from_secs(300);

/// Ends the thread when it is dropped. A question that is under way is not waited for.
#[derive(Debug)]
pub(crate) struct DeadLetterWatch {
    _stop: Sender<()>,
}

impl DeadLetterWatch {
    /// Starts the thread, which logs in the caller's span.
    pub(crate) fn start(
        sink: Box<dyn SinkKind>,
        topic: String,
        telemetry: Option<Arc<Telemetry>>,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let watch = move || {
            let mut before = None;
            loop {
                let obstacle = sink.dead_letter_obstacle(&topic);
                match &obstacle {
                    Some(error) if before != obstacle => {
                        warn!(
                            topic,
                            error,
                            remedy = REMEDY,
                            "no dead letter can be written"
                        );
                    }
                    None if before.is_some() => info!(topic, "dead letters can be written"),
                    _ => {}
                }
                if let Some(telemetry) = &telemetry {
                    telemetry.dead_letter_obstacle(obstacle.clone());
                }
                let wait = if obstacle.is_some() {
                    WHILE_MISSING
                } else {
                    USUAL
                };
                before = obstacle;
                if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("dlq-topic".to_owned())
            .spawn(in_current_span(watch))?;
        Ok(Self { _stop: stop })
    }
}

const REMEDY: &str = "create what is missing, or give the relay the right to write to it: docs/OPERATIONS.md, \
                      \"WalrelayDeadLetterTopic\"";
