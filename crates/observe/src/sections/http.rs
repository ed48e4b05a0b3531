//! `[http]` and `[http.tls]`: the endpoint of metrics, health and status.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use walrelay_settings::{
    AlreadyReported, Reader, Section, boolean, duration, list, path, secret_file, section, text,
};

use secrecy::{ExposeSecret, SecretString};

/// `[http]`: the endpoint of metrics, health and status.
#[derive(Debug, Clone)]
pub struct Http {
    /// Address of the endpoint. With port 0 a free port is used, which the log names.
    pub listen: SocketAddr,
    /// Token that requests must present, except to the health paths.
    pub token: Option<SecretString>,
    /// Names of the endpoint, in lower case, that requests without a token may use in `Host`.
    pub hosts: Vec<String>,
    /// `/readyz` answers 200 while another relay of the same configuration reads the slot.
    pub standby_ready: bool,
    /// The longest usual time between two events.
    pub expect_event_every: Option<Duration>,
    /// PEM files of the certificate chain and the private key.
    pub tls: Option<(PathBuf, PathBuf)>,
}

section! {
/// The keys of [`Http`].
pub struct HttpKeys at "http" {
    /// `host:port` with a numeric host. Unset: there is no endpoint.
    "listen" listen: Option<SocketAddr> = text(address).optional();
    /// The file of a token that requests must present, as `Authorization: Bearer <token>` or as the password of basic authentication; not to `/healthz` and `/readyz`.
    "token_file" token: Option<SecretString> = secret_file().optional();
    /// Whether no token is needed beyond the loopback interface.
    "allow_anonymous" anonymous: bool = boolean().or("false");
    /// Names, besides `localhost`, by which the endpoint is asked without a token. Addresses need not be named.
    "hosts" hosts: Vec<String> = list(host, None).or_empty();
    /// Whether `/readyz` answers 200 while another relay of the same configuration reads the slot and this one stands by. Page, metrics and `status` show a standby as ready in any case.
    "standby_ready" standby_ready: bool = boolean().or("true");
    /// The longest usual time between two events: without one for longer, the metric `walrelay_silent` is 1, and an alert fires. Unset: silence is no fault.
    "expect_event_every" expect_event_every: Option<Duration> = duration(Duration::from_secs(1)..).optional();
    /// The certificate chain for HTTPS, a PEM file.
    "tls.certificate_file" certificate: Option<PathBuf> = path().optional();
    /// Its private key, a PEM file.
    "tls.key_file" key: Option<PathBuf> = path().optional();
}
}

const LISTEN: &str = "http.listen";
const TOKEN: &str = "http.token_file";

/// Reads the section; `None` without an address.
///
/// # Errors
/// If a problem was reported to `reader`.
pub fn http(reader: &mut Reader<'_>) -> Result<Option<Http>, AlreadyReported> {
    let keys = HttpKeys::read(reader)?;
    let Some(listen) = keys.listen else {
        let others = [
            (TOKEN, keys.token.is_some()),
            ("http.allow_anonymous", keys.anonymous),
            ("http.standby_ready", !keys.standby_ready),
            ("http.expect_event_every", keys.expect_event_every.is_some()),
            ("http.hosts", !keys.hosts.is_empty()),
            ("http.tls.certificate_file", keys.certificate.is_some()),
            ("http.tls.key_file", keys.key.is_some()),
        ];
        for (path, is_set) in others {
            if is_set {
                return Err(reader.no_effect(path, &format!("without `{LISTEN}`")));
            }
        }
        return Ok(None);
    };
    if keys
        .token
        .as_ref()
        .is_some_and(|token| token.expose_secret().trim().is_empty())
    {
        return Err(reader.conflict(TOKEN, format!("the file of `{TOKEN}` is empty")));
    }
    if !listen.ip().is_loopback() && keys.token.is_none() && !keys.anonymous {
        let what = format!(
            "`{LISTEN}` is reachable from other machines: it needs `{TOKEN}`, or `http.allow_anonymous = true`"
        );
        return Err(reader.conflict(LISTEN, what));
    }
    let tls = match (keys.certificate, keys.key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            return Err(reader.missing("http.tls.key_file", "\"/etc/walrelay/tls.key\""));
        }
        (None, Some(_)) => {
            return Err(reader.missing("http.tls.certificate_file", "\"/etc/walrelay/tls.crt\""));
        }
    };
    Ok(Some(Http {
        listen,
        token: keys.token,
        hosts: keys.hosts,
        standby_ready: keys.standby_ready,
        expect_event_every: keys.expect_event_every,
        tls,
    }))
}

fn host(hosts: &mut Vec<String>, text: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || !text.chars().all(plain) {
        return Err("it is a name, such as walrelay.internal, without scheme and port".to_owned());
    }
    hosts.push(text.to_ascii_lowercase());
    Ok(())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let numeric = text.replace("localhost:", "127.0.0.1:");
    numeric.parse().map_err(|_| {
        "it is an IP address and a port, such as 127.0.0.1:9187 or [::1]:9187".to_owned()
    })
}
