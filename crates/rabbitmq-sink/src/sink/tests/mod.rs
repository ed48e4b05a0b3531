use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, EndpointStats, EventPosition, Header, Poison, Record,
    RecordKind, SendError, Sink, SinkFactory, SinkStats, dlq_headers, lock,
};
use walrelay_sink_client::{Patience, Servers, TlsFiles};
use walrelay_testkit::{Authority, PATIENCE, Reports, eventually};

use super::{RabbitmqSink, RabbitmqSinkFactory, Settings};
use crate::client::Login;
use crate::client::declare::Declare;
use crate::client::publish::DeadLetterAddress;
use crate::client::wire::{put_method, put_short};
use crate::scripted::{MAX_OPEN, Published, Scripted};

mod closes;
mod missing_confirms;
mod refusals;

const HOUR: Duration = Duration::from_secs(3_600);

/// A sink with what it has reported.
struct Under {
    sink: RabbitmqSink,
    stats: Arc<SinkStats>,
    reports: Arc<Reports>,
    accepted: u64,
}

pub(super) fn settings() -> Settings {
    Settings {
        max_records: 10_000,
        max_retrying_bytes: 64 << 20,
        max_retrying_keys: 1_000,
        max_bytes: 64 << 20,
        channels: 1,
        max_message: 1 << 20,
        streams: true,
        confirm: HOUR,
        renew: HOUR,
        pauses: (Duration::from_millis(5), Duration::from_millis(50)),
        refusals: Patience::new(Duration::ZERO),
        dead_letters: DeadLetterAddress {
            exchange: "dead".to_owned(),
            routing_key: "letters".to_owned(),
        },
        declare: None,
    }
}

impl Under {
    fn new(server: &Scripted) -> Self {
        Self::with(server.login(), settings())
    }

    fn with(login: Login, settings: Settings) -> Self {
        let reports = Arc::<Reports>::default();
        let mut factory = RabbitmqSinkFactory {
            login: Arc::new(login),
            settings: Arc::new(settings),
            stats: Arc::new(SinkStats::default()),
        };
        let deliveries = Arc::clone(&reports) as Arc<dyn Deliveries>;
        Self {
            sink: factory.create(None, deliveries).unwrap(),
            stats: factory.stats,
            reports,
            accepted: 0,
        }
    }

    /// Offers a record to `exchange`. Its value is the key and a number.
    fn send(&mut self, exchange: &str, key: &str, number: u64) -> Result<(), SendError> {
        self.send_by((exchange, "secret-route"), key, number)
    }

    /// Offers a record with a routing key.
    fn send_by(
        &mut self,
        (exchange, routing_key): (&str, &str),
        key: &str,
        number: u64,
    ) -> Result<(), SendError> {
        let value = format!("{key}-{number}");
        let record = Record {
            topic: exchange,
            routing_key: Some(routing_key),
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            event_id: Some(value.as_bytes()),
            position: EventPosition::in_first_epoch(7, self.accepted),
            ..Record::default()
        };
        self.sink.try_send(&record, self.accepted)?;
        self.accepted += 1;
        Ok(())
    }

    /// Waits until all are reported, each once. Returns the failures.
    fn settled(&self) -> BTreeMap<u64, DeliveryError> {
        self.reports.wait_for(self.accepted);
        self.reports.assert_complete(self.accepted);
        let outcomes = self.reports.state().outcomes.into_iter();
        outcomes
            .filter_map(|(seq, outcome)| Some((seq, outcome.err()?)))
            .collect()
    }

    fn obstacle(&mut self) -> Option<String> {
        self.sink.waiting_for().map(|obstacle| obstacle.what)
    }
}

/// Returns how often each message was published.
fn counts(server: &Scripted) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for body in server.bodies() {
        *counts.entry(body).or_default() += 1;
    }
    counts
}

fn with_patience(retry_for: Duration) -> Settings {
    Settings {
        refusals: Patience::new(retry_for),
        ..settings()
    }
}

fn ack(message: &Published, out: &mut Vec<u8>) {
    message.confirm(out, true, false);
}

#[test]
fn a_returned_message_is_never_delivered_and_fails_no_other() {
    const COUNT: u64 = 700;
    let mut held = Vec::new();
    let server = Scripted::start(move |message, out| {
        held.push(message.clone());
        if held.len() as u64 == COUNT {
            // In another order than published, and one confirm for all.
            for returned in held.iter().rev().filter(|it| it.tag % 7 == 4) {
                returned.give_back(out);
            }
            message.confirm(out, true, true);
        }
    });
    let mut under = Under::new(&server);
    for number in 0..COUNT {
        under.send("e", &format!("k{number}"), 0).unwrap();
    }
    let failures = under.settled();
    assert!(lock(&server.published).iter().all(|it| it.mandatory));
    let unroutable: Vec<u64> = failures.keys().copied().collect();
    let tags = lock(&server.published);
    let returned = tags.iter().filter(|it| it.tag % 7 == 4);
    let mut expected: Vec<u64> = returned
        .map(|it| {
            let body = String::from_utf8(it.body.clone()).unwrap();
            body[1..].split_once('-').unwrap().0.parse().unwrap()
        })
        .collect();
    expected.sort_unstable();
    assert_eq!(unroutable, expected);
    for error in failures.values() {
        assert_eq!(error.poison, Some(Poison::Unroutable));
        assert_eq!(error.disposition, Disposition::Fatal);
        assert!(!error.to_string().contains("secret-route"), "{error}");
    }
}

#[test]
fn a_returned_message_that_is_not_known_ends_the_connection() {
    let mut seen = Vec::new();
    let server = Scripted::start(move |message, out| {
        seen.push(message.clone());
        if seen.len() == 2 {
            seen[0].give_back(out);
        }
        ack(message, out);
    });
    let mut under = Under::new(&server);
    under.send("e", "a", 1).unwrap();
    under.settled();
    under.send("e", "a", 2).unwrap();
    assert!(under.settled().is_empty());
    // Its confirm was not trusted.
    assert_eq!(server.bodies(), ["a-1", "a-2", "a-2"]);
}

#[test]
fn a_returned_message_is_sent_again_as_its_queue_may_be_bound_later() {
    let server = Scripted::start(|message, out| {
        if message.tag < 3 && message.body == b"a-1" {
            message.give_back(out);
        }
        ack(message, out);
    });
    let settings = Settings {
        refusals: Patience::new(HOUR),
        ..settings()
    };
    let mut under = Under::with(server.login(), settings);
    for (key, number) in [("a", 1), ("a", 2)] {
        under.send("e", key, number).unwrap();
    }
    assert!(under.settled().is_empty());
    assert_eq!(server.bodies(), ["a-1", "a-1", "a-1", "a-2"]);
}

#[test]
fn a_channel_whose_messages_are_refused_is_replaced_when_nothing_is_in_flight_on_it() {
    let server = Scripted::start(|message, out| {
        // A queue that was full refuses the messages of the channels that saw it so.
        message.confirm(out, message.channel > 1 || message.body != b"full-1", false);
    });
    let settings = Settings {
        renew: Duration::ZERO,
        ..settings()
    };
    let mut under = Under::with(server.login(), settings);
    for (key, number) in [("full", 1), ("full", 2), ("other", 1)] {
        under.send("e", key, number).unwrap();
    }
    assert!(under.settled().is_empty());
    let bodies = server.bodies();
    let of_key: Vec<&String> = bodies.iter().filter(|it| it.starts_with("full")).collect();
    assert_eq!(of_key, ["full-1", "full-1", "full-2"]);
    // The server allows few channels, and all that were replaced are closed.
    let server = Scripted::start({
        let mut refused = 0;
        move |message, out| {
            refused += 1;
            message.confirm(out, refused > 20, false);
        }
    });
    let settings = Settings {
        renew: Duration::ZERO,
        ..self::settings()
    };
    let mut under = Under::with(server.login(), settings);
    under.send("e", "full", 1).unwrap();
    assert!(under.settled().is_empty());
    let published = lock(&server.published);
    let channels: BTreeSet<u16> = published.iter().map(|it| it.channel).collect();
    assert!(channels.len() > 1, "{channels:?}");
    assert_eq!(lock(&server.logins).len(), 1);
}

#[test]
fn a_host_that_does_not_answer_is_followed_by_the_next() {
    let server = Scripted::start(ack);
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = dead.local_addr().unwrap().port();
    drop(dead);
    let mut login = server.login();
    login
        .servers
        .hosts
        .insert(0, ("127.0.0.1".to_owned(), port));
    let mut under = Under::with(login, settings());
    under.send("e", "a", 1).unwrap();
    assert!(under.settled().is_empty());
    assert_eq!(server.bodies(), ["a-1"]);
}

#[test]
fn a_header_that_would_close_the_channel_is_refused_and_left_out_of_a_dead_letter() {
    let server = Scripted::start(ack);
    let mut under = Under::new(&server);
    let long = "n".repeat(256);
    let id = [b'i'; 256];
    for name in ["CC", "BCC", &long] {
        let headers = [Header {
            name,
            value: Some(b"secret-route"),
        }];
        let event = Record {
            topic: "e",
            headers: &headers,
            ..Record::default()
        };
        let Err(SendError::Refused(error)) = under.sink.try_send(&event, 9) else {
            panic!("{name} is taken");
        };
        assert_eq!(error.poison, Some(Poison::Rejected));
        assert!(!error.to_string().contains("secret-route"), "{error}");
        let dead_letter = Record {
            kind: RecordKind::DeadLetter,
            event_id: Some(&id),
            ..event
        };
        under.sink.try_send(&dead_letter, under.accepted).unwrap();
        under.accepted += 1;
    }
    assert!(under.settled().is_empty());
    for message in &*lock(&server.published) {
        let is_there = message.header.windows(6).any(|part| part == b"secret");
        assert!(!is_there, "{:?}", message.header);
    }
}

#[test]
fn nothing_of_a_key_is_sent_before_its_refused_message_is_confirmed() {
    let mut others = 0;
    let server = Scripted::start(move |message, out| {
        others += usize::from(message.body.starts_with(b"b"));
        // The queue is full until all of the other key are in.
        let refuse = message.body == b"a-1" && others < 3;
        message.confirm(out, !refuse, false);
    });
    let mut under = Under::new(&server);
    for number in 1..4 {
        under.send("e", "a", number).unwrap();
        under.send("e", "b", number).unwrap();
    }
    assert!(under.settled().is_empty());
    let bodies = server.bodies();
    let of = |key: &str| -> Vec<&str> {
        let bodies = bodies.iter().map(String::as_str);
        bodies.filter(|body| body.starts_with(key)).collect()
    };
    assert_eq!(of("b"), ["b-1", "b-2", "b-3"]);
    let mut of_a = of("a");
    assert!(of_a.len() > 3, "refused at least once");
    of_a.dedup();
    assert_eq!(of_a, ["a-1", "a-2", "a-3"]);
}

#[test]
fn a_full_queue_is_shown() {
    let server = Scripted::start(|message, out| message.confirm(out, false, false));
    let mut under = Under::new(&server);
    under.send("orders", "a", 1).unwrap();
    eventually(PATIENCE, || {
        under
            .obstacle()
            .is_some_and(|what| what.contains("\"orders\" is full"))
    });
}

#[test]
fn a_blocked_connection_is_shown_and_waited_for() {
    let server = Scripted::start(|message, out| {
        if message.tag == 1 {
            put_method(out, 0, (10, 60), |out| put_short(out, b"low on memory"));
        } else {
            message.confirm(out, true, true);
        }
    });
    let mut under = Under::new(&server);
    under.send("e", "a", 1).unwrap();
    eventually(PATIENCE, || {
        under.obstacle().is_some_and(|what| {
            what.contains("accepts no messages") && what.contains("low on memory")
        })
    });
    under.send("e", "b", 2).unwrap();
    let mut frames = Vec::new();
    put_method(&mut frames, 0, (10, 61), |_| ());
    server.push.try_send(frames).unwrap();
    assert!(under.settled().is_empty());
    assert_eq!(server.bodies(), ["a-1", "b-2"]);
    assert_eq!(under.obstacle(), None);
}

#[test]
fn the_node_is_shown_with_the_time_of_its_confirms() {
    let server = Scripted::start(ack);
    let mut under = Under::new(&server);
    let node = |under: &Under| {
        let nodes = under.stats.endpoints();
        nodes.first().map(|it| (it.name.clone(), it.state.clone()))
    };
    let up = (server.address.to_string(), EndpointStats::UP.to_owned());
    eventually(PATIENCE, || node(&under).as_ref() == Some(&up));
    under.send("e", "a", 1).unwrap();
    assert!(under.settled().is_empty());
    assert!(under.stats.endpoints()[0].rtt_p99.is_some());
}

#[test]
fn a_confirm_of_a_message_that_was_not_sent_delivers_nothing() {
    let mut seen = 0;
    let server = Scripted::start(move |message, out| {
        seen += 1;
        let other = Published {
            tag: message.tag + u64::from(seen == 1),
            ..message.clone()
        };
        other.confirm(out, true, true);
    });
    let mut under = Under::new(&server);
    under.send("e", "a", 1).unwrap();
    assert!(under.settled().is_empty());
    assert_eq!(server.bodies(), ["a-1", "a-1"]);
}

#[test]
fn what_is_declared_leaves_all_channels_to_the_messages() {
    let server = Scripted::start(ack);
    let settings = Settings {
        channels: MAX_OPEN,
        declare: Some(Declare {
            exchange: "e".to_owned(),
            queue: "queue".to_owned(),
            routing_key: Some("key".to_owned()),
        }),
        ..settings()
    };
    let mut under = Under::with(server.login(), settings);
    under.send("e", "a", 1).unwrap();
    assert!(under.settled().is_empty());
}

#[test]
fn dead_letters_have_an_address_of_their_own() {
    let server = Scripted::start(ack);
    let mut under = Under::new(&server);
    let headers = [Header {
        name: dlq_headers::CLASS,
        value: Some(b"oversize"),
    }];
    let record = Record {
        kind: RecordKind::DeadLetter,
        topic: "orders.dlq",
        headers: &headers,
        ..Record::default()
    };
    under.sink.try_send(&record, 0).unwrap();
    // An event whose row has given it the header.
    let event = Record {
        kind: RecordKind::Event,
        topic: "e",
        routing_key: Some("k"),
        ..record
    };
    under.sink.try_send(&event, 1).unwrap();
    under.accepted = 2;
    assert!(under.settled().is_empty());
    let published = lock(&server.published);
    let sent = published.iter().map(|it| (&*it.exchange, &*it.routing_key));
    assert_eq!(sent.collect::<Vec<_>>(), [("dead", "letters"), ("e", "k")]);
}

#[test]
fn a_certificate_names_the_user_and_the_server_is_verified() {
    let authority = Authority::new("ca");
    let server = authority.server("localhost");
    let scripted = Scripted::with_tls(Some(server.server_config()), ack);
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let client = authority.client("relay");
    let (certificate, key) = (
        file("client.pem", &client.certificate),
        file("client.key", &client.key),
    );
    let ca = file("ca.pem", &authority.pem());
    let files = |ca: &std::path::Path| TlsFiles {
        ca_file: Some(ca.to_owned()),
        certificate_file: Some(certificate.clone()),
        key_file: Some(key.clone()),
    };
    let login = |ca: &std::path::Path, host: &str| Login {
        servers: Servers {
            hosts: vec![(host.to_owned(), scripted.address.port())],
            tls: Some(Arc::new(files(ca).client_config().unwrap())),
            timeout: Duration::from_secs(60),
        },
        external: true,
        ..scripted.login()
    };
    let stranger = file("other.pem", &Authority::new("other").pem());
    for refused in [login(&stranger, "localhost"), login(&ca, "127.0.0.1")] {
        let mut under = Under::with(refused, settings());
        under.send("e", "a", 1).unwrap();
        eventually(PATIENCE, || {
            under
                .obstacle()
                .is_some_and(|what| what.contains("certificate"))
        });
    }
    let mut under = Under::with(login(&ca, "localhost"), settings());
    under.send("e", "a", 1).unwrap();
    assert!(under.settled().is_empty());
    assert_eq!(*lock(&scripted.logins), [("EXTERNAL".to_owned(), vec![])]);
}
