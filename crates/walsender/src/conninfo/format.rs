//! From a [`ConnInfo`] back to text.

use std::fmt::{self, Display};
use std::path::Path;

use super::build::{APPLICATION_NAME, CONNECT_TIMEOUT};
use super::info::{
    AuthMethods, ChannelBinding, ConnInfo, Host, HostAddr, Keepalives, RootCert, TargetSessionAttrs,
};

impl ConnInfo {
    /// The whole connection in keyword form, without the password: for logs. It can be parsed
    /// again. What has its default value is left out, except for hosts, user, database and
    /// `sslmode`.
    pub fn redacted(&self) -> String {
        let mut parts = Vec::new();
        let mut add = |name: &str, value: &dyn Display| {
            parts.push(format!("{name}={}", quoted(value.to_string())));
        };
        let list = |of: fn(&Host) -> String| -> String {
            self.hosts.iter().map(of).collect::<Vec<_>>().join(",")
        };
        add(
            "host",
            &list(|host| match &host.address {
                HostAddr::Tcp(name) => name.clone(),
                HostAddr::Unix(directory) => directory.to_string_lossy().into_owned(),
            }),
        );
        if self.hosts.iter().any(|host| host.hostaddr.is_some()) {
            let address = |host: &Host| host.hostaddr.map_or_else(String::new, |ip| ip.to_string());
            add("hostaddr", &list(address));
        }
        add("port", &list(|host| host.port.to_string()));
        add("user", &self.user);
        add("dbname", &self.dbname);
        add("sslmode", &self.ssl_mode);
        let root_cert = self.ssl_root_cert.as_ref().map(|root| match root {
            RootCert::System => Path::new("system"),
            RootCert::File(file) => file,
        });
        let files = [
            ("sslrootcert", root_cert),
            ("sslcert", self.ssl_cert.as_deref()),
            ("sslkey", self.ssl_key.as_deref()),
            ("passfile", self.passfile.as_deref()),
        ];
        for (name, file) in files {
            if let Some(file) = file {
                add(name, &file.display());
            }
        }
        if self.channel_binding != ChannelBinding::default() {
            add("channel_binding", &self.channel_binding);
        }
        if self.require_auth != AuthMethods::default() {
            add("require_auth", &self.require_auth);
        }
        if self.target_session_attrs != TargetSessionAttrs::default() {
            add("target_session_attrs", &self.target_session_attrs);
        }
        if self.connect_timeout != CONNECT_TIMEOUT {
            add("connect_timeout", &self.connect_timeout.as_secs());
        }
        match self.keepalives {
            None => add("keepalives", &0),
            Some(keepalives) if keepalives == Keepalives::default() => {}
            Some(keepalives) => {
                add("keepalives_idle", &keepalives.idle.as_secs());
                add("keepalives_interval", &keepalives.interval.as_secs());
                add("keepalives_count", &keepalives.retries);
            }
        }
        if self.application_name != APPLICATION_NAME {
            add("application_name", &self.application_name);
        }
        if let Some(options) = &self.options {
            add("options", options);
        }
        parts.join(" ")
    }
}

impl fmt::Debug for ConnInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.password.is_some() { "" } else { "not " };
        write!(f, "ConnInfo({}; password {not}given)", self.redacted())
    }
}

impl Display for AuthMethods {
    /// As in `require_auth`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.scram, "scram-sha-256"),
            (self.md5, "md5"),
            (self.cleartext, "password"),
            (self.none, "none"),
        ];
        let names: Vec<_> = all.iter().filter(|(allowed, _)| *allowed).collect();
        for (index, (_, name)) in names.iter().enumerate() {
            write!(f, "{}{name}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// A value of the keyword form, in quotes where it needs them.
fn quoted(value: String) -> String {
    let plain = |c: char| !c.is_whitespace() && c != '\'' && c != '\\' && !c.is_control();
    if !value.is_empty() && value.chars().all(plain) {
        return value;
    }
    format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}
