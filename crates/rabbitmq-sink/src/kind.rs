//! RabbitMQ as a [`SinkKind`].

use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::{Failure, ToFailure as _};
use walrelay_sink::{AnySinkFactory, DeliveryError, Record, SinkOptions, SinkStats, any_factory};
use walrelay_sink_client::{Patience, Servers, TlsFiles, host_and_port};
use walrelay_sink_kind::check::{Check, CheckInput, SinkChecks};
use walrelay_sink_kind::topics::ReadableTopics;
use walrelay_sink_kind::{Ability, KindDescription, SinkKind, SinkTerms};

use crate::RabbitmqError;
use crate::check::{self, ITEMS, bindings};
use crate::client::Login;
use crate::client::declare::Declare;
use crate::client::publish::DeadLetterAddress;
use crate::management::Management;
use crate::section::{Auth, RabbitmqSection};
use crate::sink::{RabbitmqSinkFactory, Settings, check_record};
use crate::topics::RabbitmqTopics;

/// The age of a channel from which on it is replaced when a queue refuses a message.
const RENEW: Duration = Duration::from_secs(30);

/// The parts of the address that are the same for all events.
#[derive(Debug, Clone, Default)]
pub struct ConstantAddress {
    /// The exchange, if it is.
    pub exchange: Option<String>,
    /// The routing key, if it is.
    pub routing_key: Option<String>,
}

/// A RabbitMQ server or cluster.
#[derive(Debug)]
pub struct RabbitmqKind {
    login: Arc<Login>,
    settings: Arc<Settings>,
    /// The routing key, if it is the same for all events.
    routing_key: Option<String>,
    topics: RabbitmqTopics,
    plain_text: bool,
    files: TlsFiles,
    /// The password is sent to the management interface of another machine without TLS.
    plain_management: bool,
}

impl RabbitmqKind {
    /// The facts about the kind. Dead letters that were published cannot be read back.
    pub const DESCRIPTION: KindDescription = KindDescription {
        name: "rabbitmq",
        title: "RabbitMQ",
        settings_item: Some("rabbitmq-settings"),
        items: &ITEMS,
        cannot: &[Ability::Partitions, Ability::Tombstones],
    };

    /// Makes the sink of a configuration. Reads the certificates, and does not connect. `options`:
    /// those that other sections decide.
    ///
    /// # Errors
    /// If a certificate or key cannot be used.
    pub fn new(
        section: &RabbitmqSection,
        options: SinkOptions,
        address: ConstantAddress,
    ) -> Result<Self, Failure> {
        let port = if section.tls { 5671 } else { 5672 };
        let hosts = section
            .hosts
            .iter()
            .filter_map(|host| host_and_port(host, port));
        let tls = section.tls.then(|| section.files.client_config());
        let tls = tls
            .transpose()
            .map_err(|error| RabbitmqError::from(error).to_failure())?;
        let login = Arc::new(Login {
            servers: Servers {
                hosts: hosts.collect(),
                tls: tls.map(Arc::new),
                timeout: section.connect_timeout,
            },
            vhost: section.vhost.clone(),
            username: section.username.clone().unwrap_or_default(),
            password: section.password.clone().unwrap_or_default(),
            external: section.auth == Auth::External,
            heartbeat: section.heartbeat,
        });
        let declare = section.queue.clone().filter(|_| section.declare);
        let declare = declare.map(|queue| Declare {
            exchange: address.exchange.unwrap_or_default(),
            queue,
            routing_key: address.routing_key.clone(),
        });
        let management = section.management_url.clone().map(|url| Management {
            url,
            username: login.username.clone(),
            password: login.password.clone(),
            vhost: login.vhost.clone(),
            ca_file: section.files.ca_file.clone(),
            timeout: section.connect_timeout,
        });
        let plain = section.management_url.as_deref();
        let plain = plain.and_then(|url| url.strip_prefix("http://"));
        Ok(Self {
            plain_management: plain.is_some_and(|rest| !is_of_this_machine(rest)),
            topics: RabbitmqTopics {
                login: Arc::clone(&login),
                management,
            },
            files: section.files.clone(),
            plain_text: !section.tls && section.password.is_some(),
            login,
            routing_key: address.routing_key,
            settings: Arc::new(Settings {
                max_records: options.max_in_flight_records,
                max_retrying_bytes: options.max_retrying_bytes,
                max_retrying_keys: options.max_retrying_keys as usize,
                max_bytes: options.max_in_flight_bytes,
                channels: section.channels,
                max_message: section.max_message_size,
                streams: section.streams,
                confirm: section.confirm_timeout,
                renew: RENEW,
                pauses: (options.backoff_initial, options.backoff_max),
                refusals: Patience::new(options.retry_for),
                dead_letters: DeadLetterAddress {
                    exchange: section.dead_letter_exchange.clone(),
                    routing_key: section
                        .dead_letter_routing_key
                        .clone()
                        .unwrap_or(options.dead_letters),
                },
                declare,
            }),
        })
    }
}

/// Returns whether a URL without its scheme names a host of this machine.
fn is_of_this_machine(rest: &str) -> bool {
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority
        .rsplit_once(':')
        .map_or(authority, |(host, port)| {
            if port.ends_with(']') { authority } else { host }
        });
    let address = host.parse::<std::net::Ipv4Addr>();
    host == "localhost" || host == "[::1]" || address.is_ok_and(|address| address.is_loopback())
}

impl SinkKind for RabbitmqKind {
    fn description(&self) -> &'static KindDescription {
        &Self::DESCRIPTION
    }

    fn servers(&self) -> Option<String> {
        Some(self.login.servers.names())
    }

    fn terms(&self) -> SinkTerms {
        SinkTerms {
            endpoint: "node",
            ..SinkTerms::default()
        }
    }

    fn warnings(&self) -> Vec<Check> {
        let what = "the password and the events are sent without TLS: anyone on the network path can read \
                    them";
        let warning = Check::warn(what, "set tls = true in [sink.rabbitmq]");
        let what = "check sends the password to management_url without TLS: anyone on the network path can read it";
        let of_management = Check::warn(what, "set an https URL in [sink.rabbitmq]");
        let of_management = self.plain_management.then_some(of_management);
        let warning = self.plain_text.then_some(warning);
        let warnings = warning.into_iter().chain(of_management);
        warnings.chain(self.files.expiry_warning()).collect()
    }

    fn factory(&self, stats: Option<Arc<SinkStats>>) -> (AnySinkFactory, Option<Arc<SinkStats>>) {
        let stats = stats.unwrap_or_default();
        let factory = RabbitmqSinkFactory {
            login: Arc::clone(&self.login),
            settings: Arc::clone(&self.settings),
            stats: Arc::clone(&stats),
        };
        (any_factory(factory), Some(stats))
    }

    fn refusal(&self, record: &Record<'_>) -> Option<DeliveryError> {
        check_record(record, &self.settings).err()
    }

    fn check(&self, input: CheckInput<'_>) -> SinkChecks {
        let routing_key = self.routing_key.as_deref();
        let mut checks = check::check(&self.login, &self.settings, routing_key, &input);
        checks.extend(bindings::check(
            self.topics.management.as_ref(),
            self.login.external,
            &self.settings,
            &input,
        ));
        checks
    }

    fn readable_topics(&self) -> Result<&dyn ReadableTopics, &'static str> {
        Ok(&self.topics)
    }

    fn dead_letter_obstacle(&self, _: &str) -> Option<String> {
        check::dead_letter_obstacle(&self.login, &self.settings)
    }
}

#[cfg(test)]
mod tests {
    use super::is_of_this_machine;

    #[test]
    fn hosts_of_this_machine_are_told_from_others() {
        for (rest, wanted) in [
            ("localhost", true),
            ("localhost:15672/path", true),
            ("127.0.0.1:15672", true),
            ("[::1]:15672", true),
            ("[::1]", true),
            ("[2001:db8::1]:15672", false),
            ("rabbit:15672", false),
            ("127.example.org", false),
            ("localhost.example.org:15672", false),
        ] {
            assert_eq!(is_of_this_machine(rest), wanted, "{rest}");
        }
    }
}
