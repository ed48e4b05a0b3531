//! A schema registry over HTTP: the three requests that the relay needs of Confluent's interface.
//!
//! - `GET /subjects/<subject>/versions/latest`: the latest schema of a subject, and its id.
//! - `POST /subjects/<subject>`: the id of a schema that stands in the configuration.
//! - `POST /subjects/<subject>/versions`: the same, registering it where it is not.
//!
//! Each of several URLs is asked in turn, until one gives an answer that is no failure of its own.

mod answer;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use secrecy::ExposeSecret;
use tokio::sync::oneshot;
use ureq::Agent;
use walrelay_event_router::{SubjectNames, ValueFormat, ValueSchema};
use walrelay_relay::{SchemaAnswer, SchemaError, SchemaFailure, Schemas};

use crate::config::{self, RegistryLogin, SchemaFile};
use crate::http::{Roots, agent, basic};
use crate::telemetry::RegistryStats;
use answer::{Answer, Refusal};

/// The media type of the registry's interface, version 1.
const JSON: &str = "application/vnd.schemaregistry.v1+json";
/// No schema is larger.
const MOST_BYTES: u64 = 16 << 20;

/// A client of a registry.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    inner: Arc<Inner>,
    stats: Option<Arc<RegistryStats>>,
}

struct Inner {
    agent: Agent,
    urls: Vec<String>,
    authorization: Option<String>,
    /// What no error may show.
    secret: Option<String>,
    format: ValueFormat,
    subjects: SubjectNames,
    register: bool,
    schemas: BTreeMap<String, SchemaFile>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("urls", &self.urls)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

/// What the registry says to a schema of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Known {
    /// It has it, under this id.
    As(u32),
    /// It does not have it.
    No,
}

impl Registry {
    /// # Errors
    /// The file of certificates cannot be used.
    pub(crate) fn new(config: &config::Registry) -> io::Result<Self> {
        let secure = config.urls.iter().any(|url| url.starts_with("https://"));
        let roots = match &config.ca_file {
            Some(file) => Roots::of_file(file)?,
            None if secure => Roots::System,
            None => Roots::None,
        };
        let secret = config.login.as_ref().map(|login| match login {
            RegistryLogin::Basic { password, .. } => password.expose_secret().to_owned(),
            RegistryLogin::Bearer(token) => token.expose_secret().to_owned(),
        });
        let authorization = config.login.as_ref().map(|login| match login {
            RegistryLogin::Basic { user, password } => {
                basic(user.as_bytes(), password.expose_secret().as_bytes())
            }
            RegistryLogin::Bearer(token) => format!("Bearer {}", token.expose_secret()),
        });
        Ok(Self {
            stats: None,
            inner: Arc::new(Inner {
                agent: agent(config.timeout, roots),
                urls: config.urls.clone(),
                authorization,
                secret,
                format: config.wire.format,
                subjects: config.wire.subjects,
                register: config.register,
                schemas: config.schemas.clone(),
            }),
        })
    }

    /// Counts the schemas that are asked for.
    pub(crate) fn counting(self, stats: Option<Arc<RegistryStats>>) -> Self {
        Self { stats, ..self }
    }

    /// Whether somebody answers who knows us.
    pub(crate) fn ping(&self) -> Result<(), SchemaError> {
        match self.inner.request("/schemas/types", None) {
            Ok(_) => Ok(()),
            // Registries of others than Confluent do without this list.
            Err(refusal) if refusal.status == Some(404) => Ok(()),
            Err(refusal) => Err(refusal.of(None)),
        }
    }

    /// Whether it has the schemas of the configuration; nothing is registered.
    pub(crate) fn known(&self) -> Vec<(&str, Result<Known, SchemaError>)> {
        let schemas = self.inner.schemas.iter();
        let looked_up = schemas.map(|(subject, file)| {
            let known = match self.inner.post(subject, "", file) {
                Ok(answer) => answer.id(subject).map(Known::As),
                Err(refusal) if refusal.status == Some(404) => Ok(Known::No),
                Err(refusal) => Err(refusal.of(Some(subject))),
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
        // A thread of its own: one that hangs must not keep the process from ending.
        let thread = thread::Builder::new()
            .name("registry".to_owned())
            .spawn(move || {
                let schema = inner.schema(&of);
                if let Some(stats) = stats {
                    stats.count(schema.as_ref().err().map(|error| error.kind));
                }
                // Whoever asked may be gone.
                let _ = answer.send(schema);
            });
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
    /// The schema of a subject, as configured.
    fn schema(&self, subject: &str) -> Result<ValueSchema, SchemaError> {
        let schema = if let Some(file) = self.schemas.get(subject) {
            let versions = if self.register { "/versions" } else { "" };
            let answer = self.post(subject, versions, file);
            let answer = answer.map_err(|refusal| refusal.of(Some(subject)))?;
            let id = answer.id(subject)?;
            self.compiled(subject, id, &file.text)?
        } else {
            let path = format!("/subjects/{}/versions/latest", escaped(subject));
            let answer = self.request(&path, None);
            let answer = answer.map_err(|refusal| refusal.of(Some(subject)))?;
            let id = answer.id(subject)?;
            let schema = answer.schema(subject, self.format)?;
            self.compiled(subject, id, schema)?.latest()
        };
        self.named(subject, &schema)?;
        Ok(schema)
    }

    fn compiled(&self, subject: &str, id: u32, text: &str) -> Result<ValueSchema, SchemaError> {
        match self.format {
            ValueFormat::Json => Ok(ValueSchema::json(id)),
            ValueFormat::Avro => ValueSchema::avro(id, text).map_err(|problem| SchemaError {
                kind: SchemaFailure::Refused,
                reason: format!(
                    "the schema of subject {subject:?} (id {id}) is of no use: {problem}"
                ),
            }),
        }
    }

    /// A subject that is called by its record holds that record.
    fn named(&self, subject: &str, schema: &ValueSchema) -> Result<(), SchemaError> {
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
        Err(SchemaError {
            kind: SchemaFailure::Refused,
            reason: format!("the schema of subject {subject:?} is of the record {name:?}"),
        })
    }

    fn post(&self, subject: &str, path: &str, file: &SchemaFile) -> Result<Answer, Refusal> {
        let mut body = serde_json::Map::new();
        body.insert("schema".to_owned(), file.text.as_str().into());
        // Avro is what it is when nothing is said, and older registries know nothing else.
        if self.format == ValueFormat::Json {
            body.insert("schemaType".to_owned(), "JSON".into());
        }
        let body = serde_json::Value::Object(body).to_string();
        self.request(
            &format!("/subjects/{}{path}", escaped(subject)),
            Some(&body),
        )
    }

    /// Asks each URL in turn, until one answers for all.
    fn request(&self, path: &str, body: Option<&str>) -> Result<Answer, Refusal> {
        let mut last = None;
        for url in &self.urls {
            match self.request_of(url, path, body) {
                Ok(answer) => return Ok(answer),
                Err(refusal) if refusal.is_its_own() => last = Some(refusal),
                Err(refusal) => return Err(refusal),
            }
        }
        Err(last.unwrap_or_else(|| Refusal::unreachable("", "no URL is configured")))
    }

    fn request_of(&self, url: &str, path: &str, body: Option<&str>) -> Result<Answer, Refusal> {
        let address = format!("{url}{path}");
        let failed = |error: &ureq::Error| Refusal::unreachable(url, &error.to_string());
        let authorization = self.authorization.iter();
        let answered = match body {
            None => {
                let mut request = self.agent.get(&address).header("Accept", JSON);
                for authorization in authorization {
                    request = request.header("Authorization", authorization);
                }
                request.call()
            }
            Some(body) => {
                let mut request = self.agent.post(&address).header("Accept", JSON);
                for authorization in authorization {
                    request = request.header("Authorization", authorization);
                }
                request.header("Content-Type", JSON).send(body)
            }
        };
        let mut answered = answered.map_err(|error| failed(&error))?;
        let status = answered.status().as_u16();
        let body = answered
            .body_mut()
            .with_config()
            .limit(MOST_BYTES)
            .read_to_vec();
        let body = body.map_err(|error| failed(&error));
        if status != 200 {
            // What it says besides is of use, and no need.
            let body = body.unwrap_or_default();
            return Err(Refusal::of_status(
                url,
                status,
                &body,
                self.secret.as_deref(),
            ));
        }
        Answer::read(url, &body?)
    }
}

/// The unreserved characters of RFC 3986 stay.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A subject as a segment of a path.
fn escaped(subject: &str) -> PercentEncode<'_> {
    utf8_percent_encode(subject, RESERVED)
}

#[cfg(test)]
mod tests;
