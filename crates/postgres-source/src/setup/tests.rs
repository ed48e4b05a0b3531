use walrelay_event_router::ColumnNames;
use walrelay_lsn::Lsn;
use walrelay_relay::TableName;

use super::*;
use crate::catalog::Selection;
use crate::catalog::{
    ColumnFacts, Facts, Generated, Poller, PublicationEntry, PublicationFacts, PublishedTable,
    ServerFacts, SlotRow, TableFacts, Wanted,
};
use crate::error::{Gap, SetupError};
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

#[test]
fn the_publication_is_created_before_the_slot() {
    let plan = plan(&wanted(), &bare(), FIRST).expect("may be created");
    assert_eq!(
        plan.actions,
        [Action::CreatePublication, Action::CreateSlot]
    );
}

#[test]
fn a_misspelled_table_is_named_as_it_is() {
    let mut facts = facts();
    let other = |name: &str| TableName::new("public", name);
    facts.tables[0].1 = None;
    facts.others = vec![other("events"), other("outbix"), other("outboxes")];
    let error = plan(&wanted(), &facts, FIRST).expect_err("no such table");
    assert!(
        error.remedy().starts_with("did you mean public.outbix?"),
        "{}",
        error.remedy()
    );
    facts.others = vec![other("events")];
    let error = plan(&wanted(), &facts, FIRST).expect_err("no such table");
    assert!(
        error.remedy().starts_with("create public.outbox"),
        "{}",
        error.remedy()
    );
}

/// The range is named whose rows no publication carried.
#[test]
fn a_publication_that_lost_a_table_names_the_range() {
    let mut facts = facts();
    let publication = facts.publication.as_mut().expect("a publication");
    publication.tables.clear();
    let slot = facts.slot.as_ref().and_then(|slot| slot.confirmed);
    let gap_of = |facts: &Facts, moment, at| {
        let error = plan(&wanted(), facts, moment)
            .expect_err("no table")
            .carried_at(at);
        match error {
            SetupError::PublicationLacks { gap, .. } => gap,
            other => panic!("{other}"),
        }
    };
    let gap = gap_of(&facts, FIRST, None).expect("a range");
    assert_eq!((gap.from, gap.to), (slot, at("0/90")));
    // A running relay has confirmed beyond the point where the table was still there.
    let gap = gap_of(&facts, relayed(), at("0/8")).expect("a range");
    assert_eq!(gap.from, at("0/8"));
    let table = facts.tables[0].1.as_mut().expect("the table");
    table.kind = "p".into();
    assert_eq!(gap_of(&facts, FIRST, None), None);
    table_is_ordinary(&mut facts);
    facts.slot = None;
    assert_eq!(gap_of(&facts, Moment::Init, None), None);
}

fn table_is_ordinary(facts: &mut Facts) {
    if let Some(table) = &mut facts.tables[0].1 {
        table.kind = "r".into();
    }
}

fn without_slot() -> Facts {
    Facts {
        slot: None,
        ..facts()
    }
}

/// The publication shows that a relay was set up here. Then only `init` creates the slot silently.
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
    let moment = |accept_gap| start(at("0/30"), accept_gap);
    let gap = Gap {
        from: at("0/30"),
        to: at("0/90"),
    };
    let error = plan(&wanted(), &bare(), moment(false)).expect_err("it is gone");
    assert!(error.to_string().contains("from 0/30 to 0/90"), "{error}");
    let plan = plan(&wanted(), &bare(), moment(true)).expect("accepted");
    assert_eq!(
        plan.actions,
        [Action::CreatePublication, Action::CreateSlot]
    );
    assert_eq!(plan.gap, Some(gap));
}

/// A relay has streamed here. A snapshot reads all rows, so it needs no range.
#[test]
fn a_noted_position_forbids_to_create_the_slot_without_a_snapshot() {
    let gap = Some(Gap {
        from: at("0/30"),
        to: at("0/90"),
    });
    for facts in [bare(), without_slot()] {
        let error = plan(&wanted(), &facts, noted("0/30", false)).expect_err("it is gone");
        let slot = wanted().slot;
        assert_eq!(error, SetupError::SlotMissing { slot, gap });
        let plan = plan(&wanted(), &facts, noted("0/30", true)).expect("accepted");
        assert_eq!(plan.actions.last(), Some(&Action::CreateSlot));
        assert_eq!(plan.gap, gap);
    }
    let snapshot = Wanted {
        snapshot: Some(Selection::default()),
        ..wanted()
    };
    let plan = plan(&snapshot, &without_slot(), noted("0/30", false)).expect("read again");
    assert_eq!(plan.actions, [Action::Snapshot]);
    assert_eq!(plan.gap, None);
}

#[test]
fn an_accepted_gap_creates_the_slot_even_without_create() {
    let strict = Wanted {
        create: false,
        ..wanted()
    };
    let plan = plan(&strict, &without_slot(), start(None, true)).expect("accepted");
    assert_eq!(plan.actions, [Action::CreateSlot]);
    assert!(plan.gap.is_some());
}

#[test]
fn accepting_gaps_changes_nothing_without_a_gap() {
    let known = start(at("0/30"), true);
    assert_eq!(plan(&wanted(), &facts(), known), Ok(Plan::default()));
    let plan = plan(&wanted(), &bare(), start(None, true)).expect("the first day");
    assert_eq!(plan.gap, None);
}

#[test]
fn a_slot_that_was_relayed_is_never_recreated() {
    let error = plan(&wanted(), &without_slot(), relayed()).expect_err("it is gone");
    assert_eq!(error.id(), "slot-gone");
    assert!(error.to_string().contains("from 0/20 to 0/90"), "{error}");
}

/// Each major version reports a lost slot in its own way.
#[test]
fn a_lost_slot_is_replaced_only_if_the_gap_is_accepted() {
    for (wal_status, invalidated) in [
        (Some("lost"), None),
        (Some("lost"), Some("wal_removed")),
        (Some("unreserved"), Some("idle_timeout")),
        (None, Some("conflicting with recovery")),
        (Some("lost"), Some("rows_removed")),
        (Some("lost"), Some("wal_level_insufficient")),
    ] {
        let mut facts = facts();
        slot(&mut facts).wal_status = wal_status.map(str::to_owned);
        slot(&mut facts).invalidated = invalidated.map(str::to_owned);
        // The gap begins at the later of the relayed and the slot's position.
        for (moment, from) in [
            (FIRST, "from 0/10 to 0/90"),
            (start(at("0/30"), false), "from 0/30 to 0/90"),
            (start(at("0/5"), false), "from 0/10 to 0/90"),
            (relayed(), "from 0/20 to 0/90"),
            (Moment::Init, "from 0/10 to 0/90"),
        ] {
            let error = plan(&wanted(), &facts, moment).expect_err("it is lost");
            assert_eq!(error.id(), "slot-lost");
            let text = error.to_string();
            assert!(text.contains(from), "{moment:?}: {text}");
            let reason = invalidated.unwrap_or("wal_status = lost");
            assert!(text.contains(reason), "{text}");
            assert!(error.remedy().contains("'751'::xid"), "{}", error.remedy());
            let setting = match invalidated {
                Some("idle_timeout") => "idle_replication_slot_timeout",
                Some("conflicting with recovery" | "rows_removed") => "hot_standby_feedback = on",
                Some("wal_level_insufficient") => "wal_level = logical on the primary",
                _ => "max_slot_wal_keep_size",
            };
            assert!(error.remedy().contains(setting), "{}", error.remedy());
        }
        let plan = plan(&wanted(), &facts, start(at("0/30"), true)).expect("accepted");
        assert_eq!(plan.actions, [Action::DropSlot, Action::CreateSlot]);
        let gap = Gap {
            from: at("0/30"),
            to: at("0/90"),
        };
        assert_eq!(plan.gap, Some(gap));
        let wanted = Wanted {
            snapshot: Some(Selection::default()),
            ..wanted()
        };
        let plan = super::plan(&wanted, &facts, start(at("0/30"), true)).expect("accepted");
        assert_eq!(plan.actions, [Action::DropSlot, Action::Snapshot]);
        assert_eq!(plan.gap, Some(gap));
    }
}

/// Only a slot of this relay is dropped.
#[test]
fn a_lost_slot_of_another_consumer_is_not_replaced() {
    for (plugin, database, id) in [
        ("wal2json", "app", "slot-plugin"),
        ("pgoutput", "other", "slot-database"),
    ] {
        let mut facts = facts();
        let slot = slot(&mut facts);
        slot.wal_status = Some("lost".into());
        slot.plugin = Some(plugin.into());
        slot.database = Some(database.into());
        let error = plan(&wanted(), &facts, start(None, true)).expect_err("not ours");
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
    // A starting relay mends that, unless it may create nothing, or the slot has a reader.
    let begun = plan(&wanted, &facts, FIRST).expect("fine");
    assert_eq!(
        (begun.actions, begun.notes),
        (vec![Action::EnableFailover], vec![])
    );
    let uncreated = Wanted {
        create: false,
        ..wanted.clone()
    };
    let mut read = facts.clone();
    slot(&mut read).active_pid = Some(7);
    let mut standby = facts.clone();
    standby.server.in_recovery = true;
    for (wanted, facts, moment) in [
        (&wanted, &facts, Moment::Init),
        (&uncreated, &facts, FIRST),
        (&wanted, &read, FIRST),
        (&wanted, &standby, FIRST),
    ] {
        let Plan { actions, notes, .. } = plan(wanted, facts, moment).expect("fine");
        assert!(actions.is_empty(), "{actions:?}");
        assert!(notes[0].contains("no failover slot"), "{notes:?}");
    }
    slot(&mut facts).failover = Some(true);
    assert_eq!(plan(&wanted, &facts, FIRST), Ok(Plan::default()));
    facts.server.major = 16;
    let error = plan(&wanted, &facts, FIRST).expect_err("too old");
    assert_eq!(error.id(), "failover-too-old");
}

#[test]
fn other_tables_of_the_publication_are_named_or_refused() {
    let mut facts = facts();
    let mut more = publication(&mut facts).tables[0].clone();
    more.table.name = "orders".into();
    more.columns = Some(vec!["note".into()]);
    // The gate of outbox.emit has no rows.
    let mut gate = more.clone();
    gate.table = EmitFunction::gate();
    publication(&mut facts).tables.push(gate);
    assert!(plan(&wanted(), &facts, start(None, false)).is_ok());
    publication(&mut facts).tables.push(more);
    let planned = |facts: &Facts, pass_over: &[&str]| {
        let pass_over = pass_over.iter().map(|name| TableName::new("public", *name));
        let wanted = Wanted {
            pass_over: pass_over.collect(),
            ..wanted()
        };
        plan(&wanted, facts, start(None, false))
    };
    for named in ["orders", "*"] {
        let notes = planned(&facts, &[named]).expect("passed over").notes;
        assert!(notes[0].contains("public.orders"), "{notes:?}");
    }
    let remedy = |facts: &Facts| planned(facts, &["other"]).expect_err("refused").remedy();
    let found = remedy(&facts);
    assert!(
        found.contains("DROP TABLE \"public\".\"orders\""),
        "{found}"
    );
    assert!(found.contains("--pass-over public.orders,"), "{found}");
    publication(&mut facts).schemas = true;
    let found = remedy(&facts);
    assert!(found.contains("SET TABLE \"public\".\"outbox\""), "{found}");
    publication(&mut facts).all_tables = true;
    let found = remedy(&facts);
    assert!(!found.contains("ALTER PUBLICATION"), "{found}");
}

#[test]
fn a_column_is_found_under_each_of_its_names() {
    let mut names = ColumnNames::default();
    names.add("body", ["payload".to_owned()]);
    let columns = || {
        ["id", "aggregatetype", "aggregateid", "body"]
            .map(str::to_owned)
            .to_vec()
    };
    let wanted = Wanted {
        columns: columns(),
        column_names: names,
        ..wanted()
    };
    let planned = |facts: &Facts| plan(&wanted, facts, start(None, false));
    let mut facts = facts();
    assert_eq!(planned(&facts).err(), None, "under the former name");
    table(&mut facts).columns = columns().into_iter().map(text_column).collect();
    publication(&mut facts).tables[0].columns = Some(columns());
    assert_eq!(planned(&facts).err(), None, "under the present name");
    table(&mut facts).columns.pop();
    let error = planned(&facts).expect_err("under none");
    assert_eq!(error.id(), "column-missing");
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

#[test]
fn a_slot_is_neither_created_nor_missed_on_a_standby() {
    for moment in [FIRST, relayed(), Moment::Init] {
        let mut facts = facts();
        facts.server.in_recovery = true;
        // A slot on the standby can be read: since Postgres 16 a standby decodes.
        assert_eq!(plan(&wanted(), &facts, moment), Ok(Plan::default()));
        facts.slot = None;
        let error = plan(&wanted(), &facts, moment).expect_err("it is on the primary");
        assert_eq!(error.id(), "standby");
    }
}

#[test]
fn without_column_lists_all_columns_count_as_published() {
    let mut facts = facts();
    publication(&mut facts).tables[0].columns = None;
    assert_eq!(plan(&wanted(), &facts, FIRST), Ok(Plan::default()));
}

#[test]
fn a_row_filter_and_a_reader_are_noted() {
    let mut facts = facts();
    publication(&mut facts).tables[0].row_filter = Some("(id > 1)".into());
    slot(&mut facts).active_pid = Some(42);
    // A starting relay reports itself that it stands by.
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
fn sent_columns_are_those_that_the_publication_carries() {
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
    publication(&mut facts).tables[0].columns = Some(some.clone());
    assert_eq!(sent(&facts), some);
    // Before Postgres 15, or without a publication: all columns except generated ones.
    facts.publication = None;
    table(&mut facts).columns[0].generated = Some(Generated::Stored);
    assert_eq!(sent(&facts), some);
}

/// Postgres never publishes a virtual generated column, and a stored one only since 18, if the
/// publication says so.
#[test]
fn a_generated_column_is_refused_unless_it_is_published() {
    use Generated::{Stored, Virtual};
    for (major, generated, published, words) in [
        (15, Stored, None, Some("DROP EXPRESSION")),
        (17, Stored, Some(false), Some("DROP EXPRESSION")),
        (
            18,
            Stored,
            Some(false),
            Some("ALTER PUBLICATION \"pub\" SET (publish_generated_columns = stored)"),
        ),
        (18, Stored, None, Some("publish_generated_columns = stored")),
        (18, Stored, Some(true), None),
        (18, Virtual, Some(false), Some("STORED")),
        (18, Virtual, None, Some("STORED")),
    ] {
        let mut facts = match published {
            None => bare(),
            Some(_) => facts(),
        };
        facts.server.major = major;
        let payload = &mut table(&mut facts).columns[3];
        assert_eq!(payload.name, "payload");
        payload.generated = Some(generated);
        if published == Some(false) {
            publication(&mut facts).tables[0].columns = Some(columns()[..3].to_vec());
        }
        let planned = plan(&wanted(), &facts, FIRST);
        let Some(words) = words else {
            assert_eq!(planned, Ok(Plan::default()));
            continue;
        };
        let error = planned.expect_err("it is not sent");
        assert_eq!(error.id(), "column-generated", "{error}");
        assert!(error.to_string().contains("payload"), "{error}");
        assert!(error.remedy().contains(words), "{}", error.remedy());
        assert_eq!(error.remedy().contains("18"), major < 18);
    }
    // A generated column that the router does not read does no harm.
    let mut facts = facts();
    let mut other = text_column("other".into());
    other.generated = Some(Virtual);
    table(&mut facts).columns.push(other);
    assert_eq!(plan(&wanted(), &facts, FIRST), Ok(Plan::default()));
}

/// A snapshot is planned if no relayed position is known. If the publication exists, an earlier
/// snapshot may have been interrupted.
#[test]
fn a_snapshot_comes_before_the_slot() {
    let wanted = Wanted {
        snapshot: Some(Selection::default()),
        ..wanted()
    };
    let mut facts = facts();
    // If the slot exists, the snapshot is complete.
    assert_eq!(plan(&wanted, &facts, FIRST), Ok(Plan::default()));
    facts.slot = None;
    let begun = plan(&wanted, &facts, FIRST).expect("a snapshot");
    assert_eq!(begun.actions, [Action::Snapshot]);
    assert!(begun.notes[0].contains("was dropped"), "{:?}", begun.notes);
    let uncreated = Wanted {
        create: false,
        ..wanted.clone()
    };
    assert_eq!(
        plan(&uncreated, &facts, FIRST).expect("a snapshot").actions,
        [Action::Snapshot]
    );
    // A relayed position is known, from a state file or this process: the slot was dropped.
    let known = |accept_gap| start(at("0/20"), accept_gap);
    let error = plan(&wanted, &facts, known(false)).expect_err("dropped");
    assert_eq!(error.id(), "slot-missing");
    let accepted = plan(&wanted, &facts, known(true)).expect("accepted");
    assert_eq!(accepted.actions, [Action::Snapshot]);
    assert!(accepted.gap.is_some());
    let error = plan(&wanted, &facts, relayed()).expect_err("dropped");
    assert_eq!(error.id(), "slot-gone");
    // A polling relay may send the rows: after a rollback, or before a switch.
    let by = |poller| Wanted {
        poller,
        ..wanted.clone()
    };
    let marks = by(Poller::MayRun);
    let error = plan(&marks, &facts, FIRST).expect_err("a decision is needed");
    assert_eq!(error.id(), "cutover-not-switched");
    let accepted = plan(&marks, &facts, start(None, true)).expect("decided");
    assert_eq!(accepted.actions, [Action::Snapshot]);
    let init = plan(&marks, &facts, Moment::Init).expect("later");
    assert!(init.actions.is_empty() && init.notes[0].contains("walrelay cutover switch"));
    // Of the rows that `cutover switch` sends, none was relayed from a slot.
    let switched = plan(&by(Poller::Stopped), &facts, FIRST).expect("a snapshot");
    assert_eq!(switched.actions, [Action::Snapshot]);
    assert!(switched.notes.is_empty(), "{:?}", switched.notes);
    // `init` leaves the snapshot to the relay, and printing reads no rows.
    let init = plan(&wanted, &facts, Moment::Init).expect("later");
    assert!(init.actions.is_empty() && init.notes[0].contains("walrelay run"));
    let print = plan(&wanted, &facts, Moment::Print).expect("from now on");
    assert_eq!(print.actions, [Action::CreateSlot]);
    facts.publication = None;
    let first = plan(&wanted, &facts, FIRST).expect("the first day");
    assert_eq!(first.actions, [Action::CreatePublication, Action::Snapshot]);
    assert!(first.notes.is_empty());
    assert_eq!(plan(&marks, &facts, FIRST), Ok(first));
    facts.server.in_recovery = true;
    let error = plan(&wanted, &facts, FIRST).expect_err("on the primary");
    assert_eq!(error.id(), "standby");
}

/// walrelay's mark says that it has created the publication, and never the slot.
#[test]
fn a_setup_that_was_not_finished_goes_on() {
    let mut facts = Facts {
        slot: None,
        ..facts()
    };
    let mut wanted = wanted();
    let error = plan(&wanted, &facts, FIRST).expect_err("a slot that was dropped");
    assert_eq!(error.id(), "slot-missing");
    publication(&mut facts).unfinished = true;
    for moment in [FIRST, Moment::Init] {
        let planned = plan(&wanted, &facts, moment).expect("it goes on");
        assert_eq!(planned.actions, [Action::CreateSlot]);
        assert_eq!(planned.notes, [] as [String; 0]);
    }
    // A state file knows of a slot.
    assert!(plan(&wanted, &facts, start(at("0/20"), false)).is_err());
    wanted.snapshot = Some(Selection::default());
    wanted.poller = Poller::MayRun;
    let planned = plan(&wanted, &facts, FIRST).expect("it begins anew");
    assert_eq!(planned.actions, [Action::Snapshot]);
    assert_eq!(planned.notes, [] as [String; 0]);
    // The slot was made, and the mark was left.
    facts.slot = self::facts().slot;
    let planned = plan(&wanted, &facts, FIRST).expect("it is finished");
    assert_eq!(planned.actions, [Action::FinishSetup]);
    facts.server.in_recovery = true;
    assert_eq!(plan(&wanted, &facts, FIRST), Ok(Plan::default()));
}
