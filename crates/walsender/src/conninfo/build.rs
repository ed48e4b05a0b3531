//! From parameters to a [`ConnInfo`].

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::error::ConnInfoError;
use super::info::{
    AuthMethods, ChannelBinding, ConnInfo, DEFAULT_PORT, DEFAULT_SOCKET_DIR, Host, HostAddr,
    Keepalives, RootCert, Spelled, SslMode,
};
use super::parameters::{names, restriction};
use super::split::{Settings, split};

pub(super) const APPLICATION_NAME: &str = "walrelay";
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What stands where a password with unencoded characters in a URL would be cut.
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
        // First, because a / in the password of a URL shows here.
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
            channel_binding: settings.word("channel_binding", "disable, prefer or require")?,
            require_auth: settings.auth_methods()?,
            target_session_attrs: settings.word(
                "target_session_attrs",
                "any, read-write, read-only, primary, standby or prefer-standby",
            )?,
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

/// Refuses parameters that do not go together.
fn check_together(info: &ConnInfo) -> Result<(), ConnInfoError> {
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
    } else if !info.require_auth.scram {
        "disable or prefer, since require_auth excludes scram-sha-256"
    } else {
        return Ok(());
    };
    Err(wrong_word("channel_binding", "require", unbindable))
}

fn unsupported(name: &'static str, reason: &'static str) -> ConnInfoError {
    ConnInfoError::Unsupported { name, reason }
}

/// A value that may be a piece of a password, so it is not shown.
fn invalid(name: &'static str, expected: &'static str) -> ConnInfoError {
    ConnInfoError::InvalidValue {
        name,
        value: None,
        expected,
    }
}

fn wrong_word(name: &'static str, given: &str, expected: &'static str) -> ConnInfoError {
    ConnInfoError::InvalidValue {
        name,
        value: Some(given.to_owned()),
        expected,
    }
}

/// A number as libpq has them, a C `int`, but never negative and without signs and spaces.
fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse::<u32>().ok()).flatten();
    number.filter(|number| i32::try_from(*number).is_ok())
}

impl Settings {
    fn check_restrictions(&self) -> Result<(), ConnInfoError> {
        for name in names() {
            if let (Some(given), Some((values, reason))) = (self.get(name), restriction(name))
                && !values.iter().any(|value| value.eq_ignore_ascii_case(given))
            {
                return Err(unsupported(name, reason));
            }
        }
        Ok(())
    }

    /// The value of a parameter that takes one of a few words.
    fn word<T: Spelled>(
        &self,
        name: &'static str,
        expected: &'static str,
    ) -> Result<T, ConnInfoError> {
        let Some(given) = self.get(name) else {
            return Ok(T::default());
        };
        let mut known = T::SPELLINGS.iter();
        match known.find(|(spelling, _)| *spelling == given) {
            Some(&(_, value)) => Ok(value),
            None => Err(wrong_word(name, given, expected)),
        }
    }

    fn ssl_mode(&self, root_cert: Option<&RootCert>) -> Result<SslMode, ConnInfoError> {
        if self.get("sslmode") == Some("allow") {
            return Err(unsupported(
                "sslmode",
                "allow would try without encryption first; use prefer, or better verify-full",
            ));
        }
        let expected = "disable, prefer, require, verify-ca or verify-full";
        let mode = self.word("sslmode", expected)?;
        if root_cert != Some(&RootCert::System) {
            return Ok(mode);
        }
        if self.get("sslmode").is_some() && mode != SslMode::VerifyFull {
            return Err(unsupported(
                "sslrootcert",
                "system demands sslmode=verify-full: everybody can get a certificate of a public \
                 authority for some name",
            ));
        }
        Ok(SslMode::VerifyFull)
    }

    fn auth_methods(&self) -> Result<AuthMethods, ConnInfoError> {
        let Some(list) = self.get("require_auth") else {
            return Ok(AuthMethods::default());
        };
        let refuse = |expected| Err(wrong_word("require_auth", list, expected));
        let negated = list.starts_with('!');
        let mut methods = AuthMethods::default();
        if !negated {
            (methods.scram, methods.none) = (false, false);
        }
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
                    return Err(unsupported(
                        "require_auth",
                        "gss, sspi and oauth are not supported; use scram-sha-256, or none with a \
                         client certificate",
                    ));
                }
                _ => return refuse("a list of scram-sha-256, md5, password and none"),
            }
        }
        if negated && !(methods.scram || methods.none) {
            return refuse(
                "at least one method to be left (md5 and password must be listed to be used)",
            );
        }
        Ok(methods)
    }

    fn connect_timeout(&self) -> Result<Duration, ConnInfoError> {
        let Some(value) = self.get("connect_timeout") else {
            return Ok(CONNECT_TIMEOUT);
        };
        match number(value) {
            Some(seconds @ 1..) => Ok(Duration::from_secs(seconds.into())),
            _ => Err(invalid("connect_timeout", "whole seconds, at least 1")),
        }
    }

    fn keepalives(&self) -> Result<Option<Keepalives>, ConnInfoError> {
        let positive = |name, default| match self.get(name).map(number) {
            // In libpq 0 is the operating system's default, here it is ours.
            None | Some(Some(0)) => Ok(default),
            Some(Some(number)) => Ok(number),
            Some(None) => Err(invalid(name, "a whole number")),
        };
        let default = Keepalives::default();
        let seconds = |name, default: Duration| {
            let seconds = positive(name, default.as_secs() as u32)?;
            Ok(Duration::from_secs(seconds.into()))
        };
        let keepalives = Keepalives {
            idle: seconds("keepalives_idle", default.idle)?,
            interval: seconds("keepalives_interval", default.interval)?,
            retries: positive("keepalives_count", default.retries)?,
        };
        match self.get("keepalives") {
            None | Some("1") => Ok(Some(keepalives)),
            Some("0") => Ok(None),
            Some(_) => Err(invalid("keepalives", "0 or 1")),
        }
    }

    fn hosts(&self) -> Result<Vec<Host>, ConnInfoError> {
        let list = |name| -> Vec<&str> {
            let list = self.get(name).map(|list| list.split(','));
            list.into_iter().flatten().collect()
        };
        let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
        let (first, first_count) = if names.is_empty() && !addresses.is_empty() {
            ("hostaddr", addresses.len())
        } else {
            ("host", names.len().max(1))
        };
        let wrong_length = |second, second_count| ConnInfoError::ListLengths {
            first,
            first_count,
            second,
            second_count,
        };
        if !addresses.is_empty() && addresses.len() != first_count {
            return Err(wrong_length("hostaddr", addresses.len()));
        }
        if ports.len() > 1 && ports.len() != first_count {
            return Err(wrong_length("port", ports.len()));
        }
        let item = |list: &[&'_ str], index| list.get(index).map_or("", |text| *text).to_owned();
        (0..first_count)
            .map(|index| {
                let port = item(&ports, if ports.len() == 1 { 0 } else { index });
                host(&item(&names, index), &item(&addresses, index), &port)
            })
            .collect()
    }
}

fn host(name: &str, address: &str, port: &str) -> Result<Host, ConnInfoError> {
    let port = match (port, number(port).map(u16::try_from)) {
        ("", _) => DEFAULT_PORT,
        (_, Some(Ok(port @ 1..))) => port,
        // Without the value: it is a piece of the password if that has a / in it.
        _ => return Err(invalid("port", or_encode!("1 to 65535"))),
    };
    let hostaddr = match address {
        "" => None,
        text => Some(
            text.parse::<IpAddr>()
                .map_err(|_| invalid("hostaddr", "IP addresses, IPv6 without brackets"))?,
        ),
    };
    let address = match (name.chars().next(), hostaddr) {
        (None, Some(ip)) => HostAddr::Tcp(ip.to_string()),
        (None, None) if Path::new(DEFAULT_SOCKET_DIR).is_dir() => {
            HostAddr::Unix(DEFAULT_SOCKET_DIR.into())
        }
        (None, None) => HostAddr::Tcp("localhost".to_owned()),
        (Some('/'), None) => HostAddr::Unix(name.into()),
        (Some('/'), Some(_)) => return Err(invalid("hostaddr", "nothing for a unix socket")),
        (Some('@'), _) => {
            return Err(unsupported(
                "host",
                "sockets in the abstract namespace (@…) are not supported; name the directory of \
                 the server's socket",
            ));
        }
        (Some(_), _) => {
            let never = |c: char| c.is_control() || c.is_whitespace() || "@/?#[]\\".contains(c);
            if name.contains(never) {
                let expected = or_encode!(
                    "names, IP addresses (IPv6 in brackets in a URL, without them elsewhere) or \
                     absolute directories"
                );
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
