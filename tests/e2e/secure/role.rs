use walrelay_testkit::{Db, servers};

use super::refused;
use crate::rig::{Rig, output, shared_kafka};

/// `walrelay init --role` on this version, and what the role can do and cannot.
fn of(major: u32) {
    let kafka = shared_kafka();
    let rig = Rig::with(servers::postgres(major), kafka.bootstrap_servers());
    let owner = rig.postgres.url();
    let db = Db::connect(&owner);
    let init = rig.config_with(&owner, "");
    let made = output(&[
        "init",
        "--role",
        "least",
        "--config",
        init.to_str().expect("text"),
    ]);
    assert!(made.status.success(), "{made:?}");
    db.batch(
        "ALTER ROLE least PASSWORD 'hunter2'; CREATE TABLE accounts (id int, secret text); \
         INSERT INTO accounts VALUES (1, 'x')",
    );
    let rights = "SELECT concat_ws(',', rolcanlogin, rolreplication, rolsuper, rolcreaterole, \
                  rolcreatedb, rolbypassrls, rolinherit) FROM pg_roles WHERE rolname = 'least'";
    assert_eq!(db.text(rights).as_deref(), Some("t,t,f,f,f,f,t"));
    let member = "SELECT count(*)::text FROM pg_auth_members WHERE member = 'least'::regrole";
    assert_eq!(db.text(member).as_deref(), Some("0"), "member of nothing");
    let owned = "SELECT count(*)::text FROM pg_class WHERE relowner = 'least'::regrole";
    assert_eq!(db.text(owned).as_deref(), Some("0"), "owner of nothing");

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
    // Every table that is not the system's, whatever it is called.
    let readable = "SELECT count(*)::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace \
                    WHERE nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') \
                    AND relkind IN ('r', 'p', 'v', 'm', 'f') \
                    AND has_any_column_privilege('least', c.oid, 'SELECT')";
    assert_eq!(db.text(readable).as_deref(), Some("0"));

    // It relays with what `init` has made, and with `create = true` too: there is nothing to create.
    let config = rig.config_with(&url, "");
    let config_name = config.to_str().expect("text");
    let checked = output(&["check", "--config", config_name]);
    assert!(checked.status.success(), "{checked:?}");
    let relay = rig.streaming(&config);
    for number in 1..=10 {
        db.batch(&format!(
            "INSERT INTO outbox VALUES \
             (gen_random_uuid(), 'order', 'key', 'T', '{{\"number\": {number}}}')"
        ));
    }
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!((verdict.committed, verdict.duplicates), (10, 0));
    relay.ends_well();

    // What it lacks is named, and nothing that it has.
    db.batch("SELECT pg_drop_replication_slot('walrelay'); DROP PUBLICATION walrelay");
    let run = || output(&["run", "--config", config_name]);
    let lacks_create = run();
    refused(&lacks_create, "privilege", 77, &["CREATE on the database"]);
    not_told_to_replicate(&lacks_create);
    db.batch("GRANT CREATE ON DATABASE postgres TO least");
    let not_owner = run();
    refused(
        &not_owner,
        "privilege",
        77,
        &["only the owner of a table may publish it"],
    );
    not_told_to_replicate(&not_owner);
    db.batch(
        "CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert'); \
         ALTER ROLE least NOREPLICATION",
    );
    refused(&run(), "privilege", 77, &["ALTER ROLE … REPLICATION"]);
}

fn not_told_to_replicate(output: &std::process::Output) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!error.contains("ALTER ROLE"), "{error}");
}

#[test]
fn of_init_is_enough_and_reads_nothing_on_15() {
    of(15);
}

#[test]
fn of_init_is_enough_and_reads_nothing_on_18() {
    of(18);
}
