//! Answers of a schema registry: [`Answer`] or [`Refusal`].

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use walrelay_event_router::ValueFormat;
use walrelay_relay::{SchemaError, SchemaFailure};

/// Characters of a registry's message that are shown, at most.
const MAX_MESSAGE: usize = 300;

/// An answer with status 200.
#[derive(Debug)]
pub(super) struct Answer {
    url: String,
    body: serde_json::Value,
}

/// An answer with another status, or no answer.
#[derive(Debug)]
pub(super) struct Refusal {
    url: String,
    /// The HTTP status; `None` without an answer, or if the answer is not understood.
    pub(super) status: Option<u16>,
    /// The registry's error code.
    code: Option<u64>,
    message: String,
}

/// The body of an error.
#[derive(Deserialize)]
struct ErrorBody {
    error_code: Option<u64>,
    message: Option<String>,
}

impl Answer {
    pub(super) fn read(url: &str, body: &[u8]) -> Result<Self, Refusal> {
        match serde_json::from_slice(body) {
            Ok(body) => Ok(Self {
                url: url.to_owned(),
                body,
            }),
            Err(_) => Err(Refusal::unreachable(url, "its answer is not JSON")),
        }
    }

    /// Returns the id of the schema.
    pub(super) fn id(&self, subject: &str) -> Result<u32, SchemaError> {
        let id = self.body.get("id").and_then(serde_json::Value::as_i64);
        let id = id.and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| self.malformed(subject, "no id of a schema in it"))
    }

    /// Returns the text of the schema, if it is of this format.
    pub(super) fn schema(&self, subject: &str, format: ValueFormat) -> Result<&str, SchemaError> {
        let text = |name: &str| self.body.get(name).and_then(serde_json::Value::as_str);
        let wanted = match format {
            ValueFormat::Avro => "AVRO",
            ValueFormat::Json => "JSON",
        };
        // The registry leaves out the type of Avro schemas.
        let found = text("schemaType").unwrap_or("AVRO");
        if found != wanted {
            return Err(refused(format!(
                "the latest schema of subject {subject:?} is of type {found:?}, and {wanted:?} is \
                 configured"
            )));
        }
        let references = self.body.get("references");
        let refers = references.and_then(serde_json::Value::as_array);
        if format == ValueFormat::Avro && refers.is_some_and(|list| !list.is_empty()) {
            return Err(refused(format!(
                "the latest schema of subject {subject:?} refers to schemas of other subjects, which \
                 this version of walrelay does not follow"
            )));
        }
        text("schema").ok_or_else(|| self.malformed(subject, "no schema in it"))
    }

    /// Returns the error of an answer that lacks a member.
    fn malformed(&self, subject: &str, what: &str) -> SchemaError {
        Refusal::unreachable(&self.url, &format!("its answer has {what}")).to_error(Some(subject))
    }
}

impl Refusal {
    /// Creates the refusal for a missing answer, or one that is not understood.
    pub(super) fn unreachable(url: &str, message: &str) -> Self {
        Self {
            url: url.to_owned(),
            status: None,
            code: None,
            message: shortened(message),
        }
    }

    /// Creates the refusal for an answer with another status than 200. Hides a message that repeats
    /// `secret`.
    pub(super) fn from_status(
        url: &str,
        status: u16,
        body: &[u8],
        secret: Option<&SecretString>,
    ) -> Self {
        let error: Option<ErrorBody> = serde_json::from_slice(body).ok();
        let code = error.as_ref().and_then(|error| error.error_code);
        let message = error.and_then(|error| error.message).unwrap_or_default();
        // A server in between may repeat the credentials.
        let shows_secret = secret.is_some_and(|secret| message.contains(secret.expose_secret()));
        Self {
            url: url.to_owned(),
            status: Some(status),
            code,
            message: if shows_secret {
                String::new()
            } else {
                shortened(&message)
            },
        }
    }

    /// Returns the kind of failure. After `Unavailable`, another server of the same registry may
    /// answer otherwise.
    pub(super) fn kind(&self) -> SchemaFailure {
        match self.status {
            Some(401) => SchemaFailure::Unauthenticated,
            Some(403) => SchemaFailure::Forbidden,
            Some(404) => SchemaFailure::Missing,
            // Request Timeout, Too Early, Too Many Requests.
            Some(408 | 425 | 429) => SchemaFailure::Unavailable,
            Some(400..=499) => SchemaFailure::Refused,
            // Redirections are not followed, so they count as unavailable.
            Some(_) | None => SchemaFailure::Unavailable,
        }
    }

    /// Returns the refusal as an error about a subject.
    pub(super) fn to_error(&self, subject: Option<&str>) -> SchemaError {
        let url = &self.url;
        let about = subject.map_or_else(String::new, |subject| format!(" for subject {subject:?}"));
        let mut reason = match self.status {
            None => format!("the schema registry at {url} gives no answer{about}"),
            Some(status) => {
                let code = self
                    .code
                    .map_or_else(String::new, |code| format!(", error code {code}"));
                format!("the schema registry at {url} answers{about} with status {status}{code}")
            }
        };
        if !self.message.is_empty() {
            reason.push_str(": ");
            reason.push_str(&self.message);
        }
        SchemaError {
            kind: self.kind(),
            reason,
        }
    }
}

/// Returns the error of a schema that cannot be used.
pub(super) fn refused(reason: String) -> SchemaError {
    SchemaError {
        kind: SchemaFailure::Refused,
        reason,
    }
}

/// Returns a message on one line, cut off after [`MAX_MESSAGE`] characters.
fn shortened(message: &str) -> String {
    let plain = message
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c });
    let mut shown: String = plain.take(MAX_MESSAGE).collect();
    if message.chars().nth(MAX_MESSAGE).is_some() {
        shown.push('…');
    }
    shown
}
