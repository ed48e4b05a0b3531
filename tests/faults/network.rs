//! Faults of the network to Postgres and to the server of the sink, by a proxy that misbehaves.

use std::time::{Duration, Instant};

use walrelay_testkit::{ChaosProxy, Cut, Direction, Running, eventually};

use crate::context::{Context, Ragged};
use crate::control::Control;
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

/// After this time the server gives up a silent client, and the relay a silent server.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings for that.
const SHORT_TIMEOUTS: &str = "source.receive_timeout = \"2s\"\nsource.wal_sender_timeout = \"2s\"";

/// A relay that reaches Postgres through a proxy, under load.
struct ProxiedRelay {
    proxy: ChaosProxy,
    relay: Relay,
    load: Running,
}

fn to_postgres(ctx: &mut Context) -> ProxiedRelay {
    to_postgres_with(ctx, SHORT_TIMEOUTS)
}

fn to_postgres_with(ctx: &mut Context, settings: &str) -> ProxiedRelay {
    ctx.outbox();
    proxied(ctx, settings)
}

/// Starts the relay and the load, once there is an outbox.
fn proxied(ctx: &mut Context, settings: &str) -> ProxiedRelay {
    let (proxy, url) = ctx.proxy();
    let relay = ctx.streaming(&ctx.config().url(&url).set(settings));
    let load = ctx.load();
    ProxiedRelay { proxy, relay, load }
}

/// Delays both directions of a proxy.
fn set_distance(proxy: &ChaosProxy, delay: Duration) {
    for direction in [Direction::ToClient, Direction::ToServer] {
        proxy.delay(direction, delay);
    }
}

/// Applies a fault after which the relay reconnects and streams again.
fn apply_fault(ctx: &mut Context, link: &ProxiedRelay, fault: impl FnOnce(&ChaosProxy)) {
    ctx.wait_rows(&link.load, 100..600);
    let streams = link.relay.streams();
    ctx.fault_begins();
    fault(&link.proxy);
    ctx.fault_ends();
    eventually(PATIENCE, || link.relay.streams() > streams);
}

pub(crate) fn postgres_cut(ctx: &mut Context) -> Outcome {
    let link = to_postgres(ctx);
    for how in [Cut::Fin, Cut::Reset, Cut::Fin, Cut::Reset] {
        apply_fault(ctx, &link, |proxy| proxy.cut(how));
    }
    ctx.finish(link.load, link.relay, Ragged::No)
}

/// Resets the connection after a random number of bytes: inside a frame and a transaction.
pub(crate) fn postgres_reset_in_frame(ctx: &mut Context) -> Outcome {
    // The connection of the notes would be hit nearly each time.
    ctx.outbox_without_notes();
    let link = proxied(ctx, SHORT_TIMEOUTS);
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
        ctx.wait_rows(&link.load, 50..300);
        // The reset may hit the control connection, which the stream does not need. Then repeat it.
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "no reset hits the stream");
            let streams = link.relay.streams();
            link.proxy.reset_after(direction, bytes);
            eventually(PATIENCE, || !link.proxy.reset_pending(direction));
            ctx.fault_now();
            let enough = Instant::now() + Duration::from_secs(3);
            eventually(PATIENCE, || {
                link.relay.streams() > streams || Instant::now() > enough
            });
            if link.relay.streams() > streams {
                break;
            }
        }
    }
    ctx.finish(link.load, link.relay, Ragged::No)
}

/// Both directions are silent for longer than either side waits, then they continue.
pub(crate) fn postgres_stalled(ctx: &mut Context) -> Outcome {
    let link = to_postgres(ctx);
    for _ in 0..2 {
        apply_fault(ctx, &link, |proxy| {
            proxy.stall();
            link.relay.says("nothing was received from Postgres");
            // Longer than the server waits, too, whatever the relay has done meanwhile.
            let begun = Instant::now();
            eventually(PATIENCE, || begun.elapsed() > SERVER_TIMEOUT);
            proxy.resume();
        });
    }
    ctx.finish(link.load, link.relay, Ragged::No)
}

/// One direction is dead while the other works; then one direction is closed and the other is not.
pub(crate) fn postgres_half_open(ctx: &mut Context) -> Outcome {
    let link = to_postgres(ctx);
    for direction in [Direction::ToClient, Direction::ToServer] {
        apply_fault(ctx, &link, |proxy| {
            let retries = || link.relay.log().matches("trying again").count();
            let before = retries();
            proxy.stall_direction(direction);
            // The relay or the server gives the connection of the stream up. Other connections come
            // and go.
            eventually(PATIENCE, || retries() > before);
            proxy.resume();
        });
        apply_fault(ctx, &link, |proxy| proxy.half_close(direction));
    }
    ctx.finish(link.load, link.relay, Ragged::No)
}

/// The old connections are silent for ever, new ones work. Both sides must notice by their
/// timeouts, here the defaults: `wal_sender_timeout` is 5 s, and `receive_timeout` follows it.
pub(crate) fn postgres_forgotten(ctx: &mut Context) -> Outcome {
    let link = to_postgres_with(ctx, "");
    let control = Control::start(&ctx.url());
    apply_fault(ctx, &link, ChaosProxy::forget);
    let log = link.relay.log();
    let silence = log
        .split_once("nothing was received from Postgres for ")
        .and_then(|(_, rest)| rest.split_once("s,")?.0.parse().ok())
        .map(Duration::from_secs_f64);
    let given_up = Duration::from_secs(5)..control.limit(Duration::from_secs(6));
    let in_time = silence.is_some_and(|silence| given_up.contains(&silence));
    let outcome = ctx.finish(link.load, link.relay, Ragged::Allowed);
    let slowest = outcome.first.iter().max().copied();
    let limit = control.limit(Duration::from_secs(10));
    outcome
        .expect(in_time, || format!("not given up after 5 s: {log}"))
        .expect(slowest.is_some_and(|slowest| slowest <= limit), || {
            format!("the first new record came after {slowest:?}")
        })
}

/// 200 ms in each direction, before and after a time without delay.
pub(crate) fn postgres_delayed(ctx: &mut Context) -> Outcome {
    let link = to_postgres(ctx);
    ctx.wait_rows(&link.load, 100..400);
    let streams = link.relay.streams();
    let delay = Duration::from_millis(200);
    set_distance(&link.proxy, delay);
    ctx.fault_begins();
    ctx.wait_rows(&link.load, 3_000..4_000);
    set_distance(&link.proxy, Duration::ZERO);
    ctx.fault_ends();
    let now = link.relay.streams();
    let outcome = ctx.finish(link.load, link.relay, Ragged::No);
    outcome
        .expect(now == streams, || "it gave a slow network up".to_owned())
        .nothing_repeated()
}

/// One chunk in a hundred is late by the time of a retransmission. Above TCP, the loss of one
/// packet in a hundred looks like that.
pub(crate) fn postgres_lossy(ctx: &mut Context) -> Outcome {
    let link = to_postgres(ctx);
    ctx.wait_rows(&link.load, 100..400);
    let seed = ctx.rng.u64(..);
    link.proxy.lose(0.01, Duration::from_millis(200), seed);
    ctx.fault_begins();
    ctx.wait_rows(&link.load, 3_000..4_000);
    link.proxy.lose(0.0, Duration::ZERO, seed);
    ctx.fault_ends();
    ctx.finish(link.load, link.relay, Ragged::No)
}

/// A relay that reaches the server of its sink through the proxy, under load.
fn to_sink(ctx: &mut Context) -> (Relay, Running) {
    to_sink_with(ctx, "")
}

fn to_sink_with(ctx: &mut Context, settings: &str) -> (Relay, Running) {
    ctx.outbox();
    let relay = ctx.streaming(&ctx.proxied_config().set(settings));
    (relay, ctx.load())
}

/// Connections are closed and reset, and refused for a while.
pub(crate) fn sink_cut(ctx: &mut Context) -> Outcome {
    let (relay, load) = to_sink(ctx);
    for how in [Cut::Fin, Cut::Reset, Cut::Fin, Cut::Reset] {
        ctx.wait_rows(&load, 100..600);
        ctx.fault_begins();
        ctx.sink_proxy().cut(how);
        ctx.fault_ends();
    }
    ctx.wait_rows(&load, 100..600);
    ctx.fault_begins();
    ctx.sink_proxy().refuse(true);
    ctx.sink_proxy().cut(Cut::Reset);
    ctx.wait_rows(&load, 2_000..3_000);
    ctx.sink_proxy().refuse(false);
    ctx.fault_ends();
    ctx.finish(load, relay, Ragged::Allowed)
}

/// Resets inside a request, and inside a response.
pub(crate) fn sink_reset_in_frame(ctx: &mut Context) -> Outcome {
    let (relay, load) = to_sink(ctx);
    for round in 0..6 {
        let (direction, bytes) = if round % 2 == 0 {
            (Direction::ToServer, ctx.rng.u64(1..50_000))
        } else {
            (Direction::ToClient, ctx.rng.u64(1..500))
        };
        ctx.wait_rows(&load, 50..400);
        ctx.fault_begins();
        ctx.sink_proxy().reset_after(direction, bytes);
        eventually(PATIENCE, || !ctx.sink_proxy().reset_pending(direction));
        ctx.fault_ends();
    }
    ctx.finish(load, relay, Ragged::Allowed)
}

/// Nothing passes for longer than a request may take: responses are lost for requests that the
/// broker may have processed.
pub(crate) fn sink_stalled(ctx: &mut Context) -> Outcome {
    let timeouts = ctx.destination.short_timeouts();
    let (relay, load) = to_sink_with(ctx, timeouts);
    ctx.wait_rows(&load, 300..600);
    ctx.fault_begins();
    ctx.sink_proxy().stall();
    ctx.wait_rows(&load, 4_500..5_000);
    ctx.sink_proxy().resume();
    ctx.fault_ends();
    for direction in [Direction::ToServer, Direction::ToClient] {
        ctx.wait_rows(&load, 300..600);
        ctx.fault_begins();
        let open = ctx.sink_proxy().accepted();
        ctx.sink_proxy().stall_direction(direction);
        eventually(PATIENCE, || ctx.sink_proxy().accepted() > open);
        ctx.sink_proxy().resume();
        ctx.fault_ends();
        ctx.wait_rows(&load, 100..200);
        ctx.fault_begins();
        ctx.sink_proxy().half_close(direction);
        ctx.fault_ends();
    }
    ctx.finish(load, relay, Ragged::Allowed)
}

/// 200 ms in each direction.
pub(crate) fn sink_delayed(ctx: &mut Context) -> Outcome {
    let (relay, load) = to_sink(ctx);
    ctx.wait_rows(&load, 100..400);
    let delay = Duration::from_millis(200);
    ctx.fault_begins();
    set_distance(ctx.sink_proxy(), delay);
    ctx.wait_rows(&load, 3_000..4_000);
    set_distance(ctx.sink_proxy(), Duration::ZERO);
    ctx.fault_ends();
    let outcome = ctx.finish(load, relay, Ragged::Allowed);
    outcome.nothing_repeated()
}

/// Kafka is so far away that several requests are always in flight, and connections are cut again
/// and again. The broker restores the order by sequence numbers, and drops repeated requests.
pub(crate) fn kafka_distant(ctx: &mut Context) -> Outcome {
    let (relay, load) = to_sink(ctx);
    set_distance(ctx.sink_proxy(), Duration::from_millis(15));
    for round in 0..12 {
        ctx.wait_rows(&load, 100..400);
        ctx.fault_begins();
        match round % 3 {
            0 => ctx.sink_proxy().cut(Cut::Fin),
            1 => ctx.sink_proxy().cut(Cut::Reset),
            _ => {
                // A reset inside a response: later requests were processed, and nobody learns of
                // them.
                let bytes = ctx.rng.u64(1..500);
                ctx.sink_proxy().reset_after(Direction::ToClient, bytes);
                eventually(PATIENCE, || {
                    !ctx.sink_proxy().reset_pending(Direction::ToClient)
                });
            }
        }
        ctx.fault_ends();
    }
    set_distance(ctx.sink_proxy(), Duration::ZERO);
    ctx.finish(load, relay, Ragged::Allowed)
}

/// One chunk in a hundred is late, as in [`postgres_lossy`].
pub(crate) fn sink_lossy(ctx: &mut Context) -> Outcome {
    let (relay, load) = to_sink(ctx);
    ctx.wait_rows(&load, 100..400);
    let seed = ctx.rng.u64(..);
    ctx.fault_begins();
    let rto = Duration::from_millis(200);
    ctx.sink_proxy().lose(0.01, rto, seed);
    ctx.wait_rows(&load, 3_000..4_000);
    ctx.sink_proxy().lose(0.0, Duration::ZERO, seed);
    ctx.fault_ends();
    ctx.finish(load, relay, Ragged::Allowed)
}

/// The relay receives slowly: the server has to wait, and still gets feedback.
pub(crate) fn postgres_slow_reader(ctx: &mut Context) -> Outcome {
    let link = to_postgres(ctx);
    ctx.wait_rows(&link.load, 100..400);
    let streams = link.relay.streams();
    ctx.fault_begins();
    link.proxy.throttle(Direction::ToClient, Some(100_000));
    ctx.wait_rows(&link.load, 4_000..5_000);
    link.proxy.throttle(Direction::ToClient, None);
    ctx.fault_ends();
    let now = link.relay.streams();
    let outcome = ctx.finish(link.load, link.relay, Ragged::No);
    outcome.expect(now == streams, || "it gave a slow network up".to_owned())
}

/// The broker receives slowly: the relay is under back-pressure.
pub(crate) fn sink_slow_reader(ctx: &mut Context) -> Outcome {
    let (relay, load) = to_sink(ctx);
    ctx.wait_rows(&load, 100..400);
    ctx.fault_begins();
    ctx.sink_proxy()
        .throttle(Direction::ToServer, Some(100_000));
    ctx.wait_rows(&load, 4_000..5_000);
    ctx.sink_proxy().throttle(Direction::ToServer, None);
    ctx.fault_ends();
    ctx.finish(load, relay, Ragged::Allowed)
}
