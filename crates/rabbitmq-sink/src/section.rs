//! `[sink.rabbitmq]`. The templates of the address are read by the configuration of the router.

use std::time::Duration;

use secrecy::SecretString;
use walrelay_http_client::one_url;
use walrelay_settings::{
    AlreadyReported, MINUTE, Reader, SECOND, Section as _, boolean, choice, duration, integer,
    nested, secret, section, size, string, strings, text,
};
use walrelay_sink_client::{TlsFiles, address_fault};

/// The way in which the relay logs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// User and password.
    Plain,
    /// The certificate of the client names the user.
    External,
}

const AUTHS: &[(&str, Auth)] = &[("plain", Auth::Plain), ("external", Auth::External)];

section! {
/// `[sink.rabbitmq]`.
#[derive(Debug, Clone)]
pub struct RabbitmqSection at "sink.rabbitmq" {
    /// Hosts, each with a port if it is not 5672, or 5671 with TLS; required with `kind = "rabbitmq"`. The first that answers is used.
    "hosts" hosts: Vec<String> = strings().or_empty();
    /// The virtual host.
    "vhost" vhost: String = text(name).or("/");
    /// The user; required unless `auth` is `external`.
    "username" username: Option<String> = string().optional();
    /// The password; required unless `auth` is `external`.
    "password" password: Option<SecretString> = secret(|_| Ok(())).optional();
    /// `plain`: user and password. `external`: the client's certificate is the user.
    "auth" auth: Auth = choice(AUTHS).or("plain");
    /// Whether the connection is encrypted, and the server's certificate verified.
    "tls" tls: bool = boolean().or("false");
    /// The files of TLS.
    "" files: TlsFiles = nested::<TlsFiles>();
    /// The server's `max_message_size`, or less: larger events are oversize.
    "max_message_size" max_message_size: u64 = size(1..=(512 << 20)).or("16MiB");
    /// The number of channels, 1 to 64. Each is a process of the server: several use more of its processors. Events of a key stay in order.
    "channels" channels: u16 = integer::<u16>(1..=64).or("1");
    /// Whether a queue of an exchange may be a stream. With RabbitMQ before 4.0 a confirm then counts when all earlier messages of its exchange have one, so a queue that does not confirm holds back others. `false`: a confirm counts at once.
    "streams" streams: bool = boolean().or("true");
    /// How long the server may confirm nothing before the connection is replaced, 1s to 10m.
    "confirm_timeout" confirm_timeout: Duration = duration(SECOND..=MINUTE * 10).or("30s");
    /// How long connecting may take, and each answer of the login, 1s to 1m.
    "connect_timeout" connect_timeout: Duration = duration(SECOND..=MINUTE).or("10s");
    /// The interval of heartbeats, 1s to 10m; the server may ask for a shorter one.
    "heartbeat" heartbeat: Duration = duration(SECOND..=MINUTE * 10).or("20s");
    /// URL of the server's management interface, `https://host:15671`, where `check` reads bindings and queues as the same user.
    "management_url" management_url: Option<String> = text(one_url).optional();
    /// Whether the relay declares `exchange`, which must be constant, and `queue`, if they do not exist, and binds them.
    "declare" declare: bool = boolean().or("false");
    /// The quorum queue of `declare`.
    "queue" queue: Option<String> = text(name).optional();
    /// The exchange of dead letters. Empty: the default exchange, which has every queue by its name.
    "dead_letter_exchange" dead_letter_exchange: String = text(short).or("");
    /// The routing key of dead letters. Unset: `poison.topic`.
    "dead_letter_routing_key" dead_letter_routing_key: Option<String> = text(short).optional();
}
}

fn short(text: &str) -> Result<String, String> {
    (text.len() <= 255)
        .then(|| text.to_owned())
        .ok_or_else(|| "AMQP accepts 255 bytes".to_owned())
}

fn name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it cannot be empty".to_owned());
    }
    short(text)
}

impl RabbitmqSection {
    /// Reads the section. `in_use`: its combinations are checked.
    ///
    /// # Errors
    /// If a problem was reported to `reader`.
    pub fn read_for(reader: &mut Reader<'_>, in_use: bool) -> Result<Self, AlreadyReported> {
        let section = Self::read(reader)?;
        if !in_use {
            return Ok(section);
        }
        let at = |key: &str| format!("sink.rabbitmq.{key}");
        if section.hosts.is_empty() {
            return Err(reader.missing(&at("hosts"), "[\"rabbitmq.internal:5672\"]"));
        }
        let mut hosts = section.hosts.iter();
        if let Some(what) = hosts.find_map(|host| address_fault(&at("hosts"), host)) {
            return Err(reader.conflict(&at("hosts"), what));
        }
        section.files.check_identity(reader, Self::AT)?;
        match section.auth {
            Auth::External if section.files.certificate_file.is_none() || !section.tls => {
                let what =
                    "`auth` is \"external\", which needs `tls`, `certificate_file` and `key_file`";
                return Err(reader.conflict(&at("auth"), what.to_owned()));
            }
            Auth::External => {
                for key in ["username", "password", "password_file", "management_url"] {
                    if reader.has(&at(key)) {
                        return Err(reader.no_effect(&at(key), "while `auth` is \"external\""));
                    }
                }
            }
            Auth::Plain if section.username.is_none() => {
                return Err(reader.missing(&at("username"), "\"walrelay\""));
            }
            Auth::Plain if section.password.is_none() => {
                return Err(reader.missing(&at("password_file"), "\"/run/secrets/rabbitmq\""));
            }
            Auth::Plain => {}
        }
        if !section.tls {
            // `management_url` may be encrypted by itself.
            let management = section.management_url.as_deref();
            let is_encrypted = management.is_some_and(|url| url.starts_with("https:"));
            let unused: &[&str] = if is_encrypted {
                &["certificate_file"]
            } else {
                &["ca_file", "certificate_file"]
            };
            TlsFiles::check_unused(reader, Self::AT, unused)?;
        }
        if section.declare && section.queue.is_none() {
            return Err(reader.missing(&at("queue"), "\"orders\""));
        }
        if !section.declare && section.queue.is_some() {
            return Err(reader.no_effect(&at("queue"), "while `declare` is false"));
        }
        Ok(section)
    }
}
