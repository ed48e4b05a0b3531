//! From parameters to a [`ConnInfo`].

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::parameters::{FIXED, UNSUPPORTED};
use super::split::Settings;
use super::{
    AuthMethods, ChannelBinding, ConnInfo, ConnInfoError, DEFAULT_PORT, DEFAULT_SOCKET_DIR, Host,
    HostAddr, Keepalives, RootCert, SslMode, TargetSessionAttrs,
};

pub(super) const APPLICATION_NAME: &str = "walrelay";
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
