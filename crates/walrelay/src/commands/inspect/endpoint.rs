//! The HTTP endpoint of a relay on this machine, as other commands ask it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use secrecy::ExposeSecret;
use walrelay_http_client::{Roots, agent};
use walrelay_observe::StatusReport;

use crate::config::Http;

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a connection to an endpoint that has not answered.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest document that is read.
const MOST_BYTES: u64 = 4 << 20;
/// The remedy for a relay that holds its endpoint and does not answer.
pub(crate) const SILENT_REMEDY: &str = "the relay hangs: it is stopped (kill -CONT PID), its machine swaps, or a \
     disk does not answer; ss -ltnp names the process of the port. End it by SIGKILL and start it again: nothing is \
     lost";

/// The reason why the endpoint gave no document.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub(crate) struct NoDocument {
    why: String,
    /// True if something listens there, and gave no answer in time.
    pub(crate) is_silent: bool,
}

impl From<String> for NoDocument {
    fn from(why: String) -> Self {
        let is_silent = false;
        Self { why, is_silent }
    }
}

/// Fetches the status document of a relay with this configuration on this machine.
pub(crate) fn fetch_status(http: &Http) -> Result<StatusReport, NoDocument> {
    let url = "/api/status";
    let body = fetch(http, url)?;
    serde_json::from_str(&body)
        .map_err(|_| format!("{url} is not of walrelay, or of another version").into())
}

/// Fetches the status document of the relay of this slot.
///
/// # Errors
/// Also if the endpoint is that of relays of other slots, because theirs tells nothing of this one's events.
pub(crate) fn fetch_status_of(http: &Http, slot: &str) -> Result<StatusReport, NoDocument> {
    let status = match fetch_status(http) {
        // The endpoint of several pipelines wants the name of one.
        Err(error) if !error.is_silent => {
            let named = fetch(http, &format!("/api/status?pipeline={slot}"));
            let named = named.ok().and_then(|body| serde_json::from_str(&body).ok());
            named.ok_or(error)?
        }
        status => status?,
    };
    let other = &status.pipeline.slot;
    if other != slot {
        let what = format!(
            "{} is the endpoint of the relay of slot {other}",
            http.listen
        );
        return Err(what.into());
    }
    Ok(status)
}

/// Fetches a path of the endpoint.
pub(crate) fn fetch(http: &Http, path: &str) -> Result<String, NoDocument> {
    let mut address = http.listen;
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    let (scheme, roots) = match &http.tls {
        None => ("http", Roots::None),
        // Trust the certificates of the endpoint's own file: the chain may end with its authority.
        Some((certificate, _)) => {
            let roots = Roots::from_file(certificate).map_err(|error| error.to_string())?;
            ("https", roots)
        }
    };
    let url = format!("{scheme}://{address}{path}");
    let mut request = agent(REQUEST_TIMEOUT, roots).get(&url);
    if let Some(token) = &http.token {
        request = request.header(
            "Authorization",
            format!("Bearer {}", token.expose_secret().trim()),
        );
    }
    let failed = |error: ureq::Error| NoDocument {
        is_silent: matches!(error, ureq::Error::Timeout(_)) && accepts(address),
        why: format!("{url}: {error}"),
    };
    let mut answer = request.call().map_err(failed)?;
    if answer.status() != 200 {
        return Err(format!("{url} answered with status {}", answer.status().as_u16()).into());
    }
    let body = answer
        .body_mut()
        .with_config()
        .limit(MOST_BYTES)
        .read_to_string();
    body.map_err(failed)
}

/// Returns true if something listens at the address: the kernel accepts connections for a process that is stopped.
/// On this machine only a full queue of connections keeps it from that.
fn accepts(address: SocketAddr) -> bool {
    address.ip().is_loopback() || TcpStream::connect_timeout(&address, ACCEPT_TIMEOUT).is_ok()
}
