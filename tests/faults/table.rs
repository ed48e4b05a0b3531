//! The scenarios.

use std::time::Duration;

use walrelay_throwaway::Shutdown;

use crate::context::Context;
use crate::destination::Kind;
use crate::handover::Displaced;
use crate::kafka_cluster::{Loss, Mode};
use crate::outcome::Outcome;
use crate::{
    cuts, data, distance, failover, given_up, handover, kafka_cluster, network, postgres, process,
    replays, rollbacks, rows, sink, snapshots, takeover,
};

/// One fault, or several of a kind.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Line of the catalogue of faults, in the words of the report.
    pub(crate) covers: &'static str,
    /// Whether `make test` runs it too.
    pub(crate) subset: bool,
    /// Whether no other scenario may run meanwhile, because its outcome is a time.
    pub(crate) alone: bool,
    /// Sinks that it runs with.
    pub(crate) sinks: Sinks,
    /// Versions of Postgres that it runs on.
    pub(crate) versions: &'static [u32],
    pub(crate) run: fn(&mut Context) -> Outcome,
}

/// The sinks of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sinks {
    /// Kafka, because the fault is one of Kafka's or of Postgres' alone.
    Kafka,
    /// All.
    Every,
    /// All but Kafka.
    Others,
    /// Kafka, and those whose servers store no event a second time.
    KafkaAndRefusing,
}

impl Sinks {
    pub(crate) fn include(self, sink: Kind) -> bool {
        match self {
            Self::Kafka => sink == Kind::Kafka,
            Self::Every => true,
            Self::Others => sink != Kind::Kafka,
            Self::KafkaAndRefusing => matches!(sink, Kind::Kafka | Kind::Redis | Kind::Nats { .. }),
        }
    }
}

/// All supported versions.
pub(crate) const ALL: &[u32] = &[14, 15, 16, 17, 18];

/// For scenarios about Kafka, in which Postgres only feeds the relay.
const OLDEST_AND_NEWEST: &[u32] = &[14, 18];
const NEWEST: &[u32] = &[18];
/// Versions of the subset, which `make test` has fetched. Its scenarios take turns.
pub(crate) const SUBSET: &[u32] = &[15, 18];
/// Versions whose standbys decode.
const STANDBY_SLOTS: &[u32] = &[16, 17, 18];
/// Versions whose standbys have copies of slots.
const FAILOVER_SLOTS: &[u32] = &[17, 18];

impl Scenario {
    /// A scenario for all versions, which `make test` leaves out.
    const fn new(
        name: &'static str,
        covers: &'static str,
        run: fn(&mut Context) -> Outcome,
    ) -> Self {
        Self {
            name,
            covers,
            subset: false,
            alone: false,
            sinks: Sinks::Kafka,
            versions: ALL,
            run,
        }
    }

    const fn on(mut self, versions: &'static [u32]) -> Self {
        self.versions = versions;
        self
    }

    const fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    const fn every_sink(mut self) -> Self {
        self.sinks = Sinks::Every;
        self
    }

    const fn other_sinks(mut self) -> Self {
        self.sinks = Sinks::Others;
        self
    }

    const fn refusing_sinks(mut self) -> Self {
        self.sinks = Sinks::KafkaAndRefusing;
        self
    }

    const fn subset(mut self) -> Self {
        self.subset = true;
        self
    }
}

/// Makes the list of rows: name, marks if there are any, function, and what it covers.
macro_rules! scenarios {
    ($($name:literal $([$($mark:ident $(($versions:ident))?),*])? => $run:expr, $covers:literal;)*) => {
        &[$(Scenario::new($name, $covers, $run)$($(.$mark($($versions)?))*)?),*]
    };
}

/// In the order of the report. Names are lower case with hyphens.
pub(crate) const SCENARIOS: &[Scenario] = scenarios! {
    "sigkill-few" [subset, every_sink] => |ctx| process::sigkill(ctx, 8),
        "relay: SIGKILL at random moments, 8 times";
    "sigkill" => |ctx| process::sigkill(ctx, 100),
        "relay: SIGKILL at random moments mid-burst, 100 times in one history";
    "failpoints" [subset, every_sink] => |ctx| process::failpoints(ctx, 2),
        "relay: SIGKILL after read, after enqueue, after ack, after confirm, while draining; twice each";
    "sigterm" [subset, every_sink] => process::sigterm,
        "relay: SIGTERM, 6 times";
    "suspended" [every_sink] => process::suspended,
        "relay: SIGSTOP for less than `wal_sender_timeout` and for more, twice each";
    "descriptors" [subset] => process::out_of_descriptors,
        "relay: no file descriptor left when all connections are cut, twice";
    "log-disk-full" [subset] => process::log_disk_full,
        "relay: standard error is a full device";
    "clock-jumps" => process::clock_jumps,
        "relay: its clock jumps by days, there and back";
    "takeover-sigkill" [subset, alone, every_sink] => takeover::sigkill,
        "two relays on one slot: SIGKILL of the one that streams, 3 times";
    "takeover-sigterm" [alone, every_sink] => takeover::sigterm,
        "two relays on one slot: SIGTERM of the one that streams, 3 times";
    "takeover-vanished" [alone] => takeover::vanished,
        "two relays on one slot: the first one's machine vanishes without a word";
    "handover-few" [subset, every_sink] => |ctx| handover::in_turns(ctx, 5, false),
        "two relays on one slot: they lose it to each other by broken links, SIGTERM, SIGKILL and SIGSTOP, 5 times";
    "handover" => |ctx| handover::in_turns(ctx, 100, false),
        "two relays on one slot: they lose it to each other by broken links, SIGTERM, SIGKILL and SIGSTOP, 100 times";
    "handover-state-file" => |ctx| handover::in_turns(ctx, 20, true),
        "two relays on one slot with one state file: the same, 20 times";
    "displaced-links" [every_sink] => |ctx| handover::displaced(ctx, Displaced::BothLinks),
        "two relays on one slot: both links of the one that streams fall silent, and speak again behind the other's back";
    "displaced-postgres-link" [subset, refusing_sinks] => |ctx| handover::displaced(ctx, Displaced::PostgresLink),
        "two relays on one slot: the same with the link to Postgres alone";
    "displaced-stopped" [subset, refusing_sinks] => |ctx| handover::displaced(ctx, Displaced::Stopped),
        "two relays on one slot: the one that streams is stopped (SIGSTOP), and goes on behind the other's back";
    "given-up-half-written" [subset, every_sink] => |ctx| given_up::half_written(ctx, given_up::Loss::Stall),
        "two relays on one slot: both links of the one that streams fall silent within a request, which the other one repeats";
    "given-up-half-written-killed" [every_sink] => |ctx| given_up::half_written(ctx, given_up::Loss::Sigkill),
        "two relays on one slot: the same, and the one that streams is killed (SIGKILL)";
    "sink-down-at-start" [every_sink] => sink::down_at_start,
        "Kafka: down when the relay starts";
    "sink-killed" [subset, every_sink] => sink::killed,
        "Kafka: SIGKILL mid-batch, gone for longer than `wal_sender_timeout`, twice";
    "sink-paused" [every_sink] => sink::paused,
        "Kafka: stopped (SIGSTOP) for 3 s, twice";
    "sink-full" [other_sinks] => sink::full,
        "the queues are full, or every answer is 503, for 90,000 rows";
    "kafka-topic-missing" => sink::topic_missing,
        "Kafka: a topic is missing, auto-creation off, and appears";
    "kafka-leader-hangs" [on(OLDEST_AND_NEWEST)] => kafka_cluster::leader_hangs,
        "Three brokers: a partition's leader stopped (SIGSTOP) until another leads, then resumed";
    "kafka-leader-killed-once" [subset, on(NEWEST)] => |ctx| kafka_cluster::leader_killed(ctx, 1),
        "Three brokers: SIGKILL of a partition's leader; from the election of another";
    "kafka-leader-killed" => |ctx| kafka_cluster::leader_killed(ctx, 3),
        "Three brokers: SIGKILL of a partition's leader, then of the next, 3 times; from the election of another";
    "kafka-two-killed" [on(OLDEST_AND_NEWEST)] => kafka_cluster::two_killed,
        "Three brokers: SIGKILL of two, below `min.insync.replicas`, so that nothing may be confirmed; until one is back";
    "kafka-rolling-restart" [on(OLDEST_AND_NEWEST)] => kafka_cluster::rolling_restart,
        "Three brokers: each restarted in turn";
    "kafka-partition-down" [on(OLDEST_AND_NEWEST)] => kafka_cluster::partition_down,
        "Three brokers: one partition without any, the others with a leader; until it is back";
    "kafka-partition-down-in-bulk" [on(NEWEST)] => |ctx| kafka_cluster::partition_down_in_bulk(ctx, Loss::Killed, Mode::Throughput),
        "Three brokers: SIGKILL of one that alone leads a partition, in throughput mode; until it is back";
    "kafka-partition-hangs-in-bulk" [on(NEWEST)] => |ctx| kafka_cluster::partition_down_in_bulk(ctx, Loss::Hangs, Mode::Throughput),
        "Three brokers: one that alone leads a partition stopped (SIGSTOP) in throughput mode; until it is back";
    "kafka-partition-down-before-bulk" [on(NEWEST)] => |ctx| kafka_cluster::partition_down_in_bulk(ctx, Loss::Killed, Mode::Latency),
        "Three brokers: SIGKILL of one that alone leads a partition, then a backlog for the others; until it is back";
    "sink-cut" [subset, every_sink] => network::sink_cut,
        "network to Kafka: cut by FIN and RST, refused for a while";
    "sink-reset-in-frame" [every_sink] => network::sink_reset_in_frame,
        "network to Kafka: reset in mid-frame, 6 times";
    "sink-stalled" [every_sink] => network::sink_stalled,
        "network to Kafka: stalled, half-open and half-closed either way";
    "sink-delayed" [every_sink] => network::sink_delayed,
        "network to Kafka: 200 ms each way";
    "kafka-distant" [subset] => network::kafka_distant,
        "network to Kafka: 15 ms each way, cut and reset in answers, 12 times";
    "sink-slow-reader" [every_sink] => network::sink_slow_reader,
        "network to Kafka: 100 kB/s";
    "sink-lossy" [every_sink] => network::sink_lossy,
        "network to Kafka: 1 % of the chunks late by a retransmission";
    "postgres-fast" [subset, every_sink] => |ctx| postgres::restarted(ctx, Shutdown::Fast),
        "Postgres: restarted `fast`, 3 times";
    "postgres-immediate" [subset] => |ctx| postgres::restarted(ctx, Shutdown::Immediate),
        "Postgres: restarted `immediate`, 3 times";
    "walsender-terminated" => postgres::walsender_terminated,
        "Postgres: walsender terminated, 6 times";
    "no-slot-free" => postgres::no_slot_free,
        "Postgres: `max_replication_slots` exhausted";
    "publication-dropped" => postgres::publication_dropped,
        "Postgres: publication dropped mid-stream: stops";
    "postgres-cut" [subset, every_sink] => network::postgres_cut,
        "network to Postgres: cut by FIN and RST, twice each";
    "postgres-reset-in-frame" => network::postgres_reset_in_frame,
        "network to Postgres: reset in mid-frame, 6 times";
    "postgres-stalled" => network::postgres_stalled,
        "network to Postgres: silent for longer than `wal_sender_timeout`, twice";
    "postgres-half-open" => network::postgres_half_open,
        "network to Postgres: half-open and half-closed, each direction";
    "postgres-forgotten" => network::postgres_forgotten,
        "network to Postgres: the old connections silent for ever, new ones work";
    "postgres-delayed" => network::postgres_delayed,
        "network to Postgres: 200 ms each way";
    "look-at-a-distance-60" => |ctx| distance::looks(ctx, Duration::from_millis(60)),
        "network to Postgres: 60 ms each way, a table out of the publication";
    "look-at-a-distance-250" => |ctx| distance::looks(ctx, Duration::from_millis(250)),
        "network to Postgres: 250 ms each way, a table out of the publication";
    "postgres-slow-reader" => network::postgres_slow_reader,
        "network to Postgres: 100 kB/s";
    "postgres-lossy" => network::postgres_lossy,
        "network to Postgres: 1 % of the chunks late by a retransmission";
    "large-transaction" => |ctx| data::large_transactions(ctx, &["bulk"], 1_000_000),
        "data: a transaction of 1,000,000 rows amid load";
    "two-large-transactions" => |ctx| data::large_transactions(ctx, &["bulk", "other"], 100_000),
        "data: two transactions of 100,000 rows at once";
    "row-of-64-mb" => data::row_of_64_mb,
        "data: a row of 64 MB between small ones";
    "changed-and-truncated" [subset] => data::changed_and_truncated,
        "data: UPDATE, DELETE and TRUNCATE of the outbox";
    "columns-changed" => data::columns_changed,
        "data: columns added, renamed, retyped, dropped mid-stream; a routing column renamed: stops";
    "odd-rows" [subset] => data::odd_rows,
        "data: NULL keys and payloads, TOAST, logical messages, prepared transactions, savepoints";
    "bytea-payload" => data::bytea_payload,
        "data: bytea payloads with every byte, which arrive in base64";
    "partitioned-root" => |ctx| data::partitioned(ctx, true),
        "data: a partitioned outbox, `publish_via_partition_root`";
    "partitioned" => |ctx| data::partitioned(ctx, false),
        "data: a partitioned outbox by its partitions' names";
    "two-tables" => data::two_tables,
        "data: two outbox tables in one publication";
    "unpublished" [subset] => rows::unpublished,
        "data: rows are marked and deleted, and the publication loses the table for a while, between SIGKILL at random moments";
    "batches" [subset, every_sink] => |ctx| rows::batches(ctx, 8),
        "data: events in batches of `outbox.emit_all`, messages and rows of one transaction: SIGKILL at random moments, 8 times";
    "dead-rows-few" [subset] => |ctx| rows::dead_letters(ctx, 2),
        "data: rows of dead letters are marked as such, and others as sent; SIGKILL at random moments, twice";
    "dead-rows" => |ctx| rows::dead_letters(ctx, 8),
        "data: rows of dead letters are marked as such, and others as sent; SIGKILL at random moments, 8 times";
    "replay-killed" [subset] => |ctx| replays::replay_moving_slots(ctx, 6),
        "replays of what a slot or a bookmark is about to leave behind: SIGKILL of relay and replay at random moments, 6 ranges";
    "rollback-killed" [subset] => |ctx| rollbacks::killed(ctx, 2),
        "`cutover rollback` with unsent events, some without a row: SIGKILL of relay and rollback at random moments, twice";
    "cut-at-each-statement" [on(SUBSET)] => |ctx| cuts::each_statement(ctx, 3, None),
        "`init`, `run`, `cutover`, `slots`, `prune`: SIGKILL at each statement, then the next command that one would try; three rounds";
    "cut-at-some-statements" [subset, on(SUBSET)] => |ctx| cuts::each_statement(ctx, 1, Some(25)),
        "the same, at one statement of each command";
    "snapshot-rewritten" [subset] => |ctx| snapshots::rewritten(ctx, 5_000, 5),
        "a snapshot beside migrations that rewrite the table: SIGKILL at random moments, 5 times";
    "idle" => postgres::idle,
        "idle: other tables take 30 MB, the outbox is silent";
    "failover-synced" [on(FAILOVER_SLOTS)] => failover::synced,
        "SIGKILL of the primary, a standby with a copy of the slot promoted; the relay has both in its list of hosts";
    "failover-synced-address-moves" [on(FAILOVER_SLOTS)] => failover::moved_address,
        "The same, behind one address that leads to the standby before it is promoted";
    "failover-synced-relay-killed" [on(FAILOVER_SLOTS)] => failover::relay_too,
        "The same, the relay killed too and started after the promotion";
    "failover-synced-lagging" [on(FAILOVER_SLOTS)] => failover::diverged,
        "The same with a standby that lags and without `synchronized_standby_slots`: what the new primary has is judged, not what it lacks";
    "promoted-under-the-stream" [on(STANDBY_SLOTS)] => failover::promoted_under_the_stream,
        "the relay reads a slot of the standby, which is promoted under the stream; then its walsender is terminated, and it is started again";
    "failover-without-slot" => failover::without_slot,
        "SIGKILL of the primary, a standby without a copy of the slot promoted: the relay stops, names the range and makes no slot, nor does one that is started";
};
