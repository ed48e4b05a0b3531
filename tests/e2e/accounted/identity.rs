//! Rows are accounted only by columns that identify them: a row that takes the place of a sent one differs from it.

use super::{MAY, STAYS, prune, rows};
use crate::old_rows::{insert, rig, unseen};
use crate::rig::{assert_has, create_slot, done, edit, output_with, refused, said};

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
        let debezium = format!(
            "[router.debezium]\n\"route.topic.replacement\" = \"{}${{routedByValue}}\"\n",
            rig.prefix
        );
        let route = format!(
            "[router]\npreset = \"custom\"\n[router.route]\ntopic = \"{}order\"\nvalue = \"{{payload}}\"\n",
            rig.prefix
        );
        edit(&config, &debezium, &route);
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
        relay.ends_well();
    }
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
