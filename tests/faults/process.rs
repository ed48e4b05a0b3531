//! Faults of the relay's own process.

use crate::context::{Context, Ragged};
use crate::outcome::Outcome;

/// Killed and started again, mid-burst.
pub(crate) fn sigkill(ctx: &mut Context, times: u32) -> Outcome {
    ctx.outbox();
    let mut relay = ctx.relay();
    let load = ctx.load();
    for _ in 0..times {
        ctx.more(&load, 50..500);
        relay.kill();
        ctx.struck();
        ctx.over();
        relay = ctx.relay();
    }
    ctx.more(&load, 200..300);
    load.stop();
    ctx.judge(Ragged::Allowed)
}

/// Asked to stop and started again, mid-burst: nothing is repeated.
pub(crate) fn sigterm(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let mut relay = ctx.relay();
    let load = ctx.load();
    for _ in 0..6 {
        ctx.more(&load, 100..800);
        let (code, log) = relay.terminate();
        assert_eq!(code, Some(0), "{log}");
        ctx.struck();
        ctx.over();
        relay = ctx.relay();
    }
    ctx.more(&load, 200..300);
    load.stop();
    let outcome = ctx.judge(Ragged::No);
    let repeated = outcome.duplicates;
    outcome.expect(repeated == 0, || {
        format!("{repeated} repeated after a drain")
    })
}
