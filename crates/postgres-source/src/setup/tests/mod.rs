//! Tests of the plan: each names the wanted setup, the facts, and the actions or the error.

mod publication;
mod slot;
mod snapshot;
mod table;

use walrelay_event_router::ColumnNames;
use walrelay_lsn::Lsn;
use walrelay_relay::TableName;

use super::*;
use crate::catalog::Selection;
use crate::catalog::{
    ColumnFacts, Facts, Generated, Poller, PublicationEntry, PublicationFacts, PublishedTable,
    ServerFacts, SlotRow, TableFacts, Wanted,
};
use crate::error::{Gap, PublicationSetupError, SetupError, SlotSetupError};
use crate::script::EmitFunction;

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

pub(crate) fn wanted() -> Wanted {
    Wanted {
        slot: "walrelay".into(),
        publication: "pub".into(),
        tables: vec![outbox()],
        pass_over: Vec::new(),
        columns: columns(),
        content: vec!["payload".into()],
        column_names: ColumnNames::default(),
        by_templates: false,
        messages: None,
        create: true,
        failover: false,
        snapshot: None,
        account: None,
        marks: None,
        dead_marks: None,
        poller: Poller::Unknown,
        kept_wal: 0,
        age: Vec::new(),
    }
}

fn text_column(name: String) -> ColumnFacts {
    ColumnFacts {
        name,
        type_oid: 25,
        modifier: -1,
        ..ColumnFacts::default()
    }
}

/// Returns the facts of a complete setup.
pub(crate) fn facts() -> Facts {
    Facts {
        server: ServerFacts {
            major: 17,
            wal_level: "logical".into(),
            effective_wal_level: None,
            database: "app".into(),
            in_recovery: false,
            wal_end: "0/90".parse().ok(),
            max_slot_wal_keep_size: None,
            timeline: Some(1),
            start: String::new(),
            free_slots: Some(2),
            oldest_transaction: None,
            state_version: 1,
        },
        tables: vec![(
            outbox(),
            Some(TableFacts {
                oid: 16_384,
                kind: "r".into(),
                permanent: true,
                columns: columns().into_iter().map(text_column).collect(),
                ..TableFacts::default()
            }),
        )],
        others: Vec::new(),
        publication: Some(PublicationFacts {
            oid: 16_400,
            insert: true,
            update: false,
            all_tables: false,
            schemas: false,
            unfinished: false,
            tables: vec![PublishedTable {
                table: outbox(),
                columns: Some(columns()),
                row_filter: None,
            }],
            version: 740,
            row: "{\"pubinsert\": true}".into(),
            entries: vec![PublicationEntry {
                table: 16_384,
                oid: 16_401,
            }],
        }),
        slot: Some(SlotRow {
            kind: "logical".into(),
            plugin: Some("pgoutput".into()),
            database: Some("app".into()),
            confirmed: "0/10".parse().ok(),
            restart: "0/8".parse().ok(),
            wal_status: Some("reserved".into()),
            catalog_xmin: Some(751),
            failover: Some(false),
            ..SlotRow::default()
        }),
    }
}

fn slot(facts: &mut Facts) -> &mut SlotRow {
    facts.slot.as_mut().expect("a slot")
}

fn publication(facts: &mut Facts) -> &mut PublicationFacts {
    facts.publication.as_mut().expect("a publication")
}

fn table(facts: &mut Facts) -> &mut TableFacts {
    facts.tables[0].1.as_mut().expect("a table")
}

const FIRST: Moment = start(None, false);

const fn start(known: Option<Lsn>, accept_gap: bool) -> Moment {
    Moment::Start {
        known,
        noted: None,
        accept_gap,
    }
}

fn noted(position: &str, accept_gap: bool) -> Moment {
    Moment::Start {
        known: None,
        noted: at(position),
        accept_gap,
    }
}

/// Returns the facts before the first setup.
fn bare() -> Facts {
    Facts {
        publication: None,
        slot: None,
        ..facts()
    }
}

fn at(lsn: &str) -> Option<Lsn> {
    lsn.parse().ok()
}

fn relayed() -> Moment {
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
fn a_complete_setup_needs_no_action() {
    assert_eq!(plan(&wanted(), &facts(), FIRST), Ok(Plan::default()));
    assert_eq!(plan(&wanted(), &facts(), relayed()), Ok(Plan::default()));
}

fn without_slot() -> Facts {
    Facts {
        slot: None,
        ..facts()
    }
}

#[test]
fn a_server_whose_first_slot_switches_decoding_on_is_set_up() {
    let replica = |effective: Option<&str>| {
        let mut facts = bare();
        facts.server.wal_level = "replica".into();
        facts.server.effective_wal_level = effective.map(str::to_owned);
        facts
    };
    let planned = |facts: &Facts| plan(&wanted(), facts, Moment::Init);
    let actions = planned(&replica(Some("replica"))).map(|plan| plan.actions);
    let expected = vec![Action::CreatePublication, Action::CreateSlot];
    assert_eq!(actions, Ok(expected));
    let mut minimal = replica(Some("minimal"));
    minimal.server.wal_level = "minimal".into();
    for (facts, needed) in [
        (replica(None), "needs logical"),
        (minimal, "needs replica or logical"),
    ] {
        let error = planned(&facts).expect_err(needed);
        assert_eq!(error.id(), "wal-level");
        assert!(error.to_string().ends_with(needed), "{error}");
    }
    let mut standby = replica(Some("replica"));
    standby.server.in_recovery = true;
    assert_eq!(
        planned(&standby).map_err(|error| error.id()),
        Err("standby")
    );
}

#[test]
fn each_error_has_its_own_id() {
    type Change = fn(&mut Wanted, &mut Facts);
    let cases: [(Change, &str); 17] = [
        (
            |_, facts| facts.server.wal_level = "replica".into(),
            "wal-level",
        ),
        (|_, facts| facts.server.state_version = 3, "state-version"),
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
        (
            |wanted, facts| {
                wanted.create = false;
                *facts = bare();
            },
            "publication-missing",
        ),
        // A publication is not created behind an existing slot.
        (|_, facts| facts.publication = None, "publication-gone"),
    ];
    for (change, id) in cases {
        assert_eq!(refused(change), id);
    }
}
