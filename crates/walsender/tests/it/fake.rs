//! A scripted server.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_walsender::{
    ConnInfo, Error, ReplicationStream, Session, SessionKind, StartReplication, StatusUpdate,
};

/// The server's side of a connection.
pub(crate) struct Fake {
    pub(crate) socket: TcpStream,
}

pub(crate) async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

pub(crate) fn info(port: u16, parameters: &str) -> ConnInfo {
    let sslmode = if parameters.contains("sslmode") {
        ""
    } else {
        "sslmode=disable"
    };
    format!("host=127.0.0.1 port={port} user=u dbname=d {sslmode} {parameters}")
        .parse()
        .unwrap()
}

impl Fake {
    pub(crate) async fn accept(listener: &TcpListener) -> Self {
        let (socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
    }

    /// Receives a message without a tag: the startup packet or SSLRequest.
    pub(crate) async fn untagged(&mut self) -> Vec<u8> {
        let length = self.socket.read_u32().await.unwrap() as usize;
        let mut body = vec![0; length - 4];
        self.socket.read_exact(&mut body).await.unwrap();
        body
    }

    /// Receives a message with a tag; `None` at the end of the connection.
    pub(crate) async fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        let tag = self.socket.read_u8().await.ok()?;
        Some((tag, self.untagged().await))
    }

    /// Receives a message and answers it.
    pub(crate) async fn answer(&mut self, bytes: &[u8]) {
        self.receive().await.unwrap();
        self.send(bytes).await;
    }

    /// Receives the startup packet. Returns its parameters.
    pub(crate) async fn startup(&mut self) -> Vec<(String, String)> {
        let body = self.untagged().await;
        assert_eq!(body[..4], 196_608_u32.to_be_bytes(), "protocol 3.0");
        let mut words = body[4..]
            .split(|&byte| byte == 0)
            .map(|word| String::from_utf8(word.to_vec()).unwrap());
        let mut pairs = Vec::new();
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            if !name.is_empty() {
                pairs.push((name, value));
            }
        }
        pairs
    }

    /// Accepts the login without a password.
    pub(crate) async fn login(&mut self) {
        self.startup().await;
        self.send(&welcome(&[("server_version", "15.4 (a fake)")]))
            .await;
    }

    /// Accepts the login and answers START_REPLICATION.
    pub(crate) async fn streaming(listener: &TcpListener) -> Self {
        let mut fake = Self::accept(listener).await;
        fake.login().await;
        let (tag, body) = fake.receive().await.unwrap();
        assert_eq!(tag, b'Q');
        assert!(body.starts_with(b"START_REPLICATION SLOT \"s\" LOGICAL 0/0 "));
        fake.send(&message(b'W', &[0, 0, 0])).await;
        fake
    }
}

/// Encodes the messages from AuthenticationOk to ReadyForQuery.
pub(crate) fn welcome(parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = message(b'R', &[0; 4]);
    bytes.extend(message(b'N', b"SNOTICE\0VNOTICE\0C00000\0Mgood day\0\0"));
    for (name, value) in parameters {
        bytes.extend(message(b'S', format!("{name}\0{value}\0").as_bytes()));
    }
    bytes.extend(message(b'K', &[0, 0, 0, 42, 0, 0, 0, 7]));
    bytes.extend(message(b'Z', b"I"));
    bytes
}

/// Encodes a message with its header.
pub(crate) fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

pub(crate) fn error(severity: &str, sqlstate: &str, text: &str) -> Vec<u8> {
    message(
        b'E',
        format!("S{severity}\0V{severity}\0C{sqlstate}\0M{text}\0\0").as_bytes(),
    )
}

/// Encodes an XLogData message whose positions are both `number`.
pub(crate) fn xlog_data(number: u64, body: &[u8]) -> Vec<u8> {
    let mut inner = vec![b'w'];
    inner.extend_from_slice(&number.to_be_bytes());
    inner.extend_from_slice(&number.to_be_bytes());
    inner.extend_from_slice(&0_u64.to_be_bytes());
    inner.extend_from_slice(body);
    message(b'd', &inner)
}

pub(crate) fn keepalive(wal_end: u64, reply_requested: bool) -> Vec<u8> {
    let mut inner = vec![b'k'];
    inner.extend_from_slice(&wal_end.to_be_bytes());
    inner.extend_from_slice(&0_u64.to_be_bytes());
    inner.push(u8::from(reply_requested));
    message(b'd', &inner)
}

/// Encodes the messages of a simple query's answer, without ReadyForQuery.
pub(crate) fn rows(columns: &[&str], rows: &[&[Option<&str>]]) -> Vec<u8> {
    let mut description = (columns.len() as u16).to_be_bytes().to_vec();
    for column in columns {
        description.extend_from_slice(column.as_bytes());
        description.extend_from_slice(&[0; 19]);
    }
    let mut bytes = message(b'T', &description);
    for row in rows {
        let mut body = (row.len() as u16).to_be_bytes().to_vec();
        for value in *row {
            match value {
                Some(text) => {
                    body.extend_from_slice(&(text.len() as u32).to_be_bytes());
                    body.extend_from_slice(text.as_bytes());
                }
                None => body.extend_from_slice(&u32::MAX.to_be_bytes()),
            }
        }
        bytes.extend(message(b'D', &body));
    }
    bytes.extend(message(b'C', b"SELECT 1\0"));
    bytes
}

/// Appends ReadyForQuery to an answer.
pub(crate) fn ready(mut answer: Vec<u8>) -> Vec<u8> {
    answer.extend(message(b'Z', b"I"));
    answer
}

pub(crate) fn start() -> StartReplication {
    StartReplication {
        slot: "s".to_owned(),
        start: Lsn::ZERO,
        publication: "p".to_owned(),
        messages: true,
    }
}

pub(crate) async fn connect(info: &ConnInfo) -> Result<Session, Error> {
    Session::connect(info, SessionKind::Replication, &[]).await
}

/// Connects a client with a stream to its scripted server.
/// Returns a session after the login, and its server.
pub(crate) async fn session() -> (Session, Fake) {
    let (listener, port) = listen().await;
    let info = info(port, "");
    let serving = async {
        let mut fake = Fake::accept(&listener).await;
        fake.login().await;
        fake
    };
    let (session, fake) = tokio::join!(connect(&info), serving);
    (session.unwrap(), fake)
}

pub(crate) async fn stream() -> (ReplicationStream, Fake) {
    let (listener, port) = listen().await;
    let client = async {
        let session = connect(&info(port, "")).await.unwrap();
        session.start_replication(&start()).await.unwrap()
    };
    tokio::join!(client, Fake::streaming(&listener))
}

pub(crate) fn status(written: u64, flushed: u64) -> StatusUpdate {
    let flushed = CommitEnd::from_commit_message(Lsn::new(flushed));
    StatusUpdate {
        written: Lsn::new(written),
        flushed,
        applied: flushed,
        clock_us_since_2000: 0,
        reply_requested: false,
    }
}
