//! `walrelay cutover rollback` under a load of events.

use std::time::Instant;

use walrelay_testkit::{Running, eventually};

use crate::context::{Config, Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay, command_with, unique};

/// Rows that are not sent, in the order of the commits of each key; sent rows are marked.
const SETTINGS: &str = "source.snapshot = \"unsent\"\nsource.snapshot_where = \"sent_at IS NULL\"\n\
     source.snapshot_order = [\"seq\"]\nsource.mark_sent = \"sent_at = now()\"";

/// Starts a rollback when no statement of a killed process marks rows any more: the server works it
/// off, and a rollback waits for locked rows for one second only.
fn rollback(ctx: &Context, config: &Config) -> Relay {
    let db = ctx.db();
    let marks = "SELECT FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'WITH %'";
    eventually(PATIENCE, || db.query(marks, &[]).is_empty());
    let mut command = command_with("cutover rollback --yes --no-bookmark", &config.path, &[]);
    Relay::spawn(
        &mut command,
        &ctx.dir.join(format!("rollback-{}.log", unique())),
    )
}

/// Rolls back: up to two processes are killed at random moments, and while one refuses, a relay sends
/// what has no row. Returns how often one refused.
fn roll_back(ctx: &mut Context, config: &Config, load: &Running) -> u32 {
    let mut refused = 0;
    let deadline = Instant::now() + 5 * PATIENCE;
    loop {
        assert!(
            Instant::now() < deadline,
            "no rollback ends: {refused} refused"
        );
        for _ in 0..ctx.rng.u32(..3) {
            let process = rollback(ctx, config);
            ctx.wait_rows(load, 0..150);
            process.kill();
        }
        let mut process = rollback(ctx, config);
        let code = process.ended().code();
        // This process has dropped it, or one that was killed.
        if ctx.slot().read().is_none() {
            return refused;
        }
        let log = process.log();
        assert!(
            code == Some(75) && log.contains("[cutover-unsent-events]"),
            "{code:?}: {log}"
        );
        refused += 1;
        let relay = ctx.streaming(config);
        ctx.caught_up();
        ctx.wait_rows(load, 0..100);
        relay.kill();
    }
}

/// A relay is killed at random moments and rolled back by processes that are killed, too. Some events
/// that it has not sent have no row any more. No such event is left behind, and no row is marked that
/// was not sent: the next relay sends the rows that are not marked, and then every event is in Kafka.
pub(crate) fn killed(ctx: &mut Context, times: u32) -> Outcome {
    ctx.outbox();
    let db = ctx.db();
    db.batch(
        "ALTER TABLE outbox ADD seq bigserial, ADD sent_at timestamptz; CREATE INDEX ON outbox (seq)",
    );
    let config = ctx.config().set(SETTINGS);
    let mut relay = ctx.streaming(&config);
    // Few rows, because a rollback looks for each one that is not confirmed.
    let seed = ctx.rng.u64(..);
    let load = ctx.workload().rate(500.0).seed(seed).start();
    let (mut gone, mut refused) = (0, 0);
    for round in 0..times {
        ctx.wait_rows(&load, 30..300);
        relay.kill();
        // The first round has such events, so that the refusal is seen.
        if round == 0 || ctx.rng.bool() {
            // More than a rollback looks for again, for seconds, before it refuses.
            let rows = ctx.rng.u32(1_001..1_200);
            db.batch(&format!(
                "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT \
                 gen_random_uuid(), 'order', 'gone-{round}', 'T', '{{}}' FROM generate_series(1, {rows}); \
                 DELETE FROM outbox WHERE aggregateid = 'gone-{round}'"
            ));
            gone += rows;
        }
        refused += roll_back(ctx, &config, &load);
        relay = ctx.start_with(&config, |command| {
            command.arg("--accept-gap");
        });
        relay.streaming();
    }
    ctx.wait_rows(&load, 100..150);
    load.stop();
    ctx.caught_up();
    eventually(PATIENCE, || {
        db.value::<i64>("SELECT count(*) FROM outbox WHERE sent_at IS NULL") == 0
    });
    let committed = ctx.committed_by_the_log();
    let outcome = ctx.judge_rows(&committed, Ragged::Allowed);
    relay.ends_well();
    println!("  {gone} events without a row; {refused} rollbacks refused");
    outcome.expect(refused > 0, || "no rollback refused".to_owned())
}
