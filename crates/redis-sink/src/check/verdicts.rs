//! Judges the answers of the servers: the verdicts of `walrelay check`.

use walrelay_failure::{Chain, Exit, ToFailure as _};
use walrelay_sink_client::ConnectError;
use walrelay_sink_kind::check::{Check, Verdict, shortened};

use crate::client::cluster::SlotMap;
use crate::client::error::RedisError;
use crate::sink::Wait;

pub(super) const GRANT: &str = "give the user the rights: ACL SETUSER USER ~STREAM +ping +multi +exec +xadd \
                     +xrange +xinfo|stream";

const NO_INFO: &str = "give the user the right for the time of the check: ACL SETUSER USER +info";
const ON_DISK: &str =
    "CONFIG SET appendonly yes appendfsync always, and the same in its configuration";

/// Names that a finding lists, at most.
const LISTED: usize = 5;
/// The oldest version that has all that the sink uses.
const OLDEST: u32 = 7;

pub(super) fn failed(error: &RedisError) -> Check {
    Check::failed(error.to_failure())
}

/// Judges the answers of so many sentinels about a master.
pub(super) fn sentinels(
    name: &str,
    asked: usize,
    named: &[String],
    mut errors: Vec<RedisError>,
) -> Check {
    let Some(master) = named.first() else {
        let unconfigured = || ConnectError::Settings("no sentinel is configured".to_owned()).into();
        return failed(&errors.pop().unwrap_or_else(unconfigured));
    };
    if let Some(other) = named.iter().find(|address| *address != master) {
        return Check::warn(
            format!("sentinels name {master} and {other} as the master {name}"),
            "wait for the end of a failover, and see that the sentinels reach each other",
        );
    }
    let finding = format!(
        "{} of {asked} sentinels name {master} as the master {name}",
        named.len()
    );
    match errors.first() {
        None => Check::pass(finding),
        Some(error) => Check::warn(
            format!("{finding}; {}", Chain(error)),
            "see that each host in sentinels of [sink.redis] runs a sentinel that knows the master",
        ),
    }
}

/// Judges the slots of a cluster, and its replicas.
pub(super) fn cluster(map: &SlotMap, wait_replicas: u32) -> Check {
    let unserved = map.unserved();
    if unserved > 0 {
        return Check::warn(
            format!("no node of the cluster serves {unserved} slots: events of their streams wait"),
            "give each slot a node: redis-cli --cluster fix HOST:PORT",
        );
    }
    let masters = map.masters();
    let fewest = masters.iter().min_by_key(|master| master.replicas.len());
    let count = masters.len();
    let Some(fewest) = fewest else {
        return Check::pass("the cluster has no node with a slot");
    };
    let (replicas, (host, port)) = (fewest.replicas.len(), &fewest.address);
    if replicas < wait_replicas as usize {
        return Check::warn(
            format!("{host}:{port} has {replicas} replicas, and wait_replicas is {wait_replicas}"),
            "give each node with slots more replicas, or lower wait_replicas",
        );
    }
    Check::pass(format!(
        "{count} nodes serve all slots, each with {replicas} replicas or more"
    ))
}

/// Returns a member of the reply to INFO.
fn member<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn unseen(what: &str) -> Check {
    Check::warn(
        format!("{what} is not seen: the user may not use INFO"),
        NO_INFO,
    )
}

/// Returns the first check that has failed, else the first that warns, else the first.
pub(super) fn worst(checks: Vec<Check>) -> Option<Check> {
    let rank = |check: &Check| match check.verdict {
        Verdict::Fail { .. } => 0,
        Verdict::Warn => 1,
        Verdict::Pass => 2,
    };
    checks.into_iter().min_by_key(rank)
}

/// Judges version and role of a server. `in_cluster`: it is to be a node of one.
pub(super) fn server(info: Option<&str>, in_cluster: bool) -> Check {
    let Some(info) = info else {
        return unseen("the server's version");
    };
    let value = |name| member(info, name);
    let (name, version) = match value("valkey_version") {
        Some(version) => ("Valkey", version),
        None => (
            "Redis",
            value("redis_version").unwrap_or("of an unknown version"),
        ),
    };
    let major = version
        .split('.')
        .next()
        .and_then(|digits| digits.parse().ok());
    let shown = format!("{name} {version}");
    if major.is_some_and(|major: u32| major < OLDEST) {
        return Check::fail(
            ("redis-version", Exit::Config),
            format!("the server is {shown}, and {OLDEST}.0 is the oldest that can be used"),
            "use a newer server",
        );
    }
    if value("cluster_enabled") == Some("1") && !in_cluster {
        return Check::fail(
            ("redis-cluster", Exit::Config),
            format!("{shown} is a node of a cluster"),
            "set cluster = true in [sink.redis]",
        );
    }
    if value("role") == Some("slave") {
        return Check::fail(
            ("redis-replica", Exit::Unavailable),
            format!("{shown} is a replica, which accepts no writes"),
            "put its master before it in hosts of [sink.redis]",
        );
    }
    Check::pass(shown)
}

pub(super) fn memory(info: Option<&str>) -> Check {
    let policy = info.and_then(|info| member(info, "maxmemory_policy"));
    let Some(policy) = policy else {
        return unseen("maxmemory-policy");
    };
    if policy.starts_with("volatile-") {
        return Check::warn(
            format!(
                "maxmemory-policy is {policy}: the server may evict streams that were given a time to live"
            ),
            "give no stream a time to live (EXPIRE), or CONFIG SET maxmemory-policy noeviction",
        );
    }
    if policy != "noeviction" {
        return Check::fail(
            ("redis-eviction", Exit::Config),
            format!("maxmemory-policy is {policy}: the server may evict streams with their events"),
            "CONFIG SET maxmemory-policy noeviction, and the same in its configuration",
        );
    }
    Check::pass("maxmemory-policy is noeviction")
}

/// Judges whether events survive the end of the server.
pub(super) fn persistence(info: &str) -> Check {
    if member(info, "aof_enabled") == Some("0") {
        return Check::warn(
            "appendonly is no: events that were delivered are lost if the server ends",
            ON_DISK,
        );
    }
    Check::pass("appendonly is yes")
}

/// Judges whether what the relay waits for can come.
fn waits(info: &str, wait: Wait) -> Option<Check> {
    if wait.fsync && member(info, "aof_enabled") == Some("0") {
        return Some(Check::fail(
            ("redis-durability", Exit::Config),
            "appendonly is no, and wait_fsync is true: no event counts as delivered",
            ON_DISK,
        ));
    }
    let replicas: u32 = member(info, "connected_slaves")?.parse().ok()?;
    (replicas < wait.replicas).then(|| {
        Check::fail(
            ("redis-durability", Exit::Unavailable),
            format!(
                "{replicas} replicas are connected, and wait_replicas is {}: no event counts as \
                 delivered",
                wait.replicas
            ),
            "start the replicas, or lower wait_replicas in [sink.redis]",
        )
    })
}

pub(super) fn durability(info: Option<&str>, sync: Option<&str>, wait: Wait) -> Check {
    let Some(info) = info.filter(|info| member(info, "aof_enabled").is_some()) else {
        return unseen("appendonly");
    };
    if let Some(failed) = waits(info, wait) {
        return failed;
    }
    let persistence = persistence(info);
    match sync {
        _ if persistence.verdict != Verdict::Pass => persistence,
        Some("always") => Check::pass("the server writes to its disk before it answers"),
        Some(_) if wait.fsync => {
            Check::pass("the relay waits until the server has written to its disk")
        }
        Some(sync) => Check::warn(
            format!(
                "appendfsync is {sync}: the last events that were delivered are lost if the \
                 server's machine ends"
            ),
            ON_DISK,
        ),
        None => Check::warn(
            "appendfsync is not seen: the user may not use CONFIG GET",
            "look at it by hand: always means that delivered entries are on disk",
        ),
    }
}

/// Compares the largest argument that the server accepts with the limit of the configuration.
pub(super) fn short_bulk(bulk: Option<&str>, max_message: u64) -> Option<Check> {
    let bulk: u64 = bulk?.parse().ok()?;
    (bulk < max_message).then(|| {
        Check::warn(
            format!(
                "max_message_size is {max_message}, and the server's proto-max-bulk-len is {bulk}"
            ),
            "lower max_message_size in [sink.redis], or raise proto-max-bulk-len of the server",
        )
    })
}

pub(super) fn types(streams: Vec<String>, others: Vec<String>) -> Check {
    if !others.is_empty() {
        let others = shortened(others, LISTED).join(", ");
        return Check::fail(
            ("redis-wrong-type", Exit::Config),
            format!("keys that are no streams: {others}"),
            "change stream in [sink.redis], or delete the keys",
        );
    }
    if streams.is_empty() {
        return Check::pass("no stream is known before the first event");
    }
    let streams = shortened(streams, LISTED).join(", ");
    Check::pass(format!("streams, or keys that do not exist yet: {streams}"))
}

pub(super) fn rights(allowed: Vec<String>, denied: Vec<String>) -> Check {
    if !denied.is_empty() {
        let denied = shortened(denied, LISTED).join(", ");
        return Check::fail(
            ("redis-rights", Exit::Denied),
            format!("the user may not write to {denied}"),
            GRANT,
        );
    }
    if allowed.is_empty() {
        return Check::pass("no stream is known to be written to");
    }
    let allowed = shortened(allowed, LISTED).join(", ");
    Check::pass(format!("the user may write to {allowed}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id(check: &Check) -> &'static str {
        match check.verdict {
            Verdict::Fail { id, .. } => id,
            ref other => other.name(),
        }
    }

    #[test]
    fn what_the_server_says_of_itself_is_judged() {
        for (info, expected) in [
            (None, "warn"),
            (Some("redis_version:7.0.15\r\nrole:master\r\n"), "pass"),
            (
                Some("redis_version:6.2.7\r\nrole:master\r\n"),
                "redis-version",
            ),
            (
                Some("redis_version:7.2.4\r\nvalkey_version:8.1.8\r\n"),
                "pass",
            ),
            (
                Some("redis_version:7.0.15\r\nrole:slave\r\n"),
                "redis-replica",
            ),
            (
                Some("redis_version:8.0.0\r\ncluster_enabled:1\r\n"),
                "redis-cluster",
            ),
        ] {
            assert_eq!(id(&server(info, false)), expected, "{info:?}");
        }
        let valkey = server(
            Some("redis_version:7.2.4\r\nvalkey_version:8.1.8\r\ncluster_enabled:1\r\n"),
            true,
        );
        assert_eq!(valkey.finding, "Valkey 8.1.8");
    }

    #[test]
    fn eviction_and_what_is_not_on_disk_are_named() {
        let policy = |policy: &str| id(&memory(Some(&format!("maxmemory_policy:{policy}\r\n"))));
        assert_eq!(policy("noeviction"), "pass");
        assert_eq!(policy("allkeys-lru"), "redis-eviction");
        assert_eq!(policy("volatile-lru"), "warn");
        assert_eq!(id(&memory(None)), "warn");
        let wait = |replicas, fsync| Wait {
            replicas,
            fsync,
            timeout: Duration::ZERO,
        };
        for (info, sync, wait, verdict, words) in [
            (
                "aof_enabled:1",
                Some("always"),
                wait(0, false),
                "pass",
                "before it answers",
            ),
            (
                "aof_enabled:1",
                Some("everysec"),
                wait(0, false),
                "warn",
                "everysec",
            ),
            (
                "aof_enabled:1",
                Some("everysec"),
                wait(0, true),
                "pass",
                "waits",
            ),
            ("aof_enabled:1", None, wait(0, false), "warn", "not seen"),
            (
                "aof_enabled:0",
                Some("always"),
                wait(0, false),
                "warn",
                "appendonly",
            ),
            (
                "aof_enabled:0",
                Some("always"),
                wait(0, true),
                "redis-durability",
                "wait_fsync",
            ),
            (
                "connected_slaves:1\r\naof_enabled:1",
                Some("always"),
                wait(2, false),
                "redis-durability",
                "1 replicas are connected, and wait_replicas is 2",
            ),
        ] {
            let check = durability(Some(info), sync, wait);
            assert_eq!(id(&check), verdict, "{info} {check:?}");
            assert!(check.finding.contains(words), "{check:?}");
        }
        assert_eq!(id(&durability(None, None, wait(0, false))), "warn");
        assert!(short_bulk(Some("1000"), 1000).is_none());
        assert!(short_bulk(Some("999"), 1000).is_some());
    }
}
