//! An HTTP/1.1 receiver inside this process: it takes each request, and hands it to the viewer.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use percent_encoding::percent_decode_str;
use walrelay_sink::lock;

use super::event::ReadEvent;

/// The header that gets an event's key: `key_header` of `[sink.http]`.
pub(super) const KEY_HEADER: &str = "x-event-key";

/// The longest head of a request, and the longest body, in bytes. The demonstration's are short.
const MAX_HEAD: u64 = 64 << 10;
const MAX_BODY: u64 = 16 << 20;

/// Receives requests on a free port until it is dropped.
pub(super) struct HttpReceiver {
    address: SocketAddr,
    events: Mutex<Option<Receiver<ReadEvent>>>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HttpReceiver {
    pub(super) fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let (sender, events) = channel();
        let stopped = Arc::<AtomicBool>::default();
        let thread = thread::Builder::new().name("receiver".to_owned());
        let thread = thread.spawn({
            let stopped = Arc::clone(&stopped);
            move || serve(&listener, &sender, &stopped)
        })?;
        Ok(Self {
            address,
            events: Mutex::new(Some(events)),
            stopped,
            thread: Some(thread),
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the events that arrive. Only the first call has them.
    pub(super) fn events(&self) -> Option<Receiver<ReadEvent>> {
        lock(&self.events).take()
    }
}

impl Drop for HttpReceiver {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        // The connection wakes the thread.
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

/// Accepts connections until `stopped` is set; then ends them, and waits for their threads.
fn serve(listener: &TcpListener, events: &Sender<ReadEvent>, stopped: &AtomicBool) {
    let mut open: Vec<(TcpStream, JoinHandle<()>)> = Vec::new();
    for stream in listener.incoming() {
        if stopped.load(Ordering::Acquire) {
            break;
        }
        open.retain(|(_, thread)| !thread.is_finished());
        let Ok(stream) = stream else { continue };
        let Ok(other) = stream.try_clone() else {
            continue;
        };
        let events = events.clone();
        // An error is the end of the connection, and the relay posts the event again.
        let spawned = thread::Builder::new()
            .name("receive".to_owned())
            .spawn(move || drop(receive(&stream, &events)));
        if let Ok(thread) = spawned {
            open.push((other, thread));
        }
    }
    for (stream, thread) in open {
        let _ = stream.shutdown(Shutdown::Both);
        let _ = thread.join();
    }
}

/// Answers the requests of a connection, one after the other.
fn receive(stream: &TcpStream, events: &Sender<ReadEvent>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(event) = read_request(&mut reader)? {
        // The event is handed over before the answer: the relay then posts the next one of its key.
        if events.send(event).is_err() {
            return Ok(());
        }
        writer.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
    }
    Ok(())
}

/// Reads a request; `None` at the end of the connection.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<ReadEvent>> {
    let mut head = reader.by_ref().take(MAX_HEAD);
    let Some(request) = read_line(&mut head)? else {
        return Ok(None);
    };
    let path = request.split(' ').nth(1).unwrap_or_default();
    let mut event = ReadEvent {
        topic: decoded(path.trim_start_matches('/')),
        ..ReadEvent::default()
    };
    let mut length = 0;
    loop {
        let line = read_line(&mut head)?.ok_or(ErrorKind::UnexpectedEof)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or(ErrorKind::InvalidData)?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().map_err(|_| ErrorKind::InvalidData)?,
            "transfer-encoding" => return Err(ErrorKind::Unsupported.into()),
            "webhook-id" => value.clone_into(&mut event.id),
            KEY_HEADER => event.key = decoded(value).into_bytes(),
            _ => {}
        }
    }
    if length > MAX_BODY {
        return Err(ErrorKind::InvalidData.into());
    }
    reader.take(length).read_to_end(&mut event.value)?;
    if event.value.len() as u64 != length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(event))
}

/// Reads a line without its end; `None` if there is none.
fn read_line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    if !line.ends_with('\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(line.trim_end().to_owned()))
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(request: &[u8]) -> io::Result<Option<ReadEvent>> {
        read_request(&mut &*request)
    }

    #[test]
    fn requests_are_read_one_after_the_other() {
        let bytes = b"POST /outbox.event.Order%20a HTTP/1.1\r\nHost: h\r\nWebhook-Id: 7\r\n\
            X-Event-Key: order%2D1\r\nContent-Length: 2\r\n\r\n{}POST /b HTTP/1.1\r\n\r\n";
        let mut rest: &[u8] = bytes;
        let first = read_request(&mut rest).unwrap().unwrap();
        let expected = ReadEvent {
            topic: "outbox.event.Order a".to_owned(),
            id: "7".to_owned(),
            key: b"order-1".to_vec(),
            value: b"{}".to_vec(),
        };
        assert_eq!(first, expected);
        let second = read_request(&mut rest).unwrap().unwrap();
        assert_eq!((second.topic.as_str(), second.value.len()), ("b", 0));
        assert_eq!(read_request(&mut rest).unwrap(), None);
    }

    #[test]
    fn what_is_no_whole_request_is_an_error() {
        for wrong in [
            "POST / HTTP/1.1",
            "POST / HTTP/1.1\r\n",
            "POST / HTTP/1.1\r\nno header\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{",
            "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
        let endless = format!("POST / HTTP/1.1\r\na: {}", "a".repeat(100_000));
        assert!(read(endless.as_bytes()).is_err());
    }
}
