//! The items of `walrelay check`.

use std::sync::Arc;

use walrelay_failure::{Chain, Exit, ToFailure as _};
use walrelay_sink_client::{ConnectError, Connected as _, run_apart};
use walrelay_sink_kind::check::{Check, CheckInput, SinkChecks, Verdict, shortened};

use crate::client::Login;
use crate::client::cluster::SlotMap;
use crate::client::error::{ProtocolError, RedisError};
use crate::client::link::Link;
use crate::client::refusal::{Refusal, code, meaning};
use crate::client::resp::{Reply, put_command};
use crate::client::sentinel::Sentinel;
use crate::sink::{Settings, Wait};

const SENTINEL: &str = "redis-sentinel";
const LOGIN: &str = "redis-login";
const CLUSTER: &str = "redis-cluster";
const SERVER: &str = "redis-server";
const MEMORY: &str = "redis-memory";
const DURABILITY: &str = "redis-durability";
const STREAMS: &str = "redis-streams";
const RIGHTS: &str = "redis-rights";
const DEAD_LETTERS: &str = "redis-dead-letters";

/// The items, in the order of the report.
pub(crate) const ITEMS: [&str; 9] = [
    SENTINEL,
    LOGIN,
    CLUSTER,
    SERVER,
    MEMORY,
    DURABILITY,
    STREAMS,
    RIGHTS,
    DEAD_LETTERS,
];

/// Streams that are looked at, at most.
const MAX_STREAMS: usize = 100;
/// Names that a finding lists, at most.
const LISTED: usize = 5;
/// The oldest version that has all that the sink uses.
const OLDEST: u32 = 7;

/// Logs in, and looks at the server, the streams and the rights.
pub(crate) fn check(login: &Arc<Login>, settings: &Settings, input: &CheckInput<'_>) -> SinkChecks {
    let checked = run_apart(|| run(login, settings, input));
    checked.unwrap_or_else(|error| vec![(LOGIN, failed(&error.into()))])
}

/// Returns why no dead letter can be written to this stream; `None` if one can be, or if the server reports nothing.
pub(crate) fn dead_letter_obstacle(login: &Arc<Login>, stream: &str) -> Option<String> {
    let check = async || {
        let link = Link::connect(login, 0).await?;
        let mut server = Server { link, login };
        server.dead_letters(stream).await
    };
    let check = run_apart(check).ok()?.ok()?;
    matches!(check.verdict, Verdict::Fail { .. }).then_some(check.finding)
}

/// Returns the settings by which a server that is used may lose acknowledged entries; `None` if a
/// server does not answer, or does not show them to the user.
pub(crate) fn risks(login: &Arc<Login>) -> Option<Vec<Check>> {
    let check = async || {
        let link = Link::connect(login, 0).await?;
        let mut server = Server { link, login };
        let mut found = Vec::new();
        for number in 0..server.link.names().count() {
            let Some(info) = server.info(number).await? else {
                return Ok(None);
            };
            let kept = [memory(Some(&info)), persistence(&info)];
            let named = kept.map(|check| server.named(number, check));
            found.extend(named);
        }
        found.retain(|check| check.verdict != Verdict::Pass);
        Ok::<_, RedisError>(Some(found))
    };
    run_apart(check).ok()?.ok()?
}

fn failed(error: &RedisError) -> Check {
    Check::failed(error.to_failure())
}

async fn run(login: &Arc<Login>, settings: &Settings, input: &CheckInput<'_>) -> SinkChecks {
    let mut checks = Vec::new();
    let mut first = 0;
    if let Some(sentinel) = &login.sentinel {
        let (check, named) = sentinels(login, sentinel).await;
        // Another one may be set up in a wrong way, which is shown already.
        first = named;
        let is_failed = matches!(check.verdict, Verdict::Fail { .. });
        checks.push((SENTINEL, check));
        if is_failed {
            return checks;
        }
    }
    let link = match Link::connect(login, first).await {
        Ok(link) => link,
        Err(error @ RedisError::Cluster { .. }) => {
            checks.push((CLUSTER, failed(&error)));
            return checks;
        }
        Err(error) => {
            checks.push((LOGIN, failed(&error)));
            return checks;
        }
    };
    let found = format!("{} accepts the login", link.address());
    checks.push((LOGIN, Check::pass(found)));
    if let Some(map) = link.map() {
        checks.push((CLUSTER, cluster(map, settings.wait.replicas)));
    }
    let mut server = Server { link, login };
    let others = server.others(settings, input).await;
    match others {
        Ok(others) => checks.extend(others),
        Err(error) => checks.push((SERVER, failed(&error))),
    }
    checks
}

/// Asks each sentinel for the master. Returns the number of the first that names one, too.
async fn sentinels(login: &Login, sentinel: &Sentinel) -> (Check, usize) {
    let (mut named, mut errors, mut first) = (Vec::new(), Vec::new(), None);
    for ((host, port), number) in login.servers.hosts.iter().zip(0..) {
        match sentinel.look_up(&login.servers, host, *port).await {
            Ok((master, at)) => {
                named.push(format!("{master}:{at}"));
                first.get_or_insert(number);
            }
            Err(error) => errors.push(error),
        }
    }
    let asked = login.servers.hosts.len();
    let judged = judged(&sentinel.master, asked, &named, errors);
    (judged, first.unwrap_or_default())
}

/// Judges the answers of so many sentinels about a master.
fn judged(name: &str, asked: usize, named: &[String], mut errors: Vec<RedisError>) -> Check {
    let Some(master) = named.first() else {
        let none = "no sentinel is configured".to_owned();
        let none = || ConnectError::Settings(none).into();
        return failed(&errors.pop().unwrap_or_else(none));
    };
    if let Some(other) = named.iter().find(|it| *it != master) {
        return Check::warn(
            format!("sentinels name {master} and {other} as the master {name}"),
            "wait for the end of a failover, and see that the sentinels reach each other",
        );
    }
    let found = format!(
        "{} of {asked} sentinels name {master} as the master {name}",
        named.len()
    );
    match errors.first() {
        None => Check::pass(found),
        Some(error) => Check::warn(
            format!("{found}; {}", Chain(error)),
            "see that each host in sentinels of [sink.redis] runs a sentinel that knows the master",
        ),
    }
}

/// Judges the slots of a cluster, and its replicas.
fn cluster(map: &SlotMap, wait_replicas: u32) -> Check {
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

struct Server<'a> {
    link: Link,
    login: &'a Login,
}

/// The state of a stream, as far as the user may see it.
struct StreamState {
    /// The key exists and is no stream.
    wrong_type: bool,
    /// The command that the user may not use, and the code of the refusal.
    denied: Option<(&'static str, String)>,
}

impl Server<'_> {
    /// Names the server of a finding, if there are several.
    fn named(&self, number: usize, mut check: Check) -> Check {
        if self.link.map().is_some() {
            check.finding = format!("{}: {}", self.link.name(number), check.finding);
        }
        check
    }

    async fn others(
        &mut self,
        settings: &Settings,
        input: &CheckInput<'_>,
    ) -> Result<SinkChecks, RedisError> {
        let (mut servers, mut memories, mut disks) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..self.link.names().count() {
            let info = self.info(number).await?;
            let info = info.as_deref();
            let sync = self.setting(number, "appendfsync").await?;
            let bulk = self.setting(number, "proto-max-bulk-len").await?;
            let mut is = server(info, self.link.map().is_some());
            if is.verdict == Verdict::Pass
                && let Some(short) = short_bulk(bulk.as_deref(), settings.max_message)
            {
                is = short;
            }
            servers.push(self.named(number, is));
            memories.push(self.named(number, memory(info)));
            let disk = durability(info, sync.as_deref(), settings.wait);
            disks.push(self.named(number, disk));
        }
        let judged = [(SERVER, servers), (MEMORY, memories), (DURABILITY, disks)];
        let worst = judged.map(|(item, checks)| Some((item, worst(checks)?)));
        let mut checks: SinkChecks = worst.into_iter().flatten().collect();
        let (mut streams, mut others) = (Vec::new(), Vec::new());
        let (mut allowed, mut denied) = (Vec::new(), Vec::new());
        for name in input.topics.iter().take(MAX_STREAMS) {
            if self.link.place(name).is_err() {
                // The item of the cluster warns of it.
                continue;
            }
            let state = self.stream(name).await?;
            let list = if state.wrong_type {
                &mut others
            } else {
                &mut streams
            };
            list.push(format!("{name:?}"));
            match state.denied {
                Some((command, code)) => denied.push(format!("{name:?} ({command}: {code})")),
                None => allowed.push(format!("{name:?}")),
            }
        }
        checks.push((STREAMS, types(streams, others)));
        checks.push((RIGHTS, rights(allowed, denied)));
        if let Some(name) = input.dead_letters {
            checks.push((DEAD_LETTERS, self.dead_letters(name).await?));
        }
        Ok(checks)
    }

    async fn one(&mut self, number: usize, arguments: &[&str]) -> Result<Reply, RedisError> {
        let mut out = Vec::new();
        put_command(&mut out, arguments);
        let connection = self.link.open(number).await?;
        let mut replies = connection.call(&out, 1, self.login.servers.timeout).await?;
        let none = ProtocolError("no reply");
        replies.pop().ok_or_else(|| connection.protocol(none))
    }

    /// Returns a server's report on itself; `None` if the user may not ask.
    async fn info(&mut self, number: usize) -> Result<Option<String>, RedisError> {
        Ok(match self.one(number, &["INFO"]).await? {
            Reply::String(Some(info)) => Some(String::from_utf8_lossy(&info).into_owned()),
            _ => None,
        })
    }

    /// Returns a setting; `None` if the user may not ask.
    async fn setting(&mut self, number: usize, name: &str) -> Result<Option<String>, RedisError> {
        let reply = self.one(number, &["CONFIG", "GET", name]).await?;
        Ok(match reply {
            Reply::Array(Some(pair)) => match &*pair {
                [_, Reply::String(Some(value))] => {
                    Some(String::from_utf8_lossy(value).into_owned())
                }
                _ => None,
            },
            _ => None,
        })
    }

    /// Tries the commands of the sink in a way that changes nothing: no entry has the id `0-0`, and
    /// none can get it.
    async fn stream(&mut self, name: &str) -> Result<StreamState, RedisError> {
        let mut state = StreamState {
            wrong_type: false,
            denied: None,
        };
        let number = self.link.place(name)?.server;
        let commands: [&[&str]; 5] = [
            &["XADD", name, "0-0", "field", "value"],
            &["XRANGE", name, "0-0", "0-0"],
            &["XINFO", "STREAM", name],
            &["MULTI"],
            &["EXEC"],
        ];
        for (command, label) in
            commands
                .into_iter()
                .zip(["XADD", "XRANGE", "XINFO STREAM", "MULTI", "EXEC"])
        {
            let Reply::Error(text) = self.one(number, command).await? else {
                continue;
            };
            state.wrong_type |= text.starts_with(b"WRONGTYPE");
            if meaning(&text) == Refusal::Denied && state.denied.is_none() {
                state.denied = Some((label, code(&text)));
            }
        }
        Ok(state)
    }

    async fn dead_letters(&mut self, name: &str) -> Result<Check, RedisError> {
        let state = self.stream(name).await?;
        let what = format!("dead letters go to the stream {name:?}");
        Ok(match state {
            StreamState {
                wrong_type: true, ..
            } => Check::fail(
                ("redis-wrong-type", Exit::Config),
                format!("{what}, whose key is no stream"),
                "change [poison] topic, or delete the key",
            ),
            StreamState {
                denied: Some((command, code)),
                ..
            } => Check::fail(
                ("redis-rights", Exit::Denied),
                format!("{what}, and the user may not write to it ({command}: {code})"),
                GRANT,
            ),
            _ => Check::pass(what),
        })
    }
}

const GRANT: &str = "give the user the rights: ACL SETUSER USER ~STREAM +ping +multi +exec +xadd \
                     +xrange +xinfo|stream";
const NO_INFO: &str = "give the user the right for the time of the check: ACL SETUSER USER +info";

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
fn worst(checks: Vec<Check>) -> Option<Check> {
    let rank = |check: &Check| match check.verdict {
        Verdict::Fail { .. } => 0,
        Verdict::Warn => 1,
        Verdict::Pass => 2,
    };
    checks.into_iter().min_by_key(rank)
}

/// Judges version and role of a server. `in_cluster`: it is to be a node of one.
fn server(info: Option<&str>, in_cluster: bool) -> Check {
    let Some(info) = info else {
        return unseen("the server's version");
    };
    let of = |name| member(info, name);
    let (name, version) = match of("valkey_version") {
        Some(version) => ("Valkey", version),
        None => (
            "Redis",
            of("redis_version").unwrap_or("of an unknown version"),
        ),
    };
    let major = version.split('.').next().and_then(|it| it.parse().ok());
    let shown = format!("{name} {version}");
    if major.is_some_and(|major: u32| major < OLDEST) {
        return Check::fail(
            ("redis-version", Exit::Config),
            format!("the server is {shown}, and {OLDEST}.0 is the oldest that can be used"),
            "use a newer server",
        );
    }
    if of("cluster_enabled") == Some("1") && !in_cluster {
        return Check::fail(
            ("redis-cluster", Exit::Config),
            format!("{shown} is a node of a cluster"),
            "set cluster = true in [sink.redis]",
        );
    }
    if of("role") == Some("slave") {
        return Check::fail(
            ("redis-replica", Exit::Unavailable),
            format!("{shown} is a replica, which accepts no writes"),
            "put its master before it in hosts of [sink.redis]",
        );
    }
    Check::pass(shown)
}

fn memory(info: Option<&str>) -> Check {
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
fn persistence(info: &str) -> Check {
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

const ON_DISK: &str =
    "CONFIG SET appendonly yes appendfsync always, and the same in its configuration";

fn durability(info: Option<&str>, sync: Option<&str>, wait: Wait) -> Check {
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
fn short_bulk(bulk: Option<&str>, max_message: u64) -> Option<Check> {
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

fn types(streams: Vec<String>, others: Vec<String>) -> Check {
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

fn rights(allowed: Vec<String>, denied: Vec<String>) -> Check {
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
