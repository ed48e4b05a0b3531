//! Single steps of the state machine: what a new connection forgets, and what a given-up schema leaves.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::sync::Arc;

use walrelay_checkpoint::AckRing;
use walrelay_event_router::{
    Lookups, Options, Place, Router, SubjectNames, Template, ValueFormat, WireFormat,
};
use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::{
    Core, CoreError, PoisonAction, PoisonDecisions, PoisonPolicy, Step, TableName,
};
use walrelay_walsender::Frame;

const TEXT: TypeOid = TypeOid::new(25);
const START: CommitEnd = CommitEnd::from_slot(Lsn::new(1_000));

fn table() -> encode::Table {
    encode::Table::new(RelationId::new(7), "public", "outbox")
        .key("id", TEXT)
        .column("aggregatetype", TEXT)
        .column("aggregateid", TEXT)
        .column("payload", TEXT)
}

fn core(router: Router) -> Core {
    let name = TableName {
        schema: "public".into(),
        name: "outbox".into(),
    };
    let ring = Arc::new(AckRing::new(64));
    let mut core = Core::new(router, Arc::from([name]), ring, START);
    core.connected(START);
    core
}

fn begin() -> Vec<u8> {
    encode::begin(Lsn::new(2_000), PgTimestamp::new(0), Xid::new(7))
}

fn insert() -> Vec<u8> {
    table().insert(&[Some("r1"), Some("order"), Some("k"), Some("{}")])
}

fn frame(body: &[u8]) -> Frame<'_> {
    Frame::XLogData {
        start: Lsn::new(1_500),
        end: Lsn::new(1_500),
        sent_at: 0,
        body,
    }
}

fn consumes(core: &mut Core, body: &[u8]) {
    assert!(matches!(core.frame(&frame(body)), Ok(Step::Consumed)));
}

/// The server may have changed the table in between, or use its number for another one.
#[test]
fn a_table_is_known_only_on_the_connection_that_announced_it() {
    let mut core = core(Router::new(Options::default()));
    consumes(&mut core, &begin());
    consumes(&mut core, &table().relation());
    assert!(matches!(core.frame(&frame(&insert())), Ok(Step::Send(_))));
    core.connected(START);
    consumes(&mut core, &begin());
    assert!(matches!(
        core.frame(&frame(&insert())),
        Err(CoreError::Sequence { .. })
    ));
}

#[test]
fn a_schema_that_was_given_up_is_not_requested_again() {
    let record = Template::parse("{aggregateid}", Place::Topic, &Lookups::new());
    let router = Router::new(Options::default()).with_wire_format(Some(WireFormat {
        format: ValueFormat::Json,
        subjects: SubjectNames::Record,
        record: Some(record.expect("a template")),
        lookups: Lookups::new(),
    }));
    let mut core = core(router).with_decisions(PoisonDecisions::new(PoisonPolicy {
        rejected: PoisonAction::DeadLetter,
        ..PoisonPolicy::default()
    }));
    consumes(&mut core, &begin());
    consumes(&mut core, &table().relation());
    assert!(matches!(
        core.frame(&frame(&insert())),
        Ok(Step::AwaitsSchema)
    ));
    let subject = core.pending_schema().expect("it waits").subject.clone();
    assert!(core.give_up_schema(&subject, "no"));
    let (seq, event) = match core.frame(&frame(&insert())) {
        Ok(Step::Send(outgoing)) => (outgoing.seq(), outgoing.event()),
        other => panic!("no dead letter: {other:?}"),
    };
    assert!(event.dead_letter);
    core.sent(seq).expect("the number just given");
    assert_eq!(core.pending_schema(), None);
}
