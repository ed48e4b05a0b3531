//! A server for tests that follows a script.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_rustls::TlsAcceptor;
use walrelay_sink::lock;
use walrelay_sink_client::{Servers, Stream};

use crate::client::Login;
use crate::client::wire::{Reader, put_frame, put_method, put_short, put_sized};

/// The number of channels that the server allows.
pub(crate) const MAX_OPEN: u16 = 5;

/// A message that a client has published.
#[derive(Debug, Clone, Default)]
pub(crate) struct Published {
    pub(crate) channel: u16,
    /// The number on its channel, from 1: the delivery tag.
    pub(crate) tag: u64,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) mandatory: bool,
    /// The payload of the content header.
    pub(crate) header: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Published {
    /// Appends `basic.ack` or `basic.nack`.
    pub(crate) fn confirm(&self, out: &mut Vec<u8>, ack: bool, multiple: bool) {
        let method = if ack { (60, 80) } else { (60, 120) };
        put_method(out, self.channel, method, |out| {
            out.extend_from_slice(&self.tag.to_be_bytes());
            out.push(multiple.into());
        });
    }

    /// Appends `basic.return` with the message.
    pub(crate) fn give_back(&self, out: &mut Vec<u8>) {
        put_method(out, self.channel, (60, 50), |out| {
            out.extend_from_slice(&312_u16.to_be_bytes());
            for text in ["NO_ROUTE", &self.exchange, &self.routing_key] {
                put_short(out, text.as_bytes());
            }
        });
        put_frame(out, 2, self.channel, |out| {
            out.extend_from_slice(&self.header);
        });
        put_frame(out, 3, self.channel, |out| {
            out.extend_from_slice(&self.body);
        });
    }

    /// Appends a `channel.close` that names `basic.publish` as its cause.
    pub(crate) fn close_channel(&self, out: &mut Vec<u8>, code: u16, text: &str) {
        put_channel_close(out, self.channel, (code, text), [0, 60, 0, 40]);
    }
}

fn put_channel_close(out: &mut Vec<u8>, channel: u16, (code, text): (u16, &str), cause: [u8; 4]) {
    put_method(out, channel, (20, 40), |out| {
        out.extend_from_slice(&code.to_be_bytes());
        put_short(out, text.as_bytes());
        out.extend_from_slice(&cause);
    });
}

/// Returns the channels that these frames close.
fn closed_channels(mut frames: &[u8]) -> Vec<u16> {
    let mut closed = Vec::new();
    while let Some([kind, a, b, length @ ..]) = frames.first_chunk::<7>() {
        let length = u32::from_be_bytes(*length) as usize;
        let payload = &frames[7..7 + length];
        if *kind == 1 && payload[..4] == [0, 20, 0, 40] {
            closed.push(u16::from_be_bytes([*a, *b]));
        }
        frames = &frames[8 + length..];
    }
    closed
}

/// The mechanism and the response of a login.
type LoginAttempt = (String, Vec<u8>);

/// The answer of the server to a message: it appends frames.
type React = dyn FnMut(&Published, &mut Vec<u8>) + Send;

/// A server on its own thread, until the test ends.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    /// All messages.
    pub(crate) published: Arc<Mutex<Vec<Published>>>,
    /// The mechanism and the response of each login.
    pub(crate) logins: Arc<Mutex<Vec<LoginAttempt>>>,
    /// The exchanges that do not exist.
    pub(crate) missing: Arc<Mutex<BTreeSet<String>>>,
    /// The exchanges that clients have asked for.
    pub(crate) questions: Arc<Mutex<Vec<String>>>,
    /// Sends these frames on the connection.
    pub(crate) push: Sender<Vec<u8>>,
}

impl Scripted {
    pub(crate) fn start(react: impl FnMut(&Published, &mut Vec<u8>) + Send + 'static) -> Self {
        Self::with_tls(None, react)
    }

    pub(crate) fn with_tls(
        tls: Option<Arc<rustls::ServerConfig>>,
        react: impl FnMut(&Published, &mut Vec<u8>) + Send + 'static,
    ) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (push, mut pushed) = channel(16);
        let server = Self {
            push,
            address,
            published: Arc::default(),
            logins: Arc::default(),
            missing: Arc::default(),
            questions: Arc::default(),
        };
        let (published, logins) = (Arc::clone(&server.published), Arc::clone(&server.logins));
        let (missing, questions) = (Arc::clone(&server.missing), Arc::clone(&server.questions));
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                let mut react: Box<React> = Box::new(react);
                // One connection at a time.
                while let Ok((tcp, _)) = listener.accept().await {
                    let stream: Box<dyn Stream> = match &tls {
                        None => Box::new(tcp),
                        Some(tls) => match TlsAcceptor::from(Arc::clone(tls)).accept(tcp).await {
                            Ok(stream) => Box::new(stream),
                            Err(_) => continue,
                        },
                    };
                    let mut session = Session {
                        stream,
                        input: Vec::new(),
                        tags: HashMap::new(),
                        open: BTreeSet::new(),
                        closed: BTreeSet::new(),
                        partial: None,
                        published: &published,
                        logins: &logins,
                        missing: &missing,
                        questions: &questions,
                    };
                    let _ = session.run(&mut *react, &mut pushed).await;
                }
            });
        });
        server
    }

    pub(crate) fn login(&self) -> Login {
        Login {
            servers: Servers {
                hosts: vec![("127.0.0.1".to_owned(), self.address.port())],
                tls: None,
                timeout: Duration::from_secs(60),
            },
            vhost: "/".to_owned(),
            username: "relay".to_owned(),
            password: "secret".into(),
            external: false,
            heartbeat: Duration::from_secs(60),
        }
    }

    pub(crate) fn bodies(&self) -> Vec<String> {
        let published = lock(&self.published);
        let body = |it: &Published| String::from_utf8(it.body.clone()).unwrap();
        published.iter().map(body).collect()
    }
}

struct Session<'s> {
    stream: Box<dyn Stream>,
    input: Vec<u8>,
    /// The last delivery tag of each channel.
    tags: HashMap<u16, u64>,
    /// The open channels.
    open: BTreeSet<u16>,
    /// Channels that the server has closed and the client not yet: what comes on them is dropped.
    closed: BTreeSet<u16>,
    /// A message whose body is not complete, and the size of the body.
    partial: Option<(Published, u64)>,
    published: &'s Mutex<Vec<Published>>,
    logins: &'s Mutex<Vec<LoginAttempt>>,
    missing: &'s Mutex<BTreeSet<String>>,
    questions: &'s Mutex<Vec<String>>,
}

impl Session<'_> {
    async fn run(
        &mut self,
        react: &mut React,
        pushed: &mut Receiver<Vec<u8>>,
    ) -> std::io::Result<()> {
        let mut header = [0; 8];
        self.stream.read_exact(&mut header).await?;
        assert_eq!(&header, b"AMQP\0\0\x09\x01");
        let mut out = Vec::new();
        put_method(&mut out, 0, (10, 10), |out| {
            out.extend_from_slice(&[0, 9]);
            put_sized(out, |_| ());
            put_sized(out, |out| out.extend_from_slice(b"PLAIN EXTERNAL"));
            put_sized(out, |out| out.extend_from_slice(b"en_US"));
        });
        loop {
            self.stream.write_all(&out).await?;
            self.stream.flush().await?;
            out.clear();
            let (kind, channel, payload) = tokio::select! {
                frame = self.frame() => frame?,
                Some(frames) = pushed.recv() => {
                    out = frames;
                    continue;
                }
            };
            if self.closed.contains(&channel) && payload.get(..4) != Some(&[0, 20, 0, 41]) {
                continue;
            }
            match kind {
                1 => self.method(channel, &payload, &mut out),
                2 => {
                    let size = u64::from_be_bytes(payload[4..12].try_into().unwrap());
                    let (message, wanted) = self.partial.as_mut().unwrap();
                    message.header = payload;
                    *wanted = size;
                }
                3 => self.partial.as_mut().unwrap().0.body.extend(payload),
                _ => {}
            }
            if kind == 2 || kind == 3 {
                let is_complete =
                    |(message, size): &(Published, u64)| message.body.len() as u64 == *size;
                if self.partial.as_ref().is_some_and(is_complete) {
                    let (message, _) = self.partial.take().unwrap();
                    lock(self.published).push(message.clone());
                    react(&message, &mut out);
                    self.closed.extend(closed_channels(&out));
                }
            }
        }
    }

    fn method(&mut self, channel: u16, payload: &[u8], out: &mut Vec<u8>) {
        let mut from = Reader { rest: payload };
        let method = (from.u16().unwrap(), from.u16().unwrap());
        match method {
            (10, 11) => {
                from.long_string().unwrap();
                let mechanism = from.short_string().unwrap().to_vec();
                let response = from.long_string().unwrap().to_vec();
                let mechanism = String::from_utf8(mechanism).unwrap();
                lock(self.logins).push((mechanism, response));
                put_method(out, 0, (10, 30), |out| {
                    out.extend_from_slice(&MAX_OPEN.to_be_bytes());
                    out.extend_from_slice(&[0, 2, 0, 0, 0, 0]);
                });
            }
            (10, 40) => put_method(out, 0, (10, 41), |out| out.push(0)),
            (20, 10) => {
                assert!(self.open.insert(channel) && channel <= MAX_OPEN);
                put_method(out, channel, (20, 11), |out| put_sized(out, |_| ()));
            }
            (20, 40) => {
                self.open.remove(&channel);
                self.tags.remove(&channel);
                put_method(out, channel, (20, 41), |_| ());
            }
            (20, 41) => {
                self.open.remove(&channel);
                self.closed.remove(&channel);
                self.tags.remove(&channel);
            }
            (40, 10) => {
                from.take(2).unwrap();
                let name = from.short_string().unwrap().to_vec();
                let name = String::from_utf8(name).unwrap();
                let is_missing = lock(self.missing).contains(&name);
                lock(self.questions).push(name.clone());
                if is_missing {
                    self.closed.insert(channel);
                    let text = format!("NOT_FOUND - no exchange '{name}' in vhost '/'");
                    put_channel_close(out, channel, (404, &text), [0, 40, 0, 10]);
                } else {
                    put_method(out, channel, (40, 11), |_| ());
                }
            }
            (50, 10) => put_method(out, channel, (50, 11), |out| {
                put_short(out, b"queue");
                out.extend_from_slice(&[0; 8]);
            }),
            (50, 20) => put_method(out, channel, (50, 21), |_| ()),
            (60, 10) => put_method(out, channel, (60, 11), |_| ()),
            (85, 10) => put_method(out, channel, (85, 11), |_| ()),
            (60, 40) => {
                from.take(2).unwrap();
                let mut text = || String::from_utf8(from.short_string().unwrap().to_vec()).unwrap();
                let (exchange, routing_key) = (text(), text());
                let tag = self.tags.entry(channel).or_default();
                *tag += 1;
                let message = Published {
                    channel,
                    tag: *tag,
                    exchange,
                    routing_key,
                    mandatory: from.u8().unwrap() & 1 == 1,
                    ..Published::default()
                };
                self.partial = Some((message, 0));
            }
            (10, 31 | 50) | (20, 21) => {}
            other => panic!("the method {other:?}"),
        }
    }

    async fn frame(&mut self) -> std::io::Result<(u8, u16, Vec<u8>)> {
        loop {
            if let Some(head) = self.input.first_chunk::<7>() {
                let (kind, channel) = (head[0], u16::from_be_bytes([head[1], head[2]]));
                let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
                if self.input.len() >= 8 + length {
                    let payload = self.input[7..7 + length].to_vec();
                    self.input.drain(..8 + length);
                    return Ok((kind, channel, payload));
                }
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
