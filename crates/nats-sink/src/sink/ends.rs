//! Compares the notes of former sinks with the streams, before anything is published.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;
use walrelay_sink::{Loss, SinkStats, StreamEnd};

use crate::client::exchange::{Exchange, ExchangeError};
use crate::client::jetstream::{Extent, extent, info_subject, keeps_all, kept_subject};
use crate::client::message::put_request;

/// The most streams that are asked for at once.
const ASKED_AT_ONCE: usize = 16;
/// The connections over which it is tried. JetStream may not answer while its streams accept messages.
const ATTEMPTS: u32 = 2;
/// The longest wait for the answers: nothing is published meanwhile, also to streams that answer.
const LONGEST: Duration = Duration::from_secs(2);

/// The comparison, which is made once by each sink.
#[derive(Debug)]
pub(super) struct Comparison {
    stats: Arc<SinkStats>,
    /// The longest wait for an answer.
    limit: Duration,
    attempts: u32,
}

impl Comparison {
    pub(super) fn new(stats: &Arc<SinkStats>, limit: Duration) -> Self {
        Self {
            stats: Arc::clone(stats),
            limit: limit.min(LONGEST),
            attempts: ATTEMPTS,
        }
    }

    /// Compares all streams. Returns false if the connection cannot be used any more. What JetStream does not
    /// say, or the user may not ask, is passed over: numbers that do not rise show a loss later.
    pub(super) async fn make(&mut self, exchange: &mut Exchange) -> bool {
        if self.attempts == 0 {
            return true;
        }
        self.attempts -= 1;
        match self.compare(exchange).await {
            Ok(()) => {
                self.attempts = 0;
                true
            }
            Err(error) => {
                debug!(
                    ?error,
                    "streams cannot be compared with their noted contents"
                );
                if !matches!(error, ExchangeError::Connection(_)) {
                    self.attempts = 0;
                }
                false
            }
        }
    }

    async fn compare(&self, exchange: &mut Exchange) -> Result<(), ExchangeError> {
        let ends = self.stats.ends.all().into_iter();
        // A name that is no token would be another request.
        let ends = ends.filter(|(stream, _)| kept_subject(stream).is_some());
        let ends: Vec<(String, StreamEnd)> = ends.collect();
        for some in ends.chunks(ASKED_AT_ONCE) {
            let put = |out: &mut Vec<u8>, number: usize, reply: &str| {
                put_request(out, &info_subject(&some[number].0), reply, b"");
            };
            let asked = exchange.request_all(some.len(), self.limit, |_| true, put);
            for ((stream, end), answer) in some.iter().zip(asked.await?) {
                let Ok(found) = extent(&answer.payload) else {
                    continue;
                };
                if let Some(messages) = lost(end, found.as_ref(), keeps_all(&answer.payload)) {
                    let range = (end.first, end.last);
                    let loss = Loss::new(stream, None, messages, range, end.is_of_dead_letters);
                    self.stats.note_loss(loss);
                    self.stats.ends.forget(stream);
                }
            }
        }
        Ok(())
    }
}

/// Returns the number of messages that a stream has lost, as far as it is known. `found`: `None` if there is no
/// such stream. `keeps_all`: its settings remove no message.
fn lost(end: &StreamEnd, found: Option<&Extent>, keeps_all: bool) -> Option<u64> {
    let had = end.number?;
    let (first, last) = found.map_or((0, 0), |found| (found.first, found.last));
    if last < had {
        // Made again, or without its end.
        return Some(had - last);
    }
    // None of the messages that it had is left.
    (keeps_all && first > had).then_some(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_lacks_what_it_had_has_lost_it() {
        let end = StreamEnd {
            number: Some(10),
            ..StreamEnd::default()
        };
        for (found, keeps_all, expected) in [
            (None, true, Some(10)),
            (Some((0, 0)), true, Some(10)),
            (Some((1, 4)), false, Some(6)),
            (Some((1, 10)), true, None),
            // Others write, and consumers have deleted some.
            (Some((7, 12)), true, None),
            // It was purged, and written to by others.
            (Some((11, 10)), true, Some(1)),
            (Some((11, 12)), true, Some(1)),
            // Its messages end with their age.
            (Some((11, 10)), false, None),
        ] {
            let extent = found.map(|(first, last)| Extent {
                first,
                last,
                subjects: Vec::new(),
                created: String::new(),
                transforms: false,
                leader: None,
            });
            let found = lost(&end, extent.as_ref(), keeps_all);
            assert_eq!(found, expected, "{extent:?}");
        }
    }
}
