//! The items of `walrelay check`: asks the servers. `verdicts` judges their answers.

mod verdicts;

use std::sync::Arc;

use walrelay_failure::Exit;
use walrelay_sink_client::{Connected as _, run_apart};
use walrelay_sink_kind::check::{Check, CheckInput, SinkChecks, Verdict};

use crate::client::Login;
use crate::client::error::{ProtocolError, RedisError};
use crate::client::link::Link;
use crate::client::refusal::{Refusal, code, meaning};
use crate::client::resp::{Reply, put_command};
use crate::client::sentinel::Sentinel;
use crate::sink::Settings;
use verdicts::{
    GRANT, cluster, durability, failed, memory, persistence, rights, server, short_bulk, types,
    worst,
};

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

/// Logs in, and looks at the server, the streams and the rights.
pub(crate) fn check(login: &Arc<Login>, settings: &Settings, input: &CheckInput<'_>) -> SinkChecks {
    let checked = run_apart(|| run(login, settings, input));
    checked.unwrap_or_else(|error| vec![(LOGIN, failed(&error.into()))])
}

/// Returns the reason that dead letters cannot be written to this stream; `None` if they can, or if the
/// server reports nothing.
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
        let mut risks = Vec::new();
        for number in 0..server.link.names().count() {
            let Some(info) = server.info(number).await? else {
                return Ok(None);
            };
            let checks = [memory(Some(&info)), persistence(&info)];
            let named = checks.map(|check| server.named(number, check));
            risks.extend(named);
        }
        risks.retain(|check| check.verdict != Verdict::Pass);
        Ok::<_, RedisError>(Some(risks))
    };
    run_apart(check).ok()?.ok()?
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
    let finding = format!("{} accepts the login", link.address());
    checks.push((LOGIN, Check::pass(finding)));
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
    let check = verdicts::sentinels(&sentinel.master, asked, &named, errors);
    (check, first.unwrap_or_default())
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
            let mut version = server(info, self.link.map().is_some());
            if version.verdict == Verdict::Pass
                && let Some(short) = short_bulk(bulk.as_deref(), settings.max_message)
            {
                version = short;
            }
            servers.push(self.named(number, version));
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
        let missing = ProtocolError("no reply");
        replies.pop().ok_or_else(|| connection.protocol(missing))
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
