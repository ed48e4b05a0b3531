//! `[otel]`: the OpenTelemetry collector.

use std::time::Duration;
use walrelay_settings::{
    AlreadyReported, Reader, SECOND, Section, duration, secret_file, section, text,
};

use secrecy::SecretString;

use super::http::Http;
use walrelay_http_client::one_url;

/// `[otel]`: the OpenTelemetry collector.
#[derive(Debug, Clone)]
pub struct Otel {
    /// URL of the collector, without `/v1/metrics` and `/v1/traces`.
    pub endpoint: String,
    /// Interval at which metrics and spans are sent.
    pub interval: Duration,
    /// Token of the header `Authorization: Bearer …`.
    pub token: Option<SecretString>,
}

section! {
/// The keys of [`Otel`].
pub struct OtelKeys at "otel" {
    /// The collector's URL, as in `http://localhost:4318`. Unset: nothing is sent. Needs `http.listen`.
    "endpoint" endpoint: Option<String> = text(one_url).optional();
    /// How often metrics and spans are sent.
    "interval" interval: Duration = duration(SECOND..).or("10s");
    /// The file of a token, sent as `Authorization: Bearer <token>`.
    "token_file" token: Option<SecretString> = secret_file().optional();
}
}

/// Reads the section; `None` without an endpoint. `http`: the section `[http]`, if it is valid.
///
/// # Errors
/// If a problem was reported to `reader`.
pub fn otel(
    reader: &mut Reader<'_>,
    http: Option<&Option<Http>>,
) -> Result<Option<Otel>, AlreadyReported> {
    let keys = OtelKeys::read(reader)?;
    if keys.endpoint.is_some() && matches!(http, Some(None)) {
        let what =
            "`otel.endpoint` needs `http.listen`: the figures are collected for that endpoint";
        return Err(reader.conflict("otel.endpoint", what.to_owned()));
    }
    match (keys.endpoint, keys.token) {
        (Some(endpoint), token) => Ok(Some(Otel {
            endpoint,
            interval: keys.interval,
            token,
        })),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(reader.no_effect("otel.token_file", "without `otel.endpoint`")),
    }
}
