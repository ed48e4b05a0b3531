use walrelay_lsn::Lsn;
use walrelay_relay::TableName;

use super::*;
use crate::postgres::catalog::{
    Facts, PublicationFacts, PublishedTable, ServerFacts, SlotFacts, TableFacts, Wanted,
};
use crate::postgres::error::{Gap, SetupError};
use crate::postgres::snapshot::Selection;

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
        by_templates: false,
        messages: None,
        create: true,
        failover: false,
        snapshot: None,
    }
}

/// Everything as it should be.
fn facts() -> Facts {
    Facts {
        server: ServerFacts {
            major: 17,
            wal_level: "logical".into(),
            database: "app".into(),
            in_recovery: false,
            wal_end: "0/90".parse().ok(),
            max_slot_wal_keep_size: None,
            timeline: Some(1),
            start: String::new(),
        },
        tables: vec![(
            outbox(),
            Some(TableFacts {
                columns: columns(),
                types: vec![(25, -1); columns().len()],
                generated: Vec::new(),
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
            restart: "0/8".parse().ok(),
            wal_status: Some("reserved".into()),
            safe_wal_size: None,
            invalidated: None,
            catalog_xmin: Some(751),
            failover: Some(false),
        }),
    }
}

const FIRST: Moment = Moment::Start {
    known: None,
    accept_gap: false,
};

fn at(lsn: &str) -> Option<Lsn> {
    lsn.parse().ok()
}

fn later() -> Moment {
    Moment::Relayed {
        upto: "0/20".parse().expect("a position"),
    }
}

fn refused(change: impl Fn(&mut Wanted, &mut Facts)) -> &'static str {
    let (mut wanted, mut facts) = (wanted(), facts());
    change(&mut wanted, &mut facts);
    let error = plan(&wanted, &facts, FIRST).expect_err("must be refused");
    assert!(!error.remedy().is_empty());
    error.id()
}

#[test]
fn nothing_to_do_where_all_is_there() {
    assert_eq!(plan(&wanted(), &facts(), FIRST), Ok(Plan::default()));
    assert_eq!(plan(&wanted(), &facts(), later()), Ok(Plan::default()));
}

#[test]
fn the_publication_is_created_before_the_slot() {
    let bare = Facts {
        publication: None,
        slot: None,
        ..facts()
    };
    let plan = plan(&wanted(), &bare, FIRST).expect("may be created");
    assert_eq!(
        plan.actions,
        [Action::CreatePublication, Action::CreateSlot]
    );
}

fn without_slot() -> Facts {
    Facts {
        slot: None,
        ..facts()
    }
}

/// The publication says that a relay was set up here: then nobody but `init` makes a slot without
/// being told to.
#[test]
fn a_slot_that_is_missing_beside_its_publication_is_not_created_silently() {
    let error = plan(&wanted(), &without_slot(), FIRST).expect_err("it may have been dropped");
    assert_eq!(
        error,
        SetupError::SlotMissing {
            slot: "walrelay".into(),
            gap: Some(Gap {
                from: None,
                to: at("0/90"),
            }),
        }
    );
    for way in ["walrelay init", "walrelay run --accept-gap"] {
        assert!(error.remedy().contains(way), "{}", error.remedy());
    }
    let plan = plan(&wanted(), &without_slot(), Moment::Init).expect("init makes it");
    assert_eq!(plan.actions, [Action::CreateSlot]);
    assert!(plan.notes[0].contains("was there already"), "{plan:?}");
}

#[test]
fn a_known_position_forbids_to_create_the_slot_even_without_a_publication() {
    let bare = Facts {
        publication: None,
        ..without_slot()
    };
    let moment = |accept_gap| Moment::Start {
        known: at("0/30"),
        accept_gap,
    };
    let gap = Gap {
        from: at("0/30"),
        to: at("0/90"),
    };
    let error = plan(&wanted(), &bare, moment(false)).expect_err("it is gone");
    assert!(error.to_string().contains("from 0/30 to 0/90"), "{error}");
    let plan = plan(&wanted(), &bare, moment(true)).expect("accepted");
    assert_eq!(
        plan.actions,
        [Action::CreatePublication, Action::CreateSlot]
    );
    assert_eq!(plan.gap, Some(gap));
}

#[test]
fn an_accepted_gap_makes_the_slot_whatever_may_be_created_otherwise() {
    let moment = Moment::Start {
        known: None,
        accept_gap: true,
    };
    let strict = Wanted {
        create: false,
        ..wanted()
    };
    let plan = plan(&strict, &without_slot(), moment).expect("accepted");
    assert_eq!(plan.actions, [Action::CreateSlot]);
    assert!(plan.gap.is_some());
}

#[test]
fn accepting_gaps_changes_nothing_where_there_is_none() {
    let moment = |known| Moment::Start {
        known,
        accept_gap: true,
    };
    assert_eq!(
        plan(&wanted(), &facts(), moment(at("0/30"))),
        Ok(Plan::default())
    );
    let bare = Facts {
        publication: None,
        ..without_slot()
    };
    let plan = plan(&wanted(), &bare, moment(None)).expect("the first day");
    assert_eq!(plan.gap, None);
}

#[test]
fn a_slot_that_was_relayed_is_never_created_anew() {
    let error = plan(&wanted(), &without_slot(), later()).expect_err("it is gone");
    assert_eq!(error.id(), "slot-gone");
    assert!(error.to_string().contains("from 0/20 to 0/90"), "{error}");
}

/// Each version has its own way to say that a slot is lost.
#[test]
fn a_lost_slot_is_replaced_only_when_somebody_accepts_the_gap() {
    for (wal_status, invalidated) in [
        (Some("lost"), None),
        (Some("lost"), Some("wal_removed")),
        (Some("unreserved"), Some("idle_timeout")),
        (None, Some("conflicting with recovery")),
    ] {
        let mut facts = facts();
        let slot = facts.slot.as_mut().expect("a slot");
        slot.wal_status = wal_status.map(str::to_owned);
        slot.invalidated = invalidated.map(str::to_owned);
        let start = |known, accept_gap| Moment::Start { known, accept_gap };
        // From the later of what is known and what the slot says.
        for (moment, from) in [
            (FIRST, "from 0/10 to 0/90"),
            (start(at("0/30"), false), "from 0/30 to 0/90"),
            (start(at("0/5"), false), "from 0/10 to 0/90"),
            (later(), "from 0/20 to 0/90"),
            (Moment::Init, "from 0/10 to 0/90"),
        ] {
            let error = plan(&wanted(), &facts, moment).expect_err("it is lost");
            assert_eq!(error.id(), "slot-lost");
            let text = error.to_string();
            assert!(text.contains(from), "{moment:?}: {text}");
            let reason = invalidated.unwrap_or("wal_status = lost");
            assert!(text.contains(reason), "{text}");
            assert!(error.remedy().contains("'751'::xid"), "{}", error.remedy());
        }
        let plan = plan(&wanted(), &facts, start(at("0/30"), true)).expect("accepted");
        assert_eq!(plan.actions, [Action::RecreateSlot]);
        assert_eq!(
            plan.gap,
            Some(Gap {
                from: at("0/30"),
                to: at("0/90")
            })
        );
    }
}

/// What is dropped is a slot of this relay, and nobody else's.
#[test]
fn a_lost_slot_of_somebody_else_is_not_replaced() {
    let accept = Moment::Start {
        known: None,
        accept_gap: true,
    };
    for (plugin, database, id) in [
        ("wal2json", "app", "slot-plugin"),
        ("pgoutput", "other", "slot-database"),
    ] {
        let mut facts = facts();
        let slot = facts.slot.as_mut().expect("a slot");
        slot.wal_status = Some("lost".into());
        slot.plugin = Some(plugin.into());
        slot.database = Some(database.into());
        let error = plan(&wanted(), &facts, accept).expect_err("not ours");
        assert_eq!(error.id(), id);
    }
}

#[test]
fn failover_slots_need_17() {
    let wanted = Wanted {
        failover: true,
        ..wanted()
    };
    let mut facts = facts();
    let notes = plan(&wanted, &facts, FIRST).expect("fine").notes;
    assert!(notes[0].contains("no failover slot"), "{notes:?}");
    facts.slot.as_mut().expect("a slot").failover = Some(true);
    assert_eq!(plan(&wanted, &facts, FIRST), Ok(Plan::default()));
    facts.server.major = 16;
    let error = plan(&wanted, &facts, FIRST).expect_err("too old");
    assert_eq!(error.id(), "failover-too-old");
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
        "publication-missing"
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
    for moment in [FIRST, later(), Moment::Init] {
        let mut facts = facts();
        facts.server.in_recovery = true;
        // A slot that is there may be read: since 16 a standby decodes.
        assert_eq!(plan(&wanted(), &facts, moment), Ok(Plan::default()));
        facts.slot = None;
        let error = plan(&wanted(), &facts, moment).expect_err("it is on the primary");
        assert_eq!(error.id(), "standby");
    }
}

#[test]
fn servers_without_column_lists_are_taken_at_their_word() {
    let mut facts = facts();
    facts.publication.as_mut().expect("a publication").tables[0].columns = None;
    assert_eq!(plan(&wanted(), &facts, FIRST), Ok(Plan::default()));
}

#[test]
fn a_row_filter_and_a_reader_are_noted() {
    let mut facts = facts();
    facts.publication.as_mut().expect("a publication").tables[0].row_filter =
        Some("(id > 1)".into());
    facts.slot.as_mut().expect("a slot").active_pid = Some(42);
    // A relay that starts says by itself that it stands by.
    let of_run = plan(&wanted(), &facts, FIRST).expect("fine").notes;
    assert_eq!(of_run.len(), 1, "{of_run:?}");
    let notes = plan(&wanted(), &facts, Moment::Init).expect("fine").notes;
    assert_eq!(notes.len(), 2);
    assert!(
        notes[0].contains("(id > 1)") && notes[1].contains("42"),
        "{notes:?}"
    );
}

#[test]
fn what_is_sent_is_what_the_publication_carries() {
    let mut facts = facts();
    let sent = |facts: &Facts| -> Vec<String> {
        let table = facts.tables[0].1.as_ref().expect("a table");
        let sent = facts.sent(&outbox(), table);
        assert!(
            sent.iter()
                .all(|(_, oid, modifier)| (*oid, *modifier) == (25, -1))
        );
        sent.iter().map(|(name, ..)| (*name).to_owned()).collect()
    };
    assert_eq!(sent(&facts), columns());
    let some = columns().split_off(1);
    if let Some(publication) = &mut facts.publication {
        publication.tables[0].columns = Some(some.clone());
    }
    assert_eq!(sent(&facts), some);
    // Before 15, or before there is one: all but what is generated.
    facts.publication = None;
    if let Some(table) = &mut facts.tables[0].1 {
        table.generated = columns()[..1].to_vec();
    }
    assert_eq!(sent(&facts), some);
}

/// A snapshot comes where nothing is known to be relayed. Beside a publication it may be one that was interrupted.
#[test]
fn a_snapshot_comes_before_the_slot() {
    let wanted = Wanted {
        snapshot: Some(Selection::default()),
        ..wanted()
    };
    let mut facts = facts();
    // With a slot it is complete.
    assert_eq!(plan(&wanted, &facts, FIRST), Ok(Plan::default()));
    facts.slot = None;
    let begun = plan(&wanted, &facts, FIRST).expect("anew");
    assert_eq!(begun.actions, [Action::Snapshot]);
    assert!(begun.notes[0].contains("was dropped"), "{:?}", begun.notes);
    let uncreated = Wanted {
        create: false,
        ..wanted.clone()
    };
    assert_eq!(
        plan(&uncreated, &facts, FIRST).expect("anew").actions,
        [Action::Snapshot]
    );
    // A position that was relayed, by a state file or by this process: the slot was dropped.
    let known = |accept_gap| Moment::Start {
        known: at("0/20"),
        accept_gap,
    };
    let error = plan(&wanted, &facts, known(false)).expect_err("dropped");
    assert_eq!(error.id(), "slot-missing");
    let accepted = plan(&wanted, &facts, known(true)).expect("accepted");
    assert_eq!(accepted.actions, [Action::CreateSlot]);
    let error = plan(&wanted, &facts, later()).expect_err("dropped");
    assert_eq!(error.id(), "slot-gone");
    // `init` leaves it to the relay; what only prints reads no rows.
    let init = plan(&wanted, &facts, Moment::Init).expect("later");
    assert!(init.actions.is_empty() && init.notes[0].contains("walrelay run"));
    let print = plan(&wanted, &facts, Moment::Print).expect("from now on");
    assert_eq!(print.actions, [Action::CreateSlot]);
    facts.publication = None;
    let first = plan(&wanted, &facts, FIRST).expect("the first day");
    assert_eq!(first.actions, [Action::CreatePublication, Action::Snapshot]);
    assert!(first.notes.is_empty());
    facts.server.in_recovery = true;
    let error = plan(&wanted, &facts, FIRST).expect_err("on the primary");
    assert_eq!(error.id(), "standby");
}
