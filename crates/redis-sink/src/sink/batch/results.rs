//! Reports stored records, and decides about the others.

use std::collections::{BTreeMap, BTreeSet};

use walrelay_sink::{Disposition, Obstacle, Poison, QueuedRecord, Record};

use super::refusal::TOO_LARGE;
use super::{Batches, Stop};
use crate::client::error::RedisError;
use crate::client::link::Link;
use crate::client::refusal::{Refusal, meaning, refused_stream};
use crate::sink::entry::NewId;
use crate::sink::plan::Head;
use crate::sink::round::{Outcome, Round};

/// The unreported results of a round.
#[derive(Default)]
struct Results {
    /// The stored records, with their streams.
    stored: Vec<(usize, QueuedRecord)>,
    /// The streams of which a record is to be written again: so are all behind it, lest the
    /// earlier one becomes the last of its key.
    again: BTreeSet<usize>,
    /// The records above the size of an entry.
    oversize: Vec<(Head, Vec<u8>)>,
    /// The refused streams.
    streams: BTreeMap<usize, Vec<u8>>,
    /// The first refusal for another reason: the server, the record's number, the text.
    refused: Option<(usize, u64, Vec<u8>)>,
    /// An entry that was written before is gone.
    has_gone: bool,
}

impl Results {
    /// Returns true if a record is to be written again, though it is stored.
    fn repeats(&self, head: &Head) -> bool {
        let is_copy = || {
            let mut oversize = self.oversize.iter();
            head.again && oversize.any(|(other, _)| other.stream == head.stream)
        };
        self.again.contains(&head.stream) || is_copy()
    }

    /// Returns true if a record leaves the queue, or the next round differs for another reason.
    fn is_progress(&self) -> bool {
        self.has_gone
            || !self.stored.is_empty()
            || !self.oversize.is_empty()
            || !self.streams.is_empty()
    }
}

impl Batches<'_> {
    /// Takes the records out that are stored, and reports them. `failed`: why the connections are of no
    /// use any more.
    pub(super) fn finish(
        &mut self,
        link: &mut Link,
        round: Round,
        failed: Option<RedisError>,
    ) -> Result<(), Stop> {
        let Round {
            heads,
            ids,
            outcomes,
            ..
        } = round;
        let mut results = Results::default();
        {
            let mut state = self.shared.state();
            let batch = state.records.take_batch();
            let planned = heads.iter().zip(ids);
            let mut kept = Vec::new();
            for ((queued, (head, id)), outcome) in batch.into_iter().zip(planned).zip(outcomes) {
                if outcome == Outcome::Stored && !results.repeats(head) {
                    let stream = &mut self.streams[head.stream];
                    stream.stored(id);
                    let note = |record: &Record<'_>| stream.contents.stored(record, id.is_some());
                    queued.record.with(note);
                    results.stored.push((head.stream, queued));
                    continue;
                }
                if let Some(NewId::Explicit(id) | NewId::Behind(id)) = id
                    && outcome != Outcome::Gone
                {
                    self.tried.insert(queued.seq, id);
                }
                kept.push(queued);
                self.note_kept(&mut results, head, outcome);
            }
            state.records.put_back(kept);
        }
        let is_progress = results.is_progress();
        let touched: BTreeSet<usize> = results.stored.iter().map(|(stream, _)| *stream).collect();
        for stream in touched {
            self.streams[stream].keep_end();
        }
        for (stream, queued) in results.stored {
            self.tried.remove(&queued.seq);
            self.taken(stream);
            self.shared.report(&queued, Ok(()));
        }
        for (head, text) in results.oversize {
            let refusal = (Poison::Oversize, Disposition::Fatal);
            self.refuse(&[head.seq], refusal, TOO_LARGE, &text);
        }
        for (stream, text) in results.streams {
            self.refuse_stream(&heads, stream, &text);
        }
        match (failed, results.refused) {
            (Some(error), _) => Err(error.into()),
            (None, Some((server, seq, text))) => Err(self.refused(link, server, seq, &text)),
            // A client that writes all the time must not make this one do the same.
            (None, None) if !is_progress => Err(Stop::Pause(Obstacle {
                what: "another client writes to the streams of the next events".to_owned(),
                disposition: Disposition::Retryable,
                remedy: Some("see that each stream has one relay, and no other writer"),
            })),
            (None, None) => Ok(()),
        }
    }

    /// Notes the outcome of a record that stays in the queue.
    fn note_kept(&mut self, results: &mut Results, head: &Head, outcome: Outcome) {
        match outcome {
            Outcome::Stored => {}
            Outcome::Gone => {
                results.has_gone = true;
                results.again.insert(head.stream);
                let stream = &mut self.streams[head.stream];
                if let Some(lost) = stream.gone() {
                    let loss = lost.into_loss(&stream.name);
                    self.shared.stats.note_loss(loss);
                }
            }
            Outcome::Unknown => {
                self.streams[head.stream].newest = None;
                results.again.insert(head.stream);
            }
            Outcome::Refused(text) if meaning(&text) == Refusal::Oversize => {
                self.streams[head.stream].newest = None;
                results.oversize.push((*head, text));
            }
            Outcome::Refused(text) => {
                self.streams[head.stream].newest = None;
                results.again.insert(head.stream);
                // If it is behind, another client has written meanwhile.
                if refused_stream(&text).is_some() {
                    results.streams.entry(head.stream).or_insert(text);
                } else if meaning(&text) != Refusal::Behind && results.refused.is_none() {
                    results.refused = Some((self.server(head), head.seq, text));
                }
            }
        }
    }
}
