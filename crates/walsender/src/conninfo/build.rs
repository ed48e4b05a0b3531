//! From parameters to a [`ConnInfo`], and back to text.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::split::Settings;
use super::{
    AuthMethods, ChannelBinding, ConnInfo, ConnInfoError, DEFAULT_PORT, DEFAULT_SOCKET_DIR, Host,
    HostAddr, Keepalives, RootCert, SslMode, TargetSessionAttrs,
};

/// Every parameter of libpq 18: first those with a meaning here.
pub(super) const PARAMETERS: &[&str] = &[
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "passfile",
    "dbname",
    "options",
    "application_name",
    "fallback_application_name",
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
    "require_auth",
    "target_session_attrs",
    // No meaning: nothing here speaks GSSAPI.
    "krbsrvname",
    "gsslib",
    "gssdelegation",
    // FIXED
    "client_encoding",
    "gssencmode",
    "replication",
    "load_balance_hosts",
    "tcp_user_timeout",
    "sslnegotiation",
    "sslcompression",
    "sslsni",
    "sslcertmode",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
    "min_protocol_version",
    "max_protocol_version",
    // UNSUPPORTED
    "service",
    "servicefile",
    "sslpassword",
    "sslcrl",
    "sslcrldir",
    "sslkeylogfile",
    "requirepeer",
    "scram_client_key",
    "scram_server_key",
    "oauth_issuer",
    "oauth_client_id",
    "oauth_client_secret",
    "oauth_scope",
];

/// Parameters that may be given with the values that describe what happens anyway.
const FIXED: &[(&str, &[&str], &str)] = &[
    (
        "client_encoding",
        &["UTF8", "UTF-8"],
        "text is always exchanged in UTF8",
    ),
    (
        "gssencmode",
        &["disable", "prefer"],
        "GSSAPI is not supported; encrypt by sslmode",
    ),
    (
        "replication",
        &["database"],
        "logical replication needs replication=database, which is always sent; leave it out",
    ),
    (
        "load_balance_hosts",
        &["disable"],
        "hosts are tried in the order given",
    ),
    (
        "tcp_user_timeout",
        &["0"],
        "not supported; use keepalives_idle, keepalives_interval and keepalives_count",
    ),
    (
        "sslnegotiation",
        &["postgres"],
        "encryption is always negotiated in Postgres' way; leave it out",
    ),
    (
        "sslcompression",
        &["0"],
        "compression of TLS is insecure and not supported",
    ),
    (
        "sslsni",
        &["1"],
        "the host's name is always sent; leave it out",
    ),
    (
        "sslcertmode",
        &["allow"],
        "the certificate in sslcert is sent when the server asks; leave it out",
    ),
    (
        "ssl_min_protocol_version",
        &["TLSv1", "TLSv1.1", "TLSv1.2"],
        "TLS 1.2 and 1.3 are offered; a higher minimum must be set on the server",
    ),
    (
        "ssl_max_protocol_version",
        &["TLSv1.3"],
        "TLS 1.2 and 1.3 are offered; a lower maximum must be set on the server",
    ),
    (
        "min_protocol_version",
        &["3.0"],
        "protocol 3.0 is spoken; leave it out",
    ),
    (
        "max_protocol_version",
        &["3.0", "latest"],
        "protocol 3.0 is spoken; leave it out",
    ),
];

/// Parameters that would be obeyed only in appearance.
const UNSUPPORTED: &[(&str, &str)] = &[
    (
        "service",
        "connection service files are not read; write the parameters out",
    ),
    (
        "servicefile",
        "connection service files are not read; write the parameters out",
    ),
    (
        "sslpassword",
        "encrypted private keys are not supported; decrypt the key and protect it by its permissions",
    ),
    ("sslcrl", "revocation lists are not supported"),
    ("sslcrldir", "revocation lists are not supported"),
    (
        "sslkeylogfile",
        "the keys of a connection are not written down",
    ),
    ("requirepeer", "the owner of a unix socket is not checked"),
    ("scram_client_key", "give a password or a password file"),
    ("scram_server_key", "give a password or a password file"),
    ("oauth_issuer", "OAuth is not supported"),
    ("oauth_client_id", "OAuth is not supported"),
    ("oauth_client_secret", "OAuth is not supported"),
    ("oauth_scope", "OAuth is not supported"),
];

const APPLICATION_NAME: &str = "walrelay";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The parameter whose name is at most two slips of the keyboard away.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    PARAMETERS
        .iter()
        .map(|known| (strsim::damerau_levenshtein(&name, known), *known))
        .filter(|(distance, known)| *distance <= 2.min(known.len() / 2))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

pub(super) fn build(settings: &Settings) -> Result<ConnInfo, ConnInfoError> {
    refuse_what_is_not_done(settings)?;
    // First, because a / in the password of a URL shows here.
    let hosts = hosts(settings)?;
    let user = settings.get("user").ok_or(ConnInfoError::MissingUser)?;
    let ssl_root_cert = settings.get("sslrootcert").map(|value| match value {
        "system" => RootCert::System,
        path => RootCert::File(path.into()),
    });
    let ssl_mode = ssl_mode(settings, ssl_root_cert.as_ref())?;
    let path = |name| settings.get(name).map(PathBuf::from);
    let (ssl_cert, ssl_key) = (path("sslcert"), path("sslkey"));
    let half = |given, missing| Err(ConnInfoError::HalfKeyPair { given, missing });
    match (&ssl_cert, &ssl_key) {
        (Some(_), None) => return half("sslcert", "sslkey"),
        (None, Some(_)) => return half("sslkey", "sslcert"),
        _ => {}
    }
    let require_auth = auth_methods(settings)?;
    let channel_binding = word(
        settings,
        "channel_binding",
        ChannelBinding::from_spelling,
        "disable, prefer or require",
    )?;
    if channel_binding == ChannelBinding::Require {
        let refuse = |expected| {
            Err(ConnInfoError::InvalidValue {
                name: "channel_binding",
                value: Some("require".to_owned()),
                expected,
            })
        };
        if ssl_mode == SslMode::Disable {
            return refuse("disable or prefer, since sslmode=disable leaves nothing to bind to");
        }
        if !require_auth.scram {
            return refuse("disable or prefer, since require_auth excludes scram-sha-256");
        }
    }
    Ok(ConnInfo {
        hosts,
        user: user.to_owned(),
        password: settings.get("password").map(Into::into),
        dbname: settings.get("dbname").unwrap_or(user).to_owned(),
        ssl_mode,
        ssl_root_cert,
        ssl_cert,
        ssl_key,
        channel_binding,
        require_auth,
        target_session_attrs: word(
            settings,
            "target_session_attrs",
            TargetSessionAttrs::from_spelling,
            "any, read-write, read-only, primary, standby or prefer-standby",
        )?,
        connect_timeout: match settings.get("connect_timeout") {
            None => CONNECT_TIMEOUT,
            Some(value) => Duration::from_secs(
                number(value)
                    .filter(|seconds| *seconds > 0)
                    .ok_or_else(|| invalid("connect_timeout", "whole seconds, at least 1"))?
                    .into(),
            ),
        },
        keepalives: keepalives(settings)?,
        application_name: settings
            .get("application_name")
            .or_else(|| settings.get("fallback_application_name"))
            .unwrap_or(APPLICATION_NAME)
            .to_owned(),
        options: settings.get("options").map(str::to_owned),
        passfile: path("passfile"),
    })
}

fn refuse_what_is_not_done(settings: &Settings) -> Result<(), ConnInfoError> {
    for &(name, values, reason) in FIXED {
        let accepted = |given: &str| values.iter().any(|value| value.eq_ignore_ascii_case(given));
        if settings.get(name).is_some_and(|given| !accepted(given)) {
            return Err(ConnInfoError::Unsupported { name, reason });
        }
    }
    for &(name, reason) in UNSUPPORTED {
        if settings.get(name).is_some() {
            return Err(ConnInfoError::Unsupported { name, reason });
        }
    }
    Ok(())
}

fn invalid(name: &'static str, expected: &'static str) -> ConnInfoError {
    ConnInfoError::InvalidValue {
        name,
        value: None,
        expected,
    }
}

/// The value of a parameter that takes one of a few words.
fn word<T: Default>(
    settings: &Settings,
    name: &'static str,
    parse: fn(&str) -> Option<T>,
    expected: &'static str,
) -> Result<T, ConnInfoError> {
    let Some(given) = settings.get(name) else {
        return Ok(T::default());
    };
    parse(given).ok_or_else(|| ConnInfoError::InvalidValue {
        name,
        value: Some(given.to_owned()),
        expected,
    })
}

/// A number as libpq has them, a C `int`, but never negative and without signs and spaces.
fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse::<u32>().ok()).flatten();
    number.filter(|number| i32::try_from(*number).is_ok())
}

fn ssl_mode(settings: &Settings, root_cert: Option<&RootCert>) -> Result<SslMode, ConnInfoError> {
    if settings.get("sslmode") == Some("allow") {
        return Err(ConnInfoError::Unsupported {
            name: "sslmode",
            reason: "allow would try without encryption first; use prefer, or better verify-full",
        });
    }
    let expected = "disable, prefer, require, verify-ca or verify-full";
    let mode = word(settings, "sslmode", SslMode::from_spelling, expected)?;
    if root_cert != Some(&RootCert::System) {
        return Ok(mode);
    }
    if settings.get("sslmode").is_some() && mode != SslMode::VerifyFull {
        return Err(ConnInfoError::Unsupported {
            name: "sslrootcert",
            reason: "system demands sslmode=verify-full: everybody can get a certificate of a \
                     public authority for some name",
        });
    }
    Ok(SslMode::VerifyFull)
}

fn auth_methods(settings: &Settings) -> Result<AuthMethods, ConnInfoError> {
    let Some(list) = settings.get("require_auth") else {
        return Ok(AuthMethods::default());
    };
    let refuse = |expected| {
        Err(ConnInfoError::InvalidValue {
            name: "require_auth",
            value: Some(list.to_owned()),
            expected,
        })
    };
    let negated = list.starts_with('!');
    let mut methods = if negated {
        AuthMethods::default()
    } else {
        AuthMethods {
            scram: false,
            md5: false,
            cleartext: false,
            none: false,
        }
    };
    let mut seen = HashSet::new();
    for item in list.split(',') {
        let name = item.strip_prefix('!');
        if name.is_some() != negated {
            return refuse("either all methods with ! or none");
        }
        let name = name.unwrap_or(item);
        if !seen.insert(name) {
            return refuse("each method once");
        }
        match name {
            "scram-sha-256" => methods.scram = !negated,
            "md5" => methods.md5 = !negated,
            "password" => methods.cleartext = !negated,
            "none" => methods.none = !negated,
            "gss" | "sspi" | "oauth" if negated => {}
            "gss" | "sspi" | "oauth" => {
                return Err(ConnInfoError::Unsupported {
                    name: "require_auth",
                    reason: "gss, sspi and oauth are not supported; use scram-sha-256, or none \
                             with a client certificate",
                });
            }
            _ => return refuse("a list of scram-sha-256, md5, password and none"),
        }
    }
    if !(methods.scram || methods.none) && negated {
        return refuse(
            "at least one method to be left (md5 and password must be listed to be used)",
        );
    }
    Ok(methods)
}

fn keepalives(settings: &Settings) -> Result<Option<Keepalives>, ConnInfoError> {
    let default = Keepalives::default();
    let positive = |name: &'static str| match settings.get(name).map(number) {
        // In libpq 0 is the operating system's default, here it is ours.
        None | Some(Some(0)) => Ok(None),
        Some(Some(number)) => Ok(Some(number)),
        Some(None) => Err(invalid(name, "a whole number")),
    };
    let seconds = |name| Ok(positive(name)?.map(|number| Duration::from_secs(number.into())));
    let keepalives = Keepalives {
        idle: seconds("keepalives_idle")?.unwrap_or(default.idle),
        interval: seconds("keepalives_interval")?.unwrap_or(default.interval),
        retries: positive("keepalives_count")?.unwrap_or(default.retries),
    };
    match settings.get("keepalives") {
        None | Some("1") => Ok(Some(keepalives)),
        Some("0") => Ok(None),
        Some(_) => Err(invalid("keepalives", "0 or 1")),
    }
}

fn hosts(settings: &Settings) -> Result<Vec<Host>, ConnInfoError> {
    let list = |name| -> Vec<&str> {
        let value: Option<&str> = settings.get(name);
        value.map_or_else(Vec::new, |value| value.split(',').collect())
    };
    let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let lengths = |first, first_count, second, second_count| {
        Err(ConnInfoError::ListLengths {
            first,
            first_count,
            second,
            second_count,
        })
    };
    if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
        return lengths("host", names.len(), "hostaddr", addresses.len());
    }
    let count = names.len().max(addresses.len()).max(1);
    if ports.len() > 1 && ports.len() != count {
        let (first, first_count) = if names.is_empty() && !addresses.is_empty() {
            ("hostaddr", addresses.len())
        } else {
            ("host", count)
        };
        return lengths(first, first_count, "port", ports.len());
    }
    (0..count)
        .map(|index| {
            let of = |list: &[&'_ str]| list.get(index).map_or("", |text| *text).to_owned();
            let port = match ports.as_slice() {
                [all] => (*all).to_owned(),
                each => of(each),
            };
            host(&of(&names), &of(&addresses), &port)
        })
        .collect()
}

fn host(name: &str, address: &str, port: &str) -> Result<Host, ConnInfoError> {
    let port = match port {
        "" => DEFAULT_PORT,
        digits => number(digits)
            .and_then(|number| u16::try_from(number).ok())
            .filter(|port| *port > 0)
            // Without the value: it is a piece of the password if that has a / in it.
            .ok_or_else(|| {
                let expected = "1 to 65535 (in a URL the characters @ : / ? and % of a user's name \
                                or password must be percent-encoded)";
                invalid("port", expected)
            })?,
    };
    let hostaddr = match address {
        "" => None,
        text => Some(
            text.parse::<IpAddr>()
                .map_err(|_| invalid("hostaddr", "IP addresses, IPv6 without brackets"))?,
        ),
    };
    let address = match (name, hostaddr) {
        ("", Some(ip)) => HostAddr::Tcp(ip.to_string()),
        ("", None) => default_host(),
        (name, hostaddr) if name.starts_with('/') => {
            if hostaddr.is_some() {
                return Err(invalid("hostaddr", "nothing for a unix socket"));
            }
            HostAddr::Unix(name.into())
        }
        (name, _) if name.starts_with('@') => {
            return Err(ConnInfoError::Unsupported {
                name: "host",
                reason: "sockets in the abstract namespace (@…) are not supported; name the \
                         directory of the server's socket",
            });
        }
        (name, _) => {
            let never = |c: char| c.is_control() || c.is_whitespace() || "@/?#[]\\".contains(c);
            if name.contains(never) {
                let expected = "names, IP addresses (IPv6 in brackets in a URL, without them \
                                elsewhere) or absolute directories (in a URL the characters \
                                @ : / ? and % of a user's name or password must be percent-encoded)";
                return Err(invalid("host", expected));
            }
            HostAddr::Tcp(name.to_owned())
        }
    };
    Ok(Host {
        address,
        hostaddr,
        port,
    })
}

fn default_host() -> HostAddr {
    if Path::new(DEFAULT_SOCKET_DIR).is_dir() {
        HostAddr::Unix(DEFAULT_SOCKET_DIR.into())
    } else {
        HostAddr::Tcp("localhost".to_owned())
    }
}

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

impl std::fmt::Display for AuthMethods {
    /// As in `require_auth`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
