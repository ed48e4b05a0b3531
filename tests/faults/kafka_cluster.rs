//! Faults of three brokers, with three replicas of each partition, of which two must have a record.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{Db, KafkaCluster, Running, eventually, millis_now};

use crate::context::{Context, Ragged};
use crate::control::Control;
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

/// How a broker is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// SIGKILL.
    Killed,
    /// SIGSTOP.
    Hangs,
}

impl Loss {
    fn lose(self, cluster: &KafkaCluster, broker: i32) {
        match self {
            Self::Killed => cluster.kill(broker),
            Self::Hangs => cluster.pause(broker),
        }
    }

    fn bring_back(self, cluster: &KafkaCluster, broker: i32) {
        match self {
            Self::Killed => cluster.start_again(broker),
            Self::Hangs => cluster.resume(broker),
        }
    }
}

/// A cluster, an outbox, a relay and a load that has reached every topic.
struct Setup {
    cluster: std::sync::Arc<KafkaCluster>,
    relay: Relay,
    load: Running,
    /// The topic whose leaders fail.
    topic: String,
}

impl Setup {
    fn new(ctx: &mut Context) -> Self {
        let cluster = ctx.own_cluster();
        ctx.outbox();
        Self::on(ctx, cluster)
    }

    fn on(ctx: &mut Context, cluster: std::sync::Arc<KafkaCluster>) -> Self {
        let relay = ctx.relay();
        let load = ctx.load();
        ctx.wait_rows(&load, 300..1_000);
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

    /// The relay survives the faults without a restart and repeats nothing: the producer is
    /// idempotent and continues with the records that it holds.
    fn judge(self, ctx: &mut Context) -> Outcome {
        ctx.wait_rows(&self.load, 200..400);
        self.load.stop();
        let outcome = ctx.judge(Ragged::No);
        let streams = self.relay.streams();
        self.relay.ends_well();
        outcome
            .nothing_repeated()
            .expect(streams == 1, || format!("{streams} streams instead of one"))
    }
}

/// Leader after leader is killed, each as soon as the one before is back.
pub(crate) fn leader_killed(ctx: &mut Context, times: u32) -> Outcome {
    leader_lost(ctx, Loss::Killed, times)
}

/// A leader that hangs is replaced. When it resumes, it believes for a moment that it still leads,
/// and has requests from that time to process.
pub(crate) fn leader_hangs(ctx: &mut Context) -> Outcome {
    leader_lost(ctx, Loss::Hangs, 2)
}

fn leader_lost(ctx: &mut Context, loss: Loss, times: u32) -> Outcome {
    let setup = Setup::new(ctx);
    let Setup {
        cluster,
        load,
        topic,
        ..
    } = &setup;
    for _ in 0..times {
        let leader = cluster.leader_of(topic, 0);
        loss.lose(cluster, leader);
        ctx.fault_begins();
        cluster.wait_other_leader(topic, 0, leader);
        ctx.fault_ends();
        ctx.wait_rows(load, 200..600);
        loss.bring_back(cluster, leader);
        if loss == Loss::Hangs {
            ctx.wait_rows(load, 200..600);
        }
        cluster.wait_in_sync();
        if loss == Loss::Killed {
            ctx.wait_rows(load, 100..300);
        }
    }
    setup.judge(ctx)
}

/// With one broker of three nothing may be confirmed, and feedback continues for longer than
/// `wal_sender_timeout`.
pub(crate) fn two_killed(ctx: &mut Context) -> Outcome {
    ctx.own_postgres(&[("wal_sender_timeout", "3s")]);
    let setup = Setup::new(ctx);
    let Setup { cluster, load, .. } = &setup;
    let slot = ctx.slot();
    let walsender = slot.wait_active(PATIENCE);
    let mut victims = KafkaCluster::BROKERS;
    ctx.rng.shuffle(&mut victims);
    let [first, second, _] = victims;
    cluster.kill(first);
    cluster.kill(second);
    let dead_since = Instant::now();
    ctx.fault_begins();
    // Reports that were in flight may still be confirmed.
    let frozen = slot.wait_settled(PATIENCE);
    let hold = |still: &dyn Fn() -> bool| {
        eventually(PATIENCE, || {
            let now = slot.read().expect("the slot");
            assert_eq!(now.confirmed_flush, frozen, "confirmed by one broker alone");
            assert_eq!(now.active_pid, Some(walsender), "feedback stopped");
            still()
        });
    };
    // First the cluster has not noticed, later only one replica is in sync.
    cluster.wait_in_sync_at_most(1);
    let rows = load.written().rows;
    hold(&|| dead_since.elapsed() > Duration::from_secs(12) && load.written().rows > rows + 2_000);
    cluster.start_again(first);
    ctx.fault_ends();
    cluster.start_again(second);
    cluster.wait_in_sync();
    setup.judge(ctx)
}

/// Each broker is stopped in order and started again, as for an upgrade.
pub(crate) fn rolling_restart(ctx: &mut Context) -> Outcome {
    let setup = Setup::new(ctx);
    let Setup { cluster, load, .. } = &setup;
    for broker in KafkaCluster::BROKERS {
        cluster.stop(broker);
        ctx.fault_now();
        ctx.wait_rows(load, 100..300);
        cluster.start_again(broker);
        cluster.wait_in_sync();
    }
    setup.judge(ctx)
}

/// One partition of a batch fails: a topic has one partition without further replicas on each
/// broker, and one broker dies. Records of the other partitions are delivered, nothing behind an
/// undelivered record is confirmed, and the order of each key is kept.
pub(crate) fn partition_down(ctx: &mut Context) -> Outcome {
    let cluster = ctx.own_cluster();
    ctx.outbox();
    let single: [&[i32]; 3] = [&[1], &[2], &[3]];
    cluster.create_topic_on(
        &format!("{}payment", ctx.prefix),
        &single,
        &[("min.insync.replicas", "1")],
    );
    let setup = Setup::on(ctx, cluster);
    let Setup { cluster, load, .. } = &setup;
    let victim = ctx.rng.i32(1..=3);
    cluster.kill(victim);
    ctx.fault_begins();
    let slot = ctx.slot();
    let dead_since = Instant::now();
    // By now some row is for the partition that is down: one in nine is. Up to it the position may
    // still move: earlier rows wait until the dead broker is removed from the replicas of the other
    // partitions.
    ctx.wait_rows(load, 2_000..2_500);
    let limit = slot.wal_end();
    let rows = load.written().rows;
    eventually(PATIENCE, || {
        let now = slot.confirmed();
        assert!(now < limit, "confirmed beyond what one partition lacks");
        dead_since.elapsed() > Duration::from_secs(8) && load.written().rows > rows + 1_500
    });
    cluster.start_again(victim);
    ctx.fault_ends();
    cluster.wait_in_sync();
    setup.judge(ctx)
}

/// When a broker is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// While a backlog is drained in throughput mode.
    Throughput,
    /// In latency mode, before a backlog.
    Latency,
}

/// Rows of a backlog, which is one transaction: fewer than the 65,536 that may follow an
/// unacknowledged record, and enough to make the relay late by more than 100 ms.
const BACKLOG: i64 = 60_000;
/// One row in this many of a backlog goes to the partition that is lost.
const LOST_SHARE: i64 = 50;
/// Rows that are written slowly afterwards, and the time between two of them.
const TRICKLE: i64 = 20;
const PACE: Duration = Duration::from_millis(100);
/// How late one of these rows may be in Kafka, on an idle machine.
const LATE: Duration = Duration::from_secs(2);

/// Writes a backlog to the keys of `healthy`, and one row in [`LOST_SHARE`] to a key of `lost` if
/// there are any.
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

/// Sends a row of each of 30 keys. Returns the partition of each key.
fn partitions_of_keys(ctx: &Context, db: &Db) -> HashMap<String, i32> {
    db.batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || n, 'T', \
         jsonb_build_object('number', 0) FROM generate_series(1, 30) n",
    );
    ctx.caught_up();
    ctx.records(30)
        .into_iter()
        .filter_map(|record| Some((String::from_utf8(record.key?).ok()?, record.partition)))
        .collect()
}

/// Writes one row after another to the keys of healthy partitions. Returns the time of each row in
/// milliseconds, by its id.
fn write_trickle(db: &Db, healthy: &[String]) -> HashMap<String, i64> {
    let mut written = HashMap::new();
    for n in 0..TRICKLE {
        let key = &healthy[n as usize % healthy.len()];
        let row = db.query(
            "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', $1, 'T', \
             jsonb_build_object('number', 1000000 + $2::int8)) RETURNING id::text",
            &[key, &n],
        );
        written.insert(row[0].get(0), millis_now());
        thread::sleep(PACE);
    }
    written
}

/// One broker, the only one with its partition, is lost with records in flight, and the relay's
/// producer mode changes while the broker is away. Rows for the other partitions must nevertheless
/// be in Kafka at once.
pub(crate) fn partition_down_in_bulk(ctx: &mut Context, loss: Loss, mode: Mode) -> Outcome {
    let cluster = ctx.own_cluster();
    ctx.outbox();
    let single: [&[i32]; 3] = [&[1], &[2], &[3]];
    let settings = [("min.insync.replicas", "1")];
    cluster.create_topic_on(&format!("{}order", ctx.prefix), &single, &settings);
    let config = ctx.config().set("log.level = \"debug\"");
    let start = |ctx: &Context| ctx.streaming(&config);
    let mut relay = start(ctx);
    let db = ctx.db();

    let partitions = partitions_of_keys(ctx, &db);
    let victim = ctx.rng.i32(1..=3);
    let (lost, healthy): (Vec<String>, Vec<String>) = (1..=30)
        .map(|n| format!("key-{n}"))
        .partition(|key| partitions[key] == victim - 1);
    let lose_victim = |ctx: &Context| {
        loss.lose(&cluster, victim);
        ctx.fault_begins();
    };

    let in_throughput = "\"mode\":\"Throughput\"";
    match mode {
        Mode::Throughput => {
            relay.ends_well();
            write_backlog(&db, &healthy, &lost);
            relay = start(ctx);
            relay.says(in_throughput);
            lose_victim(ctx);
        }
        Mode::Latency => {
            lose_victim(ctx);
            db.query(
                "INSERT INTO outbox SELECT gen_random_uuid(), 'order', key, 'T', \
                 jsonb_build_object('number', 1) FROM unnest($1::text[]) key",
                &[&lost],
            );
            write_backlog(&db, &healthy, &[]);
            relay.says(in_throughput);
        }
    }
    // Wait until the relay has read everything, and is in latency mode.
    eventually(PATIENCE, || {
        let sent = "SELECT sent_lsn >= pg_current_wal_lsn() FROM pg_stat_replication \
                    JOIN pg_replication_slots ON active_pid = pid WHERE slot_name = $1";
        db.column::<bool>(sent, &[&ctx.name]) == [true]
    });
    let in_latency = "\"mode\":\"Latency\"";
    relay.until("latency mode", || {
        let log = relay.log();
        log.rfind(in_latency) > log.rfind(in_throughput)
    });

    let control = Control::start(&ctx.url());
    let trickle = write_trickle(&db, &healthy);
    let slot = ctx.slot();
    let limit = slot.wal_end();
    let written = Instant::now();
    eventually(PATIENCE, || {
        let now = slot.confirmed();
        assert!(now < limit, "nothing was in flight to the lost partition");
        written.elapsed() > control.limit(LATE + Duration::from_secs(1))
    });

    let late = control.limit(LATE);
    drop(control);
    let brought_back = millis_now();
    loss.bring_back(&cluster, victim);
    ctx.fault_ends();
    let outcome = ctx.judge(Ragged::No);
    let mut after: Vec<i64> = Vec::new();
    let mut meanwhile = true;
    for record in ctx.records(outcome.committed) {
        let written = record.id.and_then(|id| trickle.get(&id).copied());
        if let (Some(appended), Some(written)) = (record.appended, written) {
            after.push(appended - written);
            meanwhile &= appended < brought_back;
        }
    }
    after.sort_unstable();
    let (slowest, median) = (after[after.len() - 1], after[after.len() / 2]);
    println!("rows of the trickle were in Kafka after {median} ms (median), {slowest} ms at most");
    // At this log level the state "streaming" is logged too, so match the message.
    let streams = relay.log().matches("\"message\":\"streaming\"").count();
    relay.ends_well();
    outcome
        .nothing_repeated()
        .expect(streams == 1, || format!("{streams} streams instead of one"))
        .expect(after.len() == trickle.len(), || {
            format!("{} of {} were appended", after.len(), trickle.len())
        })
        .expect(meanwhile && slowest < late.as_millis() as i64, || {
            format!("a healthy partition waited for another: late by {after:?} ms, not {late:?}")
        })
}
