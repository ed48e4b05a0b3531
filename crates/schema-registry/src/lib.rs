//! The client of a schema registry: three requests of Confluent's HTTP interface.
//!
//! - `GET /subjects/<subject>/versions/latest`: the latest schema of a subject, and its id.
//! - `POST /subjects/<subject>`: the id of a schema of the configuration.
//! - `POST /subjects/<subject>/versions`: the same; registers the schema if it is not registered.
//!
//! Several URLs are tried in turn, until an answer does not depend on the server that gave it.
//!
//! # Contents
//! - [`Registry`]: the client, a [`Schemas`] of a relay. [`RegistrySettings`]: its settings.
//!
//! # Invariants
//! - A request runs on a thread of its own: no caller waits for a server.
//! - No password or token is in an error, a log line or `Debug` output.

mod answer;
mod settings;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::oneshot;
use ureq::{Agent, RequestBuilder};
use walrelay_event_router::{SubjectNames, ValueFormat, ValueSchema};
use walrelay_http_client::{Roots, agent, basic};
use walrelay_relay::{RegistryStats, SchemaAnswer, SchemaError, SchemaFailure, Schemas};
use walrelay_sink::in_current_span;

pub use settings::{RegistryLogin, RegistrySettings, SchemaFile};

use answer::{Answer, Refusal, refused};

/// The media type of the registry's interface, version 1.
const JSON: &str = "application/vnd.schemaregistry.v1+json";
/// Bytes of an answer's body, at most.
const MAX_BODY: u64 = 16 << 20;

/// A client of a schema registry.
#[derive(Debug, Clone)]
pub struct Registry {
    inner: Arc<Inner>,
    stats: Option<Arc<RegistryStats>>,
}

#[derive(Debug)]
struct Inner {
    agent: Agent,
    urls: Vec<String>,
    /// Value of the header `Authorization`.
    authorization: Option<SecretString>,
    /// The password or token, which no error may show.
    secret: Option<SecretString>,
    format: ValueFormat,
    subjects: SubjectNames,
    register: bool,
    schemas: BTreeMap<String, SchemaFile>,
}

impl Registry {
    /// Creates a client, as configured.
    ///
    /// # Errors
    /// The file of certificates cannot be read or parsed.
    pub fn new(config: &RegistrySettings) -> io::Result<Self> {
        let secure = config.urls.iter().any(|url| url.starts_with("https://"));
        let roots = match &config.ca_file {
            Some(file) => Roots::from_file(file)?,
            None if secure => Roots::System,
            None => Roots::None,
        };
        let login = config.login.as_ref().map(|login| match login {
            RegistryLogin::Basic { user, password } => {
                let plain = password.expose_secret();
                (basic(user.as_bytes(), plain.as_bytes()), password.clone())
            }
            RegistryLogin::Bearer(token) => {
                (format!("Bearer {}", token.expose_secret()), token.clone())
            }
        });
        let (authorization, secret) = login.unzip();
        Ok(Self {
            stats: None,
            inner: Arc::new(Inner {
                agent: agent(config.timeout, roots),
                urls: config.urls.clone(),
                authorization: authorization.map(SecretString::from),
                secret,
                format: config.wire.format,
                subjects: config.wire.subjects,
                register: config.register,
                schemas: config.schemas.clone(),
            }),
        })
    }

    /// Counts the requested schemas in `stats`.
    #[must_use]
    pub fn counting(self, stats: Option<Arc<RegistryStats>>) -> Self {
        Self { stats, ..self }
    }

    /// Checks that the registry answers and accepts the credentials.
    pub fn ping(&self) -> Result<(), SchemaError> {
        match self.inner.request("/schemas/types", None) {
            Ok(_) => Ok(()),
            // Registries other than Confluent's may lack this path.
            Err(refusal) if refusal.status == Some(404) => Ok(()),
            Err(refusal) => Err(refusal.to_error(None)),
        }
    }

    /// Looks up the ids of the configuration's schemas by subject; `None`: it is not registered.
    /// Registers nothing.
    pub fn known(&self) -> Vec<(&str, Result<Option<u32>, SchemaError>)> {
        let schemas = self.inner.schemas.iter();
        let looked_up = schemas.map(|(subject, file)| {
            let known = match self.inner.post(subject, "", file) {
                Ok(answer) => answer.id(subject).map(Some),
                Err(refusal) if refusal.status == Some(404) => Ok(None),
                Err(refusal) => Err(refusal.to_error(Some(subject))),
            };
            (subject.as_str(), known)
        });
        looked_up.collect()
    }
}

impl Schemas for Registry {
    fn ask(&self, subject: &str) -> SchemaAnswer {
        let (answer, answered) = oneshot::channel();
        let (inner, stats) = (Arc::clone(&self.inner), self.stats.clone());
        let of = subject.to_owned();
        // Not a blocking thread of tokio: the process could not end while a request hangs.
        let thread = thread::Builder::new()
            .name("registry".to_owned())
            .spawn(in_current_span(move || {
                let schema = inner.schema(&of);
                if let Some(stats) = stats {
                    stats.count(schema.as_ref().err().map(|error| error.kind));
                }
                // The receiver may be gone.
                let _ = answer.send(schema);
            }));
        let failed = |reason: String| SchemaError {
            kind: SchemaFailure::Unavailable,
            reason,
        };
        Box::pin(async move {
            if let Err(error) = thread {
                return Err(failed(format!(
                    "the schema registry cannot be asked: {error}"
                )));
            }
            let answer = answered.await;
            answer.unwrap_or_else(|_| Err(failed("the schema registry was not asked".to_owned())))
        })
    }
}

impl Inner {
    /// Requests the schema of a subject: the configured one, or the latest.
    fn schema(&self, subject: &str) -> Result<ValueSchema, SchemaError> {
        let schema = if let Some(file) = self.schemas.get(subject) {
            let versions = if self.register { "/versions" } else { "" };
            let answer = self.post(subject, versions, file);
            let answer = answer.map_err(|refusal| refusal.to_error(Some(subject)))?;
            self.compile(subject, answer.id(subject)?, &file.text)?
        } else {
            let path = format!("/subjects/{}/versions/latest", escaped(subject));
            let answer = self.request(&path, None);
            let answer = answer.map_err(|refusal| refusal.to_error(Some(subject)))?;
            let id = answer.id(subject)?;
            let schema = answer.schema(subject, self.format)?;
            self.compile(subject, id, schema)?.latest()
        };
        self.check_record(subject, &schema)?;
        Ok(schema)
    }

    fn compile(&self, subject: &str, id: u32, text: &str) -> Result<ValueSchema, SchemaError> {
        match self.format {
            ValueFormat::Json => Ok(ValueSchema::json(id)),
            ValueFormat::Avro => ValueSchema::avro(id, text).map_err(|problem| {
                refused(format!(
                    "the schema of subject {subject:?} (id {id}) cannot be used: {problem}"
                ))
            }),
        }
    }

    /// Checks that a subject whose name contains a record's name holds a schema of that record.
    fn check_record(&self, subject: &str, schema: &ValueSchema) -> Result<(), SchemaError> {
        let Some(name) = schema.name() else {
            return Ok(());
        };
        let fits = match self.subjects {
            SubjectNames::Topic => true,
            SubjectNames::Record => subject == name,
            SubjectNames::TopicRecord => subject
                .strip_suffix(name)
                .is_some_and(|topic| topic.ends_with('-')),
        };
        if fits {
            return Ok(());
        }
        Err(refused(format!(
            "the schema of subject {subject:?} is of the record {name:?}"
        )))
    }

    fn post(&self, subject: &str, path: &str, file: &SchemaFile) -> Result<Answer, Refusal> {
        let mut body = serde_json::Map::new();
        body.insert("schema".to_owned(), file.text.as_str().into());
        // The default type is Avro. Older registries know no other and no `schemaType`.
        if self.format == ValueFormat::Json {
            body.insert("schemaType".to_owned(), "JSON".into());
        }
        let body = serde_json::Value::Object(body).to_string();
        self.request(
            &format!("/subjects/{}{path}", escaped(subject)),
            Some(&body),
        )
    }

    /// Sends the request to each URL in turn, until an answer does not depend on the server.
    fn request(&self, path: &str, body: Option<&str>) -> Result<Answer, Refusal> {
        let mut last = None;
        for url in &self.urls {
            match self.request_url(url, path, body) {
                Ok(answer) => return Ok(answer),
                Err(refusal) if refusal.kind() == SchemaFailure::Unavailable => {
                    last = Some(refusal);
                }
                Err(refusal) => return Err(refusal),
            }
        }
        Err(last.unwrap_or_else(|| Refusal::unreachable("", "no URL is configured")))
    }

    fn request_url(&self, url: &str, path: &str, body: Option<&str>) -> Result<Answer, Refusal> {
        let address = format!("{url}{path}");
        let failed = |error: ureq::Error| Refusal::unreachable(url, &error.to_string());
        let answered = match body {
            None => self.with_headers(self.agent.get(&address)).call(),
            Some(body) => {
                let request = self.with_headers(self.agent.post(&address));
                request.header("Content-Type", JSON).send(body)
            }
        };
        let mut answered = answered.map_err(failed)?;
        let status = answered.status().as_u16();
        let body = answered.body_mut().with_config().limit(MAX_BODY);
        let body = body.read_to_vec().map_err(failed);
        if status != 200 {
            // The body of an error only completes the message.
            let body = body.unwrap_or_default();
            let secret = self.secret.as_ref();
            return Err(Refusal::from_status(url, status, &body, secret));
        }
        Answer::read(url, &body?)
    }

    fn with_headers<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        let request = request.header("Accept", JSON);
        match &self.authorization {
            Some(value) => request.header("Authorization", value.expose_secret()),
            None => request,
        }
    }
}

/// All characters except the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Returns a subject, percent-encoded as a path segment.
fn escaped(subject: &str) -> PercentEncode<'_> {
    utf8_percent_encode(subject, RESERVED)
}

#[cfg(test)]
mod tests;
