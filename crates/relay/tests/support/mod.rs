//! One outbox table and frames of it, for tests that step through the state machine.

use walrelay_lsn::{Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::TableName;
use walrelay_walsender::Frame;

/// Where the slot stands.
pub(crate) const START: Lsn = Lsn::new(1_000);
/// Where the commit record of the one transaction starts.
pub(crate) const COMMIT: u64 = 2_000;

const TEXT: TypeOid = TypeOid::new(25);

pub(crate) fn table() -> encode::Table {
    encode::Table::new(RelationId::new(7), "public", "outbox")
        .key("id", TEXT)
        .column("aggregatetype", TEXT)
        .column("aggregateid", TEXT)
        .column("payload", TEXT)
}

pub(crate) fn table_name() -> TableName {
    TableName {
        schema: "public".into(),
        name: "outbox".into(),
    }
}

pub(crate) fn begin() -> Vec<u8> {
    encode::begin(Lsn::new(COMMIT), PgTimestamp::new(0), Xid::new(7))
}

pub(crate) fn frame(body: &[u8]) -> Frame<'_> {
    Frame::XLogData {
        start: Lsn::new(1_500),
        end: Lsn::new(1_500),
        sent_at: 0,
        body,
    }
}
