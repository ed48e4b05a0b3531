//! The publication, and the rows that it leaves out.

use super::*;

#[test]
fn the_publication_is_created_before_the_slot() {
    let plan = plan(&wanted(), &bare(), FIRST).expect("may be created");
    assert_eq!(
        plan.actions,
        [Action::CreatePublication, Action::CreateSlot]
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
            SetupError::Publication(PublicationSetupError::Lacks { gap, .. }) => gap,
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
