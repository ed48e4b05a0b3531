//! Faults of the broker, one of its own kind for each lane; three brokers are elsewhere.

use std::time::Instant;
use std::{sync::Arc, time::Duration};

use walrelay_testkit::{Kafka, eventually};

use crate::context::{Context, Ragged, stamping};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

/// Longer than `wal_sender_timeout` of these scenarios.
const SERVER_PATIENCE: Duration = Duration::from_secs(2);

/// A relay whose window is soon full.
fn relay(ctx: &Context) -> Relay {
    ctx.start(
        &ctx.config()
            .source("wal_sender_timeout = \"2s\"")
            .more("[delivery]\nmax_in_flight_records = 4096"),
    )
}

/// No broker when the relay starts.
pub(crate) fn down_at_start(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    // The slot first: rows from before it are not relayed.
    let first = ctx.relay();
    first.ends_well();
    ctx.kafka.stop();
    let relay = relay(ctx);
    let load = ctx.load();
    ctx.more(&load, 2_000..3_000);
    ctx.struck();
    ctx.kafka.start_again();
    ctx.over();
    ctx.more(&load, 300..500);
    ctx.finish(load, relay, Ragged::No)
}

/// Killed in the midst of batches, and gone for longer than the walsender waits for feedback: the
/// same walsender is there all the while, and nothing is confirmed.
pub(crate) fn killed(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let relay = relay(ctx);
    relay.streaming();
    let slot = ctx.slot();
    let load = ctx.load();
    for _ in 0..2 {
        ctx.more(&load, 300..1_500);
        let walsender = slot.wait_active(PATIENCE);
        ctx.kafka.kill();
        ctx.struck();
        // Reports that were under way are confirmed at the latest with the next status, a second on.
        let killed = Instant::now();
        eventually(PATIENCE, || killed.elapsed() > SERVER_PATIENCE * 3 / 4);
        let frozen = slot.read().expect("the slot").confirmed_flush;
        eventually(PATIENCE, || killed.elapsed() > SERVER_PATIENCE * 2);
        let state = slot.read().expect("the slot");
        assert_eq!(state.active_pid, Some(walsender), "feedback stopped");
        assert_eq!(state.confirmed_flush, frozen, "confirmed without a broker");
        ctx.kafka.start_again();
        ctx.over();
    }
    ctx.more(&load, 300..500);
    ctx.finish(load, relay, Ragged::Allowed)
}

/// Stopped by SIGSTOP for seconds: connections stay, nothing is answered.
pub(crate) fn paused(ctx: &mut Context) -> Outcome {
    ctx.outbox();
    let relay = relay(ctx);
    relay.streaming();
    let slot = ctx.slot();
    let load = ctx.load();
    for _ in 0..2 {
        ctx.more(&load, 300..1_500);
        let walsender = slot.wait_active(PATIENCE);
        ctx.kafka.pause();
        ctx.struck();
        ctx.more(&load, 4_000..5_000);
        let state = slot.read().expect("the slot");
        ctx.kafka.resume();
        ctx.over();
        assert_eq!(state.active_pid, Some(walsender), "feedback stopped");
    }
    ctx.more(&load, 300..500);
    ctx.finish(load, relay, Ragged::Allowed)
}

/// Topics that are not there, on a broker that creates none by itself, and appear one by one.
pub(crate) fn topic_missing(ctx: &mut Context) -> Outcome {
    ctx.kafka = Arc::new(stamping(Kafka::builder().auto_create(false)).start());
    ctx.outbox();
    let config = ctx
        .config()
        .kafka("\"topic.metadata.propagation.max.ms\" = 1000")
        .more("[delivery]\nbackoff_max = \"500ms\"");
    let topic = |name: &str| format!("{}{name}", ctx.prefix);
    let (order, payment, customer) = (topic("order"), topic("payment"), topic("customer"));
    ctx.kafka.create_topic(&order, 3, &[]);
    ctx.kafka.create_topic(&payment, 3, &[]);
    let relay = ctx.start(&config);
    relay.streaming();
    let load = ctx.load();
    relay.says("trying again");
    ctx.more(&load, 1_000..2_000);
    ctx.struck();
    ctx.kafka.create_topic(&customer, 3, &[]);
    ctx.over();
    ctx.more(&load, 300..500);
    load.stop();
    let outcome = ctx.judge(Ragged::Allowed);
    drop(relay);
    outcome
}
