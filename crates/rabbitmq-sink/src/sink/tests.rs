use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, EndpointStats, EventPosition, Header, Poison, Record,
    RecordKind, SendError, Sink, SinkFactory, SinkStats, dlq_headers, lock,
};
use walrelay_sink_client::{RefusalClocks, Servers, client_config};
use walrelay_testkit::{Authority, PATIENCE, Reports, eventually};

use super::{RabbitmqSink, RabbitmqSinkFactory, Settings};
use crate::client::Login;
use crate::client::declare::Declare;
use crate::client::publish::DeadLetterAddress;
use crate::client::wire::{put_method, put_short};
use crate::scripted::{MAX_OPEN, Published, Scripted};

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
        max_bytes: 64 << 20,
        channels: 1,
        max_message: 1 << 20,
        confirm: HOUR,
        renew: HOUR,
        pauses: (Duration::from_millis(5), Duration::from_millis(50)),
        retry_for: Duration::ZERO,
        refusals: RefusalClocks::default(),
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
        let value = format!("{key}-{number}");
        let record = Record {
            topic: exchange,
            routing_key: Some("secret-route"),
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            event_id: Some(value.as_bytes()),
            position: EventPosition {
                lsn: 7,
                row: self.accepted,
            },
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
        retry_for: HOUR,
        refusals: RefusalClocks::default(),
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
fn a_missing_exchange_is_found_among_the_messages_in_flight() {
    let mut held = 0;
    let server = Scripted::start(move |message, out| {
        held += 1;
        if held == 4 {
            let text = "NOT_FOUND - no exchange 'none' in vhost '/'";
            message.close_channel(out, 404, text);
        } else if held > 4 {
            ack(message, out);
        }
    });
    let mut under = Under::new(&server);
    for (exchange, key) in [("e", "a"), ("none", "b"), ("e", "c"), ("none", "d")] {
        under.send(exchange, key, 1).unwrap();
    }
    let failures = under.settled();
    let numbers: Vec<u64> = failures.keys().copied().collect();
    assert_eq!(numbers, [1, 3], "the others are sent again");
    assert_eq!(failures[&3].poison, None, "given up with the first");
    let error = &failures[&1];
    assert_eq!(error.poison, Some(Poison::Rejected));
    // The exchange may be declared later.
    assert_eq!(error.disposition, Disposition::Retryable);
    assert!(error.reason.contains("there is no such exchange"));
    assert_eq!(lock(&server.published).len(), 6);
}

#[test]
fn a_closed_channel_fails_none_of_the_messages_of_others() {
    let mut held: Vec<Published> = Vec::new();
    let server = Scripted::start(move |message, out| {
        held.push(message.clone());
        if held.len() > 9 {
            ack(message, out);
        } else if held.len() == 9 {
            let bad = held.iter().find(|it| it.exchange == "none").unwrap();
            for other in held.iter().filter(|it| it.channel != bad.channel) {
                ack(other, out);
            }
            bad.close_channel(out, 404, "NOT_FOUND - no exchange 'none' in vhost '/'");
        }
    });
    let settings = Settings {
        channels: 3,
        ..settings()
    };
    let mut under = Under::with(server.login(), settings);
    for number in 0..9 {
        let exchange = if number == 4 { "none" } else { "e" };
        under.send(exchange, &format!("k{number}"), 0).unwrap();
    }
    let failures = under.settled();
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[&4].poison, Some(Poison::Rejected));
    let published = lock(&server.published);
    for channel in 1..4 {
        let first = published.iter().take(9);
        let of = first.filter(|it| it.channel == channel);
        assert_eq!(of.count(), 3, "each channel has its share");
    }
    // Two of the closed one, once more.
    assert_eq!(published.len(), 11);
}

/// Closes the channel for each message whose body is that of `key`, as a server does that sends the
/// answer late.
fn closing(
    key: &'static str,
    code: u16,
    text: &'static str,
) -> impl FnMut(&Published, &mut Vec<u8>) + Send {
    let mut closed = HashSet::new();
    move |message, out| {
        if closed.contains(&message.channel) {
            return;
        }
        if message.body.starts_with(key.as_bytes()) {
            closed.insert(message.channel);
            message.close_channel(out, code, text);
        } else if message.channel > 1 {
            ack(message, out);
        }
    }
}

#[test]
fn a_message_that_closes_the_channel_is_found_by_sending_one_at_a_time() {
    for (code, text, poison) in [
        (
            406,
            "PRECONDITION_FAILED - message size 9 is larger",
            Poison::Oversize,
        ),
        (
            406,
            "PRECONDITION_FAILED - invalid message: secret-route",
            Poison::Rejected,
        ),
        (
            403,
            "ACCESS_REFUSED - access to topic 'secret-route' in exchange 'e' in vhost '/' refused",
            Poison::Rejected,
        ),
    ] {
        let server = Scripted::start(closing("bad", code, text));
        let mut under = Under::new(&server);
        for key in ["a", "b", "bad", "c", "d"] {
            under.send("e", key, 1).unwrap();
        }
        let failures = under.settled();
        let error = &failures[&2];
        assert_eq!(error.poison, Some(poison), "{error}");
        assert_eq!(error.disposition, Disposition::Fatal);
        assert!(!error.to_string().contains("secret-route"), "{error}");
        assert_eq!(failures.len(), 1, "the others are sent again: {failures:?}");
    }
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
    // The server allows three channels at a time, and all that were replaced are closed.
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
            what.contains("takes no messages") && what.contains("low on memory")
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
fn a_connection_without_confirms_is_replaced() {
    let mut seen = 0;
    let server = Scripted::start(move |message, out| {
        seen += 1;
        if seen > 1 {
            ack(message, out);
        }
    });
    let settings = Settings {
        confirm: Duration::from_millis(100),
        ..settings()
    };
    let mut under = Under::with(server.login(), settings);
    under.send("e", "a", 1).unwrap();
    assert!(under.settled().is_empty());
    assert!(server.bodies().len() > 1);
}

#[test]
fn a_confirm_is_not_counted_before_that_of_an_earlier_message_of_its_exchange() {
    let mut seen = 0;
    let server = Scripted::start(move |message, out| {
        seen += 1;
        if seen > 1 {
            ack(message, out);
        }
    });
    let mut under = Under::new(&server);
    for (exchange, key) in [("e", "a"), ("e", "b"), ("other", "c")] {
        under.send(exchange, key, 1).unwrap();
    }
    // Its confirm comes behind that of the second.
    under.reports.outcome(2).unwrap();
    assert!(under.reports.is(|state| state.outcomes.len() == 1));
    let mut frames = Vec::new();
    put_method(&mut frames, 0, (10, 50), |out| {
        out.extend_from_slice(&320_u16.to_be_bytes());
        put_short(out, b"CONNECTION_FORCED");
        out.extend_from_slice(&[0; 4]);
    });
    server.push.try_send(frames).unwrap();
    assert!(under.settled().is_empty());
    assert_eq!(server.bodies(), ["a-1", "b-1", "c-1", "a-1", "b-1"]);
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
        channels: u16::try_from(MAX_OPEN).unwrap(),
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
    let login = |ca: &std::path::Path, host: &str| Login {
        servers: Servers {
            hosts: vec![(host.to_owned(), scripted.address.port())],
            tls: Some(Arc::new(
                client_config(Some(ca), Some((&certificate, &key))).unwrap(),
            )),
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
