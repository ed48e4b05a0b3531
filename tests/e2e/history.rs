use crate::rig::Rig;

/// 100,000 rows by eight writers with rollbacks and savepoints, while the relay runs.
fn hundred_thousand_rows(major: u32) {
    let rig = Rig::with_outbox(major);
    let relay = rig.relay();
    let written = rig.workload().rows(100_000).seed(u64::from(major)).run();
    assert!(
        written.rolled_back > 100 && written.savepoints > 100,
        "a tame workload: {written:?}"
    );
    rig.caught_up();
    let verdict = rig.verdict();
    eprintln!("Postgres {major}: {verdict}");
    verdict.assert_clean();
    assert!(verdict.committed >= 100_000);
    assert_eq!(
        verdict.duplicates, 0,
        "nothing failed, so nothing is repeated"
    );
    relay.ends_well();
}

#[test]
fn of_100_000_rows_on_postgres_15() {
    hundred_thousand_rows(15);
}

#[test]
fn of_100_000_rows_on_postgres_18() {
    hundred_thousand_rows(18);
}

/// What was committed before the relay runs, but after its slot was made, is relayed too.
#[test]
fn of_a_backlog() {
    let rig = Rig::with_outbox(15);
    rig.relay().ends_well();
    rig.workload().rows(5_000).run();
    let relay = rig.relay();
    rig.caught_up();
    rig.verdict().assert_clean();
    drop(relay);
}
