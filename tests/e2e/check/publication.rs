use super::Case;
use crate::rig::Rig;

/// Each way in which a publication does not carry the outbox.
#[test]
fn of_the_publication() {
    let case = Case::of(Rig::without_broker(18));
    let (warn, fail) = ("warn", "fail");
    case.check().is("postgres/publication", "pass", &[]);
    case.breaks(
        "ALTER PUBLICATION walrelay SET (publish = 'insert, update')",
        "postgres/publication-operations",
        warn,
        &["it also carries update"],
    );
    case.breaks(
        "ALTER PUBLICATION walrelay SET (publish = 'update')",
        "postgres/publication-operations",
        fail,
        &["[publication-without-insert]"],
    );
    case.breaks(
        "ALTER PUBLICATION walrelay DROP TABLE outbox",
        "postgres/publication-tables",
        fail,
        &["[publication-lacks-table]"],
    );
    case.breaks(
        "ALTER PUBLICATION walrelay SET TABLE outbox WHERE (aggregatetype <> 'secret')",
        "postgres/publication-rows",
        warn,
        &["only the rows"],
    );
    case.db
        .batch("ALTER PUBLICATION walrelay SET TABLE outbox (id, aggregatetype)");
    let lacks = ["[publication-lacks-column]", "payload"];
    let checked = case.check();
    checked.is("postgres/publication-columns", fail, &lacks);
    assert_eq!(checked.code, Some(78));
    case.db.batch("ALTER PUBLICATION walrelay SET TABLE outbox");
    case.check().is("postgres/publication-columns", "pass", &[]);

    // Somebody else's table, which the relay would stop at.
    case.db
        .batch("CREATE TABLE x (id int); ALTER PUBLICATION walrelay ADD TABLE x");
    let foreign = ["[publication-foreign-table]", "public.x"];
    case.check()
        .is("postgres/publication-tables", fail, &foreign);
    case.db.batch("DROP TABLE x");

    case.db.batch("DROP PUBLICATION walrelay");
    let gone = ["[publication-gone]", "walrelay init"];
    case.check().is("postgres/publication", fail, &gone);
}

/// Partitions are not what the relay waits for.
#[test]
fn of_partitions() {
    let case = Case::of(Rig::without_broker(18));
    case.db.batch(
        "CREATE TABLE parted (id uuid, aggregatetype text, aggregateid text, type text, payload jsonb) \
         PARTITION BY LIST (aggregatetype); \
         CREATE TABLE parted_rest PARTITION OF parted DEFAULT; \
         INSERT INTO parted VALUES (gen_random_uuid(), 'order', 'k', 'T', '{}'); \
         CREATE PUBLICATION parted FOR TABLE parted WITH (publish = 'insert')",
    );
    let set = [
        "source.tables=['public.parted']",
        "source.publication=parted",
    ];
    let checked = case.check_with(&set);
    assert_eq!(checked.code, Some(78));
    assert!(
        checked.all("postgres/publication-tables").is_empty(),
        "told twice"
    );
    case.breaks_with(
        &set,
        "",
        "postgres/publication-partitions",
        "fail",
        &["[publication-lacks-table]", "publish_via_partition_root"],
    );
    let checked = case.check_with(&set);
    checked.is("postgres/publication-tables", "pass", &[]);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
}
