//! A source whose stream has one transaction, and a second one if the server fails inside it.

use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::{
    Ancestor, Opened, Predecessor, Resume, SlotCheck, Source, SourceError, WalStream,
};
use walrelay_sink::Disposition;
use walrelay_walsender::framing::parse_frame;
use walrelay_walsender::{Error, Frame, Socket, StatusUpdate};

pub(crate) const START: CommitEnd = CommitEnd::from_slot(Lsn::new(1_000));
pub(crate) const COMMIT: Lsn = Lsn::new(2_000);
/// The start of the commit record of the transaction at which the server fails.
pub(crate) const NEXT: Lsn = Lsn::new(3_000);
pub(crate) const END: CommitEnd = CommitEnd::from_slot(Lsn::new(2_048));
/// Rows of the transaction.
pub(crate) const ROWS: usize = 40;

pub(crate) type Statuses = Arc<Mutex<Vec<StatusUpdate>>>;

#[derive(Debug)]
pub(crate) enum Failure {
    Wal(Error),
    /// The server cannot send a row.
    Row,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Wal(error) => error.fmt(f),
            Failure::Row => f.write_str("a row cannot be sent"),
        }
    }
}

impl std::error::Error for Failure {}

impl SourceError for Failure {
    fn disposition(&self) -> Disposition {
        match self {
            Failure::Wal(_) => Disposition::Fatal,
            Failure::Row => Disposition::Retryable,
        }
    }

    fn may_be_of_a_row(&self) -> bool {
        matches!(self, Failure::Row)
    }
}

pub(crate) struct Stream {
    pub(crate) bytes: Vec<u8>,
    /// The server fails at the row after these bytes.
    pub(crate) fails: bool,
    pub(crate) snapshot: bool,
    pub(crate) read: bool,
    pub(crate) at: usize,
    pub(crate) peeked: usize,
    pub(crate) statuses: Statuses,
}

impl Stream {
    fn push(&mut self, body: &[u8]) {
        let length = u32::try_from(4 + 25 + body.len()).expect("a small message");
        self.bytes.push(b'd');
        self.bytes.extend(length.to_be_bytes());
        self.bytes.push(b'w');
        for number in [COMMIT.get(), COMMIT.get(), 0] {
            self.bytes.extend(number.to_be_bytes());
        }
        self.bytes.extend(body);
    }
}

impl WalStream for Stream {
    type Error = Failure;

    fn is_snapshot(&self) -> bool {
        self.snapshot
    }

    fn socket(&self) -> Socket {
        Socket::Unix
    }

    fn peek(&mut self) -> Result<Option<Frame<'_>>, Failure> {
        if self.fails && self.at == self.bytes.len() {
            return Err(Failure::Row);
        }
        let bytes = if self.read {
            &self.bytes[self.at..]
        } else {
            &[]
        };
        let Some((frame, length)) = parse_frame(bytes).map_err(Failure::Wal)? else {
            return Ok(None);
        };
        self.peeked = length;
        Ok(Some(frame))
    }

    fn consume(&mut self) {
        self.at += self.peeked;
    }

    async fn read(&mut self) -> Result<usize, Failure> {
        if self.read {
            pending::<()>().await;
        }
        self.read = true;
        Ok(self.bytes.len())
    }

    fn queue_status(&mut self, update: StatusUpdate) {
        self.statuses.lock().expect("nobody panicked").push(update);
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    async fn finish(self) -> Result<(), Failure> {
        Ok(())
    }
}

#[derive(Default)]
pub(crate) struct OneTransaction {
    pub(crate) statuses: Statuses,
    /// The number of times that a stream was opened.
    pub(crate) opened: Arc<AtomicU32>,
    /// Behind the transaction is another one, at whose second row the server fails.
    pub(crate) fails: bool,
    /// This stream and later ones are of a promoted server, whose slot another relay has read.
    pub(crate) promoted_at: Option<u32>,
    /// The rows are those of a snapshot.
    pub(crate) snapshot: bool,
}

impl Source for OneTransaction {
    type Stream = Stream;
    type Error = Failure;

    async fn open(&mut self, _: Option<&Resume>) -> Result<Opened<Stream>, Failure> {
        let number = self.opened.fetch_add(1, Relaxed) + 1;
        let promoted = self.promoted_at.is_some_and(|at| number >= at);
        let mut stream = Stream {
            bytes: Vec::new(),
            fails: self.fails,
            snapshot: self.snapshot,
            read: false,
            at: 0,
            peeked: 0,
            statuses: Arc::clone(&self.statuses),
        };
        let text = TypeOid::new(25);
        let table = encode::Table::new(RelationId::new(7), "public", "outbox")
            .key("id", text)
            .column("aggregatetype", text)
            .column("aggregateid", text)
            .column("payload", text);
        let time = PgTimestamp::new(0);
        stream.push(&encode::begin(COMMIT, time, Xid::new(7)));
        stream.push(&table.relation());
        for row in 0..ROWS {
            let id = format!("r{row}");
            stream.push(&table.insert(&[Some(&id), Some("order"), Some("k"), Some("{}")]));
        }
        stream.push(&encode::commit(COMMIT, END.lsn(), time));
        if self.fails {
            stream.push(&encode::begin(NEXT, time, Xid::new(8)));
            stream.push(&table.insert(&[Some("r2"), Some("order"), Some("k"), Some("{}")]));
        }
        Ok(Opened {
            former: None,
            stream,
            system_id: "7".to_owned(),
            timeline: if promoted { 2 } else { 1 },
            slot: Some("walrelay".to_owned()),
            server_start: if promoted { "2.5" } else { "1.5" }.to_owned(),
            ancestors: vec![Ancestor {
                timeline: 1,
                ended: Lsn::new(500),
            }],
            flushed: END.lsn(),
            confirmed: START,
            server_timeout: None,
            tables: Vec::new(),
            predecessor: promoted.then_some(Predecessor::StateFile),
            epoch: 0,
        })
    }

    fn check_slot(&mut self, _: Option<RelationId>) {}

    async fn slot_checked(&mut self, _: bool) -> Result<SlotCheck, Failure> {
        pending().await
    }

    async fn confirmed_on_server(&mut self) -> Result<Lsn, Failure> {
        let statuses = self.statuses.lock().expect("nobody panicked");
        Ok(statuses.last().map_or(START, |status| status.flushed).lsn())
    }
}
