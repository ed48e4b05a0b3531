//! A broker with TLS, logins and access control.

use super::{Kafka, KafkaBuilder, acl};
use crate::authority::{Authority, Issued};

/// A broker with one correct listener per purpose, and others that are wrong in one way each.
///
/// | listener | protocol | its certificate |
/// |---|---|---|
/// | `SECURE` | SASL_SSL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER | of
/// [`authority`](Self::authority), for `localhost` |
/// | `MUTUAL` | SSL, requires a client certificate | the same |
/// | `ELSEWHERE` | SASL_SSL: PLAIN | for another host |
/// | `EXPIRED` | SASL_SSL: PLAIN | expired |
/// | `STRANGER` | SASL_SSL: PLAIN | of another authority |
///
/// Clients of the plain listener ([`Kafka::bootstrap_servers`]) and [`USER`](Self::USER) may do
/// everything. [`LIMITED`](Self::LIMITED) may do what [`allow`](Self::allow) grants. Tokens are
/// unsecured: the broker believes their subject, and ends a session when its token expires.
#[derive(Debug)]
pub struct SecureKafka {
    /// The broker.
    pub kafka: Kafka,
    /// The authority that clients must trust.
    pub authority: Authority,
}

impl SecureKafka {
    /// User that may do everything.
    pub const USER: &str = "relay";
    /// The password of [`USER`](Self::USER), for PLAIN and SCRAM.
    pub const PASSWORD: &str = "kafka-hunter2";
    /// User that may do only what [`allow`](Self::allow) grants.
    pub const LIMITED: &str = "limited";
    /// The password of [`LIMITED`](Self::LIMITED), for PLAIN.
    pub const LIMITED_PASSWORD: &str = "kafka-hunter3";

    /// Starts the broker.
    #[track_caller]
    pub fn start() -> Self {
        let authority = Authority::new("testkit authority");
        let stranger = Authority::new("another authority");
        let good = authority.server("localhost");
        let (user, password) = (Self::USER, Self::PASSWORD);
        let (limited, limited_password) = (Self::LIMITED, Self::LIMITED_PASSWORD);
        let module = "org.apache.kafka.common.security";
        let plain = format!(
            "{module}.plain.PlainLoginModule required user_{user}=\"{password}\" \
             user_{limited}=\"{limited_password}\";"
        );
        let mut builder = Kafka::builder()
            .setting(
                "authorizer.class.name",
                "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            )
            .setting(
                "super.users",
                format!("User:ANONYMOUS;User:{user};User:CN={user}"),
            )
            // A session ends with its token, and after an hour at the latest.
            .setting("connections.max.reauth.ms", "3600000");
        for scram in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
            builder = builder
                .format_argument("--add-scram")
                .format_argument(format!("{scram}=[name={user},password={password}]"));
        }
        for (name, certificate) in [
            ("SECURE", &good),
            ("ELSEWHERE", &authority.server("elsewhere.example")),
            ("EXPIRED", &authority.expired_server("localhost")),
            ("STRANGER", &stranger.server("localhost")),
        ] {
            let prefix = format!("listener.name.{}", name.to_lowercase());
            builder = builder
                .listener(name, "SASL_SSL")
                .certificate(name, certificate);
            let mut mechanisms = vec![("PLAIN", plain.clone())];
            if name == "SECURE" {
                let scram = format!("{module}.scram.ScramLoginModule required;");
                let bearer = format!("{module}.oauthbearer.OAuthBearerLoginModule required;");
                mechanisms.extend([
                    ("SCRAM-SHA-256", scram.clone()),
                    ("SCRAM-SHA-512", scram),
                    ("OAUTHBEARER", bearer),
                ]);
            }
            let names: Vec<&str> = mechanisms.iter().map(|(name, _)| *name).collect();
            builder = builder.setting(format!("{prefix}.sasl.enabled.mechanisms"), names.join(","));
            for (mechanism, login) in mechanisms {
                let mechanism = mechanism.to_lowercase();
                builder = builder.setting(format!("{prefix}.{mechanism}.sasl.jaas.config"), login);
            }
        }
        builder = builder
            .listener("MUTUAL", "SSL")
            .certificate("MUTUAL", &good)
            .setting("listener.name.mutual.ssl.client.auth", "required")
            .setting("listener.name.mutual.ssl.truststore.type", "PEM")
            .setting(
                "listener.name.mutual.ssl.truststore.certificates",
                one_line(&authority.pem()),
            );
        Self {
            kafka: builder.start(),
            authority,
        }
    }

    /// Grants [`LIMITED`](Self::LIMITED) these operations (`WRITE`, `CREATE`, `DESCRIBE`,
    /// `DESCRIBE_CONFIGS`) on a topic.
    #[track_caller]
    pub fn allow(&self, topic: &str, operations: &[&str]) {
        let address = self.kafka.bootstrap_servers();
        acl::allow(&address, Self::LIMITED, topic, operations);
    }
}

impl KafkaBuilder {
    /// Sets the certificate of a listener that was added.
    pub fn certificate(self, listener: &str, issued: &Issued) -> Self {
        let prefix = format!("listener.name.{}.ssl.keystore", listener.to_lowercase());
        self.setting(format!("{prefix}.type"), "PEM")
            .setting(format!("{prefix}.key"), one_line(&issued.key))
            .setting(
                format!("{prefix}.certificate.chain"),
                one_line(&issued.certificate),
            )
    }
}

/// Returns a PEM as the value of a Java property, on one line.
fn one_line(pem: &str) -> String {
    pem.lines().flat_map(|line| [line, "\\n"]).collect()
}
