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
    let verdict = rig.finish(relay);
    eprintln!("Postgres {major}: {verdict}");
    // Nothing failed.
    verdict.assert_nothing_repeated();
    assert!(verdict.committed >= 100_000);
}

tests! {
    fn all_of_100_000_rows_arrive_on_postgres_15() { hundred_thousand_rows(15) }
    fn all_of_100_000_rows_arrive_on_postgres_18() { hundred_thousand_rows(18) }
}

/// Rows that were committed before the relay starts, but after the creation of its slot, are
/// relayed too.
#[test]
fn all_rows_of_a_backlog_arrive() {
    let rig = Rig::with_outbox(15);
    rig.relay().ends_well();
    rig.workload().rows(5_000).run();
    rig.finish(rig.relay()).assert_clean();
}
