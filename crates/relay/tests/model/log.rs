//! The server's WAL, written before the search begins, and the frames that carry it.
//!
//! Positions are small numbers. Each transaction has its rows before its commit record, and no
//! position of a row is the end of a transaction. The commit record of an `adjacent` transaction
//! starts at the end of the transaction before it, as with concurrent writers.

use std::collections::BTreeSet;

use walrelay_lsn::{Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_sink::EventPosition;

const TEXT: TypeOid = TypeOid::new(25);
/// The position of the new slot.
const START: u16 = 100;

/// A transaction of a scenario: the keys of its rows, and whether its commit record starts at the
/// end of the transaction before.
pub(crate) struct TransactionSpec {
    pub(crate) keys: &'static [usize],
    pub(crate) adjacent: bool,
}

/// Describes a transaction with outbox rows of these keys.
pub(crate) const fn rows(keys: &'static [usize]) -> TransactionSpec {
    TransactionSpec {
        keys,
        adjacent: false,
    }
}

/// Describes a transaction without outbox rows: servers before version 15 send its Begin and
/// Commit.
pub(crate) const fn foreign() -> TransactionSpec {
    TransactionSpec {
        keys: &[],
        adjacent: true,
    }
}

#[derive(Debug)]
pub(crate) struct Transaction {
    /// Indexes of its rows in [`Log::rows`].
    pub(crate) rows: std::ops::Range<usize>,
    /// The start of its commit record.
    pub(crate) commit: u16,
    pub(crate) end: u16,
    /// Index of its Begin in [`Log::pieces`].
    pub(crate) piece: usize,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) transaction: usize,
    /// The key, which is also the partition.
    pub(crate) key: usize,
    /// The number of earlier rows of the key.
    pub(crate) place: u8,
    pub(crate) lsn: u16,
    /// The header `id` of its record.
    pub(crate) id: String,
}

/// One message of the output plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Piece {
    Relation,
    Begin(u8),
    Row(u8),
    Commit(u8),
}

pub(crate) struct Log {
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) rows: Vec<Row>,
    /// All messages in the order in which they are sent. A connection starts with the Begin of a
    /// transaction.
    pub(crate) pieces: Vec<Piece>,
    /// The number of rows of each key.
    pub(crate) totals: [u8; 2],
    pub(crate) start: u16,
    /// The end of the WAL, beyond the last transaction: other tables were written, too.
    pub(crate) end: u16,
    /// The positions that may be confirmed: ends of commits, and positions in keepalives of an idle
    /// server.
    pub(crate) positions: BTreeSet<u16>,
    table: encode::Table,
}

impl Log {
    pub(crate) fn new(written: &[TransactionSpec]) -> Self {
        let mut at = START;
        let mut log = Self {
            transactions: Vec::new(),
            rows: Vec::new(),
            pieces: Vec::new(),
            totals: [0; 2],
            start: START,
            end: START,
            positions: BTreeSet::from([START]),
            table: encode::Table::new(RelationId::new(7), "public", "outbox")
                .key("id", TEXT)
                .column("aggregatetype", TEXT)
                .column("aggregateid", TEXT)
                .column("type", TEXT)
                .column("payload", TEXT),
        };
        for (number, written) in written.iter().enumerate() {
            let piece = log.pieces.len();
            let first = log.rows.len();
            log.pieces.push(Piece::Begin(number as u8));
            for (index, &key) in written.keys.iter().enumerate() {
                at += 3;
                log.pieces.push(Piece::Row(log.rows.len() as u8));
                log.rows.push(Row {
                    transaction: number,
                    key,
                    place: log.totals[key],
                    lsn: at,
                    id: format!("{number}.{index}"),
                });
                log.totals[key] += 1;
            }
            log.pieces.push(Piece::Commit(number as u8));
            let commit = if written.adjacent { at } else { at + 2 };
            at = commit + 4;
            log.positions.extend([commit, at]);
            log.transactions.push(Transaction {
                rows: first..log.rows.len(),
                commit,
                end: at,
                piece,
            });
        }
        log.end = at + 9;
        log.positions.insert(log.end);
        log
    }

    /// Returns the index of the first piece that is sent if the slot is at `slot`: Postgres skips
    /// transactions whose commit record starts before it (`SnapBuildXactNeedsSkip`).
    pub(crate) fn from(&self, slot: u16) -> usize {
        let first = self.transactions.iter().find(|t| t.commit >= slot);
        first.map_or(self.pieces.len(), |transaction| transaction.piece)
    }

    pub(crate) fn transaction_of(&self, piece: Piece) -> usize {
        match piece {
            Piece::Begin(number) | Piece::Commit(number) => usize::from(number),
            Piece::Row(row) => self.rows[usize::from(row)].transaction,
            Piece::Relation => unreachable!("it belongs to no transaction"),
        }
    }

    /// Returns true if a connection on which all pieces before `piece` were sent is inside a
    /// transaction.
    pub(crate) fn is_inside(&self, piece: usize) -> bool {
        matches!(
            self.pieces.get(piece),
            Some(Piece::Row(_) | Piece::Commit(_))
        )
    }

    /// Returns the position in a keepalive before `piece`. Outside transactions it is the position
    /// that the server has read: the start of the next commit record. Inside, it is the highest
    /// that the protocol allows: "the current end of WAL on the server".
    pub(crate) fn keepalive(&self, piece: usize) -> u16 {
        match self.pieces.get(piece) {
            Some(Piece::Begin(number)) => self.transactions[usize::from(*number)].commit,
            _ => self.end,
        }
    }

    /// Returns the position of a row's event.
    pub(crate) fn position(&self, row: u8) -> EventPosition {
        let transaction = &self.transactions[self.rows[usize::from(row)].transaction];
        EventPosition::in_first_epoch(
            transaction.commit.into(),
            (usize::from(row) - transaction.rows.start) as u64,
        )
    }

    /// Returns the row at this position.
    pub(crate) fn row_at(&self, position: EventPosition) -> u8 {
        let mut rows = 0..self.rows.len() as u8;
        rows.find(|row| self.position(*row) == position)
            .expect("the log has it")
    }

    /// Returns the highest position that may be confirmed: the start of the commit record of the
    /// first transaction that is not fully acknowledged. `acked`: a bit for each row that the
    /// broker acknowledged.
    pub(crate) fn limit(&self, acked: u16) -> u16 {
        let open = self
            .transactions
            .iter()
            .find(|transaction| transaction.rows.clone().any(|row| acked & (1 << row) == 0));
        open.map_or(self.end, |transaction| transaction.commit)
    }

    /// Returns the position of a message and its bytes.
    pub(crate) fn body(&self, piece: Piece) -> (u16, Vec<u8>) {
        let time = PgTimestamp::new(0);
        let lsn = |at: u16| Lsn::new(u64::from(at));
        match piece {
            Piece::Relation => (0, self.table.relation()),
            Piece::Begin(number) => {
                let t = &self.transactions[usize::from(number)];
                let xid = Xid::new(u32::from(number) + 1);
                (t.commit, encode::begin(lsn(t.commit), time, xid))
            }
            Piece::Row(row) => {
                let row = &self.rows[usize::from(row)];
                let key = row.key.to_string();
                let fields = [
                    Some(&*row.id),
                    Some("Order"),
                    Some(&*key),
                    Some("T"),
                    Some("{}"),
                ];
                (row.lsn, self.table.insert(&fields))
            }
            Piece::Commit(number) => {
                let t = &self.transactions[usize::from(number)];
                (t.end, encode::commit(lsn(t.commit), lsn(t.end), time))
            }
        }
    }
}
