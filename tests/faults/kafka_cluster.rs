//! Faults of three brokers: three replicas of everything, of which two must have a record.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{Db, KafkaCluster, Running, eventually, millis_now};

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

/// How a broker is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// SIGKILL.
    Killed,
    /// SIGSTOP.
    Hangs,
}

/// When a broker is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// While a backlog is drained in throughput mode.
    Throughput,
    /// In latency mode; then comes a backlog.
    Latency,
}

/// Rows of a backlog, which is one transaction: fewer than the 65,536 that may follow an unacknowledged record, and so
/// many that the relay is late by more than a tenth of a second.
const BACKLOG: i64 = 60_000;
/// One row in so many of a backlog is for the partition that is lost.
const LOST_SHARE: i64 = 50;
/// Rows of the trickle, and the time between two.
const TRICKLE: i64 = 20;
const PACE: Duration = Duration::from_millis(100);
/// How late a row of the trickle may be in Kafka.
const LATE_MS: i64 = 2_000;

/// Rows are written to a key of `healthy`, and one in [`LOST_SHARE`] to a key of `lost` if there are such.
fn write_backlog(db: &Db, healthy: &[String], lost: &[String]) {
    db.query(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', \
         CASE WHEN n % $3 = 0 AND cardinality($2::text[]) > 0 \
         THEN ($2::text[])[1 + (n / $3) % cardinality($2::text[])] \
         ELSE ($1::text[])[1 + n % cardinality($1::text[])] END, 'T', \
         jsonb_build_object('number', 1 + n, 'text', repeat('x', 200)) \
         FROM generate_series(1, $4::int8) n",
        &[&healthy, &lost, &LOST_SHARE, &BACKLOG],
    );
}

/// A broker that leads one partition of three alone is lost with records in flight, and the relay's producer mode
/// changes while it is away. Rows for the other partitions must be in Kafka at once all the same.
pub(crate) fn partition_down_in_bulk(ctx: &mut Context, loss: Loss, mode: Mode) -> Outcome {
    let cluster = ctx.own_cluster();
    ctx.outbox();
    let single: [&[i32]; 3] = [&[1], &[2], &[3]];
    let settings = [("min.insync.replicas", "1")];
    cluster.create_topic_on(&format!("{}order", ctx.prefix), &single, &settings);
    let config = ctx.config();
    let start = |ctx: &Context| {
        let relay = ctx.start_with(&config, |command| {
            command.args(["--set", "log.level=debug"]);
        });
        relay.streaming();
        relay
    };
    let mut relay = start(ctx);
    let db = ctx.db();

    // Which key goes to which partition.
    db.batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || n, 'T', \
         jsonb_build_object('number', 0) FROM generate_series(1, 30) n",
    );
    ctx.caught_up();
    let partitions: HashMap<String, i32> = ctx
        .records(30)
        .into_iter()
        .filter_map(|record| Some((String::from_utf8(record.key?).ok()?, record.partition)))
        .collect();
    let victim = ctx.rng.i32(1..=3);
    let (lost, healthy): (Vec<String>, Vec<String>) = (1..=30)
        .map(|n| format!("key-{n}"))
        .partition(|key| partitions[key] == victim - 1);
    let strike = |ctx: &Context| {
        match loss {
            Loss::Killed => cluster.kill(victim),
            Loss::Hangs => cluster.pause(victim),
        }
        ctx.struck();
    };

    let in_throughput = "\"mode\":\"Throughput\"";
    match mode {
        Mode::Throughput => {
            relay.ends_well();
            write_backlog(&db, &healthy, &lost);
            relay = start(ctx);
            relay.says(in_throughput);
            strike(ctx);
        }
        Mode::Latency => {
            strike(ctx);
            db.query(
                "INSERT INTO outbox SELECT gen_random_uuid(), 'order', key, 'T', \
                 jsonb_build_object('number', 1) FROM unnest($1::text[]) key",
                &[&lost],
            );
            write_backlog(&db, &healthy, &[]);
            relay.says(in_throughput);
        }
    }
    // All is read, and for so long nothing comes that the relay is in latency mode.
    eventually(PATIENCE, || {
        let sent = "SELECT (sent_lsn >= pg_current_wal_lsn())::text FROM pg_stat_replication \
                    JOIN pg_replication_slots ON active_pid = pid WHERE slot_name = ";
        db.text(&format!("{sent}'{}'", ctx.name)).as_deref() == Some("true")
    });
    let read = Instant::now();
    eventually(PATIENCE, || read.elapsed() > Duration::from_millis(1_500));

    let mut trickle: HashMap<String, i64> = HashMap::new();
    for n in 0..TRICKLE {
        let key = &healthy[n as usize % healthy.len()];
        let row = db.query(
            "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', $1, 'T', \
             jsonb_build_object('number', 1000000 + $2::int8)) RETURNING id::text",
            &[key, &n],
        );
        trickle.insert(row[0].get(0), millis_now());
        thread::sleep(PACE);
    }
    let limit = ctx.slot().wal_end();
    let written = Instant::now();
    eventually(PATIENCE, || {
        let now = ctx.slot().read().expect("the slot").confirmed_flush;
        assert!(now < limit, "nothing was in flight to the lost partition");
        written.elapsed() > Duration::from_millis(LATE_MS as u64 + 1_000)
    });

    match loss {
        Loss::Killed => cluster.start_again(victim),
        Loss::Hangs => cluster.resume(victim),
    }
    ctx.over();
    let outcome = ctx.judge(Ragged::No);
    let mut late: Vec<i64> = ctx
        .records(outcome.committed)
        .iter()
        .filter_map(|record| Some(record.appended? - trickle.get(record.id.as_ref()?)?))
        .collect();
    late.sort_unstable();
    let (slowest, median) = (late[late.len() - 1], late[late.len() / 2]);
    println!("rows of the trickle were in Kafka after {median} ms (median), {slowest} ms at most");
    // At this level the log names the state "streaming" too.
    let streams = relay.log().matches("\"message\":\"streaming\"").count();
    relay.ends_well();
    outcome
        .nothing_repeated()
        .expect(streams == 1, || format!("{streams} streams instead of one"))
        .expect(late.len() == trickle.len(), || {
            format!("{} of {} were appended", late.len(), trickle.len())
        })
        .expect(slowest < LATE_MS, || {
            format!("a healthy partition waited for another: late by {late:?} ms")
        })
}
