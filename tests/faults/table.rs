//! The scenarios.

use std::time::Duration;

use walrelay_lab::servers::Shutdown;

use crate::context::Context;
use crate::kafka_cluster::{Loss, Mode};
use crate::outcome::Outcome;
use crate::{
    data, distance, failover, handover, kafka, kafka_cluster, network, postgres, process, takeover,
};

/// One fault, or several of a kind.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// The line of the catalogue, in the words of the report.
    pub(crate) covers: &'static str,
    /// Whether `make test` runs it too.
    pub(crate) subset: bool,
    /// The versions of Postgres it concerns.
    pub(crate) versions: &'static [u32],
    pub(crate) run: fn(&mut Context) -> Outcome,
}

/// Every version that is supported.
pub(crate) const ALL: &[u32] = &[14, 15, 16, 17, 18];

/// For what concerns Kafka, and Postgres only in so far as it feeds the relay.
const OLDEST_AND_NEWEST: &[u32] = &[14, 18];
const NEWEST: &[u32] = &[18];
/// Those whose standbys decode.
const STANDBY_SLOTS: &[u32] = &[16, 17, 18];
/// Those whose standbys keep copies of slots.
const FAILOVER_SLOTS: &[u32] = &[17, 18];

const fn in_all(
    name: &'static str,
    covers: &'static str,
    run: fn(&mut Context) -> Outcome,
) -> Scenario {
    Scenario {
        name,
        covers,
        subset: false,
        versions: ALL,
        run,
    }
}

const fn in_subset(
    name: &'static str,
    covers: &'static str,
    run: fn(&mut Context) -> Outcome,
) -> Scenario {
    Scenario {
        subset: true,
        ..in_all(name, covers, run)
    }
}

/// In the order of the report. Names are lower case with hyphens.
pub(crate) const SCENARIOS: &[Scenario] = &[
    in_subset(
        "sigkill-few",
        "relay: SIGKILL at random moments, 8 times",
        |ctx| process::sigkill(ctx, 8),
    ),
    in_all(
        "sigkill",
        "relay: SIGKILL at random moments mid-burst, 100 times in one history",
        |ctx| process::sigkill(ctx, 100),
    ),
    in_subset(
        "failpoints",
        "relay: SIGKILL after read, after enqueue, after ack, after confirm, while draining; twice each",
        |ctx| process::failpoints(ctx, 2),
    ),
    in_subset("sigterm", "relay: SIGTERM, 6 times", process::sigterm),
    in_all(
        "suspended",
        "relay: SIGSTOP for less than `wal_sender_timeout` and for more, twice each",
        process::suspended,
    ),
    in_subset(
        "descriptors",
        "relay: no file descriptor left when all connections are cut, twice",
        process::out_of_descriptors,
    ),
    in_subset(
        "log-disk-full",
        "relay: standard error is a full device",
        process::log_disk_full,
    ),
    in_all(
        "clock-jumps",
        "relay: its clock jumps by days, there and back",
        process::clock_jumps,
    ),
    in_subset(
        "takeover-sigkill",
        "two relays on one slot: SIGKILL of the one that streams, 3 times",
        takeover::sigkill,
    ),
    in_all(
        "takeover-sigterm",
        "two relays on one slot: SIGTERM of the one that streams, 3 times",
        takeover::sigterm,
    ),
    in_all(
        "takeover-vanished",
        "two relays on one slot: the first one's machine vanishes without a word",
        takeover::vanished,
    ),
    in_subset(
        "handover-few",
        "two relays on one slot: they lose it to each other by broken links, SIGTERM, SIGKILL and SIGSTOP, 5 times",
        |ctx| handover::in_turns(ctx, 5, false),
    ),
    in_all(
        "handover",
        "two relays on one slot: they lose it to each other by broken links, SIGTERM, SIGKILL and SIGSTOP, 100 times",
        |ctx| handover::in_turns(ctx, 100, false),
    ),
    in_all(
        "handover-state-file",
        "two relays on one slot with one state file: the same, 20 times",
        |ctx| handover::in_turns(ctx, 20, true),
    ),
    in_all(
        "displaced-links",
        "two relays on one slot: both links of the one that streams fall silent, and speak again behind the other's back",
        |ctx| handover::displaced(ctx, handover::Displaced::BothLinks),
    ),
    in_subset(
        "displaced-postgres-link",
        "two relays on one slot: the same with the link to Postgres alone",
        |ctx| handover::displaced(ctx, handover::Displaced::PostgresLink),
    ),
    in_subset(
        "displaced-stopped",
        "two relays on one slot: the one that streams is stopped (SIGSTOP), and goes on behind the other's back",
        |ctx| handover::displaced(ctx, handover::Displaced::Stopped),
    ),
    in_all(
        "kafka-down-at-start",
        "Kafka: down when the relay starts",
        kafka::down_at_start,
    ),
    in_subset(
        "kafka-killed",
        "Kafka: SIGKILL mid-batch, gone for longer than `wal_sender_timeout`, twice",
        kafka::killed,
    ),
    in_all(
        "kafka-paused",
        "Kafka: stopped (SIGSTOP) for 3 s, twice",
        kafka::paused,
    ),
    in_all(
        "kafka-topic-missing",
        "Kafka: a topic is missing, auto-creation off, and appears",
        kafka::topic_missing,
    ),
    Scenario {
        versions: OLDEST_AND_NEWEST,
        ..in_all(
            "kafka-leader-hangs",
            "Three brokers: a partition's leader stopped (SIGSTOP) until another leads, then resumed",
            kafka_cluster::leader_hangs,
        )
    },
    Scenario {
        versions: NEWEST,
        ..in_subset(
            "kafka-leader-killed-once",
            "Three brokers: SIGKILL of a partition's leader; from the election of another",
            |ctx| kafka_cluster::leader_killed(ctx, 1),
        )
    },
    in_all(
        "kafka-leader-killed",
        "Three brokers: SIGKILL of a partition's leader, then of the next, 3 times; from the election of another",
        |ctx| kafka_cluster::leader_killed(ctx, 3),
    ),
    Scenario {
        versions: OLDEST_AND_NEWEST,
        ..in_all(
            "kafka-two-killed",
            "Three brokers: SIGKILL of two, below `min.insync.replicas`, so that nothing may be confirmed; until one is back",
            kafka_cluster::two_killed,
        )
    },
    Scenario {
        versions: OLDEST_AND_NEWEST,
        ..in_all(
            "kafka-rolling-restart",
            "Three brokers: each restarted in turn",
            kafka_cluster::rolling_restart,
        )
    },
    Scenario {
        versions: OLDEST_AND_NEWEST,
        ..in_all(
            "kafka-partition-down",
            "Three brokers: one partition without any, the others with a leader; until it is back",
            kafka_cluster::partition_down,
        )
    },
    Scenario {
        versions: NEWEST,
        ..in_all(
            "kafka-partition-down-in-bulk",
            "Three brokers: SIGKILL of one that alone leads a partition, in throughput mode; until it is back",
            |ctx| kafka_cluster::partition_down_in_bulk(ctx, Loss::Killed, Mode::Throughput),
        )
    },
    Scenario {
        versions: NEWEST,
        ..in_all(
            "kafka-partition-hangs-in-bulk",
            "Three brokers: one that alone leads a partition stopped (SIGSTOP) in throughput mode; until it is back",
            |ctx| kafka_cluster::partition_down_in_bulk(ctx, Loss::Hangs, Mode::Throughput),
        )
    },
    Scenario {
        versions: NEWEST,
        ..in_all(
            "kafka-partition-down-before-bulk",
            "Three brokers: SIGKILL of one that alone leads a partition, then a backlog for the others; until it is back",
            |ctx| kafka_cluster::partition_down_in_bulk(ctx, Loss::Killed, Mode::Latency),
        )
    },
    in_subset(
        "kafka-cut",
        "network to Kafka: cut by FIN and RST, refused for a while",
        network::kafka_cut,
    ),
    in_all(
        "kafka-reset-in-frame",
        "network to Kafka: reset in mid-frame, 6 times",
        network::kafka_reset_in_frame,
    ),
    in_all(
        "kafka-stalled",
        "network to Kafka: stalled, half-open and half-closed either way",
        network::kafka_stalled,
    ),
    in_all(
        "kafka-delayed",
        "network to Kafka: 200 ms each way",
        network::kafka_delayed,
    ),
    in_subset(
        "kafka-distant",
        "network to Kafka: 15 ms each way, cut and reset in answers, 12 times",
        network::kafka_distant,
    ),
    in_all(
        "kafka-slow-reader",
        "network to Kafka: 100 kB/s",
        network::kafka_slow_reader,
    ),
    in_all(
        "kafka-lossy",
        "network to Kafka: 1 % of the chunks late by a retransmission",
        network::kafka_lossy,
    ),
    in_subset(
        "postgres-fast",
        "Postgres: restarted `fast`, 3 times",
        |ctx| postgres::restarted(ctx, Shutdown::Fast),
    ),
    in_subset(
        "postgres-immediate",
        "Postgres: restarted `immediate`, 3 times",
        |ctx| postgres::restarted(ctx, Shutdown::Immediate),
    ),
    in_all(
        "walsender-terminated",
        "Postgres: walsender terminated, 6 times",
        postgres::walsender_terminated,
    ),
    in_all(
        "no-slot-free",
        "Postgres: `max_replication_slots` exhausted",
        postgres::no_slot_free,
    ),
    in_all(
        "publication-dropped",
        "Postgres: publication dropped mid-stream: stops",
        postgres::publication_dropped,
    ),
    in_subset(
        "postgres-cut",
        "network to Postgres: cut by FIN and RST, twice each",
        network::postgres_cut,
    ),
    in_all(
        "postgres-reset-in-frame",
        "network to Postgres: reset in mid-frame, 6 times",
        network::postgres_reset_in_frame,
    ),
    in_all(
        "postgres-stalled",
        "network to Postgres: silent for longer than `wal_sender_timeout`, twice",
        network::postgres_stalled,
    ),
    in_all(
        "postgres-half-open",
        "network to Postgres: half-open and half-closed, each direction",
        network::postgres_half_open,
    ),
    in_all(
        "postgres-forgotten",
        "network to Postgres: the old connections silent for ever, new ones work",
        network::postgres_forgotten,
    ),
    in_all(
        "postgres-delayed",
        "network to Postgres: 200 ms each way",
        network::postgres_delayed,
    ),
    in_all(
        "look-at-a-distance-60",
        "network to Postgres: 60 ms each way, a table out of the publication",
        |ctx| distance::looks(ctx, Duration::from_millis(60)),
    ),
    in_all(
        "look-at-a-distance-250",
        "network to Postgres: 250 ms each way, a table out of the publication",
        |ctx| distance::looks(ctx, Duration::from_millis(250)),
    ),
    in_all(
        "postgres-slow-reader",
        "network to Postgres: 100 kB/s",
        network::postgres_slow_reader,
    ),
    in_all(
        "postgres-lossy",
        "network to Postgres: 1 % of the chunks late by a retransmission",
        network::postgres_lossy,
    ),
    in_all(
        "large-transaction",
        "data: a transaction of 1,000,000 rows amid load",
        |ctx| data::large_transaction(ctx, 1_000_000),
    ),
    in_all(
        "two-large-transactions",
        "data: two transactions of 100,000 rows at once",
        |ctx| data::two_large_transactions(ctx, 100_000),
    ),
    in_all(
        "row-of-64-mb",
        "data: a row of 64 MB between small ones",
        data::row_of_64_mb,
    ),
    in_subset(
        "changed-and-truncated",
        "data: UPDATE, DELETE and TRUNCATE of the outbox",
        data::changed_and_truncated,
    ),
    in_all(
        "columns-changed",
        "data: columns added, renamed, retyped, dropped mid-stream; a routing column renamed: stops",
        data::columns_changed,
    ),
    in_subset(
        "odd-rows",
        "data: NULL keys and payloads, TOAST, logical messages, prepared transactions, savepoints",
        data::odd_rows,
    ),
    in_all(
        "bytea-payload",
        "data: bytea payloads with every byte, which arrive in base64",
        data::bytea_payload,
    ),
    in_all(
        "partitioned-root",
        "data: a partitioned outbox, `publish_via_partition_root`",
        |ctx| data::partitioned(ctx, true),
    ),
    in_all(
        "partitioned",
        "data: a partitioned outbox by its partitions' names",
        |ctx| data::partitioned(ctx, false),
    ),
    in_all(
        "two-tables",
        "data: two outbox tables in one publication",
        data::two_tables,
    ),
    in_all(
        "idle",
        "idle: other tables take 30 MB, the outbox is silent",
        postgres::idle,
    ),
    Scenario {
        versions: FAILOVER_SLOTS,
        ..in_all(
            "failover-synced",
            "SIGKILL of the primary, a standby with a copy of the slot promoted; the relay has both in its list of hosts",
            failover::synced,
        )
    },
    Scenario {
        versions: FAILOVER_SLOTS,
        ..in_all(
            "failover-synced-address-moves",
            "The same, behind one address that leads to the standby before it is promoted",
            failover::moved_address,
        )
    },
    Scenario {
        versions: FAILOVER_SLOTS,
        ..in_all(
            "failover-synced-relay-killed",
            "The same, the relay killed too and started after the promotion",
            failover::relay_too,
        )
    },
    Scenario {
        versions: FAILOVER_SLOTS,
        ..in_all(
            "failover-synced-lagging",
            "The same with a standby that lags and without `synchronized_standby_slots`: what the new primary has is judged, not what it lacks",
            failover::diverged,
        )
    },
    Scenario {
        versions: STANDBY_SLOTS,
        ..in_all(
            "promoted-under-the-stream",
            "the relay reads a slot of the standby, which is promoted under the stream; then its walsender is terminated, and it is started again",
            failover::promoted_under_the_stream,
        )
    },
    in_all(
        "failover-without-slot",
        "SIGKILL of the primary, a standby without a copy of the slot promoted: the relay stops, names the range and makes no slot, nor does one that is started",
        failover::without_slot,
    ),
];
