//! Finds out why a broker's certificate was refused. librdkafka reports only that it was.

use std::thread;
use std::time::{Duration, Instant};

use walrelay_sink::in_current_span;

use crate::answers::Finding;
use crate::config::KafkaConfig;
use crate::ffi;

/// The time that brokers may take to send their certificates.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Connects once more, without a client certificate and without a login, verifies as configured,
/// and returns what is wrong and what to do. `None`: nothing is wrong, or no broker answered.
///
/// **Blocks** for three seconds at most.
pub(crate) fn diagnose(config: &KafkaConfig) -> Option<String> {
    let client = ffi::inspecting_client(&config.without_credentials()).ok()?;
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

/// Logs the result of [`diagnose`] from another thread; returns at once.
pub(crate) fn log_diagnosis(config: &KafkaConfig) {
    let config = config.clone();
    let thread = thread::Builder::new().name("kafka-tls".to_owned());
    let started = thread.spawn(in_current_span(move || {
        if let Some(diagnosis) = diagnose(&config) {
            tracing::warn!("Kafka: {diagnosis}");
        }
    }));
    if let Err(error) = started {
        tracing::debug!(%error, "the certificate was not looked at");
    }
}

/// Returns the message for a finding. The numbers are `X509_V_ERR_…` of OpenSSL's x509_vfy.h, which
/// never change.
fn describe(finding: &Finding) -> String {
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
    match finding.error {
        62 | 64 => format!(
            "{whose} is not for this host name: correct the name in bootstrap.servers, or in \
             advertised.listeners of the broker, or have a certificate issued that holds it as \
             subjectAltName"
        ),
        10 => format!("{whose} has expired: the broker needs a new one"),
        9 => format!("{whose} is not valid yet: is one of the clocks wrong?"),
        2 | 18..=21 => format!(
            "{whose} was issued by no authority that is trusted here: name the file with the \
             authority's certificate in ssl.ca.location"
        ),
        other => format!("{whose} is refused (OpenSSL's verification error {other})"),
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
        };
        for (error, expected) in [
            (62, "not for this host name"),
            (64, "not for this host name"),
            (10, "the certificate of b.example:9093 has expired"),
            (9, "not valid yet"),
            (20, "no authority that is trusted here"),
            (18, "no authority that is trusted here"),
            (26, "error 26"),
        ] {
            assert!(text(error, 0).contains(expected), "{}", text(error, 0));
        }
        assert!(text(10, 1).contains("above that of b.example:9093"));
    }
}
