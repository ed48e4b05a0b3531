//! Tables and their columns.

use super::*;

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
