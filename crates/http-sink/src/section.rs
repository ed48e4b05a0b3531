//! `[sink.http]`.

use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use walrelay_settings::{
    AlreadyReported, MINUTE, Reader, SECOND, Section as _, boolean, choice, duration, integer,
    nested, secret, section, text,
};
use walrelay_sink::{Record, SinkOptions};
use walrelay_sink_client::TlsFiles;

use crate::address::UrlTemplate;
use crate::config::{HttpConfig, HttpVersion, Proxy};
use crate::error::HttpError;
use crate::signature::SigningSecret;

const VERSIONS: &[(&str, HttpVersion)] = &[("1.1", HttpVersion::One), ("2", HttpVersion::Two)];

section! {
/// `[sink.http]`.
#[derive(Debug, Clone)]
pub struct HttpSection at "sink.http" {
    /// Where events are posted to; required with `kind = "http"`. `{topic}` stands for the event's topic, other [templates](#templates) for columns of the row, all percent-encoded.
    "url" url: Option<UrlTemplate> = text(UrlTemplate::parse).optional();
    /// Where dead letters are posted to; required if an action of `[poison]` is `dead-letter`.
    "dead_letter_url" dead_letter_url: Option<UrlTemplate> = text(UrlTemplate::parse_of_topic).optional();
    /// The version of HTTP.
    "http_version" version: HttpVersion = choice(VERSIONS).or("1.1");
    /// Requests in flight at most, 1 to 1000; one for each key.
    "max_in_flight" max_in_flight: u32 = integer::<u32>(1..=1_000).or("32");
    /// How long an answer may take, 100ms to 10m.
    "timeout" timeout: Duration = duration(Duration::from_millis(100)..=10 * MINUTE).or("30s");
    /// The longest `Retry-After` that the relay honours.
    "retry_after_max" retry_after_max: Duration = duration(SECOND..).or("5m");
    /// How long a destination of a `url` with `{topic}` or columns may be unavailable before its events are poison `rejected`, which must not be `halt`. Unset: they wait for it.
    "unavailable_for" unavailable_for: Option<Duration> = duration(SECOND..).optional();
    /// The media type of events that have no header `content-type`.
    "content_type" content_type: HeaderValue = text(header_value).or("application/json");
    /// The header that gets the key, percent-encoded. Unset: the key is not sent.
    "key_header" key_header: Option<HeaderName> = text(key_header).optional();
    /// A bearer token.
    "token" token: Option<SecretString> = secret(token).optional();
    /// Secrets of Standard Webhooks, `whsec_…`, separated by white space: each signs each request.
    "secrets" secrets: Option<SecretString> = secret(secrets).optional();
    /// The files of TLS.
    "" files: TlsFiles = nested::<TlsFiles>();
    /// A proxy, `http://host:port`. Proxies of the environment are not used.
    "proxy" proxy: Option<Proxy> = text(Proxy::parse).optional();
    /// Whether a host that an event chooses may have a private address.
    "allow_private" allow_private: bool = boolean().or("false");
}
}

fn header_value(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text).map_err(|_| "it cannot be the value of a header".to_owned())
}

fn key_header(text: &str) -> Result<HeaderName, String> {
    crate::request::header_name(text)
}

fn token(text: &str) -> Result<(), String> {
    let is_token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_token
        .then_some(())
        .ok_or_else(|| "a token has letters, digits and signs".to_owned())
}

fn secrets(text: &str) -> Result<(), String> {
    SigningSecret::parse_all(text).map(drop)
}

impl HttpSection {
    /// Returns the URL that an event is posted to.
    ///
    /// # Errors
    /// Why the event has none, without values of the row.
    pub fn url_of(&self, record: &Record<'_>) -> Result<String, String> {
        let url = self.url.as_ref().ok_or("no URL is configured")?;
        let target = url.target_of_row(record.topic, record.routing_key)?;
        Ok(target.url())
    }

    /// Reads the section. `in_use`: it is the section of the pipeline's sink.
    ///
    /// # Errors
    /// If a problem was reported to `reader`.
    pub fn read_for(reader: &mut Reader<'_>, in_use: bool) -> Result<Self, AlreadyReported> {
        let section = Self::read(reader)?;
        let at = |key: &str| format!("sink.http.{key}");
        if in_use && section.url.is_none() {
            return Err(reader.missing(&at("url"), "\"https://host/path\""));
        }
        section.files.check_identity(reader, Self::AT)?;
        let chosen = |url: &Option<UrlTemplate>| url.as_ref().is_some_and(|url| url.chooses_host);
        let chosen = chosen(&section.url) || chosen(&section.dead_letter_url);
        if section.proxy.is_some() && !section.allow_private && chosen {
            let what = "behind a proxy, the address of a host that an event chooses cannot be checked: \
                        set `allow_private = true`, or let the URL's host be constant";
            return Err(reader.conflict(&at("proxy"), what.to_owned()));
        }
        Ok(section)
    }

    /// Makes the settings of the sink. Reads the files of TLS.
    ///
    /// # Errors
    /// If a file of TLS cannot be used.
    pub(crate) fn config(&self, options: SinkOptions) -> Result<HttpConfig, HttpError> {
        // The section of a sink in use has a URL.
        let url = self.url.clone().ok_or(HttpError::NoUrl)?;
        let mut config = HttpConfig {
            dead_letter_url: self.dead_letter_url.clone(),
            version: self.version,
            max_in_flight: self.max_in_flight,
            timeout: self.timeout,
            retry_after_max: self.retry_after_max,
            unavailable_for: self.unavailable_for,
            content_type: self.content_type.clone(),
            key_header: self.key_header.clone(),
            proxy: self.proxy.clone(),
            allow_private: self.allow_private,
            ..HttpConfig::new(url, options)
        };
        if let Some(token) = &self.token {
            let value = format!("Bearer {}", token.expose_secret());
            // The token was checked when it was read.
            config.authorization = HeaderValue::from_str(&value).ok().map(|mut value| {
                value.set_sensitive(true);
                value
            });
        }
        if let Some(secrets) = &self.secrets {
            // They were checked when they were read.
            config.secrets = SigningSecret::parse_all(secrets.expose_secret()).unwrap_or_default();
        }
        let urls = [&self.url, &self.dead_letter_url];
        if urls.into_iter().flatten().any(UrlTemplate::is_secure) {
            config = config.with_tls(&self.files)?;
        }
        Ok(config)
    }
}
