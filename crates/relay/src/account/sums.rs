//! The numbers of the account: rows of time buckets, and the sums of their hashes.

use std::collections::HashMap;
use std::sync::Arc;

use walrelay_lsn::{Lsn, RelationId};

/// Seconds of a time bucket. Buckets begin at multiples of it since 1970-01-01 UTC.
pub const BUCKET_SECONDS: i64 = 600;

/// The columns by which a row is accounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountColumns {
    /// The column with the id of events, if the route names one.
    pub id: Option<String>,
    /// Columns that may hold a row's age: the first that a table has is used.
    pub age: Vec<String>,
}

/// A time bucket of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// The table or partition that the WAL names.
    pub relation: RelationId,
    /// The columns that are hashed, in the order of the table, and the column of the age at the end.
    pub columns: Arc<[String]>,
    /// The number of the bucket: the age column's time, in units of [`BUCKET_SECONDS`] since 1970.
    pub number: i64,
}

/// A number of rows, and the sums of both halves of their hashes. Equal sums mean equal rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowSum {
    /// The number of rows.
    pub rows: i64,
    /// The sum of the first eight bytes of each hash, as signed numbers.
    pub high: i128,
    /// The sum of the next eight bytes.
    pub low: i128,
}

impl RowSum {
    pub(super) fn add(&mut self, other: Self) {
        self.rows += other.rows;
        self.high += other.high;
        self.low += other.low;
    }

    pub(super) fn subtract(&mut self, other: Self) {
        self.rows -= other.rows;
        self.high -= other.high;
        self.low -= other.low;
    }
}

/// The rows of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BucketSum {
    /// Rows whose records were acknowledged, and rows that are no events or were skipped.
    pub sent: RowSum,
    /// Rows whose dead letters were acknowledged.
    pub diverted: RowSum,
}

impl BucketSum {
    pub(super) fn add(&mut self, other: Self) {
        self.sent.add(other.sent);
        self.diverted.add(other.diverted);
    }
}

/// The sums of the transactions of a range of the WAL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The position up to which all was counted before.
    pub from: Lsn,
    /// The position up to which all is counted now.
    pub to: Lsn,
    /// The sums by bucket.
    pub sums: HashMap<Bucket, BucketSum>,
}
