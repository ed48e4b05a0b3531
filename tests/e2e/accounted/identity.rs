//! Rows are accounted only by columns that identify them: a row that takes the place of a sent one differs from it.

use std::path::Path;

use super::{MAY, STAYS, prune, rows};
use crate::old_rows::{count, insert, rig, unseen};
use crate::rig::{Rig, assert_has, create_slot, done, edit, output_with, refused, said};

/// Makes the route name no id of events.
fn name_no_id(rig: &Rig, config: &Path) {
    let debezium = format!(
        "[router.debezium]\n\"route.topic.replacement\" = \"{}${{routedByValue}}\"\n",
        rig.prefix
    );
    let route = format!(
        "[router]\npreset = \"custom\"\n[router.route]\ntopic = \"{}order\"\nvalue = \"{{payload}}\"\n",
        rig.prefix
    );
    edit(config, &debezium, &route);
}

/// The route names no id, and the age is that of a whole day. The service deletes sent rows, and inserts others.
#[test]
fn rows_that_their_age_alone_identifies_stay() {
    for (change, publish, code, words) in [
        (
            "DROP CONSTRAINT outbox_pkey, REPLICA IDENTITY FULL",
            "",
            78,
            [
                "[prune-no-account]",
                "no column identifies a row of table public.outbox",
            ],
        ),
        (
            "DROP CONSTRAINT outbox_pkey, ADD PRIMARY KEY (id) DEFERRABLE",
            "",
            78,
            ["[prune-no-account]", "or a DEFERRABLE one"],
        ),
        (
            "DROP CONSTRAINT outbox_pkey, ADD PRIMARY KEY (aggregatetype, id)",
            "(aggregatetype, aggregateid, type, payload, created_at)",
            65,
            [STAYS, "5 rows more"],
        ),
    ] {
        let rig = rig(15);
        let db = rig.db();
        db.batch(&format!(
            "ALTER TABLE outbox ALTER created_at TYPE date; ALTER TABLE outbox {change}; \
             CREATE PUBLICATION walrelay FOR TABLE outbox {publish} WITH (publish = 'insert')"
        ));
        create_slot(&db, "walrelay");
        let config = rig.config_and(MAY);
        name_no_id(&rig, &config);
        let relay = rig.streaming(&config);
        insert(&db, 5, "sent");
        rig.caught_up();
        unseen(&db, || {
            db.batch("DELETE FROM outbox WHERE ctid IN (SELECT ctid FROM outbox LIMIT 2)");
            insert(&db, 2, "unsent");
        });
        refused(&prune(&config), code, &words);
        assert_eq!((rows(&db, "sent"), rows(&db, "unsent")), (3, 2), "{change}");
        let checked = said(&output_with("check", &config, &[]));
        assert_has(&checked, &["old rows stay", words[1]]);
        if code == 65 {
            let cause = "while the publication's column list lacks id of the table's key";
            assert_has(&checked, &[cause]);
        }
        relay.ends_well();
    }
}

/// One of two tables has no key. The rows of the other one are deleted, and accepted.
#[test]
fn a_table_without_a_key_holds_up_no_other() {
    let rig = rig(16);
    let db = rig.db();
    db.batch(
        "CREATE TABLE aside (LIKE outbox INCLUDING DEFAULTS); \
         CREATE PUBLICATION walrelay FOR TABLE aside, outbox WITH (publish = 'insert')",
    );
    create_slot(&db, "walrelay");
    let config = rig.config_and(MAY);
    edit(
        &config,
        "\"public.outbox\"",
        "\"public.aside\", \"public.outbox\"",
    );
    name_no_id(&rig, &config);
    let relay = rig.streaming(&config);
    insert(&db, 5, "sent");
    db.batch("INSERT INTO aside SELECT * FROM outbox LIMIT 3");
    rig.caught_up();
    let stays = "rows of public.aside stay: no column identifies a row";
    let plan = done(&output_with("prune --keep=24h --dry-run", &config, &[]));
    assert_has(&plan, &[stays, "5 rows are old enough"]);
    let words = ["[prune-no-account]", stays, "deleted 5 rows"];
    refused(&prune(&config), 78, &words);
    assert_eq!((count(&db, "outbox"), count(&db, "aside")), (0, 3));

    unseen(&db, || insert(&db, 2, "unsent"));
    let checked = said(&output_with("check", &config, &[]));
    assert_has(
        &checked,
        &[stays, "2 rows more than were accounted as sent"],
    );
    refused(&prune(&config), 65, &[STAYS, stays, "add a primary key"]);
    let accepted = output_with("prune --accept --keep=24h --yes", &config, &[]);
    refused(&accepted, 78, &[stays, "2 rows count as sent"]);
    refused(&prune(&config), 78, &words[..2]);
    assert_eq!((count(&db, "outbox"), count(&db, "aside")), (0, 3));
    relay.ends_well();
}

/// The log marks no column of such a key, so rows are accounted by the id of their events.
#[test]
fn rows_with_a_deferrable_primary_key_are_accounted_by_the_id() {
    let rig = rig(17);
    let db = rig.db();
    db.batch(
        "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ADD PRIMARY KEY (aggregateid, id) DEFERRABLE",
    );
    let config = rig.config_and(MAY);
    let relay = rig.streaming(&config);
    insert(&db, 5, "sent");
    rig.caught_up();
    done(&prune(&config));
    assert_eq!(rows(&db, "sent"), 0);
    relay.ends_well();
}

/// Rows are compared with the account, and not marked.
#[test]
fn check_names_the_policy_that_hides_accounted_rows() {
    let rig = rig(18);
    let db = rig.db();
    let config = rig.config_and("\n[prune]\nkeep = \"24h\"\nbefore_slot = true\n");
    done(&output_with("init", &config, &[]));
    db.batch(
        "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'x'; GRANT SELECT, DELETE ON outbox TO relay; \
         ALTER TABLE outbox ENABLE ROW LEVEL SECURITY",
    );
    edit(
        &config,
        &rig.postgres.url(),
        &rig.url_as("relay", "x", "postgres"),
    );
    let checked = said(&output_with("check", &config, &[]));
    let words = [
        "old rows stay: role relay may not see all rows of public.outbox, which has row-level security",
        "ALTER ROLE \"relay\" BYPASSRLS;",
    ];
    assert_has(&checked, &words);
}
