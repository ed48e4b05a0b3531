//! Builds a [`ConnInfo`] from parameters, and validates them.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::error::{ConnInfoError, Parsed};
use super::info::{
    AuthMethods, ChannelBinding, ConnInfo, DEFAULT_PORT, DEFAULT_SOCKET_DIR, Host, HostAddr,
    Keepalives, RootCert, Spelled, SslMode,
};
use super::parameters::RESTRICTED;
use super::split::{Settings, split};

pub(super) const APPLICATION_NAME: &str = "walrelay";
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Adds a hint to an error about a part of a URL that may be a piece of a password whose characters
/// were not encoded.
macro_rules! or_encode {
    ($expected:literal) => {
        concat!(
            $expected,
            " (in a URL the characters @ : / ? and % of a user's name or password must be \
             percent-encoded)"
        )
    };
}

impl FromStr for ConnInfo {
    type Err = ConnInfoError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let settings = split(text)?;
        settings.check_restrictions()?;
        // The hosts first, because this finds a / in the password of a URL.
        let hosts = settings.hosts()?;
        let user = settings.get("user").ok_or(ConnInfoError::MissingUser)?;
        let text = |name| settings.get(name).map(str::to_owned);
        let path = |name| settings.get(name).map(PathBuf::from);
        let ssl_root_cert = path("sslrootcert").map(|path| match path.to_str() {
            Some("system") => RootCert::System,
            _ => RootCert::File(path),
        });
        let info = Self {
            hosts,
            user: user.to_owned(),
            password: settings.get("password").map(Into::into),
            dbname: settings.get("dbname").unwrap_or(user).to_owned(),
            ssl_mode: settings.ssl_mode(ssl_root_cert.as_ref())?,
            ssl_root_cert,
            ssl_cert: path("sslcert"),
            ssl_key: path("sslkey"),
            channel_binding: settings.word("channel_binding")?,
            require_auth: settings.auth_methods()?,
            target_session_attrs: settings.word("target_session_attrs")?,
            connect_timeout: settings.connect_timeout()?,
            keepalives: settings.keepalives()?,
            application_name: text("application_name")
                .or_else(|| text("fallback_application_name"))
                .unwrap_or_else(|| APPLICATION_NAME.to_owned()),
            options: text("options"),
            passfile: path("passfile"),
        };
        check_together(&info)?;
        Ok(info)
    }
}

/// Refuses parameters that contradict each other.
fn check_together(info: &ConnInfo) -> Parsed<()> {
    let (given, missing) = match (&info.ssl_cert, &info.ssl_key) {
        (Some(_), None) => ("sslcert", "sslkey"),
        (None, Some(_)) => ("sslkey", "sslcert"),
        _ => ("", ""),
    };
    if !given.is_empty() {
        return Err(ConnInfoError::HalfKeyPair { given, missing });
    }
    let unbindable = if info.channel_binding != ChannelBinding::Require {
        return Ok(());
    } else if info.ssl_mode == SslMode::Disable {
        "disable or prefer, since sslmode=disable leaves nothing to bind to"
    } else if info.require_auth.is_some_and(|methods| !methods.scram) {
        "disable or prefer, since require_auth excludes scram-sha-256"
    } else {
        return Ok(());
    };
    invalid("channel_binding", Some("require"), unbindable)
}

fn unsupported<T>(name: &'static str, reason: &'static str) -> Parsed<T> {
    Err(ConnInfoError::Unsupported { name, reason })
}

/// Fails because of the value of parameter `name`. The error contains `value`, so it must be `None`
/// if it may be a piece of a password.
fn invalid<T>(name: &'static str, value: Option<&str>, expected: &'static str) -> Parsed<T> {
    let value = value.map(str::to_owned);
    Err(ConnInfoError::InvalidValue {
        name,
        value,
        expected,
    })
}

/// Parses a number in the range of libpq's C `int`, but not negative, and without signs and spaces.
fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<i32>().ok().filter(|_| digits)?;
    u32::try_from(number).ok()
}

impl Settings {
    fn check_restrictions(&self) -> Parsed<()> {
        for (name, values, reason) in RESTRICTED {
            if let Some(given) = self.get(name)
                && !values.iter().any(|value| value.eq_ignore_ascii_case(given))
            {
                return unsupported(name, reason);
            }
        }
        Ok(())
    }

    /// Reads the value of a parameter that takes one of several keywords.
    fn word<T: Spelled>(&self, name: &'static str) -> Parsed<T> {
        let Some(given) = self.get(name) else {
            return Ok(T::default());
        };
        let mut known = T::SPELLINGS.iter();
        match known.find(|(spelling, _)| *spelling == given) {
            Some(&(_, value)) => Ok(value),
            None => invalid(name, Some(given), T::EXPECTED),
        }
    }

    fn ssl_mode(&self, root_cert: Option<&RootCert>) -> Parsed<SslMode> {
        let given = self.get("sslmode");
        if given == Some("allow") {
            return unsupported(
                "sslmode",
                "allow would try without encryption first; use prefer, or better verify-full",
            );
        }
        let mode = self.word("sslmode")?;
        if root_cert != Some(&RootCert::System) {
            return Ok(mode);
        }
        if given.is_some() && mode != SslMode::VerifyFull {
            return unsupported(
                "sslrootcert",
                "system demands sslmode=verify-full: anyone can get a certificate of a public \
                 authority for some name",
            );
        }
        Ok(SslMode::VerifyFull)
    }

    fn auth_methods(&self) -> Parsed<Option<AuthMethods>> {
        let mut methods = AuthMethods::default();
        let Some(list) = self.get("require_auth") else {
            return Ok(None);
        };
        let refuse = |expected| invalid("require_auth", Some(list), expected);
        let negated = list.starts_with('!');
        (methods.scram, methods.none) = (negated, negated);
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
            let mut known = AuthMethods::NAMES.iter();
            match known.find(|(known, _)| *known == name) {
                Some((_, method)) => *method(&mut methods) = !negated,
                None if !["gss", "sspi", "oauth"].contains(&name) => {
                    return refuse("a list of scram-sha-256, md5, password and none");
                }
                None if negated => {}
                None => {
                    return unsupported(
                        "require_auth",
                        "gss, sspi and oauth are not supported; use scram-sha-256, or none with a \
                         client certificate",
                    );
                }
            }
        }
        if negated && !(methods.scram || methods.none) {
            return refuse(
                "at least one method to be left (md5 and password must be listed to be used)",
            );
        }
        Ok(Some(methods))
    }

    fn number(&self, name: &'static str, expected: &'static str) -> Parsed<Option<u32>> {
        match self.get(name).map(number) {
            Some(None) => invalid(name, None, expected),
            number => Ok(number.flatten()),
        }
    }

    fn connect_timeout(&self) -> Parsed<Duration> {
        const EXPECTED: &str = "whole seconds, at least 1";
        match self.number("connect_timeout", EXPECTED)? {
            None => Ok(CONNECT_TIMEOUT),
            Some(0) => invalid("connect_timeout", None, EXPECTED),
            Some(seconds) => Ok(Duration::from_secs(seconds.into())),
        }
    }

    fn keepalives(&self) -> Parsed<Option<Keepalives>> {
        // In libpq 0 means the operating system's default; here it means ours.
        let positive = |name| {
            let number = self.number(name, "a whole number")?;
            Ok(number.filter(|number| *number > 0))
        };
        let seconds = |name, default| {
            let seconds = positive(name)?;
            Ok(seconds.map_or(default, |seconds| Duration::from_secs(seconds.into())))
        };
        let default = Keepalives::default();
        let keepalives = Keepalives {
            idle: seconds("keepalives_idle", default.idle)?,
            interval: seconds("keepalives_interval", default.interval)?,
            retries: positive("keepalives_count")?.unwrap_or(default.retries),
        };
        match self.get("keepalives") {
            None | Some("1") => Ok(Some(keepalives)),
            Some("0") => Ok(None),
            Some(_) => invalid("keepalives", None, "0 or 1"),
        }
    }

    fn hosts(&self) -> Parsed<Vec<Host>> {
        let list = |name| -> Vec<&str> {
            let list = self.get(name).map(|list| list.split(','));
            list.into_iter().flatten().collect()
        };
        let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
        let first = match (names.len(), addresses.len()) {
            (0, count @ 1..) => ("hostaddr", count),
            (count, _) => ("host", count.max(1)),
        };
        for second in [("hostaddr", addresses.len()), ("port", ports.len())] {
            if ![0, first.1].contains(&second.1) && second != ("port", 1) {
                return Err(ConnInfoError::ListLengths { first, second });
            }
        }
        let item = |list: &[&'_ str], index| list.get(index).map_or("", |text| *text).to_owned();
        (0..first.1)
            .map(|index| {
                let port = item(&ports, if ports.len() == 1 { 0 } else { index });
                host(&item(&names, index), &item(&addresses, index), &port)
            })
            .collect()
    }
}

fn host(name: &str, address: &str, port: &str) -> Parsed<Host> {
    let port = match (port, number(port).map(u16::try_from)) {
        ("", _) => DEFAULT_PORT,
        (_, Some(Ok(port @ 1..))) => port,
        // Without the value, which is a piece of the password if that contains a /.
        _ => return invalid("port", None, or_encode!("1 to 65535")),
    };
    let hostaddr = address.parse::<IpAddr>().ok();
    if hostaddr.is_none() && !address.is_empty() {
        return invalid("hostaddr", None, "IP addresses, IPv6 without brackets");
    }
    let never = |c: char| c.is_control() || c.is_whitespace() || "@/?#[]\\".contains(c);
    let address = match (name.chars().next(), hostaddr) {
        (None, Some(ip)) => HostAddr::Tcp(ip.to_string()),
        (None, None) if Path::new(DEFAULT_SOCKET_DIR).is_dir() => {
            HostAddr::Unix(DEFAULT_SOCKET_DIR.into())
        }
        (None, None) => HostAddr::Tcp("localhost".to_owned()),
        (Some('/'), None) => HostAddr::Unix(name.into()),
        (Some('/'), Some(_)) => return invalid("hostaddr", None, "nothing for a unix socket"),
        (Some('@'), _) => {
            return unsupported(
                "host",
                "sockets in the abstract namespace (@…) are not supported; name the directory of \
                 the server's socket",
            );
        }
        (Some(_), _) if name.contains(never) => {
            let expected = or_encode!(
                "names, IP addresses (IPv6 in brackets in a URL, without them elsewhere) or \
                 absolute directories"
            );
            return invalid("host", None, expected);
        }
        (Some(_), _) => HostAddr::Tcp(name.to_owned()),
    };
    Ok(Host {
        address,
        hostaddr,
        port,
    })
}
