use crate::rig::{PATIENCE, Rig};

/// The outbox is idle while another table takes 50 MB of WAL: the slot follows, without
/// heartbeats.
fn outbox_releases_the_log(major: u32) {
    let rig = Rig::with_outbox(major);
    let relay = rig.relay();
    let db = rig.db();
    db.batch("CREATE TABLE other (t text)");
    let slot = rig.slot();
    let begun = slot.wal_end();
    for _ in 0..2 {
        // Incompressible, so that the WAL contains all of it.
        db.batch(
            "INSERT INTO other SELECT string_agg(md5(random()::text), '') \
             FROM generate_series(1, 800000) n GROUP BY n % 8000",
        );
    }
    let end = slot.wal_end();
    let written = end.bytes_since(begun);
    assert!(written > 50_000_000, "only {written} bytes");
    let took = slot.wait_until(end, PATIENCE);
    eprintln!("Postgres {major}: the idle slot followed in {took:?}");
    relay.ends_well();
}

tests! {
    fn an_idle_outbox_releases_the_log_on_postgres_15() { outbox_releases_the_log(15) }
    fn an_idle_outbox_releases_the_log_on_postgres_18() { outbox_releases_the_log(18) }
}
