//! What a registry answers.

use serde::Deserialize;
use walrelay_event_router::ValueFormat;
use walrelay_relay::{SchemaError, SchemaFailure};

/// So much of a registry's words is shown.
const MOST_WORDS: usize = 300;

/// An answer that is none of failure.
#[derive(Debug)]
pub(super) struct Answer {
    url: String,
    body: serde_json::Value,
}

/// An answer that is, or none.
#[derive(Debug)]
pub(super) struct Refusal {
    url: String,
    /// Of HTTP; `None` where nobody answered as HTTP does.
    pub(super) status: Option<u16>,
    /// Of the registry.
    code: Option<u64>,
    words: String,
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

    /// The schema's id.
    pub(super) fn id(&self, subject: &str) -> Result<u32, SchemaError> {
        let id = self.body.get("id").and_then(serde_json::Value::as_i64);
        let id = id.and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| self.odd(subject, "no id of a schema in it"))
    }

    /// The schema, if it is of the format.
    pub(super) fn schema(&self, subject: &str, format: ValueFormat) -> Result<&str, SchemaError> {
        let text = |name: &str| self.body.get(name).and_then(serde_json::Value::as_str);
        let wanted = match format {
            ValueFormat::Avro => "AVRO",
            ValueFormat::Json => "JSON",
        };
        let refused = |reason| SchemaError {
            kind: SchemaFailure::Refused,
            reason,
        };
        // Avro goes without saying.
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
        text("schema").ok_or_else(|| self.odd(subject, "no schema in it"))
    }

    /// It is JSON, and not what a registry says.
    fn odd(&self, subject: &str, what: &str) -> SchemaError {
        Refusal::unreachable(&self.url, &format!("its answer has {what}")).of(Some(subject))
    }
}

impl Refusal {
    pub(super) fn unreachable(url: &str, words: &str) -> Self {
        Self {
            url: url.to_owned(),
            status: None,
            code: None,
            words: shown(words),
        }
    }

    pub(super) fn of_status(url: &str, status: u16, body: &[u8], secret: Option<&str>) -> Self {
        let said: Option<ErrorBody> = serde_json::from_slice(body).ok();
        let code = said.as_ref().and_then(|said| said.error_code);
        let words = said.and_then(|said| said.message).unwrap_or_default();
        // Whoever stands in between may say what it was told.
        let tells = secret.is_some_and(|secret| words.contains(secret));
        Self {
            url: url.to_owned(),
            status: Some(status),
            code,
            words: if tells { String::new() } else { shown(&words) },
        }
    }

    /// Whether another server of the same registry may answer better.
    pub(super) fn is_its_own(&self) -> bool {
        matches!(self.kind(), SchemaFailure::Unavailable)
    }

    fn kind(&self) -> SchemaFailure {
        match self.status {
            Some(401) => SchemaFailure::Unauthenticated,
            Some(403) => SchemaFailure::Forbidden,
            Some(404) => SchemaFailure::Missing,
            // Too slow, too many, too early.
            Some(408 | 425 | 429) => SchemaFailure::Unavailable,
            Some(400..=499) => SchemaFailure::Refused,
            // Of a redirection nothing can be said but that this is not the place.
            Some(_) | None => SchemaFailure::Unavailable,
        }
    }

    /// As an error about a subject.
    pub(super) fn of(&self, subject: Option<&str>) -> SchemaError {
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
        if !self.words.is_empty() {
            reason.push_str(": ");
            reason.push_str(&self.words);
        }
        SchemaError {
            kind: self.kind(),
            reason,
        }
    }
}

/// On one line, and not too much of it.
fn shown(words: &str) -> String {
    let plain = words.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut shown: String = plain.take(MOST_WORDS).collect();
    if words.chars().nth(MOST_WORDS).is_some() {
        shown.push('…');
    }
    shown
}
