//! What a run of a slot's relay notes of itself while it has the slot: that it has started, how it ended, the
//! losses of the destination that are not accepted, and what the destination's streams had. So the next run
//! sees a loss that happened meanwhile, and a run that was killed is distinguished from one that ended.
//!
//! Nothing waits for it, as for [`last_error`](crate::last_error).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use serde::{Deserialize, Serialize};
use tracing::{info, warn};
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_sink::{EventPosition, Loss, SinkStats, StreamEnd, lock};
use walrelay_walsender::{Error, Session};

use super::kept::{Guard, Kept};

const KEPT: Kept = Kept {
    table: "run",
    column: "note",
    comment: "what its run notes of itself, as JSON",
    suffix: ".run",
};

/// The note of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunNote {
    /// The number of runs of the slot's relays that have noted their start, this one included.
    pub starts: u64,
    /// The start of the run, in milliseconds since 1970.
    pub started_ms: u64,
    /// How the run ended; `None` while it lasts, and if it could not note its end.
    pub ended: Option<RunEnd>,
    /// The kind of the sink.
    pub sink: String,
    /// What its streams had.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub streams: BTreeMap<String, StreamEnd>,
    /// The events that it has lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<Loss>,
}

/// The end of a run that ended by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// In milliseconds since 1970.
    pub at_ms: u64,
    /// The id of the error; `None` if it was asked to stop.
    pub error: Option<String>,
}

impl RunNote {
    /// Returns when the run started, and how it ended.
    pub fn text(&self) -> String {
        let at = |ms: u64| {
            let micros = i64::try_from(ms.saturating_mul(1000)).unwrap_or(i64::MAX);
            PgTimestamp::from_unix_micros(micros).unwrap_or(PgTimestamp::new(0))
        };
        let started = at(self.started_ms);
        match &self.ended {
            None => format!(
                "started at {started} and left no sign of its end: it was killed, for example for lack of memory, \
                 its machine failed, or Postgres did not answer then"
            ),
            Some(RunEnd { at_ms, error: None }) => {
                format!("started at {started}, and was stopped at {}", at(*at_ms))
            }
            Some(RunEnd {
                at_ms,
                error: Some(id),
            }) => format!(
                "started at {started}, and ended at {} by [{id}]",
                at(*at_ms)
            ),
        }
    }

    fn newest_ms(&self) -> u64 {
        self.ended
            .as_ref()
            .map_or(self.started_ms, |ended| ended.at_ms)
    }
}

/// The note of the run before, as this process has found it, and what becomes of it.
#[derive(Debug, Default)]
pub struct FormerRun {
    /// The kind of this process' sink.
    kind: &'static str,
    /// Losses that are noted are accepted.
    accepts_losses: bool,
    started_ms: u64,
    sink: OnceLock<Arc<SinkStats>>,
    found: Mutex<Option<Arc<RunNote>>>,
    /// The note of the run before was looked for, with or without a result.
    is_read: AtomicBool,
}

impl FormerRun {
    /// Creates it before anything is known. `started_ms`: the start of this process.
    pub fn new(kind: &'static str, accepts_losses: bool, started_ms: u64) -> Self {
        Self {
            kind,
            accepts_losses,
            started_ms,
            ..Self::default()
        }
    }

    /// Gives what is found to this sink, too.
    pub fn set_sink(&self, sink: Arc<SinkStats>) {
        let _ = self.sink.set(sink);
    }

    /// Tells the sink the epoch of the server that is read.
    pub fn set_epoch(&self, epoch: u8) {
        if let Some(sink) = self.sink.get() {
            sink.set_epoch(epoch);
        }
    }

    /// Returns the note of the run before; `None`: there is none, or it is not read yet.
    pub fn get(&self) -> Option<Arc<RunNote>> {
        lock(&self.found).clone()
    }

    /// Returns true if the note of the run before was looked for. A run that notes itself before would replace it, with
    /// losses that are not accepted.
    pub fn is_read(&self) -> bool {
        self.is_read.load(Ordering::Acquire)
    }

    /// Returns the note of this run. `ended`: `None` while it lasts.
    pub fn own(&self, ended: Option<RunEnd>) -> RunNote {
        let sink = self.sink.get();
        RunNote {
            starts: self.get().map_or(0, |former| former.starts) + 1,
            started_ms: self.started_ms,
            ended,
            sink: self.kind.to_owned(),
            streams: sink.map(|sink| sink.ends.all()).unwrap_or_default(),
            losses: sink.map(|sink| sink.losses().list).unwrap_or_default(),
        }
    }

    /// Takes the note that is found when the slot is opened, which stands at `confirmed`: the sink compares its
    /// streams, and shows losses that are not accepted. The note of the same run may have got its end since it was
    /// found.
    pub fn found(&self, note: Option<RunNote>, confirmed: Lsn) {
        self.is_read.store(true, Ordering::Release);
        let known = self.get();
        let Some(note) = note.filter(|note| note.started_ms != self.started_ms) else {
            if known.is_none() && self.accepts_losses {
                info!("no loss of the destination is noted: --accept-loss changes nothing");
            }
            return;
        };
        let is_same = known
            .as_ref()
            .is_some_and(|known| known.started_ms == note.started_ms);
        let had_end = known.as_ref().is_some_and(|known| known.ended.is_some());
        let gets_end = is_same && !had_end && note.ended.is_some();
        if known.is_none() || gets_end {
            info!(starts = note.starts, "the run before {}", note.text());
        }
        let mut losses = note.losses.clone();
        if let Some(first) = known.as_ref().filter(|_| self.accepts_losses) {
            // Another run has noted them again before it knew.
            losses.retain(|loss| !first.losses.contains(loss));
        }
        if self.accepts_losses && known.is_none() {
            for loss in &losses {
                warn!(loss = loss.text(), "accepted by --accept-loss");
            }
            if losses.is_empty() {
                info!("no loss of the destination is noted: --accept-loss changes nothing");
            }
        } else if let Some(sink) = self.sink.get() {
            sink.add_former_losses(losses);
        }
        if let Some(sink) = self.sink.get().filter(|_| note.sink == self.kind) {
            let mut ends = note.ends(confirmed);
            if let Some(known) = known.as_ref().filter(|_| is_same) {
                // Those were compared, and a stream that has lost all is forgotten since.
                ends.retain(|stream, _| !known.streams.contains_key(stream));
            }
            sink.ends.load(ends);
        }
        if known.is_none() || gets_end {
            *lock(&self.found) = Some(Arc::new(note));
        }
    }
}

impl RunNote {
    /// Returns what the streams had. A run that has not noted its end may have delivered more, up to the
    /// confirmed position: that may be lost, too.
    fn ends(&self, confirmed: Lsn) -> BTreeMap<String, StreamEnd> {
        let mut ends = self.streams.clone();
        if self.ended.is_none() {
            for end in ends.values_mut().filter(|end| !end.is_of_dead_letters) {
                let last = EventPosition {
                    epoch: end.last.epoch,
                    lsn: confirmed.get().saturating_sub(1),
                    row: 0,
                };
                end.last = end.last.max(last);
            }
        }
        ends
    }
}

/// Returns SQL that creates the table. `role`: the relay's role, if another one creates the table.
pub fn create_sql(role: Option<&str>) -> String {
    KEPT.create_sql(role)
}

/// Returns the newer one of the notes in the database and in the file.
pub async fn find(
    session: &mut Session,
    slot: &str,
    state_file: Option<&Path>,
) -> Result<Option<RunNote>, Error> {
    KEPT.find(session, slot, state_file, RunNote::newest_ms)
        .await
}

/// Writes the note of a run that lasts to the database, if its walsender reads the slot. `create`: a missing
/// table may be created. Returns false if this role may not write it.
pub async fn write(
    session: &mut Session,
    slot: &str,
    create: bool,
    note: &RunNote,
    walsender: i32,
) -> Result<bool, Error> {
    KEPT.write(session, slot, create, note, Guard::Reader(walsender))
        .await
}

/// Writes the note of a run that has ended to the database, unless another run has noted its start. `create`: a
/// missing table may be created. Returns false if this role may not write it.
pub async fn write_end(
    session: &mut Session,
    slot: &str,
    create: bool,
    note: &RunNote,
    former: Option<&RunNote>,
) -> Result<bool, Error> {
    let starts = [Some(note), former];
    let starts: Vec<u64> = starts
        .into_iter()
        .flatten()
        .map(|note| note.started_ms)
        .collect();
    let guard = Guard::Member("started_ms", &starts);
    KEPT.write(session, slot, create, note, guard).await
}

/// Writes the note to the file.
pub fn write_file(state_file: &Path, slot: &str, note: &RunNote) -> io::Result<()> {
    KEPT.write_file(state_file, slot, note)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(ended: Option<RunEnd>) -> RunNote {
        let first = EventPosition::in_first_epoch(0x10, 0);
        let last = EventPosition::in_first_epoch(0x20, 3);
        let end = StreamEnd {
            number: Some(7),
            id: Some((0x20, 3)),
            length: 5,
            first,
            last,
            is_of_dead_letters: false,
        };
        RunNote {
            starts: 4,
            started_ms: 1_767_323_045_678,
            ended,
            sink: "redis".to_owned(),
            streams: BTreeMap::from([("orders".to_owned(), end)]),
            losses: vec![Loss {
                seen_ms: 1_767_323_045_900,
                ..Loss::new("carts", None, 2, (first, last), false)
            }],
        }
    }

    #[test]
    fn a_note_is_read_back_from_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let state_file = folder.path().join("state");
        for ended in [
            None,
            Some(RunEnd {
                at_ms: 1,
                error: Some("delivery".to_owned()),
            }),
        ] {
            let note = note(ended);
            write_file(&state_file, "slot", &note).expect("written");
            assert_eq!(KEPT.read_file(&state_file, "slot"), Some(note));
            assert_eq!(KEPT.read_file::<RunNote>(&state_file, "other"), None);
        }
    }

    #[test]
    fn a_run_without_an_end_was_killed() {
        let killed = note(None).text();
        assert!(killed.contains("left no sign of its end"), "{killed}");
        let at_ms = 1_767_323_046_000;
        let stopped = note(Some(RunEnd { at_ms, error: None })).text();
        let expected = "started at 2026-01-02T03:04:05.678000Z, and was stopped at 2026-01-02T03:04:06.000000Z";
        assert_eq!(stopped, expected);
        let error = Some("delivery".to_owned());
        let ended = note(Some(RunEnd { at_ms, error })).text();
        assert!(ended.ends_with(" by [delivery]"), "{ended}");
    }

    #[test]
    fn losses_stay_until_they_are_accepted() {
        let sink = Arc::<SinkStats>::default();
        for (accepts, losses, starts) in [(false, 1, 5), (true, 0, 5)] {
            let run = FormerRun::new("redis", accepts, 2);
            let sink = if accepts {
                Arc::default()
            } else {
                Arc::clone(&sink)
            };
            run.set_sink(Arc::clone(&sink));
            for _ in 0..2 {
                run.found(Some(note(None)), Lsn::new(0x41));
            }
            assert_eq!(sink.losses().list.len(), losses, "{accepts}");
            assert_eq!(sink.losses().events, 0, "they were counted before");
            let own = run.own(None);
            assert_eq!((own.starts, own.losses.len()), (starts, losses));
            // What was delivered behind the last note may be lost, too.
            assert_eq!(own.streams["orders"].last.lsn, 0x40);
        }
        // Another kind of sink has no such streams.
        let run = FormerRun::new("nats", false, 2);
        run.set_sink(Arc::default());
        run.found(Some(note(None)), Lsn::ZERO);
        assert!(run.own(None).streams.is_empty());
    }

    #[test]
    fn a_run_that_notes_its_end_after_it_lost_the_slot_was_not_killed() {
        let run = FormerRun::new("redis", false, 2);
        let sink = Arc::<SinkStats>::default();
        run.set_sink(Arc::clone(&sink));
        let read = |ended, loss: &str| {
            let mut note = note(ended);
            note.losses[0].place = loss.to_owned();
            run.found(Some(note), Lsn::new(0x41));
            run.get().expect("a note").ended.clone()
        };
        assert_eq!(read(None, "carts"), None);
        let end = Some(RunEnd {
            at_ms: 1_767_323_046_000,
            error: None,
        });
        // The end has a loss of the last seconds, too.
        assert_eq!(read(end.clone(), "orders"), end);
        let losses = sink.losses().list;
        assert_eq!(losses.len(), 2, "{losses:?}");
        // The sink has compared its streams, and a stream that has lost all does not count again.
        sink.ends.forget("orders");
        read(end.clone(), "orders");
        assert_eq!(sink.ends.all().len(), 0);
        // The note of another run is not that of the run before.
        let mut other = note(None);
        other.started_ms += 1;
        run.found(Some(other), Lsn::new(0x41));
        assert_eq!(run.get().expect("a note").ended, end);
    }
}
