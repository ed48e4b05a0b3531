//! The simulated server: its WAL, its slot, and the messages that it sends.

use walrelay_lsn::{Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};

const TEXT: TypeOid = TypeOid::new(25);

/// A committed transaction in the WAL. Its commit record starts at `commit` and ends at `end`,
/// where the next commit record starts.
#[derive(Debug, Clone)]
pub(crate) struct Transaction {
    pub(crate) xid: u32,
    pub(crate) commit: u64,
    pub(crate) end: u64,
    /// The keys of the rows.
    pub(crate) keys: Vec<u8>,
    /// Messages and rows alternate. Whether the first is a message.
    pub(crate) message_first: bool,
    pub(crate) update: bool,
}

/// Indexes of the transaction, and of the row in it.
pub(crate) type RowId = (usize, usize);

/// The policy for rows without a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// There are no such rows.
    Plain,
    DeadLetters,
    /// Later rows of the key become dead letters, too.
    Parked,
    Skipped,
}

/// Every other row with this key has no topic, except in [`Mode::Plain`].
const POISONED: u8 = 3;

#[derive(Debug)]
pub(crate) enum Piece {
    Relation,
    Begin(usize),
    Row(usize, usize),
    /// One message with several rows: the first, and the one behind the last.
    Batch(usize, usize, usize),
    Update,
    /// A message of another prefix.
    Foreign(usize),
    Commit(usize),
}

pub(crate) struct Server {
    pub(crate) log: Vec<Transaction>,
    /// The slot's `confirmed_flush_lsn`.
    pub(crate) slot: u64,
    /// The slot's position at the last checkpoint, which survives a restart.
    pub(crate) durable: u64,
    pub(crate) table: encode::Table,
    pub(crate) mode: Mode,
    /// True if the values of each key have a schema of their own.
    pub(crate) encoded: bool,
}

impl Server {
    pub(crate) fn new(keys: Vec<(Vec<u8>, bool, bool)>, mode: Mode, encoded: bool) -> Self {
        let mut at = 1000;
        let log = keys
            .into_iter()
            .enumerate()
            .map(|(index, (keys, message_first, update))| {
                // Adjacent on purpose: the rows of concurrent transactions are earlier in the WAL,
                // so a commit record may start exactly at the end of the one before.
                let commit = at;
                let end = commit + 8;
                at = end;
                Transaction {
                    xid: index as u32 + 1,
                    commit,
                    end,
                    keys,
                    message_first,
                    update,
                }
            })
            .collect();
        let table = encode::Table::new(RelationId::new(7), "public", "outbox")
            .key("id", TEXT)
            .column("aggregatetype", TEXT)
            .column("aggregateid", TEXT)
            .column("type", TEXT)
            .column("payload", TEXT);
        Self {
            log,
            slot: 1000,
            durable: 1000,
            table,
            mode,
            encoded,
        }
    }

    /// Returns all rows, in the order of the WAL.
    fn rows(&self) -> impl Iterator<Item = RowId> {
        let log = self.log.iter().enumerate();
        log.flat_map(|(t, transaction)| (0..transaction.keys.len()).map(move |row| (t, row)))
    }

    /// Returns the rows that must become records, in the order of the WAL.
    pub(crate) fn rows_to_send(&self) -> impl Iterator<Item = RowId> {
        self.rows().filter(|row| !self.is_skipped(*row))
    }

    /// Returns true if the row has no topic.
    pub(crate) fn is_poisoned(&self, (transaction, row): RowId) -> bool {
        let poisoned = self.log[transaction].keys[row] == POISONED && row.is_multiple_of(2);
        self.mode != Mode::Plain && poisoned
    }

    /// Returns true if the row is written as a message.
    pub(crate) fn is_message(&self, (transaction, row): RowId) -> bool {
        self.log[transaction].message_first == row.is_multiple_of(2)
    }

    /// Returns true if the row must become a dead letter.
    pub(crate) fn is_dead_letter(&self, id: RowId) -> bool {
        let key = |(transaction, row): RowId| self.log[transaction].keys[row];
        match self.mode {
            Mode::Plain | Mode::Skipped => false,
            Mode::DeadLetters => self.is_poisoned(id),
            Mode::Parked => {
                let parks = |other: RowId| key(other) == key(id) && self.is_poisoned(other);
                let mut before = self.rows().take_while(|other| *other < id);
                self.is_poisoned(id) || before.any(parks)
            }
        }
    }

    /// Returns true if the row must be skipped.
    pub(crate) fn is_skipped(&self, id: RowId) -> bool {
        self.mode == Mode::Skipped && self.is_poisoned(id)
    }

    /// Returns the end of the batch that starts with the row. In every third transaction batches of up
    /// to three rows alternate with single ones.
    fn batch_end(&self, transaction: usize, row: usize) -> Option<usize> {
        let rows = self.log[transaction].keys.len();
        (transaction % 3 == 2 && row.is_multiple_of(4)).then(|| rows.min(row + 3))
    }

    /// Returns the content of a message with the row.
    fn content(&self, id: RowId) -> String {
        let (index, row) = id;
        let key = self.log[index].keys[row];
        let topic = if self.is_poisoned(id) {
            ""
        } else {
            ",\"aggregate\":\"Order\""
        };
        format!("{{\"id\":\"{index}.{row}\",\"key\":{key},\"payload\":{{}}{topic}}}")
    }

    /// Returns the messages that are sent on a connection that starts now.
    pub(crate) fn script(&self) -> Vec<Piece> {
        let mut script = vec![Piece::Relation];
        for (index, transaction) in self.log.iter().enumerate() {
            if transaction.end > self.slot {
                script.push(Piece::Begin(index));
                let mut row = 0;
                while row < transaction.keys.len() {
                    let end = self.batch_end(index, row);
                    script.push(match end {
                        Some(end) => Piece::Batch(index, row, end),
                        None => Piece::Row(index, row),
                    });
                    row = end.unwrap_or(row + 1);
                }
                if transaction.update {
                    script.push(Piece::Update);
                    script.push(Piece::Foreign(index));
                }
                script.push(Piece::Commit(index));
            }
        }
        script
    }

    pub(crate) fn body(&self, piece: &Piece) -> (u64, Vec<u8>) {
        let time = PgTimestamp::new(0);
        match *piece {
            Piece::Relation => (0, self.table.relation()),
            Piece::Begin(index) => {
                let t = &self.log[index];
                (
                    t.commit,
                    encode::begin(Lsn::new(t.commit), time, Xid::new(t.xid)),
                )
            }
            Piece::Row(index, row) => {
                let t = &self.log[index];
                let id = format!("{index}.{row}");
                let key = t.keys[row].to_string();
                if self.is_message((index, row)) {
                    let content = self.content((index, row));
                    let lsn = Lsn::new(t.commit);
                    let message = encode::logical(true, lsn, "outbox", content.as_bytes());
                    return (t.commit, message);
                }
                let fields = [
                    Some(&*id),
                    (!self.is_poisoned((index, row))).then_some("Order"),
                    Some(&*key),
                    Some("T"),
                    Some("{}"),
                ];
                (t.commit, self.table.insert(&fields))
            }
            Piece::Batch(index, first, end) => {
                let t = &self.log[index];
                let rows: Vec<String> =
                    (first..end).map(|row| self.content((index, row))).collect();
                let content = format!("[{}]", rows.join(", "));
                let lsn = Lsn::new(1_000 * t.commit + first as u64);
                let message = encode::logical(true, lsn, "outbox", content.as_bytes());
                (t.commit, message)
            }
            Piece::Update => {
                let row = [walrelay_pgoutput::Value::Null; 5];
                (0, encode::update(RelationId::new(7), None, &row))
            }
            Piece::Foreign(index) => {
                let t = &self.log[index];
                let message = encode::logical(true, Lsn::new(t.commit), "other", b"{");
                (t.commit, message)
            }
            Piece::Commit(index) => {
                let t = &self.log[index];
                (
                    t.end,
                    encode::commit(Lsn::new(t.commit), Lsn::new(t.end), time),
                )
            }
        }
    }
}
