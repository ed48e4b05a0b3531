//! Brokers that cannot be connected to at the address that the cluster advertises.
//!
//! A client asks a broker of `bootstrap.servers` for the cluster's brokers, and then connects to the
//! addresses in the answer (`advertised.listeners`). If these cannot be reached, an error that names
//! `bootstrap.servers` would send the reader to the wrong address.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sync::lock;

/// The time for which a failed connection counts. librdkafka reports equal failures every 30 s.
const COUNTS_FOR: Duration = Duration::from_secs(60);

/// The last connection to an advertised address that failed.
#[derive(Debug, Default)]
pub(crate) struct Advertised(Mutex<Option<(String, Instant)>>);

impl Advertised {
    /// Notes librdkafka's message about a failed connection if the address is an advertised one.
    pub(crate) fn failed(&self, reason: &str, bootstrap: &str, now: Instant) {
        if let Some(what) = describe(reason, bootstrap) {
            *lock(&self.0) = Some((what, now));
        }
    }

    /// Returns what the last failed connection was, if it still counts.
    pub(crate) fn unreachable(&self, now: Instant) -> Option<String> {
        let failed = lock(&self.0);
        let (what, at) = failed.as_ref()?;
        (now < *at + COUNTS_FOR).then(|| what.clone())
    }
}

/// Returns the description of a failure whose message is `[protocol://]host:port/id: …`; `None` if
/// the address is in `bootstrap`. In place of the id, brokers of `bootstrap.servers` have a word.
fn describe(reason: &str, bootstrap: &str) -> Option<String> {
    let (broker, detail) = reason.split_once(": ")?;
    let (address, id) = broker.rsplit_once('/')?;
    id.parse::<i32>().ok()?;
    let address = without_protocol(address);
    let mut servers = bootstrap.split(',').map(|it| without_protocol(it.trim()));
    let is_bootstrap = servers.any(|server| {
        // The port of an address without one is 9092.
        let port = address.strip_prefix(server);
        port.is_some_and(|port| port.is_empty() || port == ":9092")
    });
    (!is_bootstrap).then(|| {
        format!(
            "broker {address} cannot be reached, an address that the cluster advertises and that is not in \
             bootstrap.servers: {detail}; correct advertised.listeners of the broker, or the network"
        )
    })
}

fn without_protocol(address: &str) -> &str {
    address
        .split_once("://")
        .map_or(address, |(_, address)| address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertised_address_is_named_unless_it_is_a_bootstrap_server() {
        let failure = |broker: &str| format!("{broker}: Connect failed: refused (after 0ms)");
        let of = |broker: &str, bootstrap| describe(&failure(broker), bootstrap);
        for (broker, bootstrap) in [
            ("inner:9092/1", "outer:9092"),
            ("sasl_ssl://inner:9092/1", "SASL_SSL://outer:9093, other"),
            ("inner:9093/1", "inner"),
        ] {
            let what = of(broker, bootstrap).expect(broker);
            let port = if broker.contains("9093") { 9093 } else { 9092 };
            let named = format!("broker inner:{port} cannot be reached");
            assert!(what.contains(&named) && what.contains("refused"), "{what}");
        }
        for (broker, bootstrap) in [
            ("outer:9092/1", "outer:9092"),
            ("ssl://outer:9092/1", "other,outer"),
            ("outer:9092/bootstrap", "elsewhere"),
            ("GroupCoordinator", "outer:9092"),
        ] {
            assert_eq!(of(broker, bootstrap), None, "{broker}");
        }
    }

    #[test]
    fn a_failure_counts_for_a_while() {
        let advertised = Advertised::default();
        let start = Instant::now();
        assert_eq!(advertised.unreachable(start), None);
        advertised.failed("inner:9092/1: no", "outer:9092", start);
        advertised.failed("outer:9092/bootstrap: no", "outer:9092", start);
        assert!(advertised.unreachable(start + COUNTS_FOR / 2).is_some());
        assert_eq!(advertised.unreachable(start + COUNTS_FOR), None);
    }
}
