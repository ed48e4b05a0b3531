//! A client of NATS for tests. It shares no code with the sink.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::wait::PATIENCE;

/// The messages that are asked for at a time.
const BATCH: u32 = 2_000;

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsMessage {
    /// The subject.
    pub subject: String,
    /// The number in the stream.
    pub seq: u64,
    /// The headers; of a repeated name the last.
    pub headers: BTreeMap<String, String>,
    /// The payload.
    pub payload: Vec<u8>,
}

/// A connection to a server.
#[derive(Debug)]
pub struct NatsClient {
    stream: BufReader<TcpStream>,
    /// The subject of answers, which no other client has.
    inbox: String,
}

/// A message to the client: its header lines, and its payload.
struct Answer {
    status: String,
    headers: BTreeMap<String, String>,
    payload: Vec<u8>,
}

impl NatsClient {
    /// Connects without a login.
    pub fn connect(port: u16) -> Self {
        Self::connect_as(port, json!({}))
    }

    /// Connects with more members of `CONNECT`, such as `user` and `pass`.
    pub fn connect_as(port: u16, mut login: Value) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("NATS takes connections");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut client = Self {
            stream: BufReader::new(stream),
            inbox: format!("answers.{:016x}", fastrand::u64(..)),
        };
        assert!(client.line().starts_with("INFO "), "a greeting");
        for (name, value) in [
            ("verbose", false),
            ("headers", true),
            ("no_responders", true),
        ] {
            login[name] = json!(value);
        }
        let hello = format!("CONNECT {login}\r\nSUB {} 1\r\nPING\r\n", client.inbox);
        client.write(hello.as_bytes());
        loop {
            let line = client.line();
            match &*line {
                "PONG" => return client,
                line if line.starts_with("INFO ") => {}
                other => panic!("NATS refuses the client: {other}"),
            }
        }
    }

    /// Creates a stream of these subjects, with more members of its configuration. It is in files, and
    /// its messages can be read.
    pub fn create_stream(&mut self, name: &str, subjects: &[&str], more: &Value) {
        self.change("CREATE", name, subjects, more);
    }

    /// Changes a stream.
    pub fn update_stream(&mut self, name: &str, subjects: &[&str], more: &Value) {
        self.change("UPDATE", name, subjects, more);
    }

    fn change(&mut self, call: &str, name: &str, subjects: &[&str], more: &Value) {
        let mut config = json!({
            "name": name,
            "subjects": subjects,
            "storage": "file",
            "retention": "limits",
            "num_replicas": 1,
            "allow_direct": true,
        });
        for (member, value) in more.as_object().into_iter().flatten() {
            config[member] = value.clone();
        }
        let answer = self.api(&format!("STREAM.{call}.{name}"), &config);
        assert!(answer.get("error").is_none(), "{call} {name}: {answer}");
    }

    /// Deletes a stream.
    pub fn delete_stream(&mut self, name: &str) {
        let answer = self.api(&format!("STREAM.DELETE.{name}"), &json!({}));
        assert_eq!(answer["success"], true, "{answer}");
    }

    /// Calls JetStream's API. An answer has a member `error` if the call is refused; it is null if
    /// JetStream is not there.
    pub fn api(&mut self, call: &str, body: &Value) -> Value {
        self.send(&format!("$JS.API.{call}"), "", body.to_string().as_bytes());
        let answer = self.answer();
        serde_json::from_slice(&answer.payload).unwrap_or_default()
    }

    /// Publishes a message with header lines, each with its end, and returns the answer of the stream;
    /// null if nobody is subscribed.
    pub fn publish(&mut self, subject: &str, headers: &str, payload: &[u8]) -> Value {
        self.send(subject, headers, payload);
        let answer = self.answer();
        serde_json::from_slice(&answer.payload).unwrap_or_default()
    }

    /// Publishes messages, sent all at once, each of which a stream must take: subject, header lines,
    /// each with its end, and payload.
    pub fn publish_all(&mut self, messages: &[(&str, String, &[u8])]) {
        let mut out = Vec::new();
        for (subject, headers, payload) in messages {
            self.put(&mut out, subject, headers, payload);
        }
        self.write(&out);
        for _ in messages {
            let answer: Value = serde_json::from_slice(&self.answer().payload).unwrap_or_default();
            assert!(answer["seq"].is_u64(), "{answer}");
        }
    }

    /// Begins to consume a stream. Its messages are [delivered](Self::delivered).
    pub fn consume(&mut self, stream: &str) {
        let config = json!({
            "deliver_subject": self.inbox,
            "deliver_policy": "all",
            "ack_policy": "none",
        });
        let request = json!({"stream_name": stream, "config": config});
        let answer = self.api(&format!("CONSUMER.CREATE.{stream}"), &request);
        assert!(answer.get("error").is_none(), "{answer}");
    }

    /// Subscribes to a subject. What is published to it is [delivered](Self::delivered), whether a stream
    /// takes it or not.
    pub fn subscribe(&mut self, subject: &str) {
        self.write(format!("SUB {subject} 2\r\nPING\r\n").as_bytes());
        while self.line() != "PONG" {}
    }

    /// Waits for the next message of the stream that is [consumed](Self::consume), or of a subject that is
    /// subscribed to. Returns headers and payload.
    pub fn delivered(&mut self) -> (BTreeMap<String, String>, Vec<u8>) {
        let message = self.answer();
        (message.headers, message.payload)
    }

    /// Returns the numbers of messages of a stream by their subjects; none if JetStream does not say.
    pub fn counts(&mut self, stream: &str) -> BTreeMap<String, u64> {
        let info = self.api(
            &format!("STREAM.INFO.{stream}"),
            &json!({"subjects_filter": ">"}),
        );
        let subjects = info["state"]["subjects"].as_object();
        let subjects = subjects.into_iter().flatten();
        subjects
            .filter_map(|(subject, count)| Some((subject.clone(), count.as_u64()?)))
            .collect()
    }

    /// Reads all messages of a stream with a subject, which may have wildcards, in order.
    pub fn messages(&mut self, stream: &str, subject: &str) -> Vec<NatsMessage> {
        let mut messages = Vec::new();
        let mut from = 1;
        loop {
            let request = json!({"seq": from, "next_by_subj": subject, "batch": BATCH});
            let call = format!("$JS.API.DIRECT.GET.{stream}");
            self.send(&call, "", request.to_string().as_bytes());
            let before = messages.len();
            loop {
                let answer = self.answer();
                // The end of the batch, or no message.
                if !answer.status.is_empty() {
                    assert!(
                        answer.status.starts_with("204") || answer.status.starts_with("404"),
                        "{}",
                        answer.status
                    );
                    break;
                }
                let header = |name: &str| answer.headers.get(name).cloned().unwrap_or_default();
                let seq = header("Nats-Sequence").parse().expect("a number");
                from = seq + 1;
                messages.push(NatsMessage {
                    subject: header("Nats-Subject"),
                    seq,
                    headers: answer.headers,
                    payload: answer.payload,
                });
            }
            if messages.len() == before {
                return messages;
            }
        }
    }

    fn send(&mut self, subject: &str, headers: &str, payload: &[u8]) {
        let mut out = Vec::new();
        self.put(&mut out, subject, headers, payload);
        self.write(&out);
    }

    fn put(&self, out: &mut Vec<u8>, subject: &str, headers: &str, payload: &[u8]) {
        let block = format!("NATS/1.0\r\n{headers}\r\n");
        let total = block.len() + payload.len();
        let line = format!(
            "HPUB {subject} {} {} {total}\r\n{block}",
            self.inbox,
            block.len()
        );
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(payload);
        out.extend_from_slice(b"\r\n");
    }

    fn write(&mut self, out: &[u8]) {
        self.stream.get_mut().write_all(out).expect("it is sent");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).expect("a line");
        assert!(read > 0, "NATS has closed the connection");
        line.trim_end().to_owned()
    }

    /// Calls JetStream's API as [`api`](Self::api) does; `None` if no answer comes within `limit`. Then
    /// the connection is of no further use.
    pub(super) fn api_within(
        &mut self,
        call: &str,
        body: &Value,
        limit: Duration,
    ) -> Option<Value> {
        self.send(&format!("$JS.API.{call}"), "", body.to_string().as_bytes());
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.checked_duration_since(Instant::now())?;
            let stream = self.stream.get_ref();
            stream
                .set_read_timeout(Some(left.max(Duration::from_millis(1))))
                .expect("a timeout");
            if self.stream.fill_buf().ok()?.is_empty() {
                return None;
            }
            let stream = self.stream.get_ref();
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let line = self.line();
            if let Some(answer) = self.answer_of(&line) {
                return Some(serde_json::from_slice(&answer.payload).unwrap_or_default());
            }
        }
    }

    fn answer(&mut self) -> Answer {
        loop {
            let line = self.line();
            if let Some(answer) = self.answer_of(&line) {
                return answer;
            }
        }
    }

    /// Reads what follows a line; `None` if it is no answer.
    fn answer_of(&mut self, line: &str) -> Option<Answer> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<usize>().expect("a length");
        let (headers, total) = match &*words {
            ["PING"] => {
                self.write(b"PONG\r\n");
                return None;
            }
            ["MSG", _, _, total] => (0, number(total)),
            // Messages of a consumer have a subject for the answer, too.
            ["HMSG", _, _, headers, total] | ["HMSG", _, _, _, headers, total] => {
                (number(headers), number(total))
            }
            _ if line.starts_with("INFO ") => return None,
            _ => panic!("no answer: {line}"),
        };
        let mut bytes = vec![0; total + 2];
        self.stream.read_exact(&mut bytes).expect("a message");
        bytes.truncate(total);
        let payload = bytes.split_off(headers);
        let block = String::from_utf8(bytes).expect("text");
        let mut lines = block.split("\r\n");
        let status = lines.next().unwrap_or_default();
        let headers = lines.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.trim().to_owned()))
        });
        Some(Answer {
            status: status.trim_start_matches("NATS/1.0").trim().to_owned(),
            headers: headers.collect(),
            payload,
        })
    }
}
