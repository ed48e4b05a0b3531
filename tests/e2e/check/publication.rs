use super::Case;
use crate::rig::{Rig, create_slot};

/// Each way in which a publication lacks events of the outbox.
#[test]
fn check_reports_faults_of_the_publication() {
    let case = Case::new(Rig::without_broker(18));
    let broken = |change: &str, item: &str, verdict: &str, words: &str| {
        let sql = format!("ALTER PUBLICATION walrelay {change}");
        case.breaks(&sql, item, verdict, &[words]);
    };
    case.check().passes("postgres/publication", &[]);
    let operations = "postgres/publication-operations";
    broken(
        "SET (publish = 'insert, update')",
        operations,
        "warn",
        "it also carries update",
    );
    broken(
        "SET (publish = 'update')",
        operations,
        "fail",
        "[publication-without-insert]",
    );
    let (tables, rows) = ("postgres/publication-tables", "postgres/publication-rows");
    broken(
        "DROP TABLE outbox",
        tables,
        "fail",
        "[publication-lacks-table]",
    );
    let some = "SET TABLE outbox WHERE (aggregatetype <> 'secret')";
    broken(some, rows, "warn", "only the rows");
    let some = "ALTER PUBLICATION walrelay SET TABLE outbox (id, aggregatetype)";
    case.db.batch(some);
    let lacks = ["[publication-lacks-column]", "payload"];
    let checked = case.check();
    checked.fails("postgres/publication-columns", &lacks);
    checked.ends(78);
    case.db.batch("ALTER PUBLICATION walrelay SET TABLE outbox");
    case.check().passes("postgres/publication-columns", &[]);

    // A foreign table, at which the relay would stop.
    case.db
        .batch("CREATE TABLE x (id int); ALTER PUBLICATION walrelay ADD TABLE x");
    let foreign = ["[publication-foreign-table]", "public.x"];
    case.check().fails(tables, &foreign);
    case.db.batch("DROP TABLE x");

    case.db.batch("DROP PUBLICATION walrelay");
    let gone = ["[publication-gone]", "walrelay init"];
    case.check().fails("postgres/publication", &gone);
}

/// The publication sends the names of partitions, which the relay does not expect.
#[test]
fn check_reports_a_publication_of_partitions() {
    let case = Case::new(Rig::without_broker(18));
    case.db.batch(
        "CREATE TABLE parted (id uuid, aggregatetype text, aggregateid text, type text, payload jsonb) \
         PARTITION BY LIST (aggregatetype); \
         CREATE TABLE parted_rest PARTITION OF parted DEFAULT; \
         INSERT INTO parted VALUES (gen_random_uuid(), 'order', 'k', 'T', '{}'); \
         CREATE PUBLICATION parted FOR TABLE parted WITH (publish = 'insert')",
    );
    // The slot must not be older than its publication.
    case.db.batch("SELECT pg_drop_replication_slot('walrelay')");
    create_slot(&case.db, "walrelay");
    let set = "source.tables=['public.parted'] source.publication=parted";
    let tables = "postgres/publication-tables";
    let checked = case.check_with(set);
    checked.ends(78);
    assert!(checked.all(tables).is_empty(), "told twice");
    let item = "postgres/publication-partitions";
    let words = ["[publication-lacks-table]", "publish_via_partition_root"];
    case.breaks_with(set, "", item, "fail", &words);
    let checked = case.check_with(set);
    checked.passes(tables, &[]);
    checked.ends(0);
}
