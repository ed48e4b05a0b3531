//! A broker with encryption, logins and access control.

use super::{Kafka, KafkaBuilder, acl};
use crate::authority::{Authority, Issued};

/// A broker whose listeners are as they should be, or each wrong in its own way.
///
/// | listener | protocol | its certificate |
/// |---|---|---|
/// | `SECURE` | SASL_SSL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER | of [`authority`](Self::authority), for `localhost` |
/// | `MUTUAL` | SSL, asks for the client's certificate | the same |
/// | `ELSEWHERE` | SASL_SSL: PLAIN | for another host |
/// | `EXPIRED` | SASL_SSL: PLAIN | ended |
/// | `STRANGER` | SASL_SSL: PLAIN | of another authority |
///
/// The plain listener is there too, [`Kafka::bootstrap_servers`]; its clients may do everything. So may
/// [`USER`](Self::USER); [`LIMITED`](Self::LIMITED) may do what [`allow`](Self::allow) grants. Tokens are
/// unsecured ones: the broker believes their subject, and ends a session with its token.
#[derive(Debug)]
pub struct SecureKafka {
    /// The broker.
    pub kafka: Kafka,
    /// Whom clients must trust.
    pub authority: Authority,
}

impl SecureKafka {
    /// May do everything.
    pub const USER: &str = "relay";
    /// The password of [`USER`](Self::USER), for PLAIN and SCRAM.
    pub const PASSWORD: &str = "kafka-hunter2";
    /// May do what it is allowed.
    pub const LIMITED: &str = "limited";
    /// The password of [`LIMITED`](Self::LIMITED), for PLAIN.
    pub const LIMITED_PASSWORD: &str = "kafka-hunter3";

    /// Starts it.
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
            // A session ends with its token, and at the latest after an hour.
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

    /// Allows [`LIMITED`](Self::LIMITED) these operations (`WRITE`, `CREATE`, `DESCRIBE`, `DESCRIBE_CONFIGS`) on a
    /// topic.
    #[track_caller]
    pub fn allow(&self, topic: &str, operations: &[&str]) {
        let address = self.kafka.bootstrap_servers();
        acl::allow(&address, Self::LIMITED, topic, operations);
    }
}

impl KafkaBuilder {
    /// The certificate of a listener that was added.
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

/// As Java's property files have a value of several lines.
fn one_line(pem: &str) -> String {
    pem.lines().flat_map(|line| [line, "\\n"]).collect()
}
