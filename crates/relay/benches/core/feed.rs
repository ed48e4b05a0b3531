//! What a walsender sends, in memory, and a sink that takes it: for the benchmark, and for the test
//! that counts allocations.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use walrelay_event_router::Router;
use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::measuring::Walker;
use walrelay_relay::{TableName, WalStream};
use walrelay_sink::{Deliveries, Record, SendError, Sink};
use walrelay_walsender::framing::parse_frame;
use walrelay_walsender::{Error, Frame, Socket, StatusUpdate};

/// As by default.
pub(crate) const MAX_IN_FLIGHT: usize = 65_536;

/// Debezium's default columns, as most outboxes have them.
pub(crate) fn table() -> encode::Table {
    encode::Table::new(RelationId::new(16_400), "public", "outbox")
        .key("id", TypeOid::new(2950))
        .column("aggregatetype", TypeOid::new(25))
        .column("aggregateid", TypeOid::new(25))
        .column("type", TypeOid::new(25))
        .column("payload", TypeOid::new(3802))
}

/// The Insert message of a row with some 270 bytes of `jsonb`. Neighbours go to different topics.
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

/// The bytes of a stream, to be read again and again: each time at later positions.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: Vec<u8>,
    at: usize,
    peeked: usize,
    /// Where the positions are that must ascend.
    positions: Vec<usize>,
    /// Where the first of the transactions with rows begins; before it the table is announced.
    first: usize,
    length: u64,
    end: u64,
    pub(crate) rows: u64,
}

impl Memory {
    /// A stream of `rows`, in transactions of so many.
    pub(crate) fn new(rows: usize, per_transaction: usize) -> Self {
        let table = table();
        let mut memory = Self {
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
        memory.frame(&encode::begin(Lsn::new(0x1_0000), time, Xid::new(6)));
        memory.frame(&table.relation());
        memory.frame(&encode::commit(
            Lsn::new(0x1_0000),
            Lsn::new(0x1_0030),
            time,
        ));
        memory.first = memory.bytes.len();
        memory.end = 0x1_0030;
        let start = memory.end;
        let mut number = 0;
        while number < rows {
            let count = per_transaction.min(rows - number);
            let commit = memory.end + 400 * count as u64;
            let end = commit + 48;
            let begun = memory.frame(&encode::begin(Lsn::new(commit), time, Xid::new(7)));
            memory.positions.push(begun + 1);
            for number in number..number + count {
                memory.frame(&insert(&table, number));
            }
            number += count;
            let committed = memory.frame(&encode::commit(Lsn::new(commit), Lsn::new(end), time));
            memory.positions.extend([committed + 2, committed + 10]);
            memory.end = end;
        }
        memory.length = memory.end - start;
        memory
    }

    /// Appends a CopyData message with an XLogData of this body; where the body is.
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

    /// To the first row, with positions behind those that were there.
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

    /// What its last commit allows to confirm.
    pub(crate) fn end(&self) -> CommitEnd {
        CommitEnd::from_slot(Lsn::new(self.end))
    }

    /// What its rows are in.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.first..]
    }
}

impl WalStream for Memory {
    type Error = Error;

    fn socket(&self) -> Socket {
        Socket::Unix
    }

    #[inline]
    fn peek(&mut self) -> Result<Option<Frame<'_>>, Error> {
        let Some((frame, length)) = parse_frame(&self.bytes[self.at..])? else {
            return Ok(None);
        };
        self.peeked = length;
        Ok(Some(frame))
    }

    #[inline]
    fn consume(&mut self) {
        self.at += self.peeked;
    }

    async fn read(&mut self) -> Result<usize, Error> {
        Ok(0)
    }

    fn queue_status(&mut self, _: StatusUpdate) {}

    async fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    async fn finish(self) -> Result<(), Error> {
        Ok(())
    }
}

/// A sink that takes everything, and acknowledges when it is told to.
pub(crate) struct Taking {
    deliveries: Arc<dyn Deliveries>,
    reported: u64,
    taken: u64,
}

impl Taking {
    /// Reports everything taken as delivered.
    pub(crate) fn acknowledge(&mut self) {
        for seq in self.reported..self.taken {
            self.deliveries.delivered(seq);
        }
        self.reported = self.taken;
    }
}

impl Sink for Taking {
    #[inline]
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        black_box(record);
        self.taken = seq + 1;
        Ok(())
    }

    fn close(self, _: Duration) {}
}

/// The whole way: bytes, frames, messages, records, acknowledgements, the position to confirm.
pub(crate) struct Way {
    pub(crate) memory: Memory,
    walker: Walker<Taking>,
}

impl Way {
    pub(crate) fn new(router: Router, rows: usize, per_transaction: usize) -> Self {
        let table = TableName {
            schema: "public".to_owned(),
            name: "outbox".to_owned(),
        };
        let confirmed = CommitEnd::from_slot(Lsn::new(0x8000));
        let sink = |deliveries| Taking {
            deliveries,
            reported: 0,
            taken: 0,
        };
        let walker = Walker::new(router, [table].into(), MAX_IN_FLIGHT, confirmed, sink);
        let mut way = Self {
            memory: Memory::new(rows, per_transaction),
            walker,
        };
        way.walk();
        way
    }

    /// All rows once more, to the confirmation of the last.
    pub(crate) fn pass(&mut self) {
        self.memory.rewind();
        self.walk();
    }

    fn walk(&mut self) {
        let records = self.walker.core().counts().records;
        self.walker
            .send_batch(&mut self.memory)
            .expect("a stream that is well");
        self.walker.sink().acknowledge();
        let confirmed = self.walker.collect();
        assert_eq!(confirmed, self.memory.end());
        let records = self.walker.core().counts().records - records;
        assert_eq!(records, self.memory.rows);
    }
}
