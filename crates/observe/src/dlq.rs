//! [`DlqAccess`]: the open dead letters of a pipeline, for its page: it lists them, and redrives one.
//! Only requests with a token get here, because keys are values of rows.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use walrelay_failure::Failure;
use walrelay_relay::Chain;
use walrelay_sink::{EventPosition, in_current_span, lock};
use walrelay_sink_kind::SinkKind;
use walrelay_sink_kind::dead_letters::{Action, DeadLetters, DlqRecord, ReplayOptions, Step};

use super::{millis_now, printable};

/// Dead letters that are listed, the oldest ones.
const LISTED: usize = 50;
/// The age from which on a list is read anew.
const FRESH: Duration = Duration::from_secs(5);
/// Timeout of one request to a server of the sink.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of one acknowledgement, as of `walrelay dlq redrive`.
const ACK_TIMEOUT: Duration = Duration::from_secs(90);

/// Reads and redrives the dead letters of one pipeline, one job at a time, in a thread of its own.
pub struct DlqAccess {
    sink: Box<dyn SinkKind>,
    topic: String,
    slot: String,
    shared: Mutex<Shared>,
}

// Not derived: a sink has none.
impl std::fmt::Debug for DlqAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DlqAccess")
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Shared {
    read_at: Option<Instant>,
    list: DlqList,
}

/// The document of `/api/dead-letters`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct DlqList {
    /// A job runs: ask again.
    busy: bool,
    /// When the topic was read, in milliseconds since 1970; `null` before the first time.
    read_ms: Option<u64>,
    /// Why the last job failed.
    error: Option<String>,
    /// The number of open dead letters.
    open: usize,
    /// The first of them.
    dead_letters: Vec<Entry>,
    /// The result of the last redrive.
    redriven: Option<String>,
}

/// An open dead letter, without value and headers.
#[derive(Debug, Clone, Serialize)]
struct Entry {
    lsn: String,
    row: u64,
    event_id: Option<String>,
    class: String,
    cause: Option<String>,
    topic: Option<String>,
    key: Option<String>,
    commit_time: Option<String>,
}

impl DlqAccess {
    /// Creates an access to the dead letters of a slot in a topic; nothing is read yet.
    pub fn new(sink: Box<dyn SinkKind>, topic: String, slot: String) -> Arc<Self> {
        Arc::new(Self {
            sink,
            topic,
            slot,
            shared: Mutex::default(),
        })
    }

    /// Returns the list as it was read last, and begins to read it anew if it is old.
    pub(crate) fn list(self: &Arc<Self>) -> DlqList {
        let read_at = lock(&self.shared).read_at;
        if read_at.is_none_or(|at| at.elapsed() > FRESH) {
            self.start(None);
        }
        lock(&self.shared).list.clone()
    }

    /// Begins to redrive a dead letter; false if another job runs.
    pub(crate) fn redrive(self: &Arc<Self>, id: EventPosition) -> bool {
        self.start(Some(id))
    }

    fn start(self: &Arc<Self>, redrive: Option<EventPosition>) -> bool {
        if std::mem::replace(&mut lock(&self.shared).list.busy, true) {
            return false;
        }
        let access = Arc::clone(self);
        let job = move || {
            let redriven = redrive.map(|id| access.carry_out(id));
            let read = access.read();
            let mut shared = lock(&access.shared);
            let list = &mut shared.list;
            let failed = [
                redriven.as_ref().and_then(|done| done.as_ref().err()),
                read.as_ref().err(),
            ];
            let failed = failed.into_iter().flatten().next();
            list.error = failed.map(said);
            if let Some(Ok(redriven)) = redriven {
                list.redriven = Some(redriven);
            }
            if let Ok((open, dead_letters)) = read {
                (list.open, list.dead_letters) = (open, dead_letters);
                list.read_ms = Some(millis_now());
            }
            list.busy = false;
            shared.read_at = Some(Instant::now());
        };
        let thread = thread::Builder::new().name("dead-letters".to_owned());
        if let Err(error) = thread.spawn(in_current_span(job)) {
            let list = &mut lock(&self.shared).list;
            (list.busy, list.error) = (false, Some(error.to_string()));
            return false;
        }
        true
    }

    /// Opens the topic; `None` if it does not exist.
    fn open(&self) -> Result<Option<Box<dyn DeadLetters>>, Failure> {
        match self.sink.dead_letters() {
            Some(store) => store.open(&self.topic, REQUEST_TIMEOUT),
            None => Ok(None),
        }
    }

    fn read(&self) -> Result<(usize, Vec<Entry>), Failure> {
        let Some(mut dead_letters) = self.open()? else {
            return Ok((0, Vec::new()));
        };
        dead_letters.read(&|record| record.slot == self.slot)?;
        let mut listed = dead_letters.selected(false);
        let open = listed.len();
        listed.truncate(LISTED);
        let mut entries = Vec::new();
        dead_letters.each(&listed, &mut |_, record| {
            entries.extend(record.map(entry));
            ControlFlow::Continue(())
        })?;
        Ok((open, entries))
    }

    /// Redrives a dead letter and those parked behind it. Returns the result in words.
    fn carry_out(&self, id: EventPosition) -> Result<String, Failure> {
        let Some(mut dead_letters) = self.open()? else {
            return Ok(format!("there is no topic {}", self.topic));
        };
        let matches = |record: &DlqRecord| record.id == id && record.slot == self.slot;
        dead_letters.read(&matches)?;
        if let Some(of) = dead_letters.out_of_order().first() {
            return Ok(format!(
                "{id} was not redriven: {} of its key is before it; redrive that one first",
                of.behind.id
            ));
        }
        let options = ReplayOptions {
            action: Action::Redrive {
                topic: None,
                follow: true,
            },
            limit: None,
            patience: ACK_TIMEOUT,
        };
        let mut why = String::new();
        let summary = dead_letters.carry_out(&options, &matches, &mut |step| {
            if let Step::Failed(_, _, reason) = step {
                why = format!(": {}", Chain(&reason));
            }
        })?;
        Ok(match (summary.done, summary.failed) {
            (0, 0) => format!("{id} is not open any more"),
            (done, 0) => format!("{id}: {done} redriven"),
            (done, failed) => format!("{id}: {done} redriven, {failed} failed{why}"),
        })
    }
}

fn said(failure: &Failure) -> String {
    let remedy = failure.remedy.as_ref();
    let remedy = remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
    printable(&format!("{}{remedy}", Chain(failure))).into_owned()
}

fn entry(record: &DlqRecord) -> Entry {
    let text = |bytes: &[u8]| printable(&String::from_utf8_lossy(bytes)).into_owned();
    Entry {
        lsn: record.id.published_lsn().to_string(),
        row: record.id.row,
        event_id: record.event_id.as_deref().map(text),
        class: record.class.clone(),
        cause: record
            .cause
            .as_deref()
            .map(|cause| printable(cause).into_owned()),
        topic: record.topic.clone(),
        key: record.key.as_deref().map(text),
        commit_time: record.commit_time.clone(),
    }
}
