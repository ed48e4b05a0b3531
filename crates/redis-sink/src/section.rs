//! `[sink.redis]`. The template of the stream is read by the configuration of the router.

use std::time::Duration;

use secrecy::SecretString;
use walrelay_settings::{
    AlreadyReported, MINUTE, Reader, SECOND, Section as _, boolean, choice, duration, integer,
    nested, secret, section, size, strings, text,
};
use walrelay_sink_client::{TlsFiles, address_fault, host_and_port};

/// The ids of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// The position of the event in the WAL.
    Position,
    /// The server makes them.
    Server,
}

const IDS: &[(&str, Ids)] = &[("position", Ids::Position), ("server", Ids::Server)];

section! {
/// `[sink.redis]`.
#[derive(Debug, Clone)]
pub struct RedisSection at "sink.redis" {
    /// Hosts, each with a port if it is not 6379; they or `sentinels` are required with `kind = "redis"`. The first that answers and accepts writes is used.
    "hosts" hosts: Vec<String> = strings().or_empty();
    /// Instead of `hosts`: the sentinels, each with a port if it is not 26379, which are asked for the address of `master` before each connection.
    "sentinels" sentinels: Vec<String> = strings().or_empty();
    /// Whether `hosts` are nodes of a Redis Cluster, some or all of them. Each stream is one key, hence in one slot.
    "cluster" cluster: bool = boolean().or("false");
    /// The name under which the sentinels know the master.
    "master" master: Option<String> = text(name).optional();
    /// The user of an access control list of the sentinels. Unset: their default user.
    "sentinel_username" sentinel_username: Option<String> = text(name).optional();
    /// The password of the sentinels. Unset: the relay does not log in there.
    "sentinel_password" sentinel_password: Option<SecretString> = secret(|_| Ok(())).optional();
    /// The user of an access control list. Unset: the default user.
    "username" username: Option<String> = text(name).optional();
    /// The password. Unset: the relay does not log in.
    "password" password: Option<SecretString> = secret(|_| Ok(())).optional();
    /// Whether the connection is encrypted, and the server's certificate verified.
    "tls" tls: bool = boolean().or("false");
    /// The files of TLS.
    "" files: TlsFiles = nested::<TlsFiles>();
    /// The ids of entries. `position`: the event's position in the WAL, so that the server refuses repeats. `server`: the server's clock.
    "ids" ids: Ids = choice(IDS).or("position");
    /// The replicas that must have an event before it counts as delivered (`WAIT`), at most 100.
    "wait_replicas" wait_replicas: u32 = integer::<u32>(0..=100).or("0");
    /// Whether an event counts as delivered only when it is on the server's disk, and on that of `wait_replicas` (`WAITAOF`: Redis 7.2, `appendonly yes`).
    "wait_fsync" wait_fsync: bool = boolean().or("false");
    /// How long the server waits for them before it reports their number, 10ms to 1m. Then it is asked again.
    "wait_timeout" wait_timeout: Duration = duration(SECOND / 100..=MINUTE).or("1s");
    /// The server's `proto-max-bulk-len`, or less: events with more bytes of key, value, headers, id and the stream's name are oversize.
    "max_message_size" max_message_size: u64 = size(1..=(512 << 20)).or("16MiB");
    /// How long an answer may take before the connection is replaced, 1s to 10m.
    "reply_timeout" reply_timeout: Duration = duration(SECOND..=MINUTE * 10).or("30s");
    /// How long connecting may take, and the answer to the login, 1s to 1m.
    "connect_timeout" connect_timeout: Duration = duration(SECOND..=MINUTE).or("10s");
}
}

fn name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it cannot be empty".to_owned());
    }
    Ok(text.to_owned())
}

impl RedisSection {
    /// Reads the section. `in_use`: its combinations are checked.
    ///
    /// # Errors
    /// If a problem was reported to `reader`.
    pub fn read_for(reader: &mut Reader<'_>, in_use: bool) -> Result<Self, AlreadyReported> {
        let section = Self::read(reader)?;
        if !in_use {
            return Ok(section);
        }
        let at = |key: &str| format!("sink.redis.{key}");
        section.check_addresses(reader)?;
        for (username, password, key) in [
            (&section.username, &section.password, "password_file"),
            (
                &section.sentinel_username,
                &section.sentinel_password,
                "sentinel_password_file",
            ),
        ] {
            if username.is_some() && password.is_none() {
                return Err(reader.missing(&at(key), "\"/run/secrets/redis\""));
            }
        }
        section.files.check_identity(reader, Self::AT)?;
        let waits = section.wait_replicas > 0 || section.wait_fsync;
        if !waits && reader.has(&at("wait_timeout")) {
            let unless = "without `wait_replicas` and `wait_fsync`";
            return Err(reader.no_effect(&at("wait_timeout"), unless));
        }
        if !section.tls {
            TlsFiles::check_unused(reader, Self::AT, &["ca_file", "certificate_file"])?;
        }
        Ok(section)
    }

    fn check_addresses(&self, reader: &mut Reader<'_>) -> Result<(), AlreadyReported> {
        let at = |key: &str| format!("sink.redis.{key}");
        let (key, addresses, _) = self.addresses();
        if addresses.is_empty() {
            return Err(reader.missing(&at("hosts"), "[\"redis.internal:6379\"]"));
        }
        let mut addresses = addresses.iter();
        if let Some(what) = addresses.find_map(|it| address_fault(&at(key), it)) {
            return Err(reader.conflict(&at(key), what));
        }
        if self.sentinels.is_empty() {
            for key in [
                "master",
                "sentinel_username",
                "sentinel_password",
                "sentinel_password_file",
            ] {
                if reader.has(&at(key)) {
                    return Err(reader.no_effect(&at(key), "without `sentinels`"));
                }
            }
        } else {
            if !self.hosts.is_empty() {
                let unless = "with `sentinels`, which name the host";
                return Err(reader.no_effect(&at("hosts"), unless));
            }
            if self.cluster {
                let what =
                    "`cluster` and `sentinels` exclude each other: a cluster has no sentinels"
                        .to_owned();
                return Err(reader.conflict(&at("cluster"), what));
            }
            if self.master.is_none() {
                return Err(reader.missing(&at("master"), "\"mymaster\""));
            }
        }
        Ok(())
    }

    /// Returns what the relay connects to first, with its key and its default port.
    fn addresses(&self) -> (&'static str, &[String], u16) {
        if self.sentinels.is_empty() {
            ("hosts", &self.hosts, DEFAULT_PORT)
        } else {
            ("sentinels", &self.sentinels, SENTINEL_PORT)
        }
    }

    /// Returns host and port of the servers, some nodes of the cluster, or the sentinels.
    pub(crate) fn hosts(&self) -> Vec<(String, u16)> {
        let (_, addresses, port) = self.addresses();
        let hosts = addresses.iter().filter_map(|it| host_and_port(it, port));
        hosts.collect()
    }
}

const DEFAULT_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
