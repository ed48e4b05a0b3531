//! Finds out why a broker's certificate was refused. librdkafka reports only that it was.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_sink::{CertificateFault, SinkStats, in_current_span};

use crate::answers::Finding;
use crate::config::KafkaConfig;
use crate::error::TLS_REMEDY;
use crate::ffi;

/// The time that brokers may take to send their certificates.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Connects once more, without a client certificate and without a login, verifies as configured,
/// and returns what is wrong and what to do. `broker`: the `host:port` to connect to, in place of
/// `bootstrap.servers`. `None`: nothing is wrong, or no broker answered.
///
/// **Blocks** for three seconds at most.
pub(crate) fn diagnose(config: &KafkaConfig, broker: Option<&str>) -> Option<CertificateFault> {
    let mut client = config.without_credentials();
    if let Some(broker) = broker {
        client.set("bootstrap.servers", broker);
    }
    let client = ffi::inspecting_client(&client).ok()?;
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        // Only the handshake matters; the request itself may fail for lack of a login.
        let asked = client.fetch_metadata(None, Duration::from_millis(200));
        if let Some(finding) = client.context().first() {
            return Some(describe(&finding));
        }
        if asked.is_ok() {
            return None;
        }
    }
    None
}

/// Logs the result of [`diagnose`] from another thread, and notes it in `stats`; returns at once.
/// `reason`: librdkafka's message about the broker.
pub(crate) fn note_diagnosis(config: &KafkaConfig, reason: &str, stats: &Arc<SinkStats>) {
    let (config, stats) = (config.clone(), Arc::clone(stats));
    let broker = broker_of(reason).map(str::to_owned);
    let thread = thread::Builder::new().name("kafka-tls".to_owned());
    let started = thread.spawn(in_current_span(move || {
        if let Some(fault) = diagnose(&config, broker.as_deref()) {
            tracing::warn!(remedy = fault.remedy, "Kafka: {fault}");
            stats.set_certificate_fault(Some(fault));
        }
    }));
    if let Err(error) = started {
        tracing::debug!(%error, "the certificate was not looked at");
    }
}

/// Returns `host:port` of the broker that a message of librdkafka is about:
/// `ssl://host:port/bootstrap: …`, or `sasl_ssl://host:port/1: …`.
fn broker_of(reason: &str) -> Option<&str> {
    let (broker, _) = reason.split_once(": ")?;
    let (_, broker) = broker.rsplit_once("://")?;
    broker.rsplit_once('/').map(|(address, _)| address)
}

/// Returns the words for a finding. The numbers are `X509_V_ERR_…` of OpenSSL's x509_vfy.h, which
/// never change.
fn describe(finding: &Finding) -> CertificateFault {
    let broker = &finding.broker;
    // "ssl://host:port/bootstrap" or "ssl://host:port/1"
    let broker = broker
        .rsplit_once("://")
        .map_or(&**broker, |(_, rest)| rest);
    let broker = broker.split('/').next().unwrap_or(broker);
    let whose = if finding.depth == 0 {
        format!("the certificate of {broker}")
    } else {
        format!("a certificate above that of {broker}")
    };
    let (what, remedy) = match finding.error {
        62 | 64 => (
            "is not for this host name",
            "correct the name in bootstrap.servers, or in advertised.listeners of the broker, or have a \
             certificate issued that holds it as subjectAltName",
        ),
        10 => ("has expired", "give the broker a new certificate"),
        9 => (
            "is not valid yet",
            "see whether the clock of this machine, or of the one that issued it, is wrong",
        ),
        2 | 18..=21 => (
            "was issued by no trusted authority",
            "name the file with the authority's certificate in ssl.ca.location",
        ),
        other => {
            return CertificateFault {
                what: format!("{whose} is refused (OpenSSL's verification error {other})"),
                remedy: TLS_REMEDY,
            };
        }
    };
    CertificateFault {
        what: format!("{whose} {what}"),
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_has_its_message() {
        let text = |error, depth| {
            describe(&Finding {
                broker: "ssl://b.example:9093/bootstrap".to_owned(),
                error,
                depth,
            })
            .what
        };
        for (error, expected) in [
            (62, "not for this host name"),
            (64, "not for this host name"),
            (10, "the certificate of b.example:9093 has expired"),
            (9, "not valid yet"),
            (20, "no trusted authority"),
            (18, "no trusted authority"),
            (26, "error 26"),
        ] {
            assert!(text(error, 0).contains(expected), "{}", text(error, 0));
        }
        assert!(text(10, 1).contains("above that of b.example:9093"));
    }

    #[test]
    fn the_broker_of_a_message_is_looked_at() {
        for (reason, broker) in [
            (
                "sasl_ssl://b:9093/1: SSL handshake failed: error:0A000086",
                Some("b:9093"),
            ),
            (
                "ssl://[::1]:9093/bootstrap: SSL handshake failed",
                Some("[::1]:9093"),
            ),
            ("1/1 brokers are down", None),
        ] {
            assert_eq!(broker_of(reason), broker);
        }
    }
}
