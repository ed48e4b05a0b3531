use walrelay_testkit::{Db, Standby, eventually, servers};
use walrelay_throwaway::Postgres;

use super::{Checked, WITHOUT_KAFKA, checked, run_remedy, statements};
use crate::rig::{NOWHERE, PATIENCE, Rig};

#[test]
fn check_leads_to_a_ready_standby() {
    leads_to_a_ready_standby(servers::postgres(18), "");
}

/// `check` reports why a standby does not synchronise the slot.
#[test]
fn check_leads_to_a_ready_standby_of_postgres_19() {
    if let Some(postgres) = servers::installed_postgres_with(19, &[]) {
        let reason = "the last synchronisation was skipped (wal_or_rows_removed)";
        leads_to_a_ready_standby(postgres, reason);
    }
}

/// From a standby without a copy of the slot to one that is ready, by the remedies. `reason`: why a copy is not
/// complete before the slot has moved on.
fn leads_to_a_ready_standby(postgres: Postgres, reason: &str) {
    let rig = Rig::with(postgres, NOWHERE).outbox();
    let standby = Standby::start(&rig.postgres, &[("hot_standby_feedback", "on")]);
    let db = rig.db();
    rig.create_slot();
    let both = standby.url_of_both(&rig.postgres, "postgres");
    let check_at = |url: &str, set: &str| {
        let config = rig.config_with(url, "");
        checked(&config, &WITHOUT_KAFKA, set)
    };
    let check = || check_at(&both, "source.failover=true");
    let (item, copy) = ("postgres/failover-slot", "postgres/standby-copy");
    let checked = check_at(&both, "source.failover=false");
    checked.warns(item, &["by slot standby", "failover = true"]);
    checked.passes(copy, &[]);
    check().warns(item, &["ALTER_REPLICATION_SLOT walrelay (FAILOVER true)"]);

    db.batch("SELECT pg_drop_replication_slot('walrelay')");
    db.batch("SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput', failover => true)");
    // So that the oldest transaction that a copy needs, and has not, is older than that of the standby.
    db.batch("SELECT pg_current_xact_id()");
    db.batch("SELECT pg_log_standby_snapshot()");
    let checked = check();
    checked.passes(item, &[]);
    checked.warns(copy, &["it has no copy", "sync_replication_slots"]);
    let alone = check_at(&rig.postgres.url(), "source.failover=true");
    alone.warns(copy, &["names no standby"]);

    // Run both remedies, each on its server.
    let listed = "postgres/standby-slots";
    run_remedy(&db, checked.warns(listed, &["is empty"]));
    let on_standby = Db::connect(&standby.server.url());
    run_remedy(&on_standby, checked.worst(copy));
    eventually(PATIENCE, || {
        let finding = check().worst(copy)["finding"].to_string();
        finding.contains("is not complete yet") && finding.contains(reason)
    });
    // A copy is complete once the slot has advanced, as it does under a relay.
    let moved = "SELECT pg_log_standby_snapshot(); \
                 SELECT pg_replication_slot_advance('walrelay', pg_current_wal_flush_lsn())";
    let move_and_check = || {
        statements(&db, moved);
        check()
    };
    Checked::until(move_and_check, copy, "pass");
    let checked = check();
    checked.passes(listed, &["waits for standby"]);
    checked.ends(0);

    // A listed standby that does not exist stops the relay.
    db.batch("ALTER SYSTEM SET synchronized_standby_slots = 'standby, absent'");
    db.batch("SELECT pg_reload_conf()");
    let checked = Checked::until(check, listed, "fail");
    run_remedy(
        &db,
        checked.fails(listed, &["slot absent", "[standby-slots]"]),
    );
    checked.ends(69);
    Checked::until(check, listed, "pass");
}
