//! A small schema registry over HTTP, which can be made to misbehave.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Issued;
use crate::address::ReservedAddress;
use crate::http::{HttpAnswer, HttpRequest, HttpServer};
use crate::threads::lock;

/// A fault in place of the registry's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mishap {
    /// Responds with this status and body.
    Status(u16, String),
    /// Gives no response, and closes the connection after this time.
    Stall(Duration),
    /// Closes the connection.
    Close,
    /// Responds with status 200 and this body.
    Body(String),
}

/// A request as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Method and path, such as `GET /subjects/a/versions/latest`.
    pub line: String,
    /// The header `Authorization`.
    pub authorization: Option<String>,
    /// The body; JSON, or null if there is none.
    pub body: Value,
}

/// A registry on a port of this machine, with the schemas that tests register. It ends when it is
/// dropped.
#[derive(Debug)]
pub struct SchemaRegistry {
    server: HttpServer,
    state: Arc<Mutex<RegistryState>>,
}

#[derive(Debug, Default)]
struct RegistryState {
    /// Subject, kind and schema. The id is the index plus one; the last entry of a subject is its
    /// latest version.
    schemas: Vec<(String, String, String)>,
    /// Faults of the next requests, in order.
    mishaps: VecDeque<Mishap>,
    /// Fault of all requests.
    always: Option<Mishap>,
    asked: Vec<Asked>,
    ended: bool,
}

impl SchemaRegistry {
    /// Starts an empty registry.
    pub fn start() -> Self {
        Self::listen(None, None)
    }

    /// Returns an address at which a registry can be started later; nothing listens there.
    pub fn address_to_come() -> ReservedAddress {
        ReservedAddress::bind()
    }

    /// Starts an empty registry at this address.
    pub fn start_at(address: ReservedAddress) -> Self {
        Self::listen(Some(address), None)
    }

    /// Starts an empty registry over TLS, with a certificate for `localhost`.
    pub fn start_secure(certificate: &Issued) -> Self {
        Self::listen(None, Some(certificate))
    }

    fn listen(address: Option<ReservedAddress>, certificate: Option<&Issued>) -> Self {
        let state = Arc::<Mutex<RegistryState>>::default();
        let server = HttpServer::start(address, certificate, {
            let state = Arc::clone(&state);
            move |request| answer(&state, request)
        });
        Self { server, state }
    }

    /// Returns the URL of the registry: `http://127.0.0.1:…`, or `https://localhost:…`.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Makes this the latest schema of a subject; `kind` is `AVRO` or `JSON`. Returns the id.
    pub fn register(&self, subject: &str, kind: &str, schema: &str) -> u32 {
        self.state().register(subject, kind, schema)
    }

    /// Adds a fault for one request: the first one after those that have faults already.
    pub fn mishap(&self, mishap: Mishap) {
        self.state().mishaps.push_back(mishap);
    }

    /// Sets the fault of every request; `None` ends it.
    pub fn always(&self, mishap: Option<Mishap>) {
        self.state().always = mishap;
    }

    /// Returns subject and schema of an id.
    pub fn schema(&self, id: u32) -> Option<(String, String)> {
        let state = self.state();
        let (subject, _, schema) = state.schemas.get((id as usize).checked_sub(1)?)?;
        Some((subject.clone(), schema.clone()))
    }

    /// Returns all requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.state().asked.clone()
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        lock(&self.state)
    }
}

impl Drop for SchemaRegistry {
    fn drop(&mut self) {
        self.state().ended = true;
    }
}

fn answer(state: &Mutex<RegistryState>, request: HttpRequest) -> HttpAnswer {
    let asked = Asked {
        authorization: request.header("authorization").map(str::to_owned),
        body: serde_json::from_slice(&request.body).unwrap_or_default(),
        line: request.line,
    };
    let met = {
        let mut state = lock(state);
        state.asked.push(asked.clone());
        let mishap = state.mishaps.pop_front().or_else(|| state.always.clone());
        mishap.ok_or_else(|| state.answer(&asked.line, &asked.body))
    };
    let (status, body) = match met {
        Ok(Mishap::Close) => return None,
        Ok(Mishap::Stall(limit)) => {
            let until = Instant::now() + limit;
            while Instant::now() < until && !lock(state).ended {
                thread::sleep(Duration::from_millis(20));
            }
            return None;
        }
        Ok(Mishap::Status(status, body)) => (status, body),
        Ok(Mishap::Body(body)) => (200, body),
        Err((status, body)) => (status, body.to_string()),
    };
    let kind = "Content-Type: application/vnd.schemaregistry.v1+json";
    Some((format!("{status} Answer\r\n{kind}"), body))
}

impl RegistryState {
    fn register(&mut self, subject: &str, kind: &str, schema: &str) -> u32 {
        let known = self.id(subject, kind, schema);
        known.unwrap_or_else(|| {
            let entry = (subject.to_owned(), kind.to_owned(), schema.to_owned());
            self.schemas.push(entry);
            self.schemas.len() as u32
        })
    }

    /// Returns the id of an equal schema of the subject. Schemas are compared as JSON, not as text.
    fn id(&self, subject: &str, kind: &str, schema: &str) -> Option<u32> {
        let read = |text: &str| serde_json::from_str::<Value>(text).ok();
        let same = |(of, is, text): &(String, String, String)| {
            of == subject && is == kind && read(text) == read(schema)
        };
        let place = self.schemas.iter().position(same)?;
        u32::try_from(place + 1).ok()
    }

    fn answer(&mut self, line: &str, body: &Value) -> (u16, Value) {
        let missing =
            |code: u16, message: &str| (404, json!({"error_code": code, "message": message}));
        let (method, path) = line.split_once(' ').unwrap_or((line, ""));
        let parts: Vec<String> = path.split('/').skip(1).map(decoded).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let kind = body["schemaType"].as_str().unwrap_or("AVRO");
        let schema = body["schema"].as_str().unwrap_or_default();
        match (method, parts.as_slice()) {
            ("GET", ["schemas", "types"]) => (200, json!(["AVRO", "JSON", "PROTOBUF"])),
            ("GET", ["subjects", subject, "versions", "latest"]) => {
                let schemas = self.schemas.iter().zip(1..);
                match schemas.filter(|((of, ..), _)| of == subject).last() {
                    None => missing(40401, "Subject not found."),
                    Some(((_, kind, schema), id)) => {
                        let mut answer = versioned(subject, id, schema);
                        if kind != "AVRO" {
                            answer["schemaType"] = kind.as_str().into();
                        }
                        (200, answer)
                    }
                }
            }
            ("POST", ["subjects", subject]) => match self.id(subject, kind, schema) {
                None => missing(40403, "Schema not found"),
                Some(id) => (200, versioned(subject, id, schema)),
            },
            ("POST", ["subjects", subject, "versions"]) => {
                let id = self.register(subject, kind, schema);
                (200, json!({"id": id}))
            }
            _ => missing(404, "HTTP 404 Not Found"),
        }
    }
}

fn versioned(subject: &str, id: u32, schema: &str) -> Value {
    json!({"subject": subject, "id": id, "version": 1, "schema": schema})
}

/// Undoes percent-encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|hex| str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(code) if *byte == b'%' => {
                bytes.push(code);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
