use super::super::catalog::PublishedTable;
use super::super::{PublicationFacts, ServerFacts, SlotFacts, TableFacts};
use super::*;

fn outbox() -> TableName {
    TableName {
        schema: "public".into(),
        name: "outbox".into(),
    }
}

fn columns() -> Vec<String> {
    ["id", "aggregatetype", "aggregateid", "payload"]
        .map(str::to_owned)
        .to_vec()
}

fn wanted() -> Wanted {
    Wanted {
        slot: "walrelay".into(),
        publication: "pub".into(),
        tables: vec![outbox()],
        columns: columns(),
        create: true,
    }
}

/// Everything as it should be.
fn facts() -> Facts {
    Facts {
        server: ServerFacts {
            wal_level: "logical".into(),
            database: "app".into(),
            in_recovery: false,
        },
        tables: vec![(
            outbox(),
            Some(TableFacts {
                columns: columns(),
                kind: "r".into(),
                permanent: true,
            }),
        )],
        publication: Some(PublicationFacts {
            insert: true,
            tables: vec![PublishedTable {
                table: outbox(),
                columns: Some(columns()),
                row_filter: None,
            }],
        }),
        slot: Some(SlotFacts {
            kind: "logical".into(),
            plugin: Some("pgoutput".into()),
            database: Some("app".into()),
            active_pid: None,
            confirmed: "0/10".parse().ok(),
            wal_status: Some("reserved".into()),
        }),
    }
}

fn refused(change: impl Fn(&mut Wanted, &mut Facts)) -> &'static str {
    let (mut wanted, mut facts) = (wanted(), facts());
    change(&mut wanted, &mut facts);
    let error = plan(&wanted, &facts, false).expect_err("must be refused");
    assert!(!error.remedy().is_empty());
    error.id()
}

#[test]
fn nothing_to_do_where_all_is_there() {
    assert_eq!(plan(&wanted(), &facts(), false), Ok(Plan::default()));
    assert_eq!(plan(&wanted(), &facts(), true), Ok(Plan::default()));
}

#[test]
fn the_publication_is_created_before_the_slot() {
    let bare = Facts {
        publication: None,
        slot: None,
        ..facts()
    };
    let plan = plan(&wanted(), &bare, false).expect("may be created");
    assert_eq!(
        plan.actions,
        [Action::CreatePublication, Action::CreateSlot]
    );
}

#[test]
fn only_the_slot_is_created_for_a_publication_that_exists() {
    let plan = plan(
        &wanted(),
        &Facts {
            slot: None,
            ..facts()
        },
        false,
    )
    .expect("may be created");
    assert_eq!(plan.actions, [Action::CreateSlot]);
}

#[test]
fn a_slot_that_was_relayed_is_never_created_anew() {
    let error = plan(
        &wanted(),
        &Facts {
            slot: None,
            ..facts()
        },
        true,
    )
    .expect_err("it is gone");
    assert_eq!(error.id(), "slot-gone");
}

#[test]
fn a_publication_is_not_created_behind_an_existing_slot() {
    assert_eq!(
        refused(|_, facts| facts.publication = None),
        "publication-gone"
    );
}

#[test]
fn nothing_is_created_when_that_is_switched_off() {
    assert_eq!(
        refused(|wanted, facts| {
            wanted.create = false;
            facts.slot = None;
        }),
        "slot-missing"
    );
    assert_eq!(
        refused(|wanted, facts| {
            wanted.create = false;
            facts.slot = None;
            facts.publication = None;
        }),
        "slot-missing"
    );
}

#[test]
fn each_thing_that_is_wrong_has_its_own_word() {
    type Change = fn(&mut Wanted, &mut Facts);
    fn slot(facts: &mut Facts) -> &mut SlotFacts {
        facts.slot.as_mut().expect("a slot")
    }
    fn publication(facts: &mut Facts) -> &mut PublicationFacts {
        facts.publication.as_mut().expect("a publication")
    }
    fn table(facts: &mut Facts) -> &mut TableFacts {
        facts.tables[0].1.as_mut().expect("a table")
    }
    let cases: [(Change, &str); 14] = [
        (
            |_, facts| facts.server.wal_level = "replica".into(),
            "wal-level",
        ),
        (|_, facts| facts.tables[0].1 = None, "table-missing"),
        (|_, facts| table(facts).kind = "v".into(), "table-kind"),
        (|_, facts| table(facts).permanent = false, "table-kind"),
        (
            |_, facts| table(facts).columns.truncate(3),
            "column-missing",
        ),
        (
            |_, facts| publication(facts).insert = false,
            "publication-without-insert",
        ),
        (
            |_, facts| publication(facts).tables.clear(),
            "publication-lacks-table",
        ),
        (
            |_, facts| {
                let mut more = publication(facts).tables[0].clone();
                more.table.name = "orders".into();
                publication(facts).tables.push(more);
            },
            "publication-foreign-table",
        ),
        (
            |_, facts| publication(facts).tables[0].columns = Some(vec!["id".into()]),
            "publication-lacks-column",
        ),
        (
            |_, facts| slot(facts).plugin = Some("test_decoding".into()),
            "slot-plugin",
        ),
        (
            |_, facts| slot(facts).kind = "physical".into(),
            "slot-plugin",
        ),
        (
            |_, facts| slot(facts).database = Some("other".into()),
            "slot-database",
        ),
        (
            |_, facts| slot(facts).wal_status = Some("lost".into()),
            "slot-lost",
        ),
        (
            |wanted, facts| {
                wanted.create = false;
                facts.slot = None;
            },
            "slot-missing",
        ),
    ];
    for (change, id) in cases {
        assert_eq!(refused(change), id);
    }
}

#[test]
fn a_slot_is_neither_created_nor_missed_on_a_standby() {
    for relayed_before in [false, true] {
        let mut facts = facts();
        facts.server.in_recovery = true;
        // A slot that is there may be read: since 16 a standby decodes.
        assert_eq!(plan(&wanted(), &facts, relayed_before), Ok(Plan::default()));
        facts.slot = None;
        let error = plan(&wanted(), &facts, relayed_before).expect_err("it is on the primary");
        assert_eq!(error.id(), "standby");
    }
}

#[test]
fn servers_without_column_lists_are_taken_at_their_word() {
    let mut facts = facts();
    facts.publication.as_mut().expect("a publication").tables[0].columns = None;
    assert_eq!(plan(&wanted(), &facts, false), Ok(Plan::default()));
}

#[test]
fn a_row_filter_and_a_reader_are_noted() {
    let mut facts = facts();
    facts.publication.as_mut().expect("a publication").tables[0].row_filter =
        Some("(id > 1)".into());
    facts.slot.as_mut().expect("a slot").active_pid = Some(42);
    let notes = plan(&wanted(), &facts, false).expect("fine").notes;
    assert_eq!(notes.len(), 2);
    assert!(
        notes[0].contains("42") && notes[1].contains("(id > 1)"),
        "{notes:?}"
    );
}
