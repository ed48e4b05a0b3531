//! Which rows were sent: by evidence that the relay wrote down before its slot moved past them.
//!
//! - [`policy`]: the decision, only from numbers, and the proof without which no row is deleted.
//! - [`account`]: the sums of acknowledged rows in the database, by table and time bucket.
//! - [`hashed`]: the same sums of the rows that a table has, in SQL.
//! - [`compare`]: reads both under one snapshot.
//! - [`part`]: counts the rows of a partition that no account can have.
//! - [`extra`]: the rows that a bucket has more than the account.
//! - [`delete`]: deletes rows that count as sent, and removes them from the account.
//! - [`unaccounted`]: names the rows that stay.

pub mod account;
pub(crate) mod compare;
pub(crate) mod delete;
pub(crate) mod extra;
pub(crate) mod hashed;
pub(crate) mod part;
pub(crate) mod policy;
pub(crate) mod unaccounted;
