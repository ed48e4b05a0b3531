//! Faults of the network, on either side, by a proxy that misbehaves.

use std::time::{Duration, Instant};

use walrelay_testkit::{ChaosProxy, Cut, Direction, Running, eventually};

use crate::context::{Config, Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

/// The server's side gives up a silent client after this, the relay a silent server too.
const SILENCE: Duration = Duration::from_secs(2);

fn impatient(config: Config) -> Config {
    config
        .source("receive_timeout = \"2s\"")
        .source("wal_sender_timeout = \"2s\"")
}

/// A relay that reaches Postgres by a proxy.
struct Wire {
    proxy: ChaosProxy,
    relay: Relay,
    load: Running,
}

fn to_postgres(ctx: &mut Context) -> Wire {
    ctx.outbox();
    let proxy = ChaosProxy::start(("127.0.0.1", ctx.postgres.port()));
    let config = impatient(ctx.config().url(ctx.url_at(proxy.port())));
    let relay = ctx.start(&config);
    relay.streaming();
    let load = ctx.load();
    Wire { proxy, relay, load }
}

/// Makes what is behind the proxy so far away, each way.
fn put_away(proxy: &ChaosProxy, delay: Duration) {
    for direction in [Direction::ToClient, Direction::ToServer] {
        proxy.delay(direction, delay);
    }
}

fn finished(ctx: &mut Context, wire: Wire, ragged: Ragged) -> Outcome {
    ctx.more(&wire.load, 200..300);
    ctx.finish(wire.load, wire.relay, ragged)
}

/// A blow after which the relay streams anew.
fn strike(ctx: &mut Context, wire: &Wire, blow: impl FnOnce(&ChaosProxy)) {
    ctx.more(&wire.load, 100..600);
    let streams = wire.relay.streams();
    ctx.struck();
    blow(&wire.proxy);
    ctx.over();
    eventually(PATIENCE, || wire.relay.streams() > streams);
}

pub(crate) fn postgres_cut(ctx: &mut Context) -> Outcome {
    let wire = to_postgres(ctx);
    for how in [Cut::Fin, Cut::Reset, Cut::Fin, Cut::Reset] {
        strike(ctx, &wire, |proxy| proxy.cut(how));
    }
    finished(ctx, wire, Ragged::No)
}

/// Reset after a number of bytes that the seed decides: in the midst of a frame, and of a
/// transaction.
pub(crate) fn postgres_reset_in_frame(ctx: &mut Context) -> Outcome {
    let wire = to_postgres(ctx);
    for round in 0..6 {
        let direction = if round % 3 == 2 {
            Direction::ToServer
        } else {
            Direction::ToClient
        };
        let bytes = match direction {
            Direction::ToClient => ctx.rng.u64(1..60_000),
            Direction::ToServer => ctx.rng.u64(1..100),
        };
        ctx.more(&wire.load, 50..300);
        // Now and then it hits the control connection, which the stream does not need: again.
        loop {
            let streams = wire.relay.streams();
            wire.proxy.reset_after(direction, bytes);
            eventually(PATIENCE, || !wire.proxy.reset_pending(direction));
            ctx.struck();
            ctx.over();
            let enough = Instant::now() + Duration::from_secs(3);
            eventually(PATIENCE, || {
                wire.relay.streams() > streams || Instant::now() > enough
            });
            if wire.relay.streams() > streams {
                break;
            }
        }
    }
    finished(ctx, wire, Ragged::No)
}

/// Silent both ways for longer than either side waits, and then alive again as if nothing had been.
pub(crate) fn postgres_stalled(ctx: &mut Context) -> Outcome {
    let wire = to_postgres(ctx);
    for _ in 0..2 {
        strike(ctx, &wire, |proxy| {
            proxy.stall();
            wire.relay.says("nothing was received from Postgres");
            // Beyond the server's patience too, whatever the relay has done meanwhile.
            let begun = Instant::now();
            eventually(PATIENCE, || begun.elapsed() > SILENCE);
            proxy.resume();
        });
    }
    finished(ctx, wire, Ragged::No)
}

/// One direction is dead, the other lives; then one direction is closed, the other not.
pub(crate) fn postgres_half_open(ctx: &mut Context) -> Outcome {
    let wire = to_postgres(ctx);
    for direction in [Direction::ToClient, Direction::ToServer] {
        strike(ctx, &wire, |proxy| {
            let open = proxy.accepted();
            proxy.stall_direction(direction);
            // The relay, or the server, gives it up, and the relay tries again.
            eventually(PATIENCE, || proxy.accepted() > open);
            proxy.resume();
        });
        strike(ctx, &wire, |proxy| proxy.half_close(direction));
    }
    finished(ctx, wire, Ragged::No)
}

/// The old connections are silent for ever, and new ones work. Both sides have to find out by their
/// clocks, with the default timeouts: `wal_sender_timeout` is 5 s, and `receive_timeout` follows it.
pub(crate) fn postgres_forgotten(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let proxy = ChaosProxy::start(("127.0.0.1", ctx.postgres.port()));
    let relay = ctx.start(&ctx.config().url(ctx.url_at(proxy.port())));
    relay.streaming();
    let load = ctx.load();
    let wire = Wire { proxy, relay, load };
    strike(ctx, &wire, ChaosProxy::forget);
    // By the relay's own clock: a busy machine changes this less than the time until the first record.
    let log = wire.relay.log();
    let in_time = log.contains("nothing was received from Postgres for 5.");
    let outcome = finished(ctx, wire, Ragged::Allowed);
    let slowest = outcome.first.iter().max().copied();
    let limit = Duration::from_secs(10);
    outcome
        .expect(in_time, || format!("not given up after 5 s: {log}"))
        .expect(slowest.is_some_and(|slowest| slowest <= limit), || {
            format!("the first new record came after {slowest:?}")
        })
}

/// 200 ms in each direction, between two stretches without.
pub(crate) fn postgres_delayed(ctx: &mut Context) -> Outcome {
    let wire = to_postgres(ctx);
    ctx.more(&wire.load, 100..400);
    let streams = wire.relay.streams();
    let delay = Duration::from_millis(200);
    put_away(&wire.proxy, delay);
    ctx.struck();
    ctx.more(&wire.load, 3_000..4_000);
    put_away(&wire.proxy, Duration::ZERO);
    ctx.over();
    let now = wire.relay.streams();
    let outcome = finished(ctx, wire, Ragged::No);
    outcome
        .expect(now == streams, || "it gave a slow network up".to_owned())
        .nothing_repeated()
}

/// Every hundredth chunk either way is late by a retransmission's time, which is what the loss of one
/// packet in a hundred looks like from above TCP.
pub(crate) fn postgres_lossy(ctx: &mut Context) -> Outcome {
    let wire = to_postgres(ctx);
    ctx.more(&wire.load, 100..400);
    let seed = ctx.rng.u64(..);
    wire.proxy.lose(0.01, Duration::from_millis(200), seed);
    ctx.struck();
    ctx.more(&wire.load, 3_000..4_000);
    wire.proxy.lose(0.0, Duration::ZERO, seed);
    ctx.over();
    finished(ctx, wire, Ragged::No)
}

/// A relay that reaches Kafka by the broker's proxy.
fn to_kafka(ctx: &mut Context) -> (Relay, Running) {
    ctx.outbox();
    let at = ctx.kafka.proxy().address().to_string();
    let config = ctx.config().bootstrap(at);
    let relay = ctx.start(&config);
    relay.streaming();
    (relay, ctx.load())
}

fn through(ctx: &mut Context, relay: Relay, load: Running) -> Outcome {
    ctx.more(&load, 200..300);
    ctx.finish(load, relay, Ragged::Allowed)
}

/// Cut in order and by a reset, and refused for a while.
pub(crate) fn kafka_cut(ctx: &mut Context) -> Outcome {
    let (relay, load) = to_kafka(ctx);
    for how in [Cut::Fin, Cut::Reset, Cut::Fin, Cut::Reset] {
        ctx.more(&load, 100..600);
        ctx.struck();
        ctx.kafka.proxy().cut(how);
        ctx.over();
    }
    ctx.more(&load, 100..600);
    ctx.struck();
    ctx.kafka.proxy().refuse(true);
    ctx.kafka.proxy().cut(Cut::Reset);
    ctx.more(&load, 2_000..3_000);
    ctx.kafka.proxy().refuse(false);
    ctx.over();
    through(ctx, relay, load)
}

/// Reset in the midst of a request, and of an answer.
pub(crate) fn kafka_reset_in_frame(ctx: &mut Context) -> Outcome {
    let (relay, load) = to_kafka(ctx);
    for round in 0..6 {
        let (direction, bytes) = if round % 2 == 0 {
            (Direction::ToServer, ctx.rng.u64(1..50_000))
        } else {
            (Direction::ToClient, ctx.rng.u64(1..500))
        };
        ctx.more(&load, 50..400);
        ctx.struck();
        ctx.kafka.proxy().reset_after(direction, bytes);
        eventually(PATIENCE, || !ctx.kafka.proxy().reset_pending(direction));
        ctx.over();
    }
    through(ctx, relay, load)
}

/// Nothing passes for longer than a request may take: answers are lost for requests that the broker
/// may have carried out.
pub(crate) fn kafka_stalled(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let at = ctx.kafka.proxy().address().to_string();
    let config = ctx
        .config()
        .bootstrap(at)
        .kafka("\"socket.timeout.ms\" = 2000")
        .kafka("\"request.timeout.ms\" = 1500");
    let relay = ctx.start(&config);
    relay.streaming();
    let load = ctx.load();
    ctx.more(&load, 300..600);
    ctx.struck();
    ctx.kafka.proxy().stall();
    ctx.more(&load, 4_500..5_000);
    ctx.kafka.proxy().resume();
    ctx.over();
    for direction in [Direction::ToServer, Direction::ToClient] {
        ctx.more(&load, 300..600);
        ctx.struck();
        let open = ctx.kafka.proxy().accepted();
        ctx.kafka.proxy().stall_direction(direction);
        eventually(PATIENCE, || ctx.kafka.proxy().accepted() > open);
        ctx.kafka.proxy().resume();
        ctx.over();
        ctx.more(&load, 100..200);
        ctx.struck();
        ctx.kafka.proxy().half_close(direction);
        ctx.over();
    }
    through(ctx, relay, load)
}

/// 200 ms in each direction.
pub(crate) fn kafka_delayed(ctx: &mut Context) -> Outcome {
    let (relay, load) = to_kafka(ctx);
    ctx.more(&load, 100..400);
    let delay = Duration::from_millis(200);
    ctx.struck();
    put_away(ctx.kafka.proxy(), delay);
    ctx.more(&load, 3_000..4_000);
    put_away(ctx.kafka.proxy(), Duration::ZERO);
    ctx.over();
    let outcome = through(ctx, relay, load);
    outcome.nothing_repeated()
}

/// So far away that several requests are in flight at any time, and cut again and again: the broker puts
/// what comes twice, and what comes out of turn, in order by its numbers.
pub(crate) fn kafka_distant(ctx: &mut Context) -> Outcome {
    let (relay, load) = to_kafka(ctx);
    put_away(ctx.kafka.proxy(), Duration::from_millis(15));
    for round in 0..12 {
        ctx.more(&load, 100..400);
        ctx.struck();
        match round % 3 {
            0 => ctx.kafka.proxy().cut(Cut::Fin),
            1 => ctx.kafka.proxy().cut(Cut::Reset),
            _ => {
                // In an answer: requests behind it were carried out, and nobody hears of them.
                let bytes = ctx.rng.u64(1..500);
                ctx.kafka.proxy().reset_after(Direction::ToClient, bytes);
                eventually(PATIENCE, || {
                    !ctx.kafka.proxy().reset_pending(Direction::ToClient)
                });
            }
        }
        ctx.over();
    }
    put_away(ctx.kafka.proxy(), Duration::ZERO);
    through(ctx, relay, load)
}

/// As towards Postgres.
pub(crate) fn kafka_lossy(ctx: &mut Context) -> Outcome {
    let (relay, load) = to_kafka(ctx);
    ctx.more(&load, 100..400);
    let seed = ctx.rng.u64(..);
    ctx.struck();
    let rto = Duration::from_millis(200);
    ctx.kafka.proxy().lose(0.01, rto, seed);
    ctx.more(&load, 3_000..4_000);
    ctx.kafka.proxy().lose(0.0, Duration::ZERO, seed);
    ctx.over();
    through(ctx, relay, load)
}

/// The relay's side takes little at a time: the server waits, and is fed back to.
pub(crate) fn postgres_slow_reader(ctx: &mut Context) -> Outcome {
    let wire = to_postgres(ctx);
    ctx.more(&wire.load, 100..400);
    let streams = wire.relay.streams();
    ctx.struck();
    wire.proxy.throttle(Direction::ToClient, Some(100_000));
    ctx.more(&wire.load, 4_000..5_000);
    wire.proxy.throttle(Direction::ToClient, None);
    ctx.over();
    let now = wire.relay.streams();
    let outcome = finished(ctx, wire, Ragged::No);
    outcome.expect(now == streams, || "it gave a slow network up".to_owned())
}

/// The broker's side takes little at a time: the relay is back-pressured.
pub(crate) fn kafka_slow_reader(ctx: &mut Context) -> Outcome {
    let (relay, load) = to_kafka(ctx);
    ctx.more(&load, 100..400);
    ctx.struck();
    ctx.kafka
        .proxy()
        .throttle(Direction::ToServer, Some(100_000));
    ctx.more(&load, 4_000..5_000);
    ctx.kafka.proxy().throttle(Direction::ToServer, None);
    ctx.over();
    through(ctx, relay, load)
}
