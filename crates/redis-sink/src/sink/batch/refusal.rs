//! What a refusal means: for a record, for its stream, or for all.

use std::time::Instant;

use tracing::warn;
use walrelay_sink::{DeliveryError, Disposition, Obstacle, Poison};
use walrelay_sink_client::{Failure, Held};

use super::{Batches, Stop};
use crate::client::link::Link;
use crate::client::not_ready;
use crate::client::refusal::{PART_OF_CLUSTER, Refusal, code, meaning, refused_stream};
use crate::sink::Settings;
use crate::sink::plan::Head;
use crate::sink::streams::Hold;

pub(super) const TOO_LARGE: &str = "the event is larger than an entry can be";

impl Batches<'_> {
    /// Decides what the refusal of a look-up means, or of a command that was for all records of a server.
    /// `at`: the index of the record.
    pub(super) fn refused_at(
        &mut self,
        link: &mut Link,
        server: usize,
        heads: &[Head],
        at: usize,
        text: &[u8],
    ) -> Stop {
        if refused_stream(text).is_some() {
            self.refuse_stream(heads, heads[at].stream, text);
            return Stop::Again;
        }
        self.refused(link, server, heads[at].seq, text)
    }

    /// Holds the records of a stream back for a while; refuses those of this round for good if the
    /// stream was refused for `retry_for`.
    pub(super) fn refuse_stream(&mut self, heads: &[Head], stream: usize, text: &[u8]) {
        let why = refused_stream(text).unwrap_or_default();
        let Settings {
            pauses, refusals, ..
        } = &*self.shared.settings;
        let now = Instant::now();
        let Hold { since, until, .. } = self.streams.hold(stream, now, *pauses);
        let name = &self.streams[stream].name;
        if refusals.is_over(name.as_bytes(), since, now) {
            self.released(stream);
            let of_stream = heads.iter().filter(|head| head.stream == stream);
            let seqs: Vec<u64> = of_stream.map(|head| head.seq).collect();
            let refusal = (Poison::Rejected, Disposition::Configuration);
            self.refuse(&seqs, refusal, why, text);
            return;
        }
        let obstacle = Obstacle {
            what: format!(
                "a stream is refused, whose events are rejected in the end: {why} ({})",
                code(text)
            ),
            disposition: Disposition::Configuration,
            remedy: Some("correct the stream or the user's rights; [poison] decides otherwise"),
        };
        let mut state = self.shared.state();
        let why = format!("{why} ({})", code(text));
        state.records.hold(
            name,
            Held {
                why,
                since,
                next: until,
            },
        );
        let known = state.refusal.replace(obstacle.clone());
        drop(state);
        if known.as_ref() != Some(&obstacle) {
            warn!(
                reason = obstacle.what,
                "Redis accepts no events for a stream"
            );
        }
    }

    /// Notes that a stream has taken a record.
    pub(super) fn taken(&mut self, stream: usize) {
        let refusals = &self.shared.settings.refusals;
        if !refusals.is_unused() {
            refusals.forget(self.streams[stream].name.as_bytes());
        }
        self.released(stream);
    }

    /// Notes that a stream is not held back any more.
    fn released(&mut self, stream: usize) {
        let Some(is_last) = self.streams.release(stream) else {
            return;
        };
        let mut state = self.shared.state();
        state.records.release(&self.streams[stream].name);
        if is_last {
            state.refusal = None;
        }
    }

    /// Reports records that are refused for good: the first one of each key.
    pub(super) fn refuse(
        &mut self,
        seqs: &[u64],
        refusal: (Poison, Disposition),
        why: &str,
        text: &[u8],
    ) {
        {
            let mut state = self.shared.state();
            let batch = state.records.take_batch();
            state.records.put_back(batch);
        }
        for seq in seqs {
            self.tried.remove(seq);
            let reason = format!("{why} ({})", code(text));
            self.shared.refuse_for(*seq, refusal, reason);
        }
    }

    /// Decides what a refusal means that is not about a record or its stream. `seq`: a record of the
    /// refused command.
    pub(super) fn refused(
        &mut self,
        link: &mut Link,
        server: usize,
        seq: u64,
        text: &[u8],
    ) -> Stop {
        let refusal = meaning(text);
        let why = match refusal {
            Refusal::Moved if link.map().is_some() => {
                link.note_moved(server);
                return Stop::Pause(Obstacle {
                    what: "a slot of the cluster has moved to another node, or is moving"
                        .to_owned(),
                    disposition: Disposition::Retryable,
                    remedy: None,
                });
            }
            Refusal::Moved => PART_OF_CLUSTER,
            Refusal::Wait(what, remedy) => {
                return Stop::Pause(Obstacle {
                    what: what.to_owned(),
                    disposition: Disposition::Retryable,
                    remedy: Some(remedy),
                });
            }
            Refusal::Reconnect(_) | Refusal::Behind | Refusal::Aborted => {
                link.note_refusal(server);
                return not_ready(link.name(server), text, refusal).into();
            }
            Refusal::Denied => "the user has not the right to a command",
            Refusal::Configuration(why) => why,
            Refusal::Oversize => TOO_LARGE,
        };
        let removed = self.shared.state().records.take(seq);
        if let Some(queued) = removed {
            let error = DeliveryError {
                topic: queued.record.with(|record| record.topic.into()),
                reason: format!("{why} ({})", code(text)),
                disposition: Disposition::Configuration,
                poison: None,
            };
            self.shared.report(&queued, Err(("refused", error)));
        }
        Stop::Broken(Failure::with_another())
    }
}
