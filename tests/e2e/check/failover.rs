use walrelay_testkit::{Db, Standby, eventually, servers};

use super::{WITHOUT_KAFKA, sql_of, statements};
use crate::rig::{Checked, PATIENCE, Rig};

/// From a standby without a copy of the slot to one that is ready, by the remedies.
#[test]
fn of_a_failover() {
    let rig = Rig::with(servers::postgres(18), "127.0.0.1:9".to_owned());
    rig.workload().create_tables();
    let standby = Standby::of(&rig.postgres, &[("hot_standby_feedback", "on")]);
    let db = Db::connect(&rig.postgres.url());
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    db.batch("SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')");
    let both = standby.url_of_both(&rig.postgres, "postgres");
    let check = |url: &str, failover: &str| {
        let config = rig.config_with(url, "");
        let set = format!("source.failover={failover}");
        let more: Vec<&str> = WITHOUT_KAFKA.into_iter().chain(["--set", &set]).collect();
        Checked::of(&config, &more)
    };
    let item = "postgres/failover-slot";
    let checked = check(&both, "false");
    checked.is(item, "warn", &["by slot standby", "failover = true"]);
    checked.is("postgres/standby-copy", "pass", &[]);
    let checked = check(&both, "true");
    checked.is(
        item,
        "warn",
        &["ALTER_REPLICATION_SLOT walrelay (FAILOVER true)"],
    );

    db.batch("SELECT pg_drop_replication_slot('walrelay')");
    db.batch("SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput', failover => true)");
    let checked = check(&both, "true");
    checked.is(item, "pass", &[]);
    checked.is(
        "postgres/standby-copy",
        "warn",
        &["it has no copy", "sync_replication_slots"],
    );
    let alone = rig.postgres.url();
    check(&alone, "true").is("postgres/standby-copy", "warn", &["names no standby"]);

    // The remedies of both, each on its server.
    let listed = "postgres/standby-slots";
    let run = |db: &Db, remedy: &serde_json::Value| {
        for statement in sql_of(remedy["remedy"].as_str().expect("a remedy")) {
            db.batch(&statement);
        }
    };
    run(&db, checked.is(listed, "warn", &["is empty"]));
    let on_standby = Db::connect(&standby.server().url());
    run(&on_standby, checked.worst("postgres/standby-copy"));
    // A copy is complete once the slot has moved on, as it does under a relay.
    let moved = "SELECT pg_log_standby_snapshot(); \
                 SELECT pg_replication_slot_advance('walrelay', pg_current_wal_flush_lsn())";
    eventually(PATIENCE, || {
        statements(&db, moved);
        check(&both, "true").worst("postgres/standby-copy")["verdict"] == "pass"
    });
    let checked = check(&both, "true");
    checked.is(listed, "pass", &["waits for standby"]);
    assert_eq!(checked.code, Some(0), "{checked:#?}");

    // A standby that is away stops the relay.
    db.batch("ALTER SYSTEM SET synchronized_standby_slots = 'standby, absent'");
    db.batch("SELECT pg_reload_conf()");
    eventually(PATIENCE, || {
        check(&both, "true").worst(listed)["verdict"] == "fail"
    });
    let checked = check(&both, "true");
    run(
        &db,
        checked.is(listed, "fail", &["slot absent", "[standby-slots]"]),
    );
    assert_eq!(checked.code, Some(69));
    eventually(PATIENCE, || {
        check(&both, "true").worst(listed)["verdict"] == "pass"
    });
}
