//! The account of sent rows: how many rows of each table and time bucket were sent, and the sum of
//! their hashes, so that a row is deleted only if this relay saw it acknowledged.
//!
//! [`PendingAccount`] belongs to the core: it adds up the rows of each transaction. When the
//! transaction is acknowledged, the sums move to [`SentAccount`], from which the source writes them
//! into the database before it confirms the position. Each transaction is counted once, however
//! often the server sends it: commits before the written position are not counted again.
//!
//! Whatever is counted too often or not at all makes the account differ from the table, and rows of
//! a bucket that differs stay (docs/adr/0056-an-account-of-sent-rows.md).

mod pending;
mod rows;
mod sent;
mod sums;
#[cfg(test)]
mod tests;

pub(crate) use pending::PendingAccount;
pub use sent::SentAccount;
pub use sums::{AccountColumns, BUCKET_SECONDS, Bucket, BucketSum, Counted, RowSum};
