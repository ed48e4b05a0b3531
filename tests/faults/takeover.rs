//! Two relays on one slot.

use std::time::Duration;

use walrelay_testkit::{ChaosProxy, eventually};

use crate::context::{Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

const WAITS: &str = "is being read by server process";

/// As long as both live, the second never streams.
fn second_waits(ctx: &mut Context, second: &Relay, load: &walrelay_testkit::Running) {
    second.says(WAITS);
    // Long enough for its back-off to grow as long as it will.
    ctx.more(load, 4_500..5_500);
    assert_eq!(second.streams(), 0, "both stream: {}", second.log());
}

/// Each time the one that streams is killed, the other takes over within a second.
pub(crate) fn sigkill(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let mut first = ctx.relay();
    let load = ctx.load();
    for _ in 0..3 {
        let second = ctx.start(&ctx.config());
        second_waits(ctx, &second, &load);
        first.kill();
        ctx.struck();
        ctx.over();
        second.streaming();
        first = second;
        ctx.more(&load, 200..400);
    }
    load.stop();
    within(ctx.judge(Ragged::Allowed), Duration::from_secs(1))
}

/// The first one's machine vanishes: its connections stay open, nothing passes. The server notices
/// after `wal_sender_timeout`, 5 s unless configured, and the second relay is there.
pub(crate) fn vanished(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let proxy = ChaosProxy::start(("127.0.0.1", ctx.postgres.port()));
    let first = ctx.start(&ctx.config().url(ctx.url_at(proxy.port())));
    first.streaming();
    let load = ctx.load();
    let mut config = ctx.config();
    config.path = ctx.dir.join("second.toml");
    let second = ctx.start(&config);
    second_waits(ctx, &second, &load);
    proxy.stall();
    ctx.struck();
    ctx.over();
    second.streaming();
    // Nobody is left who could bring the first one's words to the server.
    first.kill();
    ctx.more(&load, 200..400);
    load.stop();
    let outcome = ctx.judge(Ragged::Allowed);
    drop(proxy);
    // The server counts from the last word it heard, and looks at its clock now and then.
    within(outcome, Duration::from_millis(6_500))
}

/// A relay that is asked to stop gives the slot free: the other takes over, nothing is repeated.
pub(crate) fn sigterm(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let mut first = ctx.relay();
    let load = ctx.load();
    for _ in 0..3 {
        let second = ctx.start(&ctx.config());
        second.says(WAITS);
        ctx.more(&load, 300..600);
        first.ends_well();
        ctx.struck();
        ctx.over();
        second.streaming();
        first = second;
    }
    ctx.more(&load, 200..400);
    load.stop();
    eventually(PATIENCE, || first.streams() == 1);
    let outcome = within(ctx.judge(Ragged::No), Duration::from_secs(1));
    outcome.nothing_repeated()
}

/// The usual takeover is that quick, and none is slower by more than a busy machine makes it.
fn within(outcome: Outcome, limit: Duration) -> Outcome {
    let mut all = outcome.first.clone();
    all.sort();
    let median = all.get(all.len().saturating_sub(1) / 2).copied();
    let slowest = all.last().copied();
    outcome
        .expect(median.is_some_and(|median| median < limit), || {
            format!("taken over after {all:?}, and not within {limit:?}")
        })
        .expect(slowest.is_some_and(|slowest| slowest < 5 * limit), || {
            format!("taken over after {slowest:?}")
        })
}
