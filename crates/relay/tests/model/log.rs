//! The server's write-ahead log, written before the search begins, and the frames that carry it.
//!
//! Positions are small numbers. Each transaction has its rows in front of its commit record, and
//! none of the rows' positions is the end of anything; a transaction marked `adjacent` commits right
//! where the one before it ends, as those of concurrent writers do.

use std::collections::BTreeSet;

use walrelay_lsn::{Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};

const TEXT: TypeOid = TypeOid::new(25);
/// Where the slot was made.
const START: u16 = 100;

/// What a scenario says of a transaction: its keys, one for each row, and whether it commits right
/// behind the one before.
pub(crate) struct Written {
    pub(crate) keys: &'static [usize],
    pub(crate) adjacent: bool,
}

/// A transaction of an outbox that has these keys' rows in it.
pub(crate) const fn rows(keys: &'static [usize]) -> Written {
    Written {
        keys,
        adjacent: false,
    }
}

/// A transaction without a row of the outbox: servers before 15 send the empty pair of messages.
pub(crate) const fn foreign() -> Written {
    Written {
        keys: &[],
        adjacent: true,
    }
}

#[derive(Debug)]
pub(crate) struct Transaction {
    /// Its rows, as numbers into [`Log::rows`].
    pub(crate) rows: std::ops::Range<usize>,
    /// Where its commit record starts.
    pub(crate) commit: u16,
    pub(crate) end: u16,
    /// Its first piece.
    pub(crate) piece: usize,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) transaction: usize,
    /// Its key, which is also its partition.
    pub(crate) key: usize,
    /// How many rows of its key come before it.
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
    /// All of it in the order in which it is sent; a connection begins with that of a transaction.
    pub(crate) pieces: Vec<Piece>,
    /// How many rows each key has.
    pub(crate) totals: [u8; 2],
    pub(crate) start: u16,
    /// The end of the log: behind the last transaction lies what other tables wrote.
    pub(crate) end: u16,
    /// Whatever a server gives to be confirmed: ends of commits, and how far an idle one has read.
    pub(crate) positions: BTreeSet<u16>,
    table: encode::Table,
}

impl Log {
    pub(crate) fn new(written: &[Written]) -> Self {
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

    /// The first piece that a connection is sent whose slot stands at `slot`: Postgres skips what
    /// has its commit record before it (`SnapBuildXactNeedsSkip`).
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

    /// Whether a connection that was sent everything before `piece` is in a transaction.
    pub(crate) fn is_inside(&self, piece: usize) -> bool {
        matches!(
            self.pieces.get(piece),
            Some(Piece::Row(_) | Piece::Commit(_))
        )
    }

    /// The position in a keepalive between the pieces. Outside of transactions how far the server has
    /// read: up to the next commit record. Inside, the most that the protocol allows it to say,
    /// "the current end of WAL on the server".
    pub(crate) fn keepalive(&self, piece: usize) -> u16 {
        match self.pieces.get(piece) {
            Some(Piece::Begin(number)) => self.transactions[usize::from(*number)].commit,
            _ => self.end,
        }
    }

    /// What may be confirmed at most when `acked` has a bit for each row that the broker
    /// acknowledged: everything whose commit lies before is acknowledged.
    pub(crate) fn limit(&self, acked: u16) -> u16 {
        let open = self
            .transactions
            .iter()
            .find(|transaction| transaction.rows.clone().any(|row| acked & (1 << row) == 0));
        open.map_or(self.end, |transaction| transaction.commit)
    }

    /// The position of a message and its bytes.
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
