//! From a [`ConnInfo`] back to text.

use std::fmt::{self, Write as _};
use std::path::Path;

use super::build::{APPLICATION_NAME, CONNECT_TIMEOUT};
use super::{
    AuthMethods, ChannelBinding, ConnInfo, Host, HostAddr, Keepalives, RootCert, TargetSessionAttrs,
};

/// In keyword form, without the password. What has its default value is left out, except for hosts,
/// user, database and `sslmode`.
pub(super) fn format(info: &ConnInfo) -> String {
    let mut text = String::new();
    let mut add = |name: &str, value: &str| {
        let separator = if text.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{name}={}", quoted(value));
    };
    let list = |of: &dyn Fn(&Host) -> String| -> String {
        info.hosts.iter().map(of).collect::<Vec<_>>().join(",")
    };
    let path = |path: &Path| path.to_string_lossy().into_owned();
    add(
        "host",
        &list(&|host| match &host.address {
            HostAddr::Tcp(name) => name.clone(),
            HostAddr::Unix(directory) => path(directory),
        }),
    );
    if info.hosts.iter().any(|host| host.hostaddr.is_some()) {
        let addresses = list(&|host| host.hostaddr.map_or_else(String::new, |ip| ip.to_string()));
        add("hostaddr", &addresses);
    }
    add("port", &list(&|host| host.port.to_string()));
    add("user", &info.user);
    add("dbname", &info.dbname);
    add("sslmode", info.ssl_mode.spelling());
    match &info.ssl_root_cert {
        Some(RootCert::System) => add("sslrootcert", "system"),
        Some(RootCert::File(file)) => add("sslrootcert", &path(file)),
        None => {}
    }
    let files = [
        ("sslcert", &info.ssl_cert),
        ("sslkey", &info.ssl_key),
        ("passfile", &info.passfile),
    ];
    for (name, file) in files {
        if let Some(file) = file {
            add(name, &path(file));
        }
    }
    if info.channel_binding != ChannelBinding::default() {
        add("channel_binding", info.channel_binding.spelling());
    }
    if info.require_auth != AuthMethods::default() {
        add("require_auth", &info.require_auth.to_string());
    }
    if info.target_session_attrs != TargetSessionAttrs::default() {
        add("target_session_attrs", info.target_session_attrs.spelling());
    }
    if info.connect_timeout != CONNECT_TIMEOUT {
        let seconds = info.connect_timeout.as_secs().to_string();
        add("connect_timeout", &seconds);
    }
    let default = Keepalives::default();
    match info.keepalives {
        None => add("keepalives", "0"),
        Some(keepalives) if keepalives == default => {}
        Some(keepalives) => {
            add("keepalives_idle", &keepalives.idle.as_secs().to_string());
            let interval = keepalives.interval.as_secs().to_string();
            add("keepalives_interval", &interval);
            add("keepalives_count", &keepalives.retries.to_string());
        }
    }
    if info.application_name != APPLICATION_NAME {
        add("application_name", &info.application_name);
    }
    if let Some(options) = &info.options {
        add("options", options);
    }
    text
}

impl fmt::Display for AuthMethods {
    /// As in `require_auth`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.scram, "scram-sha-256"),
            (self.md5, "md5"),
            (self.cleartext, "password"),
            (self.none, "none"),
        ];
        let allowed = all.iter().filter(|(allowed, _)| *allowed);
        let names: Vec<&str> = allowed.map(|(_, name)| *name).collect();
        f.write_str(&names.join(","))
    }
}

/// A value of the keyword form, in quotes where it needs them.
fn quoted(value: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && c != '\'' && c != '\\' && !c.is_control();
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    let mut text = String::with_capacity(value.len() + 2);
    text.push('\'');
    for c in value.chars() {
        if matches!(c, '\'' | '\\') {
            text.push('\\');
        }
        text.push(c);
    }
    text.push('\'');
    text
}
