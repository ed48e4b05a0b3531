//! `[sink.nats]`. The template of the subject is read by the configuration of the router.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use walrelay_settings::{
    AlreadyReported, MINUTE, Reader, SECOND, Section as _, boolean, duration, nested, path, secret,
    section, size, strings, text,
};
use walrelay_sink_client::{TlsFiles, address_fault};

use crate::client::jetstream::is_stream_name;

section! {
/// `[sink.nats]`.
#[derive(Debug, Clone)]
pub struct NatsSection at "sink.nats" {
    /// Hosts, each with a port if it is not 4222; required with `kind = "nats"`. The first that answers is used.
    "hosts" hosts: Vec<String> = strings().or_empty();
    /// The user.
    "username" username: Option<String> = text(name).optional();
    /// The user's password.
    "password" password: Option<SecretString> = secret(|_| Ok(())).optional();
    /// A token, instead of user and password.
    "token" token: Option<SecretString> = secret(|_| Ok(())).optional();
    /// A file of credentials (JWT and NKEY seed), or with only the seed of an NKEY.
    "credentials_file" credentials_file: Option<PathBuf> = path().optional();
    /// Whether the connection is encrypted, and the server's certificate verified.
    "tls" tls: bool = boolean().or("false");
    /// The files of TLS.
    "" files: TlsFiles = nested::<TlsFiles>();
    /// The stream's `max_msg_size` and the server's `max_payload`, or less: events with more bytes of headers and payload are oversize.
    "max_message_size" max_message_size: u64 = size(1..=(64 << 20)).or("1MiB");
    /// The stream that only this relay writes to. Each event carries the number and the id of the message it must follow, so the stream stores nothing late from a displaced relay.
    "exclusive_stream" exclusive_stream: Option<String> = text(stream).optional();
    /// How long an acknowledgement may take before the event is sent again, and a sign of the server before the connection is replaced, 1s to 10m.
    "ack_timeout" ack_timeout: Duration = duration(SECOND..=MINUTE * 10).or("10s");
    /// How long connecting may take, and each answer of the login, 1s to 1m.
    "connect_timeout" connect_timeout: Duration = duration(SECOND..=MINUTE).or("10s");
}
}

fn name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it cannot be empty".to_owned());
    }
    Ok(text.to_owned())
}

fn stream(text: &str) -> Result<String, String> {
    if is_stream_name(text) {
        return Ok(text.to_owned());
    }
    Err("a stream's name is not empty, and has no dot, blank, * or >".to_owned())
}

impl NatsSection {
    /// Reads the section. `in_use`: its combinations are checked.
    ///
    /// # Errors
    /// If a problem was reported to `reader`.
    pub fn read_for(reader: &mut Reader<'_>, in_use: bool) -> Result<Self, AlreadyReported> {
        let section = Self::read(reader)?;
        if !in_use {
            return Ok(section);
        }
        let at = |key: &str| format!("sink.nats.{key}");
        if section.hosts.is_empty() {
            return Err(reader.missing(&at("hosts"), "[\"nats.internal:4222\"]"));
        }
        let mut hosts = section.hosts.iter();
        if let Some(what) = hosts.find_map(|host| address_fault(&at("hosts"), host)) {
            return Err(reader.conflict(&at("hosts"), what));
        }
        if section.username.is_some() && section.password.is_none() {
            return Err(reader.missing(&at("password_file"), "\"/run/secrets/nats\""));
        }
        if section.password.is_some() && section.username.is_none() {
            return Err(reader.missing(&at("username"), "\"walrelay\""));
        }
        let logins = [
            section.username.is_some(),
            section.token.is_some(),
            section.credentials_file.is_some(),
        ];
        if logins.into_iter().filter(|login| *login).count() > 1 {
            let what = "of `username`, `token` and `credentials_file` only one can be set";
            let set = match (&section.token, &section.credentials_file) {
                (_, Some(_)) => "credentials_file",
                _ if reader.has(&at("token")) => "token",
                _ => "token_file",
            };
            return Err(reader.conflict(&at(set), what.to_owned()));
        }
        section.files.check_identity(reader, Self::AT)?;
        if !section.tls {
            TlsFiles::check_unused(reader, Self::AT, &["ca_file", "certificate_file"])?;
        }
        Ok(section)
    }
}

/// Splits `host`, `host:port` or `[address]:port`.
pub(crate) fn address(text: &str) -> Option<(String, u16)> {
    walrelay_sink_client::host_and_port(text, DEFAULT_PORT)
}

const DEFAULT_PORT: u16 = 4222;
