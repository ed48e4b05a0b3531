//! Faults of Postgres itself.

use walrelay_lab::servers::Shutdown;
use walrelay_testkit::{Db, eventually};

use crate::context::{Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::PATIENCE;

/// Stopped and started again under load, both ways in turn.
pub(crate) fn restarted(ctx: &mut Context, how: Shutdown) -> Outcome {
    ctx.outbox();
    let relay = ctx.relay();
    let load = ctx.load();
    for _ in 0..3 {
        ctx.more(&load, 200..900);
        let streams = relay.streams();
        ctx.struck();
        ctx.postgres.stop(how).expect("it stops");
        ctx.postgres.start_again().expect("it starts again");
        ctx.over();
        eventually(PATIENCE, || relay.streams() > streams);
    }
    ctx.more(&load, 200..300);
    ctx.finish(load, relay, Ragged::No)
}

/// The walsender is ended by an administrator.
pub(crate) fn walsender_terminated(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let relay = ctx.relay();
    let slot = ctx.slot();
    let db = ctx.db();
    let load = ctx.load();
    for _ in 0..6 {
        ctx.more(&load, 100..600);
        let streams = relay.streams();
        let walsender = slot.wait_active(PATIENCE);
        db.batch(&format!("SELECT pg_terminate_backend({walsender})"));
        ctx.struck();
        ctx.over();
        eventually(PATIENCE, || relay.streams() > streams);
    }
    ctx.more(&load, 200..300);
    ctx.finish(load, relay, Ragged::No)
}

/// No slot is free when the relay wants its own; it waits and says so.
pub(crate) fn no_slot_free(ctx: &mut Context) -> Outcome {
    // The judge's, and one more.
    ctx.own_postgres(|builder| builder.setting("max_replication_slots", "2"));
    ctx.outbox();
    let db = ctx.db();
    db.batch("SELECT pg_create_logical_replication_slot('somebody', 'pgoutput')");
    let config = ctx.config().more("[delivery]\nbackoff_max = \"500ms\"");
    let relay = ctx.start(&config);
    relay.says("all replication slots are in use");
    relay.says("trying again");
    ctx.struck();
    db.batch("SELECT pg_drop_replication_slot('somebody')");
    ctx.over();
    relay.streaming();
    let load = ctx.load();
    ctx.more(&load, 1_000..1_500);
    ctx.finish(load, relay, Ragged::No)
}

/// Dropped while the relay streams: it stops with a word and leaves what follows to the slot.
pub(crate) fn publication_dropped(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let mut relay = ctx.relay();
    let load = ctx.load();
    ctx.more(&load, 1_000..1_500);
    load.stop();
    let outcome = ctx.judge(Ragged::No);
    let db = ctx.db();
    db.batch(&format!("DROP PUBLICATION {}", ctx.name));
    db.batch("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', '{\"number\": 1}')");
    let after = ctx.slot().wal_end();
    let code = relay.ended().code();
    let log = relay.log();
    let confirmed = ctx.slot().read().expect("the slot").confirmed_flush;
    outcome
        .expect(code == Some(78), || format!("exit code {code:?}: {log}"))
        .expect(log.contains("publication"), || log.clone())
        .expect(confirmed < after, || "the row was confirmed".to_owned())
}

/// Other tables take 30 MB while the outbox is silent: the slot follows, and lets go of the log.
pub(crate) fn idle(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let relay = ctx.relay();
    let load = ctx.load();
    ctx.more(&load, 300..600);
    load.stop();
    ctx.caught_up();
    let db = Db::connect(&ctx.url());
    db.batch("CREATE TABLE busy (text text)");
    for _ in 0..6 {
        db.batch("INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 5000)");
    }
    ctx.struck();
    ctx.over();
    let slot = ctx.slot();
    let took = slot.wait_until(slot.wal_end(), PATIENCE);
    let load = ctx.load();
    ctx.more(&load, 100..200);
    load.stop();
    let mut outcome = ctx.judge(Ragged::No);
    outcome.caught_up = vec![took];
    drop(relay);
    outcome
}
