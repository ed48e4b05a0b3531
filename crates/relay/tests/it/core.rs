//! Single steps of the state machine: a new connection forgets announced tables; a table that is not
//! configured is placed before its first row; a given-up schema is not requested again; the sink's
//! position must be one of the WAL.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use walrelay_checkpoint::Seq;
use walrelay_event_router::{
    Lookups, Options, Router, SubjectNames, Template, TemplateTarget, ValueFormat, WireFormat,
};
use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::{
    Core, CoreError, Placement, PoisonAction, PoisonDecisions, PoisonPolicy, RecordSpace, Step,
    TableName, TablePlace,
};
use walrelay_sink::{EventPosition, MAX_EPOCH, MAX_EVENT_LSN, Poison};

use crate::support::{COMMIT, SLOT, begin, connected, consume, frame, table};

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
    assert!(matches!(
        core.frame(&frame(&insert()), &mut RecordSpace::default()),
        Ok(Step::Send(_))
    ));
    core.connected(SLOT);
    consume(&mut core, &begin());
    assert!(matches!(
        core.frame(&frame(&insert()), &mut RecordSpace::default()),
        Err(CoreError::Sequence { .. })
    ));
}

/// An epoch is part of the positions of records, and of no position that is confirmed.
#[test]
fn an_epoch_is_in_the_positions_of_records_and_never_confirmed() {
    let header = Some("position".to_owned());
    for epoch in [0, 1, MAX_EPOCH] {
        let router = Router::new(Options::default()).with_position_header(header.clone());
        let (mut core, ring) = connected(router, PoisonDecisions::default());
        core.set_epoch(epoch);
        core.connected(SLOT);
        consume(&mut core, &begin());
        consume(&mut core, &table().relation());
        let seq = {
            let body = insert();
            let mut space = RecordSpace::default();
            let Ok(Step::Send(outgoing)) = core.frame(&frame(&body), &mut space) else {
                panic!("an event is sent");
            };
            let record = outgoing.record();
            let expected = EventPosition {
                epoch,
                lsn: COMMIT,
                row: 0,
            };
            assert_eq!(record.position, expected);
            let value = record
                .headers
                .iter()
                .find(|header| header.name == "position");
            let value = value.and_then(|header| header.value).expect("a header");
            let text = format!("{epoch:02X}{COMMIT:014X}/00000000");
            assert_eq!(str::from_utf8(value), Ok(text.as_str()));
            outgoing.seq()
        };
        core.sent(seq).expect("it was offered");
        ring.ack(seq);
        let end = Lsn::new(COMMIT + 100);
        let commit = encode::commit(Lsn::new(COMMIT), end, PgTimestamp::new(0));
        let transaction = match core.frame(&frame(&commit), &mut RecordSpace::default()) {
            Ok(Step::Committed(transaction)) => transaction,
            step => panic!("it ends: {step:?}"),
        };
        assert_eq!(transaction.end.lsn(), end);
        assert_eq!(transaction.position.epoch, epoch);
        core.advance();
        assert_eq!(core.acknowledged_position().lsn(), end, "epoch {epoch}");
    }
}

#[test]
fn a_commit_beyond_the_published_positions_is_refused() {
    let router = Router::new(Options::default());
    let (mut core, _) = connected(router, PoisonDecisions::default());
    let begin = |lsn| encode::begin(Lsn::new(lsn), PgTimestamp::new(0), Xid::new(7));
    let highest = MAX_EVENT_LSN.get();
    let frames = [begin(highest + 1), begin(highest)];
    let mut taken = frames.iter().map(|body| {
        let mut space = RecordSpace::default();
        let step = core.frame(&frame(body), &mut space);
        matches!(step, Err(CoreError::PositionTooHigh { .. }))
    });
    assert_eq!((taken.next(), taken.next()), (Some(true), Some(false)));
}

const OTHER: RelationId = RelationId::new(8);

/// Creates a table of another name, which has the columns of an outbox or not.
fn other(outbox: bool) -> encode::Table {
    other_in("public", "other", outbox)
}

fn other_in(schema: &str, name: &str, outbox: bool) -> encode::Table {
    let text = TypeOid::new(25);
    let other = encode::Table::new(OTHER, schema, name).key("id", text);
    if outbox {
        let columns = ["aggregatetype", "aggregateid", "payload"];
        return columns
            .iter()
            .fold(other, |table, name| table.column(name, text));
    }
    other.column("note", text)
}

fn row(outbox: bool) -> Vec<u8> {
    let values = [Some("r2"), Some("order"), Some("k"), Some("{}")];
    other(outbox).insert(&values[..if outbox { 4 } else { 2 }])
}

/// Creates a core in a transaction in which the other table was announced.
fn announced(outbox: bool) -> Core {
    let (core, _) = connected(Router::new(Options::default()), PoisonDecisions::default());
    let mut core = core.passing_over([TableName::new("public", "spare")].into());
    consume(&mut core, &begin());
    consume(&mut core, &other(outbox).relation());
    core
}

#[test]
fn a_table_of_another_name_is_placed_before_its_first_row() {
    let outbox = TableName::new("public", "outbox");
    let named = TableName::new("public", "other");
    // Partitions are announced, and have no rows, if the publication publishes by the root.
    let mut core = announced(true);
    assert_eq!(core.unresolved(), None);
    for _ in 0..2 {
        let step = core
            .frame(&frame(&row(true)), &mut RecordSpace::default())
            .map(|step| format!("{step:?}"));
        assert_eq!(step.expect("no error"), "AwaitsPlace");
        assert_eq!(core.unresolved(), Some(OTHER));
    }
    let placed = core.place(OTHER, TablePlace::Outbox(outbox.clone()));
    assert_eq!(placed.expect("placed"), Some(Placement::Outbox(outbox)));
    assert!(matches!(
        core.frame(&frame(&row(true)), &mut RecordSpace::default()),
        Ok(Step::Send(_))
    ));
    assert_eq!(core.unresolved(), None);

    // The transaction is confirmed without its rows.
    let mut core = announced(false);
    let placed = core.place(OTHER, TablePlace::Other).expect("placed");
    assert_eq!(placed, Some(Placement::PassedOver(named.clone())));
    consume(&mut core, &row(false));
    consume(&mut core, &row(false));
    assert_eq!(core.take_passed_over(), [(named, 2)]);
    assert!(core.take_passed_over().is_empty());
    let end = CommitEnd::from_slot(Lsn::new(COMMIT + 8));
    let commit = encode::commit(Lsn::new(COMMIT), end.lsn(), PgTimestamp::new(0));
    consume(&mut core, &commit);
    core.advance();
    assert_eq!(core.acknowledged_position(), end);
    // The table may be another one when it is announced again.
    consume(&mut core, &other(false).relation());
    assert_eq!(
        core.place(RelationId::new(9), TablePlace::Gone).ok(),
        Some(None)
    );
}

/// The catalogs decide whether a row is passed over, and may decide otherwise when the slot is read
/// again. The numbers of the rows behind it must not depend on that.
#[test]
fn a_row_that_is_passed_over_has_a_number_in_the_transaction() {
    let outbox = TableName::new("public", "outbox");
    for (place, sent) in [(TablePlace::Outbox(outbox), 1), (TablePlace::Gone, 0)] {
        let mut core = announced(true).passing_over([TableName::new("public", "other")].into());
        core.place(OTHER, place).expect("placed");
        consume(&mut core, &table().relation());
        let mut events = Vec::new();
        for body in [row(true), insert()] {
            let seq = match core
                .frame(&frame(&body), &mut RecordSpace::default())
                .expect("no error")
            {
                Step::Send(outgoing) => {
                    events.push(outgoing.event().id.row);
                    outgoing.seq()
                }
                _ => continue,
            };
            core.sent(seq).expect("the number just given");
        }
        assert_eq!(events, [0, 1][1 - sent..]);
    }
}

/// A publication of all tables carries the tables of the relays. No table has to be looked for, because it may be
/// gone, and the router may have no column that its rows lack.
#[test]
fn rows_of_the_state_of_relays_are_neither_sent_nor_counted() {
    for outbox in [true, false] {
        let (mut core, _) = connected(Router::new(Options::default()), PoisonDecisions::default());
        consume(&mut core, &begin());
        consume(
            &mut core,
            &other_in("walrelay_state", "account", outbox).relation(),
        );
        consume(&mut core, &row(outbox));
        assert_eq!(core.unresolved(), None);
        assert!(core.take_passed_over().is_empty());
        let end = CommitEnd::from_slot(Lsn::new(COMMIT + 8));
        let commit = encode::commit(Lsn::new(COMMIT), end.lsn(), PgTimestamp::new(0));
        consume(&mut core, &commit);
        core.advance();
        assert_eq!(core.acknowledged_position(), end);
    }
}

#[test]
fn another_table_in_the_schema_of_relays_is_looked_for() {
    let (mut core, _) = connected(Router::new(Options::default()), PoisonDecisions::default());
    let table = other_in("walrelay_state", "outbox", true);
    consume(&mut core, &begin());
    consume(&mut core, &table.relation());
    let step = core
        .frame(&frame(&row(true)), &mut RecordSpace::default())
        .map(|step| format!("{step:?}"));
    assert_eq!(step.expect("no error"), "AwaitsPlace");
}

#[test]
fn a_table_that_may_be_an_outbox_is_passed_over_only_by_name() {
    let above = || TablePlace::Above(TableName::new("public", "outbox"));
    for (outbox, place, error) in [
        (true, TablePlace::Other, "it has the columns"),
        (true, TablePlace::Gone, "no table has its OID"),
        (false, TablePlace::Gone, "no table has its OID"),
        (true, above(), "is a partition"),
    ] {
        let placed = announced(outbox).place(OTHER, place.clone());
        let found = placed.expect_err("not passed over").to_string();
        assert!(
            found.contains("public.other") && found.contains(error),
            "{found}"
        );
        let mut core = announced(outbox).passing_over([TableName::new("public", "other")].into());
        let placed = core.place(OTHER, place).expect("placed");
        assert!(
            matches!(placed, Some(Placement::PassedOver(_))),
            "{placed:?}"
        );
    }
}

#[test]
fn a_schema_that_was_given_up_is_not_requested_again() {
    let record = Template::parse("{aggregateid}", TemplateTarget::Topic, &Lookups::new());
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
        core.frame(&frame(&insert()), &mut RecordSpace::default()),
        Ok(Step::AwaitsSchema)
    ));
    let subject = core.pending_schema().expect("it waits").subject.clone();
    assert!(core.give_up_schema(&subject, "no"));
    let (seq, event) = match core.frame(&frame(&insert()), &mut RecordSpace::default()) {
        Ok(Step::Send(outgoing)) => (outgoing.seq(), outgoing.event()),
        other => panic!("no dead letter: {other:?}"),
    };
    assert!(event.dead_letter);
    core.sent(seq).expect("the number just given");
    assert_eq!(core.pending_schema(), None);
}

/// A position that is none of the WAL says nothing about what the sink has.
#[test]
fn a_sink_position_of_another_wal_stops_the_relay() {
    let end = COMMIT + 8;
    for (position, cut) in [
        (COMMIT, false),
        (COMMIT + 1, true),
        (end - 1, true),
        (end, false),
    ] {
        let (core, _) = connected(Router::new(Options::default()), PoisonDecisions::default());
        let mut core = core.with_durable_before(Some(Lsn::new(position)));
        for (flushed, beyond) in [(position - 1, true), (position, false)] {
            let checked = core.check_sink_position(Lsn::new(flushed));
            assert_eq!(checked.is_err(), beyond, "{checked:?}");
        }
        consume(&mut core, &begin());
        let commit = encode::commit(Lsn::new(COMMIT), Lsn::new(end), PgTimestamp::new(0));
        match core.frame(&frame(&commit), &mut RecordSpace::default()) {
            Err(CoreError::SinkPosition { cut: true, .. }) => assert!(cut, "{position}"),
            Ok(Step::Committed(_)) => assert_eq!(position, COMMIT),
            Ok(Step::Consumed) => assert_eq!(position, end),
            other => panic!("{position}: {other:?}"),
        }
    }
}

/// The sink has failed with the first of five events. The second one is of its key, the others are
/// acknowledged, one by a dead letter.
#[test]
fn the_core_of_the_next_sink_offers_no_acknowledged_event_again_unless_an_earlier_one_of_its_key_is()
 {
    let rows: Vec<Vec<u8>> = [
        ("r0", "a"),
        ("r1", "a"),
        ("r2", "b"),
        ("r3", "c"),
        ("r4", "d"),
    ]
    .map(|(id, key)| table().insert(&[id, "order", key, "{}"].map(Some)))
    .into();
    let refused = EventPosition::in_first_epoch(COMMIT, 3);
    let mut decisions = PoisonDecisions::new(PoisonPolicy {
        rejected: PoisonAction::DeadLetter,
        ..PoisonPolicy::default()
    });
    assert!(decisions.reject(refused, Poison::Rejected, "no"));
    let (mut core, ring) = connected(Router::new(Options::default()), decisions);
    let offered = |core: &mut Core| -> Vec<(u64, Seq)> {
        consume(core, &begin());
        consume(core, &table().relation());
        let mut offered = Vec::new();
        for row in &rows {
            let new = match core.frame(&frame(row), &mut RecordSpace::default()) {
                Ok(Step::Send(outgoing)) => Some((outgoing.event().id.row, outgoing.seq())),
                Ok(Step::Consumed) => None,
                other => panic!("{other:?}"),
            };
            if let Some((_, seq)) = new {
                core.sent(seq).expect("the number just given");
            }
            offered.extend(new);
        }
        offered
    };
    let sent = offered(&mut core);
    assert_eq!(sent.len(), 5);
    ring.nack(sent[0].1);
    for (_, seq) in &sent[1..] {
        ring.ack(*seq);
    }
    core.disconnected();
    core.advance();
    let (first, acknowledged) = (core.first_unacknowledged(), core.acknowledged_events());
    assert_eq!(first.map(|event| event.row), Some(0));
    let (router, decisions) = core.into_parts();
    let (next, ring) = connected(router, decisions);
    let mut next = next.resuming_at(first, acknowledged);
    let again = offered(&mut next);
    let events: Vec<u64> = again.iter().map(|(row, _)| *row).collect();
    assert_eq!(events, [0, 1]);
    // The last event is not offered by the third sink either.
    ring.ack(again[0].1);
    next.disconnected();
    next.advance();
    let (first, acknowledged) = (next.first_unacknowledged(), next.acknowledged_events());
    let (router, decisions) = next.into_parts();
    let (third, _) = connected(router, decisions);
    let mut third = third.resuming_at(first, acknowledged);
    let events: Vec<u64> = offered(&mut third).iter().map(|(row, _)| *row).collect();
    assert_eq!(events, [1]);
}

/// The connection is lost after two of three events.
#[test]
fn a_sink_that_took_events_of_a_cut_transaction_is_not_offered_them_again() {
    let (mut core, ring) = connected(Router::new(Options::default()), PoisonDecisions::default());
    let row = |id: &str| table().insert(&[id, "order", "k", "{}"].map(Some));
    let offered = |core: &mut Core, id: &str| {
        let seq = match core.frame(&frame(&row(id)), &mut RecordSpace::default()) {
            Ok(Step::Send(outgoing)) => Some(outgoing.seq()),
            Ok(Step::Consumed) => None,
            other => panic!("{other:?}"),
        };
        if let Some(seq) = seq {
            core.sent(seq).expect("the number just given");
        }
        seq
    };
    consume(&mut core, &begin());
    consume(&mut core, &table().relation());
    let mut sent = ["r0", "r1"]
        .map(|id| offered(&mut core, id).expect("new"))
        .to_vec();
    core.disconnected();
    core.connected(SLOT);
    consume(&mut core, &begin());
    consume(&mut core, &table().relation());
    let again = ["r0", "r1", "r2"].map(|id| offered(&mut core, id));
    assert_eq!(again.map(|seq| seq.is_some()), [false, false, true]);
    sent.extend(again[2]);
    let end = COMMIT + 8;
    consume(
        &mut core,
        &encode::commit(Lsn::new(COMMIT), Lsn::new(end), PgTimestamp::new(0)),
    );
    for seq in sent {
        core.advance();
        assert_eq!(core.acknowledged_position(), SLOT);
        ring.ack(seq);
    }
    core.advance();
    assert_eq!(core.acknowledged_position().lsn(), Lsn::new(end));
}
