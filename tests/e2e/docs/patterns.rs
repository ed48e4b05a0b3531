//! docs/start/pattern.md: its SQL, on a database with the migrations. docs/how-to/verify.md: its command.

use super::{block, shell, with};
use crate::rig::{Rig, assert_has, edit, insert_of, output, output_with, psql, said, stdout};

#[test]
fn statements_of_the_pattern_do_what_it_says() {
    let rig = Rig::without_broker(18);
    let db = rig.db();
    db.batch(&stdout(&output(&["init", "--consumer"])));
    psql(
        &db,
        &stdout(&output_with("init --dry-run", &rig.config(), &[])),
    );
    db.batch(
        "CREATE TABLE orders (id int, total numeric); CREATE TABLE stock (article int, left_over int); \
         INSERT INTO stock VALUES (7, 10)",
    );
    let run = |name| psql(&db, &format!("{}\n", block("docs/start/pattern.md", name)));
    run("pattern-producer");
    let events = "SELECT count(*) FROM outbox JOIN orders ON aggregateid = orders.id::text";
    assert_eq!(db.value::<i64>(events), 1);
    let left = || db.value::<i32>("SELECT left_over FROM stock");
    run("pattern-consumer");
    assert_eq!(left(), 9);
    // A program looks at the number of rows; psql does not.
    let claim = block("docs/start/pattern.md", "pattern-consumer");
    let claim = claim.split(';').nth(1).expect("the claim");
    assert_eq!(db.query(&format!("{claim} RETURNING 1"), &[]).len(), 0);
    db.batch("UPDATE processed_events SET processed_at = now() - interval '29 days'");
    let claims = || db.value::<i64>("SELECT count(*) FROM processed_events");
    run("pattern-prune");
    assert_eq!(claims(), 1);
    db.batch("UPDATE processed_events SET processed_at = now() - interval '31 days'");
    run("pattern-prune");
    assert_eq!(claims(), 0);
}

#[test]
fn topics_are_verified_by_the_command_of_the_page() {
    let rig = Rig::with_outbox(17);
    rig.db()
        .batch("ALTER TABLE outbox ADD created_at timestamptz DEFAULT now()");
    let config = rig.config();
    edit(
        &config,
        "[log]\n",
        "[router]\nposition_header = \"walrelay-position\"\n\n[log]\n",
    );
    let relay = rig.streaming(&config);
    for (number, kind) in [(1, "Order"), (2, "Invoice"), (3, "Order")] {
        insert_of(&rig.db(), kind, "k", number);
    }
    rig.caught_up();
    let script = with(
        &block("docs/how-to/verify.md", "verify"),
        "outbox.event.",
        &rig.prefix,
    );
    let mut command = shell(&script);
    command.env("WALRELAY_CONFIG", &config);
    let output = command.output().expect("a shell");
    let shown = said(&output);
    assert!(output.status.success(), "{shown}");
    let words = [
        "3 records of",
        "order of a key: position in the log",
        "0  repeated events\n",
        "0  rows without a record, of 3 rows",
        "nothing is wrong",
    ];
    assert_has(&shown, &words);
    relay.ends_well();
}
