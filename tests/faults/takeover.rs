//! Two relays on one slot.

use std::time::Duration;

use walrelay_testkit::eventually;

use crate::context::{Context, Ragged};
use crate::control::Control;
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

const WAITS: &str = "is being read by server process";

/// Asserts that the second relay never streams while both live.
fn second_waits(ctx: &mut Context, second: &Relay, load: &walrelay_testkit::Running) {
    second.says(WAITS);
    // Long enough for its back-off to grow to the maximum.
    ctx.wait_rows(load, 4_500..5_500);
    assert_eq!(second.streams(), 0, "both stream: {}", second.log());
}

/// The streaming relay is killed, and the other takes over within a second, three times.
pub(crate) fn sigkill(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let control = Control::start(&ctx.url());
    let mut first = ctx.relay();
    let load = ctx.load();
    for _ in 0..3 {
        let second = ctx.start(&ctx.config());
        second_waits(ctx, &second, &load);
        first.kill();
        ctx.fault_now();
        second.streaming();
        first = second;
        ctx.wait_rows(&load, 200..400);
    }
    load.stop();
    let limit = control.limit(Duration::from_secs(1));
    within(ctx.judge(Ragged::Allowed), limit)
}

/// The machine of the first relay vanishes: its connections stay open, nothing passes. The server
/// notices after `wal_sender_timeout`, 5 s by default, and then the second relay takes over.
pub(crate) fn vanished(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let control = Control::start(&ctx.url());
    let (proxy, url) = ctx.proxy();
    let first = ctx.streaming(&ctx.config().url(&url));
    let load = ctx.load();
    let mut config = ctx.config();
    config.path = ctx.dir.join("second.toml");
    let second = ctx.start(&config);
    second_waits(ctx, &second, &load);
    proxy.stall();
    ctx.fault_now();
    second.streaming();
    // The first relay cannot reach the server any more.
    first.kill();
    ctx.wait_rows(&load, 200..400);
    load.stop();
    // The server counts from the last message that it received, and checks its clock only now and
    // then.
    let limit = control.limit(Duration::from_millis(6_500));
    let outcome = ctx.judge(Ragged::Allowed);
    drop(proxy);
    within(outcome, limit)
}

/// A relay that is asked to stop releases the slot: the other takes over, nothing is repeated.
pub(crate) fn sigterm(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let control = Control::start(&ctx.url());
    let mut first = ctx.relay();
    let load = ctx.load();
    ctx.wait_topics(&load);
    for _ in 0..3 {
        let second = ctx.start(&ctx.config());
        second.says(WAITS);
        ctx.wait_rows(&load, 300..600);
        first.ends_well();
        ctx.fault_now();
        second.streaming();
        first = second;
    }
    ctx.wait_rows(&load, 200..400);
    load.stop();
    eventually(PATIENCE, || first.streams() == 1);
    let limit = control.limit(Duration::from_secs(1));
    let outcome = within(ctx.judge(Ragged::No), limit);
    outcome.nothing_repeated()
}

/// Expects the median of the takeovers to be below `limit`, and each below five times that, if the
/// server says when records came.
fn within(outcome: Outcome, limit: Duration) -> Outcome {
    if outcome.early.is_none() {
        return outcome;
    }
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
