use std::time::Duration;

use walrelay_testkit::Db;

use crate::rig::Rig;

/// The outbox is silent while another table takes 200 MB: the slot follows, without heartbeats.
fn outbox_releases_the_log(major: u32) {
    let rig = Rig::with_outbox(major);
    let relay = rig.relay();
    let db = Db::connect(&rig.postgres.url());
    db.batch("CREATE TABLE other (t text)");
    let slot = rig.slot();
    let begun = slot.wal_end();
    for _ in 0..8 {
        // Not compressible, so that the log takes it all.
        db.batch(
            "INSERT INTO other SELECT string_agg(md5(random()::text), '') \
             FROM generate_series(1, 800000) n GROUP BY n % 8000",
        );
    }
    let end = slot.wal_end();
    assert!(
        end.bytes_since(begun) > 200_000_000,
        "only {} bytes",
        end.bytes_since(begun)
    );
    let took = slot.wait_until(end, Duration::from_secs(10));
    eprintln!("Postgres {major}: the idle slot followed in {took:?}");
    relay.ends_well();
}

#[test]
fn on_postgres_15() {
    outbox_releases_the_log(15);
}

#[test]
fn on_postgres_18() {
    outbox_releases_the_log(18);
}
