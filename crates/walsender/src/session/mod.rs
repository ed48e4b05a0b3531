//! Sessions: login, SQL, replication commands, and the replication stream.

pub(crate) mod auth;
mod connect;
mod copy_out;
mod password;
mod query;
mod replication;
mod rows;
mod stream;

pub use connect::SessionKind;
pub use copy_out::{CopyItem, CopyOut};
pub use query::Session;
pub use replication::{Ancestor, CreatedSlot, SlotOptions, StartReplication, SystemIdentity};
pub use rows::{ColumnIndex, Row, Rows};
pub use stream::ReplicationStream;
