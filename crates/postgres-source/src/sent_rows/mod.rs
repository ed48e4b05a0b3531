//! Which rows were sent: by evidence that the relay wrote down before its slot moved past them.
//!
//! - [`account`]: the sums of acknowledged rows in the database, by table and time bucket.
//! - [`hashed`]: the same sums of the rows that a table has, in SQL.
//! - [`compare`]: the comparison of both under one snapshot, and the deletion of rows that are equal.

pub mod account;
pub(crate) mod compare;
pub(crate) mod hashed;
