//! Faults of three brokers: three replicas of everything, of which two must have a record.

use std::time::{Duration, Instant};

use walrelay_testkit::{KafkaCluster, Running, eventually};

use crate::context::{Context, Ragged};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

/// A cluster, an outbox, a relay and a load that has reached every topic.
struct Scene {
    cluster: std::sync::Arc<KafkaCluster>,
    relay: Relay,
    load: Running,
    /// A topic whose leaders are struck.
    topic: String,
}

impl Scene {
    fn set(ctx: &mut Context) -> Self {
        let cluster = ctx.own_cluster();
        ctx.outbox();
        Self::on(ctx, cluster)
    }

    fn on(ctx: &mut Context, cluster: std::sync::Arc<KafkaCluster>) -> Self {
        let relay = ctx.relay();
        let load = ctx.load();
        ctx.more(&load, 300..1_000);
        let topic = format!("{}order", ctx.prefix);
        cluster.leader_of(&topic, 0);
        cluster.wait_in_sync();
        Self {
            cluster,
            relay,
            load,
            topic,
        }
    }

    /// The relay sees the brokers through: it is never started again, and repeats nothing, because the
    /// producer is idempotent and goes on with what it holds.
    fn judge(self, ctx: &mut Context) -> Outcome {
        ctx.more(&self.load, 200..400);
        self.load.stop();
        let outcome = ctx.judge(Ragged::No);
        let streams = self.relay.streams();
        self.relay.ends_well();
        outcome
            .nothing_repeated()
            .expect(streams == 1, || format!("{streams} streams instead of one"))
    }
}

/// Leader after leader, each as soon as the one before is back.
pub(crate) fn leader_killed(ctx: &mut Context, times: u32) -> Outcome {
    let scene = Scene::set(ctx);
    let Scene {
        cluster,
        load,
        topic,
        ..
    } = &scene;
    for _ in 0..times {
        let leader = cluster.leader_of(topic, 0);
        cluster.kill(leader);
        ctx.struck();
        cluster.wait_other_leader(topic, 0, leader);
        ctx.over();
        ctx.more(load, 200..600);
        cluster.start_again(leader);
        cluster.wait_in_sync();
        ctx.more(load, 100..300);
    }
    scene.judge(ctx)
}

/// A leader that hangs is replaced; resumed, it believes for a moment that it leads, and has requests
/// to work off from when it did.
pub(crate) fn leader_hangs(ctx: &mut Context) -> Outcome {
    let scene = Scene::set(ctx);
    let Scene {
        cluster,
        load,
        topic,
        ..
    } = &scene;
    for _ in 0..2 {
        let leader = cluster.leader_of(topic, 0);
        cluster.pause(leader);
        ctx.struck();
        cluster.wait_other_leader(topic, 0, leader);
        ctx.over();
        ctx.more(load, 200..600);
        cluster.resume(leader);
        ctx.more(load, 200..600);
        cluster.wait_in_sync();
    }
    scene.judge(ctx)
}

/// With one broker of three nothing may be confirmed, and feedback goes on for longer than
/// `wal_sender_timeout`.
pub(crate) fn two_killed(ctx: &mut Context) -> Outcome {
    ctx.own_postgres(|builder| builder.setting("wal_sender_timeout", "3s"));
    let scene = Scene::set(ctx);
    let Scene { cluster, load, .. } = &scene;
    let slot = ctx.slot();
    let walsender = slot.wait_active(PATIENCE);
    let mut victims = KafkaCluster::BROKERS;
    ctx.rng.shuffle(&mut victims);
    let [first, second, _] = victims;
    cluster.kill(first);
    cluster.kill(second);
    let dead_since = Instant::now();
    ctx.struck();
    // Reports that were under way may still be confirmed, at the latest with the next status update,
    // a second later.
    eventually(PATIENCE, || {
        dead_since.elapsed() > Duration::from_millis(1_500)
    });
    let frozen = slot.read().expect("the slot").confirmed_flush;
    let hold = |still: &dyn Fn() -> bool| {
        eventually(PATIENCE, || {
            let now = slot.read().expect("the slot");
            assert_eq!(now.confirmed_flush, frozen, "confirmed by one broker alone");
            assert_eq!(now.active_pid, Some(walsender), "feedback stopped");
            still()
        });
    };
    // First while the cluster has not noticed, then when one replica is all that is in sync.
    cluster.wait_in_sync_at_most(1);
    let rows = load.written().rows;
    hold(&|| dead_since.elapsed() > Duration::from_secs(12) && load.written().rows > rows + 2_000);
    cluster.start_again(first);
    ctx.over();
    cluster.start_again(second);
    cluster.wait_in_sync();
    scene.judge(ctx)
}

/// Each broker is stopped in order and started again, as for a new version.
pub(crate) fn rolling_restart(ctx: &mut Context) -> Outcome {
    let scene = Scene::set(ctx);
    let Scene { cluster, load, .. } = &scene;
    for broker in KafkaCluster::BROKERS {
        cluster.stop(broker);
        ctx.struck();
        ctx.over();
        ctx.more(load, 100..300);
        cluster.start_again(broker);
        cluster.wait_in_sync();
    }
    scene.judge(ctx)
}

/// One partition of a batch fails: a topic has a partition without replicas on each broker, and one of
/// the brokers dies. What belongs to the others is delivered, nothing behind what does not arrive is
/// confirmed, and no key is overtaken.
pub(crate) fn partition_down(ctx: &mut Context) -> Outcome {
    let cluster = ctx.own_cluster();
    ctx.outbox();
    let single: [&[i32]; 3] = [&[1], &[2], &[3]];
    cluster.create_topic_on(
        &format!("{}payment", ctx.prefix),
        &single,
        &[("min.insync.replicas", "1")],
    );
    let scene = Scene::on(ctx, cluster);
    let Scene { cluster, load, .. } = &scene;
    let victim = ctx.rng.i32(1..=3);
    cluster.kill(victim);
    ctx.struck();
    let slot = ctx.slot();
    let dead_since = Instant::now();
    eventually(PATIENCE, || {
        dead_since.elapsed() > Duration::from_millis(1_500)
    });
    // By now some row was bound for the partition that is down. Up to it the position may still move:
    // what lies before waits for the dead broker to be taken out of the other partitions' replicas.
    let limit = slot.wal_end();
    let rows = load.written().rows;
    eventually(PATIENCE, || {
        let now = slot.read().expect("the slot").confirmed_flush;
        assert!(now < limit, "confirmed beyond what one partition lacks");
        dead_since.elapsed() > Duration::from_secs(8) && load.written().rows > rows + 1_500
    });
    cluster.start_again(victim);
    ctx.over();
    cluster.wait_in_sync();
    scene.judge(ctx)
}
