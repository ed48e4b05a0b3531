//! What a relay gives up is not delivered later: bytes that it has written, and that have not left its machine
//! when the way to the sink's server is cut, are thrown away.

use walrelay_testkit::{Direction, eventually};
use walrelay_throwaway::Signal;

use crate::context::{Config, Context, Ragged};
use crate::handover::ProxiedRelay;
use crate::outcome::Outcome;
use crate::rig::PATIENCE;

/// How the relay whose request is half written loses the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Its connections to Postgres stall too, until the other relay has the slot.
    Stall,
    Sigkill,
}

/// Bytes of the request that the server receives before the cut: more than others have at that moment.
const HALF: u64 = 100_000;

/// The way to the sink's server is cut in the middle of a request, the relay gives it up, another one delivers the
/// event, and then the way comes back. The server must receive no further byte of the request.
///
/// The proxy stands for the way and for the relay's own system, which throws its bytes away. A server that has
/// received a whole request works it off, and a proxy that keeps bytes after a reset would deliver them: this cannot
/// show that.
pub(crate) fn half_written(ctx: &mut Context, loss: Loss) -> Outcome {
    ctx.outbox();
    let timeout = |config: Config| config.set("source.wal_sender_timeout = \"2s\"");
    let address = ctx.sink_proxy().address().to_string();
    let mut first = ProxiedRelay::new(ctx, "first", &|config| {
        timeout(config.set(&ctx.destination.address_setting(&address)))
    });
    let slot = ctx.slot();
    let walsender = slot.wait_active(PATIENCE);
    let second = ProxiedRelay::new(ctx, "second", &timeout);
    second.waits_for(walsender);
    insert(ctx, "1", 1);
    ctx.caught_up();

    let way = ctx.sink_proxy();
    way.throttle(Direction::ToServer, Some(50_000));
    let before = way.bytes(Direction::ToServer);
    // Half a megabyte that cannot be compressed well.
    insert(ctx, "half", 16_000);
    eventually(PATIENCE, || way.bytes(Direction::ToServer) >= before + HALF);
    way.stall();
    way.throttle(Direction::ToServer, None);
    match loss {
        Loss::Stall => first.proxy.stall(),
        Loss::Sigkill => first.relay.signal(Signal::Kill),
    }
    slot.wait_other_reader(walsender, PATIENCE);
    insert(ctx, "half", 1);
    ctx.caught_up();
    match loss {
        Loss::Stall => {
            first.proxy.resume();
            first.waits_for(slot.wait_active(PATIENCE));
        }
        Loss::Sigkill => drop(first.relay.ended()),
    }

    // It resets its connections after it has found the other relay.
    eventually(PATIENCE, || way.open() == 0);
    let received = way.bytes(Direction::ToServer);
    way.resume();
    if loss == Loss::Stall {
        first.relay.ends_well();
    }
    insert(ctx, "half", 1);
    let outcome = ctx.judge(Ragged::No).nothing_repeated();
    second.relay.ends_well();
    let late = way.bytes(Direction::ToServer) - received;
    outcome.expect(late == 0, || {
        format!("the server received {late} bytes of the first relay after the second one's record")
    })
}

/// Inserts an event of this key with so many times 32 characters.
fn insert(ctx: &Context, key: &str, times: u32) {
    ctx.db().batch(&format!(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', '{key}', 'T', \
         jsonb_build_object('number', n + 1, 'text', text) FROM \
         (SELECT count(*) AS n FROM outbox WHERE aggregateid = '{key}') before, \
         (SELECT string_agg(md5(random()::text), '') AS text FROM generate_series(1, {times})) of"
    ));
}
