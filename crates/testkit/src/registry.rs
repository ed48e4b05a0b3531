//! A small schema registry over HTTP, which can be told to misbehave.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::Issued;
use crate::threads::{lock, spawn};

/// What a request meets instead of an answer of the registry's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mishap {
    /// This status, with this body.
    Status(u16, String),
    /// No answer for so long, and then none.
    Stall(Duration),
    /// The connection is closed.
    Close,
    /// Status 200, with this body.
    Body(String),
}

/// A request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// `GET /subjects/a/versions/latest`.
    pub line: String,
    /// The header `Authorization`.
    pub authorization: Option<String>,
    /// The body; JSON, or null where there is none.
    pub body: Value,
}

/// A registry that knows what it is told, on a port of this machine. Dropped, it ends.
#[derive(Debug)]
pub struct SchemaRegistry {
    address: SocketAddr,
    secure: bool,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// Subject, kind, schema; the id is the place, from 1. Of a subject's the last is the latest.
    schemas: Vec<(String, String, String)>,
    /// For the next requests, in turn.
    mishaps: VecDeque<Mishap>,
    /// For all requests.
    always: Option<Mishap>,
    asked: Vec<Asked>,
}

impl SchemaRegistry {
    /// A registry that knows nothing.
    pub fn start() -> Self {
        Self::start_at(Self::address_to_come())
    }

    /// Where one can be started later: nobody listens there.
    pub fn address_to_come() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address")
    }

    /// The same at this address.
    pub fn start_at(address: SocketAddr) -> Self {
        Self::listen(address, None)
    }

    /// One that speaks TLS with a certificate for `localhost`.
    pub fn start_secure(certificate: &Issued) -> Self {
        Self::listen(Self::address_to_come(), Some(certificate.server_config()))
    }

    fn listen(address: SocketAddr, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind(address).expect("the port");
        let state = Arc::<Mutex<State>>::default();
        let stop = Arc::<AtomicBool>::default();
        let secure = tls.is_some();
        let thread = spawn("registry", {
            let (state, stop) = (Arc::clone(&state), Arc::clone(&stop));
            move || serve(&listener, tls.as_ref(), &state, &stop)
        });
        Self {
            address,
            secure,
            state,
            stop,
            thread: Some(thread),
        }
    }

    /// `http://127.0.0.1:…`, or `https://localhost:…`.
    pub fn url(&self) -> String {
        if self.secure {
            format!("https://localhost:{}", self.address.port())
        } else {
            format!("http://{}", self.address)
        }
    }

    /// Makes this the latest schema of a subject; `kind` is `AVRO` or `JSON`. Gives the id.
    pub fn register(&self, subject: &str, kind: &str, schema: &str) -> u32 {
        self.state().register(subject, kind, schema)
    }

    /// The next request meets this, those that were told before aside.
    pub fn mishap(&self, mishap: Mishap) {
        self.state().mishaps.push_back(mishap);
    }

    /// Each request meets this, until it is `None` again.
    pub fn always(&self, mishap: Option<Mishap>) {
        self.state().always = mishap;
    }

    /// Subject and schema of an id.
    pub fn schema(&self, id: u32) -> Option<(String, String)> {
        let state = self.state();
        let (subject, _, schema) = state.schemas.get((id as usize).checked_sub(1)?)?;
        Some((subject.clone(), schema.clone()))
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.state().asked.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for SchemaRegistry {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    listener: &TcpListener,
    tls: Option<&Arc<ServerConfig>>,
    state: &Arc<Mutex<State>>,
    stop: &Arc<AtomicBool>,
) {
    for stream in listener.incoming() {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let tls = tls.cloned();
        let (state, stop) = (Arc::clone(state), Arc::clone(stop));
        thread::spawn(move || {
            // Whoever asked may have left, or refused the certificate.
            let _ = match tls {
                None => answer(&stream, &state, &stop),
                Some(tls) => {
                    let connection = ServerConnection::new(tls).expect("a connection");
                    answer(StreamOwned::new(connection, stream), &state, &stop)
                }
            };
        });
    }
}

fn answer(
    mut stream: impl Read + Write,
    state: &Mutex<State>,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(&mut stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut length = 0;
    let mut authorization = None;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim().split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "authorization" => authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let met = {
        let mut state = lock(state);
        state.asked.push(Asked {
            line: line.clone(),
            authorization,
            body: body.clone(),
        });
        let mishap = state.mishaps.pop_front().or_else(|| state.always.clone());
        mishap.ok_or_else(|| state.answer(&line, &body))
    };
    let (status, body) = match met {
        Ok(Mishap::Close) => return Ok(()),
        Ok(Mishap::Stall(limit)) => {
            let until = std::time::Instant::now() + limit;
            while std::time::Instant::now() < until && !stop.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(20));
            }
            return Ok(());
        }
        Ok(Mishap::Status(status, body)) => (status, body),
        Ok(Mishap::Body(body)) => (200, body),
        Err((status, body)) => (status, body.to_string()),
    };
    let head = format!(
        "HTTP/1.1 {status} Answer\r\ncontent-type: application/vnd.schemaregistry.v1+json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    stream.flush()
}

impl State {
    fn register(&mut self, subject: &str, kind: &str, schema: &str) -> u32 {
        let known = self.id(subject, kind, schema);
        known.unwrap_or_else(|| {
            let entry = (subject.to_owned(), kind.to_owned(), schema.to_owned());
            self.schemas.push(entry);
            self.schemas.len() as u32
        })
    }

    /// Of the same schema, however it is written.
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
                        let mut answer = json!({
                            "subject": subject, "id": id, "version": 1, "schema": schema
                        });
                        if kind != "AVRO" {
                            answer["schemaType"] = kind.as_str().into();
                        }
                        (200, answer)
                    }
                }
            }
            ("POST", ["subjects", subject]) => match self.id(subject, kind, schema) {
                None => missing(40403, "Schema not found"),
                Some(id) => (
                    200,
                    json!({"subject": subject, "id": id, "version": 1, "schema": schema}),
                ),
            },
            ("POST", ["subjects", subject, "versions"]) => {
                let id = self.register(subject, kind, schema);
                (200, json!({"id": id}))
            }
            _ => missing(404, "HTTP 404 Not Found"),
        }
    }
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
