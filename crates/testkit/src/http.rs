//! A small HTTP server, for stand-ins of other services.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::Issued;
use crate::address::ReservedAddress;
use crate::threads::Background;
use crate::wait::PATIENCE;

/// A request as it was received.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    /// Method and path, such as `GET /subjects`.
    pub line: String,
    /// Names in lower case, with their values.
    headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Status and reason, such as `200 OK`, which more headers may follow behind `\r\n`; and the body.
/// `None` closes the connection instead.
pub type HttpAnswer = Option<(String, String)>;

impl HttpRequest {
    /// Returns the value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    fn read(stream: &mut impl Read) -> io::Result<Self> {
        let mut reader = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let mut lines = lines.iter();
        let line = lines.next().ok_or(io::ErrorKind::InvalidData)?;
        let headers = lines.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        });
        let mut request = Self {
            line: line.trim_end_matches(" HTTP/1.1").to_owned(),
            headers: headers.collect(),
            body: Vec::new(),
        };
        let length = request.header("content-length");
        let length = length.map_or(0, |length| length.parse().unwrap_or(0));
        request.body = vec![0; length];
        reader.read_exact(&mut request.body)?;
        Ok(request)
    }
}

/// Answers requests at a port of this machine, one for each connection. It ends when it is dropped,
/// which panics if an answer has panicked.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    secure: bool,
    panicked: Arc<AtomicBool>,
    thread: Background<()>,
}

impl HttpServer {
    /// Listens at this address, or else at a free port; over TLS if there is a certificate, which
    /// must be for `localhost`.
    pub fn start(
        address: Option<ReservedAddress>,
        certificate: Option<&Issued>,
        answer: impl Fn(HttpRequest) -> HttpAnswer + Send + Sync + 'static,
    ) -> Self {
        let reserved = address.unwrap_or_else(ReservedAddress::bind);
        let address = reserved.address();
        let listener = reserved.listen();
        let tls = certificate.map(Issued::server_config);
        let secure = tls.is_some();
        let answer = Arc::new(answer);
        let panicked = Arc::<AtomicBool>::default();
        let failed = Arc::clone(&panicked);
        let thread = Background::start("http", move |stop| {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let (answer, tls) = (Arc::clone(&answer), tls.clone());
                let failed = Arc::clone(&failed);
                thread::spawn(move || {
                    // An error is the client's: it may have left, or refused the certificate.
                    let served = catch_unwind(AssertUnwindSafe(|| serve(&stream, tls, &*answer)));
                    // Before the connection is closed, so that the client's test cannot miss it.
                    failed.fetch_or(served.is_err(), Ordering::SeqCst);
                });
            }
        });
        Self {
            address,
            secure,
            panicked,
            thread,
        }
    }

    /// Returns the URL of the server: `http://127.0.0.1:…`, or `https://localhost:…`.
    pub fn url(&self) -> String {
        if self.secure {
            format!("https://localhost:{}", self.address.port())
        } else {
            format!("http://{}", self.address)
        }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.thread.stop();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        let panicked = self.panicked.load(Ordering::SeqCst);
        assert!(
            !panicked || thread::panicking(),
            "an answer of the HTTP server panicked"
        );
    }
}

fn serve(
    stream: &TcpStream,
    tls: Option<Arc<ServerConfig>>,
    answer: &dyn Fn(HttpRequest) -> HttpAnswer,
) -> io::Result<()> {
    // So that no thread waits for a client that never sends its request.
    stream.set_read_timeout(Some(PATIENCE))?;
    match tls {
        None => respond(stream, answer),
        Some(tls) => {
            let connection = ServerConnection::new(tls).expect("a connection");
            respond(StreamOwned::new(connection, stream), answer)
        }
    }
}

fn respond(
    mut stream: impl Read + Write,
    answer: &dyn Fn(HttpRequest) -> HttpAnswer,
) -> io::Result<()> {
    let request = HttpRequest::read(&mut stream)?;
    let Some((status, body)) = answer(request) else {
        return Ok(());
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    stream.flush()
}
