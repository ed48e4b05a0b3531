//! The scenarios.

use crate::context::Context;
use crate::outcome::Outcome;
use crate::{kafka_cluster, process};

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
        "SIGKILL of the relay at random moments, 8 times",
        |ctx| process::sigkill(ctx, 8),
    ),
    in_all(
        "sigkill",
        "SIGKILL of the relay at random moments, 100 times in one history",
        |ctx| process::sigkill(ctx, 100),
    ),
    in_subset("sigterm", "SIGTERM under load, 6 times", process::sigterm),
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
];
