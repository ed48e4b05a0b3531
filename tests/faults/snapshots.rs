//! Snapshots of a table that is rewritten meanwhile.

use walrelay_testkit::{Background, Db, eventually};

use crate::context::{Config, Context, Ragged};
use crate::handover::Late;
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

/// Migrations, in turn: all but the last rewrite the table. A snapshot that was taken before such a
/// migration sees no row after it.
const MIGRATIONS: [&str; 4] = [
    "ADD noise float DEFAULT random()",
    "ALTER noise TYPE numeric",
    "ALTER noise TYPE text",
    "DROP noise",
];

/// Starts a relay, and beside it so many migrations, one behind the other. `done` counts those of all
/// attempts.
fn start(
    ctx: &Context,
    config: &Config,
    done: &mut usize,
    migrations: usize,
) -> (Relay, Background<()>) {
    let numbers = *done..*done + migrations;
    *done = numbers.end;
    let db = Db::connect(&ctx.url());
    let relay = ctx.start(config);
    let migrations = Background::start("migrations", move |_| {
        for number in numbers {
            let migration = MIGRATIONS[number % MIGRATIONS.len()];
            db.batch(&format!("ALTER TABLE outbox {migration}"));
        }
    });
    (relay, migrations)
}

/// A relay reads its snapshot beside writers and migrations, is killed at random moments and started
/// again, without its slot if it had made one: every row arrives, first deliveries are in order, and
/// each key ends on its latest event.
pub(crate) fn rewritten(ctx: &mut Context, rows: u64, times: u32) -> Outcome {
    ctx.outbox();
    let (db, slot) = (ctx.db(), ctx.slot());
    db.batch("ALTER TABLE outbox ADD seq bigserial; CREATE INDEX ON outbox (seq)");
    let seed = ctx.rng.u64(..);
    ctx.workload().rows(rows).seed(seed).run();
    let config = ctx
        .config()
        .set("source.snapshot = \"initial\"\nsource.snapshot_order = [\"seq\"]");
    let load = ctx.load();
    let drop = format!("SELECT pg_drop_replication_slot('{}')", ctx.name);
    let outdated = |relay: &Relay| relay.log().matches("DDL has changed table").count();
    let (mut done, mut anew, mut within) = (0, 0, 0);
    for _ in 0..times {
        let migrations = ctx.rng.usize(..8);
        let (relay, migrations) = start(ctx, &config, &mut done, migrations);
        ctx.wait_rows(&load, 0..1_500);
        anew += outdated(&relay);
        relay.kill();
        migrations.end();
        if slot.read().is_none() {
            within += 1;
            continue;
        }
        // The walsender notices the end of the relay a little later.
        eventually(PATIENCE, || db.try_batch(&drop).is_ok());
    }
    let (relay, migrations) = start(ctx, &config, &mut done, 8);
    migrations.end();
    relay.streaming();
    ctx.wait_rows(&load, 200..300);
    load.stop();
    let outcome = ctx.judge(Ragged::Allowed);
    anew += outdated(&relay);
    println!(
        "  {done} migrations outdated {anew} snapshots; {within} of {times} SIGKILLs within a snapshot"
    );
    let committed = ctx.committed("outbox");
    let stale = Late::find(&committed, &ctx.records(committed.len())).stale_keys;
    relay.ends_well();
    outcome.expect(stale == 0, || format!("{stale} keys end on an old event"))
}
