//! Formats a [`ConnInfo`] as a connection string.

use std::fmt::{self, Display};
use std::path::PathBuf;

use super::build::{APPLICATION_NAME, CONNECT_TIMEOUT};
use super::info::{AuthMethods, ConnInfo, Host, HostAddr, Keepalives, RootCert};

impl ConnInfo {
    /// Writes the connection string in keyword form without the password, for logs. It can be
    /// parsed again. Parameters with their default value are left out, except for hosts, user,
    /// database and `sslmode`.
    pub fn redacted(&self) -> String {
        let list = |of: fn(&Host) -> String| {
            let items: Vec<String> = self.hosts.iter().map(of).collect();
            items.join(",")
        };
        let names = list(|host| match &host.address {
            HostAddr::Tcp(name) => name.clone(),
            HostAddr::Unix(directory) => directory.to_string_lossy().into_owned(),
        });
        let addresses = list(|host| host.hostaddr.map_or_else(String::new, |ip| ip.to_string()));
        let addresses = Some(addresses).filter(|all| all.contains(|c| c != ','));
        let ports = list(|host| host.port.to_string());
        let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let root = self.ssl_root_cert.as_ref().map(|root| match root {
            RootCert::System => "system".to_owned(),
            RootCert::File(path) => path.display().to_string(),
        });
        let timeout = unless(&self.connect_timeout.as_secs(), &CONNECT_TIMEOUT.as_secs());
        let probes = self.keepalives.filter(|set| *set != Keepalives::default());
        let idle = probes.map(|probes| probes.idle.as_secs().to_string());
        let interval = probes.map(|probes| probes.interval.as_secs().to_string());
        let name = unless(self.application_name.as_str(), APPLICATION_NAME);
        let parts = [
            ("host", Some(names)),
            ("hostaddr", addresses),
            ("port", Some(ports)),
            ("user", Some(self.user.clone())),
            ("dbname", Some(self.dbname.clone())),
            ("sslmode", Some(self.ssl_mode.to_string())),
            ("sslrootcert", root),
            ("sslcert", file(&self.ssl_cert)),
            ("sslkey", file(&self.ssl_key)),
            ("passfile", file(&self.passfile)),
            ("channel_binding", changed(&self.channel_binding)),
            (
                "require_auth",
                self.require_auth.map(|methods| methods.to_string()),
            ),
            ("target_session_attrs", changed(&self.target_session_attrs)),
            ("connect_timeout", timeout),
            ("keepalives", self.keepalives.is_none().then(|| "0".into())),
            ("keepalives_idle", idle),
            ("keepalives_interval", interval),
            (
                "keepalives_count",
                probes.map(|set| set.retries.to_string()),
            ),
            ("application_name", name),
            ("options", self.options.clone()),
        ];
        let mut text = Vec::new();
        for (name, value) in parts {
            text.extend(value.map(|value| format!("{name}={}", quoted(value))));
        }
        text.join(" ")
    }
}

fn changed<T: Default + Display + PartialEq>(value: &T) -> Option<String> {
    unless(value, &T::default())
}

/// Writes a value, unless it is the default.
fn unless<T: Display + PartialEq + ?Sized>(value: &T, default: &T) -> Option<String> {
    (value != default).then(|| value.to_string())
}

impl fmt::Debug for ConnInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.password.is_some() { "" } else { "not " };
        write!(f, "ConnInfo({}; password {not}given)", self.redacted())
    }
}

impl Display for AuthMethods {
    /// Writes the list of methods as in `require_auth`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut methods = *self;
        let allowed = Self::NAMES
            .iter()
            .filter(|(_, method)| *method(&mut methods));
        let names: Vec<&str> = allowed.map(|(name, _)| *name).collect();
        f.write_str(&names.join(","))
    }
}

/// Writes a value for the keyword form, in quotes if it needs them.
fn quoted(value: String) -> String {
    let plain = |c: char| !c.is_whitespace() && c != '\'' && c != '\\' && !c.is_control();
    if !value.is_empty() && value.chars().all(plain) {
        return value;
    }
    format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}
