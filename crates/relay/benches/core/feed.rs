//! A replication stream in memory, and a sink that takes all records: for the benchmark, and for
//! the test that counts allocations.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use walrelay_event_router::Router;
use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::measurement::BatchProcessor;
use walrelay_relay::{SourceError, TableName, WalStream};
use walrelay_sink::{Deliveries, Disposition, Record, SendError, Sink};
use walrelay_walsender::framing::parse_frame;
use walrelay_walsender::{Error, Frame, Socket, StatusUpdate};

/// Records in flight, at the default of the configuration.
pub(crate) const MAX_IN_FLIGHT: usize = 65_536;

/// Creates an outbox with Debezium's default columns.
pub(crate) fn table() -> encode::Table {
    encode::Table::new(RelationId::new(16_400), "public", "outbox")
        .key("id", TypeOid::new(2950))
        .column("aggregatetype", TypeOid::new(25))
        .column("aggregateid", TypeOid::new(25))
        .column("type", TypeOid::new(25))
        .column("payload", TypeOid::new(3802))
}

/// Encodes the Insert message of a row with about 270 bytes of `jsonb`. Adjacent rows go to
/// different topics.
pub(crate) fn insert(table: &encode::Table, number: usize) -> Vec<u8> {
    let id = format!("018f5a3e-7c1d-7b1a-9c55-{number:012x}");
    let kind = ["order", "payment", "customer"][number * 7 % 11 % 3];
    let key = format!("customer-{}", number % 10_000);
    let payload = format!(
        "{{\"note\": \"at the door {number:022x}\", \"total\": {number}.25, \"address\": {{\"zip\": \"04711\", \
         \"city\": \"Springfield\", \"street\": \"Long Lane {}\"}}, \"orderId\": {number}, \"currency\": \"EUR\", \
         \"customer\": \"{key}\", \"reference\": \"{number:032x}\"}}",
        number % 300
    );
    table.insert(&[
        Some(&id),
        Some(kind),
        Some(&key),
        Some("OrderPlaced"),
        Some(&payload),
    ])
}

/// A stream in memory that can be read repeatedly, each time with higher LSNs.
#[derive(Debug)]
pub(crate) struct MemoryStream {
    bytes: Vec<u8>,
    /// Offset in `bytes` of the next frame.
    at: usize,
    /// Length of the frame that was peeked last.
    peeked: usize,
    /// Offsets in `bytes` of the LSNs that must ascend.
    positions: Vec<usize>,
    /// Offset in `bytes` of the first transaction with rows; before it the table is announced.
    first: usize,
    /// Distance in the WAL from the first transaction with rows to the end.
    length: u64,
    /// The LSN at which the last transaction ends.
    end: u64,
    pub(crate) rows: u64,
}

impl MemoryStream {
    /// Creates a stream of `rows` rows, with `per_transaction` rows in each transaction.
    pub(crate) fn new(rows: usize, per_transaction: usize) -> Self {
        let table = table();
        let mut stream = Self {
            bytes: Vec::new(),
            at: 0,
            peeked: 0,
            positions: Vec::new(),
            first: 0,
            length: 0,
            end: 0x1_0000,
            rows: rows as u64,
        };
        let time = PgTimestamp::new(800_000_000_000_000);
        stream.frame(&encode::begin(Lsn::new(0x1_0000), time, Xid::new(6)));
        stream.frame(&table.relation());
        stream.frame(&encode::commit(
            Lsn::new(0x1_0000),
            Lsn::new(0x1_0030),
            time,
        ));
        stream.first = stream.bytes.len();
        stream.end = 0x1_0030;
        let start = stream.end;
        let mut number = 0;
        while number < rows {
            let count = per_transaction.min(rows - number);
            let commit = stream.end + 400 * count as u64;
            let end = commit + 48;
            let begun = stream.frame(&encode::begin(Lsn::new(commit), time, Xid::new(7)));
            stream.positions.push(begun + 1);
            for number in number..number + count {
                stream.frame(&insert(&table, number));
            }
            number += count;
            let committed = stream.frame(&encode::commit(Lsn::new(commit), Lsn::new(end), time));
            stream.positions.extend([committed + 2, committed + 10]);
            stream.end = end;
        }
        stream.length = stream.end - start;
        stream
    }

    /// Appends a CopyData message with an XLogData of this body. Returns the offset of the body.
    fn frame(&mut self, body: &[u8]) -> usize {
        let length = u32::try_from(4 + 25 + body.len()).expect("a small message");
        self.bytes.push(b'd');
        self.bytes.extend(length.to_be_bytes());
        self.bytes.push(b'w');
        for number in [self.end, self.end, 800_000_000_000_000] {
            self.bytes.extend(number.to_be_bytes());
        }
        let at = self.bytes.len();
        self.bytes.extend(body);
        at
    }

    /// Goes back to the first transaction with rows, and raises the LSNs above those of the last
    /// pass.
    pub(crate) fn rewind(&mut self) {
        self.at = self.first;
        self.end += self.length;
        for at in &self.positions {
            let place: &mut [u8; 8] = (&mut self.bytes[*at..*at + 8])
                .try_into()
                .expect("eight bytes");
            *place = (u64::from_be_bytes(*place) + self.length).to_be_bytes();
        }
    }

    /// Returns the end of the last commit.
    pub(crate) fn end(&self) -> CommitEnd {
        CommitEnd::from_slot(Lsn::new(self.end))
    }

    /// Returns the bytes of the transactions with rows.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.first..]
    }
}

/// A frame that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct FrameError(Error);

impl SourceError for FrameError {
    fn disposition(&self) -> Disposition {
        Disposition::Fatal
    }
}

impl WalStream for MemoryStream {
    type Error = FrameError;

    fn socket(&self) -> Socket {
        Socket::Unix
    }

    #[inline]
    fn peek(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let Some((frame, length)) = parse_frame(&self.bytes[self.at..]).map_err(FrameError)? else {
            return Ok(None);
        };
        self.peeked = length;
        Ok(Some(frame))
    }

    #[inline]
    fn consume(&mut self) {
        self.at += self.peeked;
    }

    async fn read(&mut self) -> Result<usize, FrameError> {
        Ok(0)
    }

    fn queue_status(&mut self, _: StatusUpdate) {}

    async fn flush(&mut self) -> Result<(), FrameError> {
        Ok(())
    }

    async fn finish(self) -> Result<(), FrameError> {
        Ok(())
    }
}

/// A sink that takes all records, and acknowledges them when [`poll`](Sink::poll) is called.
pub(crate) struct AcceptingSink {
    deliveries: Arc<dyn Deliveries>,
    reported: u64,
    taken: u64,
}

impl Sink for AcceptingSink {
    #[inline]
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        black_box(record);
        self.taken = seq + 1;
        Ok(())
    }

    /// Reports all taken records as delivered.
    fn poll(&mut self) {
        for seq in self.reported..self.taken {
            self.deliveries.delivered(seq);
        }
        self.reported = self.taken;
    }

    fn close(self: Box<Self>, _: Duration) {}
}

/// The whole pipeline without its task: from bytes to records, and from acknowledgements to the
/// position to confirm.
pub(crate) struct WholePipeline<S> {
    pub(crate) stream: MemoryStream,
    processor: BatchProcessor<S>,
}

impl<S: Sink> WholePipeline<S> {
    /// `wrap` makes the sink that the pipeline has.
    pub(crate) fn new(
        router: Router,
        rows: usize,
        per_transaction: usize,
        wrap: fn(AcceptingSink) -> S,
    ) -> Self {
        let table = TableName::new("public", "outbox");
        let confirmed = CommitEnd::from_slot(Lsn::new(0x8000));
        let sink = |deliveries| {
            wrap(AcceptingSink {
                deliveries,
                reported: 0,
                taken: 0,
            })
        };
        let processor = BatchProcessor::new(router, [table].into(), MAX_IN_FLIGHT, confirmed, sink);
        let mut pipeline = Self {
            stream: MemoryStream::new(rows, per_transaction),
            processor,
        };
        pipeline.relay();
        pipeline
    }

    /// Relays all rows again, up to the confirmation of the last.
    pub(crate) fn pass(&mut self) {
        self.stream.rewind();
        self.relay();
    }

    fn relay(&mut self) {
        let records = self.processor.core().counts().records;
        self.processor
            .send_batch(&mut self.stream)
            .expect("a valid stream");
        self.processor.sink().poll();
        let confirmed = self.processor.collect();
        assert_eq!(confirmed, self.stream.end());
        let records = self.processor.core().counts().records - records;
        assert_eq!(records, self.stream.rows);
    }
}
