//! The sink against a server that follows a script.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use walrelay_sink::{Deliveries, EventPosition, Poison, Record, Sink, SinkFactory as _, SinkStats};
use walrelay_sink_client::{Patience, Servers};
use walrelay_testkit::{PATIENCE, Reports, eventually};

use super::{NatsSinkFactory, Settings};
use crate::client::Login;

/// A message or request that the sink has sent.
#[derive(Debug)]
struct Sent {
    subject: String,
    reply: String,
    headers: String,
}

/// The server's side of a connection.
struct Peer {
    stream: BufReader<TcpStream>,
}

impl Peer {
    /// Takes a connection, and answers its login.
    fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut peer = Self {
            stream: BufReader::new(stream),
        };
        peer.write("INFO {\"headers\":true,\"max_payload\":1000}\r\n");
        while peer.line() != "PING" {}
        peer.write("PONG\r\n");
        peer
    }

    fn write(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        // The sink may end the connection before it has read all.
        let _ = self.stream.read_line(&mut line);
        line.trim_end().to_owned()
    }

    /// Reads the next message or request; answers the sink's `PING`. `None`: the sink has ended the
    /// connection.
    fn next(&mut self) -> Option<Sent> {
        loop {
            let line = self.line();
            let words: Vec<&str> = line.split(' ').collect();
            let (subject, reply, headers, total) = match &*words {
                ["PING"] => {
                    self.write("PONG\r\n");
                    continue;
                }
                ["PUB", subject, reply, total] => (subject, reply, "0", total),
                ["HPUB", subject, reply, headers, total] => (subject, reply, *headers, total),
                [""] => return None,
                _ => panic!("the sink sends {line:?}"),
            };
            let mut bytes = vec![0; total.parse::<usize>().unwrap() + 2];
            self.stream.read_exact(&mut bytes).unwrap();
            bytes.truncate(headers.parse().unwrap());
            return Some(Sent {
                subject: (*subject).to_owned(),
                reply: (*reply).to_owned(),
                headers: String::from_utf8(bytes).unwrap(),
            });
        }
    }

    /// Reads the next message.
    fn message(&mut self) -> Sent {
        let sent = self.next().expect("a message");
        assert!(!sent.subject.starts_with('$'), "{sent:?}");
        sent
    }

    fn answer(&mut self, to: &Sent, payload: &str) {
        let text = format!("MSG {} 1 {}\r\n{payload}\r\n", to.reply, payload.len());
        self.write(&text);
    }

    fn acknowledge(&mut self, to: &Sent) {
        self.answer(to, "{\"stream\":\"S\",\"seq\":1}");
    }
}

impl Sent {
    fn id(&self) -> &str {
        let mut lines = self.headers.lines();
        let id = lines.find_map(|line| line.strip_prefix("Nats-Msg-Id: "));
        id.expect("an id")
    }
}

/// Makes a sink whose server runs `script`, and sends so many events of the key `k`.
fn run(
    ack: Duration,
    events: u64,
    script: impl FnOnce(&TcpListener) + Send + 'static,
) -> (Arc<Reports>, super::NatsSink, thread::JoinHandle<()>) {
    run_for(Duration::ZERO, ack, events, script)
}

fn run_for(
    retry_for: Duration,
    ack: Duration,
    events: u64,
    script: impl FnOnce(&TcpListener) + Send + 'static,
) -> (Arc<Reports>, super::NatsSink, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || script(&listener));
    let login = Login {
        servers: Servers {
            hosts: vec![("127.0.0.1".to_owned(), port)],
            tls: None,
            timeout: PATIENCE,
        },
        username: None,
        password: None,
        token: None,
        credentials: None,
    };
    let settings = Settings {
        max_records: 100,
        max_retrying_bytes: 64 << 20,
        max_retrying_keys: 1_000,
        max_bytes: 1 << 20,
        max_message: 10_000,
        exclusive_stream: None,
        ack,
        pauses: (Duration::from_millis(1), Duration::from_millis(5)),
        refusals: Patience::new(retry_for),
    };
    let mut factory = NatsSinkFactory {
        login: Arc::new(login),
        settings: Arc::new(settings),
        stats: Arc::<SinkStats>::default(),
    };
    let reports = Arc::<Reports>::default();
    let deliveries = Arc::clone(&reports) as Arc<dyn Deliveries>;
    let mut sink = factory.create(None, deliveries).unwrap();
    for number in 0..events {
        send(&mut sink, "k", number);
    }
    (reports, sink, server)
}

/// Sends the event of this number, which is its id.
fn send(sink: &mut super::NatsSink, key: &str, number: u64) {
    let id = number.to_string();
    let record = Record {
        topic: "t.secret",
        key: Some(key.as_bytes()),
        value: Some(b"v"),
        event_id: Some(id.as_bytes()),
        position: EventPosition::in_first_epoch(1, number),
        ..Record::default()
    };
    sink.try_send(&record, number).unwrap();
}

/// Waits until all events are delivered, and ends the server's script.
fn finish(
    events: u64,
    (reports, sink, server): (Arc<Reports>, super::NatsSink, thread::JoinHandle<()>),
) {
    reports.wait_for(events);
    assert_eq!(reports.failures(), []);
    Box::new(sink).close(PATIENCE);
    server.join().unwrap();
}

#[test]
fn an_overdue_event_is_sent_again_and_a_late_acknowledgement_of_its_first_copy_counts() {
    let running = run(Duration::from_secs(1), 2, |listener| {
        let mut peer = Peer::accept(listener);
        let first = peer.message();
        // The question whether a stream has the subject, and the second copy.
        let question = peer.next().unwrap();
        assert_eq!(question.subject, "$JS.API.STREAM.NAMES");
        peer.answer(&question, "{\"total\":1,\"streams\":[\"S\"]}");
        let second = peer.message();
        assert_eq!((first.id(), second.id()), ("0", "0"));
        assert_ne!(first.reply, second.reply);
        peer.acknowledge(&first);
        let next = peer.message();
        assert_eq!(next.id(), "1");
        // Late answers to the event that is done.
        peer.answer(
            &second,
            "{\"error\":{\"err_code\":10077},\"stream\":\"S\",\"seq\":0}",
        );
        peer.acknowledge(&second);
        peer.acknowledge(&next);
        assert!(peer.next().is_none());
    });
    finish(2, running);
}

#[test]
fn an_answer_of_somebody_else_is_no_acknowledgement() {
    let running = run(PATIENCE, 2, |listener| {
        let mut peer = Peer::accept(listener);
        let first = peer.message();
        for other in ["", "+OK", "{}", "{\"seq\":1}", "\u{0}"] {
            peer.answer(&first, other);
        }
        peer.write("MSG _INBOX.other.1 1 2\r\n{}\r\nMSG x 1 0\r\n\r\n+OK\r\nPING\r\n");
        assert_eq!(peer.line(), "PONG");
        peer.acknowledge(&first);
        let second = peer.message();
        assert_eq!(second.id(), "1");
        peer.acknowledge(&second);
        assert!(peer.next().is_none());
    });
    finish(2, running);
}

/// A server that asks without an end, and reads nothing meanwhile, is answered, and not each time.
#[test]
fn many_questions_for_a_sign_get_few_answers() {
    const QUESTIONS: usize = 200_000;
    let running = run(PATIENCE, 1, |listener| {
        let mut peer = Peer::accept(listener);
        let first = peer.message();
        peer.write(&"PING\r\n".repeat(QUESTIONS));
        peer.acknowledge(&first);
        let lines = std::iter::repeat_with(|| peer.line()).take_while(|line| !line.is_empty());
        let answers = lines.filter(|line| line == "PONG").count();
        assert!((1..QUESTIONS / 10).contains(&answers), "{answers} answers");
    });
    finish(1, running);
}

/// Acknowledges a message as a repeat of the message with the number 7. Returns the sink's question
/// about that message.
fn acknowledge_repeat(peer: &mut Peer, sent: &Sent) -> Sent {
    peer.answer(sent, "{\"stream\":\"S\",\"seq\":7,\"duplicate\":true}");
    let question = peer.next().unwrap();
    assert_eq!(question.subject, "$JS.API.STREAM.MSG.GET.S");
    question
}

#[test]
fn a_repeat_is_delivered_if_the_stream_has_the_event_or_does_not_say() {
    let running = run(PATIENCE, 5, |listener| {
        let mut peer = Peer::accept(listener);
        // At its position, and at another one.
        for digits in ["", "9"] {
            let sent = peer.message();
            let question = acknowledge_repeat(&mut peer, &sent);
            let position = format!("walrelay.position: {digits}");
            let headers = sent.headers.replace("walrelay.position: ", &position);
            peer.answer(&question, &kept(&headers, "v"));
        }
        let sent = peer.message();
        let question = acknowledge_repeat(&mut peer, &sent);
        peer.answer(&question, "{\"error\":{\"code\":404,\"err_code\":10037}}");
        let sent = peer.message();
        acknowledge_repeat(&mut peer, &sent);
        peer.write("-ERR 'Permissions Violation for Publish to \"$JS.API.STREAM.MSG.GET.S\"'\r\n");
        let sent = peer.message();
        peer.answer(&sent, "{\"stream\":\"S\",\"seq\":7,\"duplicate\":true}");
        assert!(peer.next().is_none());
    });
    finish(5, running);
}

#[test]
fn while_a_stream_does_not_say_whose_id_it_has_the_event_is_sent_again() {
    let running = run_for(PATIENCE, PATIENCE, 2, |listener| {
        let mut peer = Peer::accept(listener);
        for answer in ["", "{}", "{\"error\":{\"code\":503,\"err_code\":10008}}"] {
            let sent = peer.message();
            assert_eq!(sent.id(), "0");
            let question = acknowledge_repeat(&mut peer, &sent);
            peer.answer(&question, answer);
        }
        let sent = peer.message();
        let question = acknowledge_repeat(&mut peer, &sent);
        peer.answer(&question, &kept(&sent.headers, "v"));
        let next = peer.message();
        assert_eq!(next.id(), "1");
        peer.acknowledge(&next);
        assert!(peer.next().is_none());
    });
    finish(2, running);
}

#[test]
fn an_event_whose_id_is_that_of_another_one_is_refused() {
    let (reports, sink, server) = run(PATIENCE, 1, |listener| {
        let mut peer = Peer::accept(listener);
        let sent = peer.message();
        let question = acknowledge_repeat(&mut peer, &sent);
        let other = sent
            .headers
            .replace("walrelay.position: ", "walrelay.position: 9");
        peer.answer(&question, &kept(&other, "secret"));
        assert!(peer.next().is_none());
    });
    reports.wait_for(1);
    let error = reports.outcome(0).unwrap_err();
    assert_eq!(error.poison, Some(Poison::Rejected));
    assert!(
        error.reason.contains("unique") && !error.reason.contains("secret"),
        "{error}"
    );
    Box::new(sink).close(PATIENCE);
    server.join().unwrap();
}

/// Makes the answer to the question what a message has.
fn kept(headers: &str, payload: &str) -> String {
    let (headers, payload) = (STANDARD.encode(headers), STANDARD.encode(payload));
    format!(
        "{{\"message\":{{\"subject\":\"t.secret\",\"hdrs\":\"{headers}\",\"data\":\"{payload}\"}}}}"
    )
}

#[test]
fn after_a_lost_connection_the_first_event_of_a_key_is_sent_first_under_its_id() {
    let running = run(PATIENCE, 2, |listener| {
        for _ in 0..3 {
            let mut peer = Peer::accept(listener);
            assert_eq!(peer.message().id(), "0");
        }
        let mut peer = Peer::accept(listener);
        for id in ["0", "1"] {
            let sent = peer.message();
            assert_eq!(sent.id(), id);
            peer.acknowledge(&sent);
        }
        assert!(peer.next().is_none());
    });
    finish(2, running);
}

#[test]
fn a_refused_event_is_sent_again_before_the_next_of_its_key() {
    let running = run(PATIENCE, 3, |listener| {
        let mut peer = Peer::accept(listener);
        for id in ["0", "1", "2"] {
            for error in [10_077, 10_071, 10_023, 4_711] {
                let sent = peer.message();
                assert_eq!(sent.id(), id);
                let refusal = format!("{{\"error\":{{\"code\":503,\"err_code\":{error}}}}}");
                peer.answer(&sent, &refusal);
            }
            let sent = peer.message();
            assert_eq!(sent.id(), id);
            peer.acknowledge(&sent);
        }
        assert!(peer.next().is_none());
    });
    finish(3, running);
}

#[test]
fn a_refused_event_is_not_sent_again_and_its_dead_letter_takes_its_place() {
    let oversize = "{\"error\":{\"code\":400,\"err_code\":10054}}";
    let (reports, mut sink, server) = run(PATIENCE, 2, move |listener| {
        let mut peer = Peer::accept(listener);
        let first = peer.message();
        let other = peer.message();
        assert_eq!((first.id(), other.id()), ("0", "2"));
        peer.answer(&first, oversize);
        // The connection ends while another event is in flight.
        drop(peer);
        let mut peer = Peer::accept(listener);
        let other = peer.message();
        assert_eq!(other.id(), "2");
        peer.acknowledge(&other);
        for subject in ["dead", "t.secret"] {
            let sent = peer.message();
            assert_eq!(sent.subject, subject);
            peer.acknowledge(&sent);
        }
        assert!(peer.next().is_none());
    });
    send(&mut sink, "other", 2);
    let error = reports.outcome(0).unwrap_err();
    assert_eq!(error.poison, Some(Poison::Oversize));
    assert_eq!(reports.outcome(2), Ok(()));
    assert!(!reports.is(|state| state.outcomes.contains_key(&1)));
    let withdrawn = sink.withdraw(0, true);
    let seqs: Vec<u64> = withdrawn.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, [0, 1]);
    for (seq, record) in withdrawn {
        record.with(|record| {
            let topic = if seq == 0 { "dead" } else { record.topic };
            sink.try_send(&Record { topic, ..*record }, seq).unwrap();
        });
    }
    reports.wait(|state| (0..3).all(|seq| state.is_delivered(seq)));
    Box::new(sink).close(PATIENCE);
    server.join().unwrap();
}

#[test]
fn no_text_of_the_server_is_shown() {
    for text in ["'Slow Consumer secret'", "'secret'", "secret"] {
        let (_, mut sink, server) = run(PATIENCE, 1, move |listener| {
            let mut peer = Peer::accept(listener);
            peer.message();
            peer.write(&format!("-ERR {text}\r\n"));
            assert!(peer.next().is_none());
        });
        eventually(PATIENCE, || {
            let obstacle = sink.waiting_for();
            let what = obstacle.map(|obstacle| obstacle.what);
            assert!(!what.as_ref().is_some_and(|what| what.contains("secret")));
            what.is_some()
        });
        Box::new(sink).close(Duration::ZERO);
        server.join().unwrap();
    }
}

#[test]
fn a_missing_right_ends_the_sink_without_showing_the_subject() {
    let (reports, sink, server) = run(PATIENCE, 1, |listener| {
        let mut peer = Peer::accept(listener);
        peer.message();
        peer.write("-ERR 'Permissions Violation for Publish to \"t.secret\"'\r\n");
        assert!(peer.next().is_none());
    });
    reports.wait_for(1);
    let error = reports.outcome(0).unwrap_err();
    assert_eq!(error.poison, None);
    assert!(!error.reason.contains("secret"), "{error}");
    Box::new(sink).close(PATIENCE);
    server.join().unwrap();
}

#[test]
fn bytes_that_are_no_protocol_end_the_connection_alone() {
    let running = run(PATIENCE, 1, |listener| {
        for bytes in ["HTTP/1.1 400\r\n", "MSG\r\n", "INFO {\r\n", "MSG a 1 x\r\n"] {
            let mut peer = Peer::accept(listener);
            peer.message();
            peer.write(bytes);
            assert!(peer.next().is_none());
        }
        let mut peer = Peer::accept(listener);
        let sent = peer.message();
        peer.acknowledge(&sent);
        assert!(peer.next().is_none());
    });
    finish(1, running);
}
