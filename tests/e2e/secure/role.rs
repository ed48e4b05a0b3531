use walrelay_testkit::Db;

use super::refused;
use crate::rig::{Rig, assert_lacks, done, insert, output_with};

/// Creates a role with `walrelay init --role` on this version, and tests what it can do and what
/// not.
fn test_role(major: u32) {
    let rig = Rig::new(major);
    let db = rig.db();
    done(&output_with("init --role least", &rig.config(), &[]));
    db.batch(
        "ALTER ROLE least PASSWORD 'hunter2'; CREATE TABLE accounts (id int, secret text); \
         INSERT INTO accounts VALUES (1, 'x')",
    );
    let rights = "SELECT concat_ws(',', rolcanlogin, rolreplication, rolsuper, rolcreaterole, \
                  rolcreatedb, rolbypassrls, rolinherit) FROM pg_roles WHERE rolname = 'least'";
    assert_eq!(db.text(rights).as_deref(), Some("t,t,f,f,f,f,t"));
    let member = "SELECT count(*) FROM pg_auth_members WHERE member = 'least'::regrole";
    assert_eq!(db.value::<i64>(member), 0, "member of nothing");
    let owned = "SELECT count(*) FROM pg_class WHERE relowner = 'least'::regrole";
    assert_eq!(db.value::<i64>(owned), 0, "owner of nothing");

    let url = rig.url_as("least", "hunter2", "postgres");
    let role = Db::connect(&url);
    for forbidden in [
        "SELECT * FROM outbox",
        "SELECT id FROM outbox",
        "SELECT count(*) FROM outbox",
        "INSERT INTO outbox DEFAULT VALUES",
        "UPDATE outbox SET payload = NULL",
        "DELETE FROM outbox",
        "TRUNCATE outbox",
        "SELECT * FROM accounts",
        "COPY accounts TO STDOUT",
        "CREATE PUBLICATION p FOR TABLE outbox",
        "DROP PUBLICATION walrelay",
        "SELECT * FROM pg_authid",
        "CREATE ROLE other",
        "SELECT pg_read_file('PG_VERSION')",
    ] {
        let error = role.try_batch(forbidden).expect_err(forbidden);
        let code = error.code().map(|code| code.code().to_owned());
        assert_eq!(code.as_deref(), Some("42501"), "{forbidden}: {error}");
    }
    // Every table outside of the system's schemas, but the relay's own.
    let readable = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace \
                    WHERE nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') \
                    AND relkind IN ('r', 'p', 'v', 'm', 'f') \
                    AND c.oid <> 'walrelay_state.last_error'::regclass \
                    AND c.oid <> 'walrelay_state.run'::regclass \
                    AND has_any_column_privilege('least', c.oid, 'SELECT')";
    assert_eq!(db.value::<i64>(readable), 0);

    // The role can relay with the objects that `init` has created, also with `create = true`: there
    // is nothing to create.
    let config = rig.config_with(&url, "");
    done(&output_with("check", &config, &[]));
    let relay = rig.streaming(&config);
    for number in 1..=10 {
        insert(&db, number);
    }
    rig.finish(relay).assert_counts(10, 0);

    // Errors name a missing privilege, and none that the role has.
    db.batch(
        "SELECT pg_drop_replication_slot('walrelay'); DROP PUBLICATION walrelay; DROP SCHEMA walrelay_state CASCADE",
    );
    let refused = |words: &str| {
        let output = output_with("run", &config, &[]);
        refused(&output, "privilege", 77, &[words])
    };
    let lacks_create = refused("CREATE on the database");
    assert_lacks(&lacks_create, &["ALTER ROLE"]);
    db.batch("GRANT CREATE ON DATABASE postgres TO least");
    let not_owner = refused("only the owner of a table may publish it");
    assert_lacks(&not_owner, &["ALTER ROLE"]);
    db.batch(
        "CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert'); \
         ALTER ROLE least NOREPLICATION",
    );
    refused("ALTER ROLE … REPLICATION");
}

tests! {
    fn the_role_of_init_is_enough_and_reads_nothing_on_15() { test_role(15) }
    fn the_role_of_init_is_enough_and_reads_nothing_on_18() { test_role(18) }
}
