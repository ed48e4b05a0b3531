//! Single steps of the state machine: a new connection forgets announced tables; a given-up schema
//! is not requested again.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use walrelay_event_router::{
    Lookups, Options, Place, Router, SubjectNames, Template, ValueFormat, WireFormat,
};
use walrelay_relay::{CoreError, PoisonAction, PoisonDecisions, PoisonPolicy, Step};

use support::{SLOT, begin, connected, consume, frame, table};

fn insert() -> Vec<u8> {
    table().insert(&[Some("r1"), Some("order"), Some("k"), Some("{}")])
}

/// Between two connections the table may change, or its OID may be given to another table.
#[test]
fn a_table_is_known_only_on_the_connection_that_announced_it() {
    let router = Router::new(Options::default());
    let (mut core, _) = connected(router, PoisonDecisions::default());
    consume(&mut core, &begin());
    consume(&mut core, &table().relation());
    assert!(matches!(core.frame(&frame(&insert())), Ok(Step::Send(_))));
    core.connected(SLOT);
    consume(&mut core, &begin());
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
    let decisions = PoisonDecisions::new(PoisonPolicy {
        rejected: PoisonAction::DeadLetter,
        ..PoisonPolicy::default()
    });
    let (mut core, _) = connected(router, decisions);
    consume(&mut core, &begin());
    consume(&mut core, &table().relation());
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
