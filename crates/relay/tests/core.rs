//! Single steps of the state machine: what a new connection forgets, and what a given-up schema leaves.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::sync::Arc;

use walrelay_checkpoint::AckRing;
use walrelay_event_router::{
    Lookups, Options, Place, Router, SubjectNames, Template, ValueFormat, WireFormat,
};
use walrelay_lsn::CommitEnd;
use walrelay_relay::{Core, CoreError, PoisonAction, PoisonDecisions, PoisonPolicy, Step};

use support::{START, begin, frame, table, table_name};

const SLOT: CommitEnd = CommitEnd::from_slot(START);

fn core(router: Router) -> Core {
    let ring = Arc::new(AckRing::new(64));
    let mut core = Core::new(router, Arc::from([table_name()]), ring, SLOT);
    core.connected(SLOT);
    core
}

fn insert() -> Vec<u8> {
    table().insert(&[Some("r1"), Some("order"), Some("k"), Some("{}")])
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
    core.connected(SLOT);
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
