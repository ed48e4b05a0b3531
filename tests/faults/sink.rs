//! Faults of the server that the relay writes to, one for each lane. Three brokers are in
//! `kafka_cluster`.

use std::time::{Duration, Instant};

use walrelay_testkit::{Kafka, Running, SlotState, SlotWatch, eventually};

use crate::context::{Context, Ragged};
use crate::destination::stamping;
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

/// The `wal_sender_timeout` of these scenarios.
const SERVER_PATIENCE: Duration = Duration::from_secs(2);

/// A relay whose window is soon full.
fn relay(ctx: &Context) -> Relay {
    ctx.start(
        &ctx.config()
            .set("source.wal_sender_timeout = \"2s\"\ndelivery.max_in_flight_records = 4096"),
    )
}

/// The server is down when the relay starts.
pub(crate) fn down_at_start(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    // Create the slot first: rows from before it are not relayed.
    ctx.relay().ends_well();
    ctx.destination.stop();
    let relay = relay(ctx);
    let load = ctx.load();
    ctx.wait_rows(&load, 2_000..3_000);
    ctx.fault_begins();
    ctx.destination.start_again();
    ctx.fault_ends();
    ctx.finish(load, relay, Ragged::No)
}

/// The server is killed between batches, for longer than the walsender waits for feedback. The
/// walsender stays the same, and nothing is confirmed.
pub(crate) fn killed(ctx: &mut Context) -> Outcome {
    twice(ctx, |ctx, slot, _| {
        ctx.destination.kill();
        ctx.fault_begins();
        let killed = Instant::now();
        // Reports that were in flight may still be confirmed.
        let frozen = slot.wait_settled(PATIENCE);
        eventually(PATIENCE, || killed.elapsed() > SERVER_PATIENCE * 2);
        let state = slot.read().expect("the slot");
        assert_eq!(state.confirmed_flush, frozen, "confirmed without a server");
        ctx.destination.start_again();
        ctx.fault_ends();
        state
    })
}

/// The server is stopped by SIGSTOP for seconds: connections stay, nothing is answered.
pub(crate) fn paused(ctx: &mut Context) -> Outcome {
    twice(ctx, |ctx, slot, load| {
        ctx.destination.pause();
        ctx.fault_begins();
        ctx.wait_rows(load, 4_000..5_000);
        let state = slot.read().expect("the slot");
        ctx.destination.resume();
        ctx.fault_ends();
        state
    })
}

/// The server takes no records for many seconds: its queues are full, or it answers 503.
pub(crate) fn full(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let relay = ctx.streaming(&ctx.proxied_config());
    let load = ctx.load();
    ctx.wait_rows(&load, 300..1_500);
    ctx.destination.fill(true);
    ctx.fault_begins();
    // A minute of the load, if the machine keeps its rate.
    ctx.wait_rows(&load, 89_000..91_000);
    ctx.destination.fill(false);
    ctx.fault_ends();
    ctx.finish(load, relay, Ragged::No)
}

/// Applies `fault` twice under load. It returns the state of the slot at the end of the fault, when
/// the walsender must still be the same.
fn twice(
    ctx: &mut Context,
    fault: impl Fn(&mut Context, &SlotWatch, &Running) -> SlotState,
) -> Outcome {
    ctx.outbox();
    let relay = relay(ctx);
    relay.streaming();
    let slot = ctx.slot();
    let load = ctx.load();
    for _ in 0..2 {
        ctx.wait_rows(&load, 300..1_500);
        let walsender = slot.wait_active(PATIENCE);
        let state = fault(ctx, &slot, &load);
        assert_eq!(state.active_pid, Some(walsender), "feedback stopped");
    }
    ctx.finish(load, relay, Ragged::Allowed)
}

/// Topics are missing on a broker that creates none on demand, and appear one by one.
pub(crate) fn topic_missing(ctx: &mut Context) -> Outcome {
    ctx.own_kafka(stamping(Kafka::builder().without_auto_create()).start());
    ctx.outbox();
    let config = ctx.config().set(
        "sink.kafka.\"topic.metadata.propagation.max.ms\" = 1000\ndelivery.backoff_max = \"500ms\"",
    );
    let topics = ["order", "payment", "customer"];
    let [order, payment, customer] = topics.map(|name| format!("{}{name}", ctx.prefix));
    ctx.kafka().create_topics(&[&order, &payment], 3, &[]);
    let relay = ctx.streaming(&config);
    let load = ctx.load();
    relay.says("trying again");
    ctx.wait_rows(&load, 1_000..2_000);
    ctx.fault_begins();
    ctx.kafka().create_topic(&customer, 3, &[]);
    ctx.fault_ends();
    ctx.wait_rows(&load, 300..500);
    load.stop();
    let outcome = ctx.judge(Ragged::Allowed);
    drop(relay);
    outcome
}
