//! A connected core, an outbox table and its frames, for tests that step through the state machine.

use std::sync::Arc;

use walrelay_checkpoint::AckRing;
use walrelay_event_router::Router;
use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::{Core, PoisonDecisions, RecordSpace, Step, TableName};
use walrelay_walsender::Frame;

/// The position of the slot.
pub(crate) const SLOT: CommitEnd = CommitEnd::from_slot(Lsn::new(1_000));
/// The start of the transaction's commit record.
pub(crate) const COMMIT: u64 = 2_000;

const TEXT: TypeOid = TypeOid::new(25);

pub(crate) fn table() -> encode::Table {
    encode::Table::new(RelationId::new(7), "public", "outbox")
        .key("id", TEXT)
        .column("aggregatetype", TEXT)
        .column("aggregateid", TEXT)
        .column("payload", TEXT)
}

/// Creates a core that is connected to the slot, and its ring.
pub(crate) fn connected(router: Router, decisions: PoisonDecisions) -> (Core, Arc<AckRing>) {
    let ring = Arc::new(AckRing::new(64));
    let tables = Arc::from([TableName::new("public", "outbox")]);
    let core = Core::new(router, tables, Arc::clone(&ring), SLOT);
    let mut core = core.with_decisions(decisions);
    core.connected(SLOT);
    (core, ring)
}

/// Passes a message that makes no record to the core.
pub(crate) fn consume(core: &mut Core, body: &[u8]) {
    let mut space = RecordSpace::default();
    let step = core.frame(&frame(body), &mut space);
    assert!(
        matches!(step, Ok(Step::Consumed | Step::Committed(_))),
        "{step:?}"
    );
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
