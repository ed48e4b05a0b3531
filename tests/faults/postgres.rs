//! Faults of Postgres itself.

use walrelay_testkit::eventually;
use walrelay_throwaway::Shutdown;

use crate::context::{Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, create_slot};

/// Postgres is restarted under load, three times.
pub(crate) fn restarted(ctx: &mut Context, how: Shutdown) -> Outcome {
    ctx.outbox();
    let relay = ctx.relay();
    let load = ctx.load();
    for _ in 0..3 {
        ctx.wait_rows(&load, 200..900);
        let streams = relay.streams();
        ctx.fault_begins();
        ctx.postgres.stop(how).expect("it stops");
        ctx.postgres.start_again().expect("it starts again");
        ctx.fault_ends();
        eventually(PATIENCE, || relay.streams() > streams);
    }
    ctx.finish(load, relay, Ragged::No)
}

/// An administrator terminates the walsender.
pub(crate) fn walsender_terminated(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let relay = ctx.relay();
    let load = ctx.load();
    for _ in 0..6 {
        ctx.wait_rows(&load, 100..600);
        let streams = relay.streams();
        ctx.terminate_walsender();
        ctx.fault_now();
        eventually(PATIENCE, || relay.streams() > streams);
    }
    ctx.finish(load, relay, Ragged::No)
}

/// No replication slot is free for the relay: it waits and logs that.
pub(crate) fn no_slot_free(ctx: &mut Context) -> Outcome {
    // The slot of the test, and one more.
    ctx.own_postgres(&[("max_replication_slots", "2")]);
    ctx.outbox();
    let db = ctx.db();
    create_slot(&db, "somebody");
    let config = ctx.config().set("delivery.backoff_max = \"500ms\"");
    let relay = ctx.start(&config);
    relay.says("all replication slots are in use");
    relay.says("trying again");
    ctx.fault_begins();
    db.batch("SELECT pg_drop_replication_slot('somebody')");
    ctx.fault_ends();
    relay.streaming();
    let load = ctx.load();
    ctx.wait_rows(&load, 1_000..1_500);
    ctx.finish(load, relay, Ragged::No)
}

/// The publication is dropped while the relay streams: it stops with an error and leaves later rows
/// to the slot.
pub(crate) fn publication_dropped(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let mut relay = ctx.relay();
    let load = ctx.load();
    ctx.wait_rows(&load, 1_000..1_500);
    load.stop();
    let outcome = ctx.judge(Ragged::No);
    let db = ctx.db();
    db.batch(&format!("DROP PUBLICATION {}", ctx.name));
    db.batch("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', '{\"number\": 1}')");
    let after = ctx.slot().wal_end();
    let code = relay.ended().code();
    let log = relay.log();
    let confirmed = ctx.slot().confirmed();
    outcome
        .expect(code == Some(78), || format!("exit code {code:?}: {log}"))
        .expect(log.contains("publication"), || log.clone())
        .expect(confirmed < after, || "the row was confirmed".to_owned())
}

/// Other tables take 30 MB of WAL while the outbox is idle: the slot follows and releases the WAL.
pub(crate) fn idle(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let relay = ctx.relay();
    let load = ctx.load();
    ctx.wait_rows(&load, 300..600);
    load.stop();
    ctx.caught_up();
    let db = ctx.db();
    db.batch("CREATE TABLE busy (text text)");
    for _ in 0..6 {
        db.batch("INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 5000)");
    }
    ctx.fault_now();
    let slot = ctx.slot();
    let took = slot.wait_until(slot.wal_end(), PATIENCE);
    let load = ctx.load();
    ctx.wait_rows(&load, 100..200);
    load.stop();
    let mut outcome = ctx.judge(Ragged::No);
    outcome.caught_up = vec![took];
    drop(relay);
    outcome
}
