//! What the sink does when a server answers something else than 200, or nothing.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use crate::support::{Reaction, Received, Server, config};
use walrelay_http_sink::{HttpConfig, HttpSink, HttpSinkFactory, HttpVersion, UrlTemplate};
use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, EventPosition, Poison, Record, RecordKind, SendError,
    Sink as _, SinkFactory as _, SinkStats, any_factory,
};
use walrelay_testkit::conformance::Bounds;
use walrelay_testkit::{Authority, HttpReceiver, PATIENCE, Reports, eventually, silence_is_shown};

const ROOMY: Bounds = Bounds {
    records: 1_000,
    bytes: 1 << 20,
};
const VERSIONS: [HttpVersion; 2] = [HttpVersion::One, HttpVersion::Two];

/// A sink with its reports.
struct Sending {
    sink: HttpSink,
    reports: Arc<Reports>,
    stats: Arc<SinkStats>,
}

impl Sending {
    fn new(config: HttpConfig) -> Self {
        let (reports, stats) = (Arc::<Reports>::default(), Arc::<SinkStats>::default());
        let mut factory = HttpSinkFactory::new(config, Arc::clone(&stats));
        let created = factory.create(None, Arc::clone(&reports) as Arc<dyn Deliveries>);
        let sink = created.expect("a sink");
        Self {
            sink,
            reports,
            stats,
        }
    }

    fn send(&mut self, key: &str, value: &str, seq: u64) {
        let record = Record {
            topic: "t",
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            position: EventPosition {
                epoch: 0,
                lsn: 16,
                row: seq,
            },
            ..Record::default()
        };
        self.sink.try_send(&record, seq).expect("accepted");
    }

    /// Sends a record of a key of its own to this URL.
    fn send_to(&mut self, url: &str, seq: u64) {
        let record = Record {
            topic: "t",
            routing_key: Some(url),
            key: Some(&seq.to_be_bytes()),
            position: EventPosition {
                epoch: 0,
                lsn: 16,
                row: seq,
            },
            ..Record::default()
        };
        self.sink.try_send(&record, seq).expect("accepted");
    }

    fn report(&self, seq: u64) -> Result<(), DeliveryError> {
        let outcome = self.reports.outcome(seq);
        assert!(
            self.reports.is(|state| state.repeated.is_empty()),
            "{seq} again"
        );
        outcome
    }
}

fn ids(received: &[Received]) -> Vec<String> {
    let id = |received: &Received| {
        received.headers["webhook-id"]
            .to_str()
            .expect("ASCII")
            .to_owned()
    };
    received.iter().map(id).collect()
}

#[test]
fn what_may_pass_is_sent_again_under_the_same_id_and_in_order() {
    for version in VERSIONS {
        let server = Server::reacting(version, None, |number, _| match number {
            0 => Reaction::Answer(500, Vec::new()),
            1 => Reaction::Answer(503, vec![("retry-after", "0".to_owned())]),
            2 => Reaction::Answer(408, Vec::new()),
            3 => Reaction::Break,
            _ => Reaction::Store(202),
        });
        let mut sending = Sending::new(server.config(ROOMY));
        sending.send("k", "first", 0);
        sending.send("k", "second", 1);
        assert_eq!(sending.report(1), Ok(()));
        assert_eq!(sending.report(0), Ok(()));
        let sent = ids(&server.received());
        let (last, first) = sent.split_last().unwrap();
        assert_eq!(last, "10-1");
        assert!(
            first.len() == 5 && first.iter().all(|id| id == "10-0"),
            "{sent:?}"
        );
        assert_eq!(server.bodies(), ["first", "first", "second"]);
        let endpoint = sending.stats.endpoints().pop().unwrap();
        assert_eq!(&*endpoint.state, "UP");
        assert!(endpoint.retries >= 3, "{endpoint:?}");
        assert_eq!(endpoint.name, server.address().to_string());
    }
}

#[test]
fn an_answer_that_does_not_come_holds_back_its_key_alone() {
    for version in VERSIONS {
        let server = Server::reacting(version, None, |_, received| match &*received.body {
            b"stuck" => Reaction::Never,
            _ => Reaction::Store(200),
        });
        let mut sending = Sending::new(server.config(ROOMY));
        sending.send("a", "stuck", 0);
        sending.send("a", "behind", 1);
        for seq in 2..10 {
            sending.send("b", "other", seq);
        }
        assert_eq!(sending.report(9), Ok(()));
        eventually(PATIENCE, || sending.sink.waiting_for().is_some());
        let obstacle = sending.sink.waiting_for().unwrap();
        assert_eq!(obstacle.disposition, Disposition::Retryable);
        assert!(
            obstacle.what.contains("no answer came within 2s"),
            "{obstacle:?}"
        );
        assert!(
            sending.reports.is(|state| !state.outcomes.contains_key(&1)),
            "it passed the first of its key"
        );
        Box::new(sending.sink).close(Duration::ZERO);
        let error = sending.reports.outcome(0).unwrap_err();
        assert_eq!(
            (error.disposition, error.poison),
            (Disposition::Retryable, None)
        );
        assert!(!server.bodies().contains(&"behind".to_owned()));
    }
}

#[test]
fn retry_after_is_waited_for_and_bounded() {
    let answers = ["1".to_owned(), "3600".to_owned()];
    for (asked, least, most) in [
        (&answers[0], 1_000, 3_600_000),
        (&answers[1], 200, 3_600_000),
    ] {
        let asked = asked.clone();
        let server = Server::reacting(HttpVersion::One, None, move |number, _| match number {
            0 => Reaction::Answer(429, vec![("retry-after", asked.clone())]),
            _ => Reaction::Store(200),
        });
        let mut config = server.config(ROOMY);
        if least < 1_000 {
            config.retry_after_max = Duration::from_millis(200);
        }
        let begun = Instant::now();
        let mut sending = Sending::new(config);
        sending.send("k", "v", 0);
        // Bounded: it comes within the patience of the test and not after an hour.
        assert_eq!(sending.report(0), Ok(()));
        let taken = begun.elapsed();
        assert!(taken >= Duration::from_millis(least), "{taken:?}");
        assert!(taken < Duration::from_millis(most), "{taken:?}");
    }
}

#[test]
fn retry_after_holds_back_the_other_events_of_its_server_alone() {
    let answer = |number| match number {
        0 => Reaction::Answer(503, vec![("retry-after", "2".to_owned())]),
        _ => Reaction::Store(200),
    };
    for of_dead_letters in [false, true] {
        let server = Server::reacting(HttpVersion::One, None, move |number, _| {
            answer(number + usize::from(of_dead_letters))
        });
        let dead_letters =
            Server::reacting(HttpVersion::One, None, move |number, _| answer(number));
        let mut config = server.config(ROOMY);
        config.max_in_flight = 1;
        config.dead_letter_url = Some(UrlTemplate::parse(&dead_letters.url()).unwrap());
        let mut sending = Sending::new(config);
        let kind = if of_dead_letters {
            RecordKind::DeadLetter
        } else {
            RecordKind::Event
        };
        let record = Record {
            kind,
            topic: "t",
            key: Some(b"a"),
            ..Record::default()
        };
        let begun = Instant::now();
        sending.sink.try_send(&record, 0).expect("accepted");
        sending.send("b", "other", 1);
        assert_eq!(sending.report(1), Ok(()));
        let waited = begun.elapsed() >= Duration::from_secs(2);
        let asker_is_done = sending.reports.is(|state| state.outcomes.contains_key(&0));
        assert_eq!(sending.report(0), Ok(()));
        if of_dead_letters {
            assert!(!asker_is_done, "the event waited for the dead letter");
        } else {
            assert!(waited, "the event was sent during the pause");
        }
    }
}

#[test]
fn all_keys_wait_once_so_many_are_sent_again() {
    let opened = Arc::new(AtomicBool::new(false));
    let reacting = Arc::clone(&opened);
    let server = Server::reacting(HttpVersion::One, None, move |_, received| {
        if received.body == b"bad" && !reacting.load(Relaxed) {
            Reaction::Answer(500, Vec::new())
        } else {
            Reaction::Store(200)
        }
    });
    let mut config = server.config(ROOMY);
    config.options.max_retrying_keys = 2;
    config.max_in_flight = 1;
    let mut sending = Sending::new(config);
    sending.send("a", "bad", 0);
    sending.send("b", "good", 1);
    assert_eq!(sending.report(1), Ok(()), "one key alone is held back");
    sending.send("c", "bad", 2);
    let tried = |body: &[u8]| {
        let received = server.received();
        received.iter().filter(|it| it.body == body).count()
    };
    eventually(PATIENCE, || sending.stats.endpoints()[0].retries >= 6);
    sending.send("d", "behind", 3);
    let before = tried(b"bad");
    eventually(PATIENCE, || tried(b"bad") >= before + 6);
    assert_eq!(tried(b"behind"), 0);
    opened.store(true, Relaxed);
    for seq in [0, 2, 3] {
        assert_eq!(sending.report(seq), Ok(()));
    }
}

#[test]
fn a_status_that_hits_every_event_stops_the_pipeline() {
    for (status, words) in [
        (410, "the endpoint is gone"),
        (401, "correct token"),
        (403, "correct token"),
        (404, "correct url"),
        (302, "no redirect is followed"),
    ] {
        let server = Server::reacting(HttpVersion::One, None, move |_, _| {
            Reaction::Answer(status, vec![("location", "http://127.0.0.1:1/".to_owned())])
        });
        let url = format!("http://{}/hooks", server.address());
        let mut sending = Sending::new(config(&url, HttpVersion::One, ROOMY));
        sending.send("k", "confidential", 0);
        sending.send("k", "confidential", 1);
        let error = sending.report(0).unwrap_err();
        assert_eq!(
            (error.disposition, error.poison),
            (Disposition::Configuration, None)
        );
        assert!(error.reason.contains(words), "{error}");
        assert!(!error.reason.contains("confidential"), "{error}");
        assert_eq!(sending.report(1).unwrap_err().poison, None);
        assert_eq!(server.received().len(), 1, "{status}");
    }
}

#[test]
fn a_refused_event_is_poison_after_it_was_tried_for_a_while() {
    for (status, poison) in [(422, Poison::Rejected), (413, Poison::Oversize)] {
        let server = Server::reacting(HttpVersion::One, None, move |_, received| match &*received
            .body
        {
            b"bad" => Reaction::Answer(status, Vec::new()),
            _ => Reaction::Store(200),
        });
        let mut config = server.config(ROOMY);
        config.options.retry_for = Duration::from_millis(200);
        let mut sending = Sending::new(config);
        sending.send("k", "bad", 0);
        sending.send("k", "behind", 1);
        let error = sending.report(0).unwrap_err();
        assert_eq!(
            (error.disposition, error.poison),
            (Disposition::Fatal, Some(poison))
        );
        assert!(server.received().len() > 1, "it was sent once");
        assert_eq!(server.bodies(), <[&str; 0]>::default());
        let withdrawn = sending.sink.withdraw(0, false);
        assert_eq!(withdrawn.len(), 1);
        assert_eq!(sending.report(1), Ok(()), "its key goes on");
        assert_eq!(server.bodies(), ["behind"]);
    }
}

/// Judged by what the server has received, which no load disturbs.
#[test]
fn a_refused_event_costs_no_other_one_a_repeat_and_its_key_one_retry_for() {
    for version in VERSIONS {
        let server = Server::reacting(version, None, |_, received| {
            if received.body.starts_with(b"bad") {
                Reaction::Answer(422, Vec::new())
            } else {
                Reaction::Store(200)
            }
        });
        let mut config = server.config(ROOMY);
        config.options.retry_for = Duration::from_millis(300);
        let mut sending = Sending::new(config);
        for seq in 0..10 {
            sending.send("k", &format!("bad {seq}"), seq);
        }
        for seq in 10..410 {
            sending.send(&format!("other {}", seq % 40), &format!("good {seq}"), seq);
        }
        for seq in 0..10 {
            assert!(sending.report(seq).is_err());
            assert_eq!(sending.sink.withdraw(seq, false).len(), 1);
        }
        for seq in 10..410 {
            assert_eq!(sending.report(seq), Ok(()));
        }
        let mut times = std::collections::BTreeMap::<Vec<u8>, usize>::new();
        for received in server.received() {
            *times.entry(received.body).or_default() += 1;
        }
        assert!(times.remove(&b"bad 0"[..]) > Some(1));
        let more: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
        assert_eq!((times.len(), more.len()), (409, 0), "{version:?}: {more:?}");
    }
}

/// A tenant's address answers with this, and another one's names no host.
#[test]
fn an_address_that_a_row_has_chosen_stops_no_other_one() {
    for (status, headers) in [
        (404, None),
        (410, None),
        (401, None),
        (403, None),
        (302, Some(("location", "/elsewhere"))),
        (503, Some(("retry-after", "300"))),
        (503, None),
    ] {
        let server = Server::reacting(HttpVersion::One, None, move |_, received| {
            if received.path.starts_with("/bad") {
                let headers = headers.map(|(name, value)| (name, value.to_owned()));
                Reaction::Answer(status, headers.into_iter().collect())
            } else {
                Reaction::Store(200)
            }
        });
        let url = format!("http://{}/{{tenant}}", server.address());
        let mut config = config(&url, HttpVersion::One, ROOMY);
        config.options.retry_for = Duration::from_millis(300);
        config.options.max_retrying_keys = 2;
        config.max_in_flight = 4;
        let mut sending = Sending::new(config);
        let url = |tenant: &str| format!("http://{}/{tenant}", server.address());
        for seq in 0..20 {
            sending.send_to(&url("bad"), seq);
        }
        for seq in 20..60 {
            sending.send_to(&url(&format!("good{}", seq % 3)), seq);
        }
        for seq in 20..60 {
            assert_eq!(sending.report(seq), Ok(()), "{status}");
        }
        assert_eq!(server.stored().len(), 40, "{status}");
        if status == 503 {
            assert_eq!(sending.reports.failures(), [], "it may pass");
            continue;
        }
        for seq in 0..20 {
            let error = sending.report(seq).unwrap_err();
            assert_eq!(error.poison, Some(Poison::Rejected), "{status}");
        }
    }
}

/// With `unavailable_for`, a destination that stays away becomes poison, and does not fill the window for ever.
#[test]
fn a_destination_that_stays_unavailable_is_given_up_if_the_user_says_so() {
    let server = Server::reacting(HttpVersion::One, None, |_, received| {
        if received.path.starts_with("/busy") {
            Reaction::Answer(503, Vec::new())
        } else {
            Reaction::Store(200)
        }
    });
    let nobody = TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("its address");
    let mut config = config("http://{address}/{path}", HttpVersion::One, ROOMY);
    config.allow_private = true;
    config.unavailable_for = Some(Duration::from_millis(300));
    config.max_in_flight = 8;
    let mut sending = Sending::new(config);
    for seq in 0..20 {
        let url = match seq % 2 {
            0 => format!("http://{nobody}/gone"),
            _ => format!("http://{}/busy", server.address()),
        };
        sending.send_to(&url, seq);
    }
    for seq in 20..60 {
        sending.send_to(&format!("http://{}/good", server.address()), seq);
        assert_eq!(sending.report(seq), Ok(()));
    }
    for seq in 0..20 {
        let error = sending.report(seq).unwrap_err();
        assert_eq!(error.poison, Some(Poison::Rejected), "{error}");
        assert!(error.reason.contains("unavailable_for"), "{error}");
    }
    assert_eq!(server.stored().len(), 40);
}

/// Each refused event is an answer, so the destination is not away, though no event succeeds. A dead letter waits.
#[test]
fn a_destination_that_answers_and_one_of_dead_letters_are_not_given_up() {
    let answers = AtomicUsize::new(0);
    let server = Server::reacting(HttpVersion::One, None, move |_, received| {
        let is_away =
            received.path.starts_with("/dead") || answers.fetch_add(1, Relaxed).is_multiple_of(2);
        Reaction::Answer(if is_away { 503 } else { 422 }, Vec::new())
    });
    let url = format!("http://{}/{{tenant}}", server.address());
    let mut config = config(&url, HttpVersion::One, ROOMY);
    config.allow_private = true;
    config.unavailable_for = Some(Duration::from_millis(200));
    config.options.retry_for = Duration::from_millis(800);
    let dead = format!("http://{}/dead/{{topic}}", server.address());
    config.dead_letter_url = Some(UrlTemplate::parse_of_topic(&dead).expect("a URL"));
    let mut sending = Sending::new(config);
    sending.send_to(&format!("http://{}/a", server.address()), 0);
    let dead_letter = Record {
        topic: "t",
        kind: RecordKind::DeadLetter,
        position: EventPosition {
            epoch: 0,
            lsn: 16,
            row: 1,
        },
        ..Record::default()
    };
    sending.sink.try_send(&dead_letter, 1).expect("accepted");
    let error = sending.report(0).unwrap_err();
    assert!(error.reason.contains("422"), "{error}");
    assert_eq!(sending.reports.failures().len(), 1, "the dead letter waits");
}

#[test]
fn hosts_that_do_not_resolve_stop_no_other_one() {
    let server = Server::start(HttpVersion::One);
    let url = format!("http://{{host}}:{}/", server.address().port());
    let mut config = config(&url, HttpVersion::One, ROOMY);
    config.allow_private = true;
    config.max_in_flight = 4;
    let mut sending = Sending::new(config);
    let url = |host: &str| format!("http://{host}:{}/", server.address().port());
    for seq in 0..120 {
        sending.send_to(&url(&format!("tenant-{seq}.invalid")), seq);
    }
    for seq in 120..160 {
        sending.send_to(&url("localhost"), seq);
    }
    for seq in 120..160 {
        assert_eq!(sending.report(seq), Ok(()));
    }
    for seq in 0..120 {
        let error = sending.report(seq).unwrap_err();
        assert_eq!(error.poison, Some(Poison::Unroutable));
        assert!(!error.reason.contains("check url"), "{error}");
    }
}

#[test]
fn a_connection_that_was_closed_while_idle_is_replaced_and_a_slow_body_delays_nothing() {
    for version in VERSIONS {
        let server = Server::reacting(version, None, |_, received| match &*received.body {
            b"slow" => Reaction::SlowBody,
            _ => Reaction::Store(200),
        });
        let mut sending = Sending::new(server.config(ROOMY));
        for (seq, value) in ["a", "slow", "b"].into_iter().enumerate() {
            sending.send("k", value, seq as u64);
            assert_eq!(sending.report(seq as u64), Ok(()));
            server.end_connections();
        }
        assert_eq!(server.bodies(), ["a", "slow", "b"]);
    }
}

#[test]
fn tls_verifies_the_server_and_has_the_configured_version() {
    let authority = Authority::new("test");
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    for (version, protocol) in [(HttpVersion::One, "http/1.1"), (HttpVersion::Two, "h2")] {
        let mut tls = (*authority.server("localhost").server_config()).clone();
        tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let server = Server::reacting(version, Some(Arc::new(tls)), |_, _| Reaction::Store(200));
        let url = format!("https://localhost:{}/x", server.address().port());
        let files = |ca| walrelay_http_sink::ClientFiles { ca, identity: None };
        let trusting = config(&url, version, ROOMY).with_tls(&files(Some(ca.clone())));
        let mut sending = Sending::new(trusting.unwrap());
        sending.send("k", "v", 0);
        assert_eq!(sending.report(0), Ok(()));
        let expired = authority.expired_server("localhost").server_config();
        let expired = Server::reacting(version, Some(expired), |_, _| Reaction::Store(200));
        let of_expired = format!("https://localhost:{}/x", expired.address().port());
        for (url, ca, words) in [
            (&url, None, "no trusted authority"),
            (&of_expired, Some(ca.clone()), "has expired"),
        ] {
            let refusing = config(url, version, ROOMY).with_tls(&files(ca)).unwrap();
            let mut sending = Sending::new(refusing);
            sending.send("k", "v", 0);
            eventually(PATIENCE, || sending.sink.waiting_for().is_some());
            let obstacle = sending.sink.waiting_for().unwrap();
            assert_eq!(obstacle.disposition, Disposition::Configuration);
            assert!(obstacle.what.contains(words), "{obstacle:?}");
        }
        assert_eq!(server.received().len(), 1);
        assert_eq!(expired.received().len(), 0);
    }
}

#[test]
fn the_relay_shows_its_certificate_to_a_server_that_asks_for_one() {
    let authority = Authority::new("test");
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let ca = file("ca.pem", &authority.pem());
    let client = authority.client("relay");
    let identity = (
        file("client.pem", &client.certificate),
        file("client.key", &client.key),
    );
    let tls = authority.server("localhost").server_config_for(&authority);
    let server = Server::reacting(HttpVersion::One, Some(tls), |_, _| Reaction::Store(200));
    let url = format!("https://localhost:{}/x", server.address().port());
    let sending = |identity| {
        let files = walrelay_http_sink::ClientFiles {
            ca: Some(ca.clone()),
            identity,
        };
        let config = config(&url, HttpVersion::One, ROOMY).with_tls(&files);
        let mut sending = Sending::new(config.unwrap());
        sending.send("k", "v", 0);
        sending
    };
    let mut refused = sending(None);
    eventually(PATIENCE, || refused.sink.waiting_for().is_some());
    assert_eq!(server.received().len(), 0);
    assert_eq!(sending(Some(identity)).report(0), Ok(()));
}

#[test]
fn a_host_that_an_event_chooses_may_not_have_a_private_address() {
    let server = Server::start(HttpVersion::One);
    let url = format!("http://{{topic}}:{}/", server.address().port());
    for allowed in [false, true] {
        let mut config = config(&url, HttpVersion::One, ROOMY);
        config.allow_private = allowed;
        let mut sending = Sending::new(config);
        let record = Record {
            topic: "localhost",
            value: Some(b"v"),
            ..Record::default()
        };
        sending.sink.try_send(&record, 0).expect("accepted");
        let report = sending.report(0);
        let poison = report.err().map(|error| error.poison);
        assert_eq!(poison, (!allowed).then_some(Some(Poison::Unroutable)));
    }
    assert_eq!(server.received().len(), 1);
}

#[test]
fn a_server_that_answers_nothing_is_shown() {
    for version in VERSIONS {
        let server = Server::start(version);
        let mut config = server.config(ROOMY);
        config.timeout = PATIENCE;
        let stats = Arc::<SinkStats>::default();
        let factory = HttpSinkFactory::new(config, Arc::clone(&stats));
        silence_is_shown(&server, "silence", (any_factory(factory), Some(stats)));
    }
}

#[test]
fn the_row_decides_the_url() {
    let server = Server::start(HttpVersion::One);
    let url = format!("http://{}/{{tenant}}/{{topic}}", server.address());
    let mut sending = Sending::new(config(&url, HttpVersion::One, ROOMY));
    let of_row = format!("http://{}/a%2Fb/{{topic}}", server.address());
    let record = Record {
        topic: "t",
        routing_key: Some(&of_row),
        value: Some(b"v"),
        ..Record::default()
    };
    sending.sink.try_send(&record, 0).expect("accepted");
    assert_eq!(sending.report(0), Ok(()));
    assert_eq!(server.received()[0].path, "/a%2Fb/t");
    let without = Record {
        routing_key: None,
        ..record
    };
    let Err(SendError::Refused(error)) = sending.sink.try_send(&without, 1) else {
        panic!("it has no URL");
    };
    assert_eq!(error.poison, Some(Poison::Unroutable));
}

#[test]
fn the_clock_of_a_receiver_is_compared() {
    for version in VERSIONS {
        let server = Server::reacting(version, None, |number, _| {
            let ahead = Duration::from_secs(100);
            let date = httpdate::fmt_http_date(std::time::SystemTime::now() + ahead);
            match number {
                0 => Reaction::Store(200),
                _ => Reaction::Answer(200, vec![("date", date)]),
            }
        });
        let mut sending = Sending::new(server.config(ROOMY));
        let offset = |sending: &Sending| sending.stats.clocks.offset();
        assert_eq!(offset(&sending), None);
        sending.send("k", "v", 0);
        assert_eq!(sending.report(0), Ok(()));
        assert_eq!(offset(&sending), Some(0.0), "{version:?}");
        sending.send("k", "v", 1);
        assert_eq!(sending.report(1), Ok(()));
        let found = offset(&sending).expect("it is known");
        assert!((90.0..=100.0).contains(&found), "{version:?}: {found}");
    }
}

/// A server of HTTP/2 that takes one request at a time, all of which take longer than the time-out together: each has
/// its own time, which starts with its stream, so none is sent again.
#[test]
fn a_request_of_http2_that_waits_for_its_stream_does_not_time_out() {
    const COUNT: u64 = 24;
    let pause = Duration::from_millis(250);
    for value in ["v", ""] {
        let receiver = HttpReceiver::with_streams(Some(1), None, move |_, _| {
            std::thread::sleep(pause);
            Reaction::Store(200)
        });
        let url = format!("http://{}/", receiver.address());
        let mut config = config(&url, HttpVersion::Two, ROOMY);
        config.max_in_flight = 100;
        config.timeout = pause * (COUNT as u32 / 2);
        let mut sending = Sending::new(config);
        // Its answer tells the client how many requests the server takes.
        sending.send("first", value, 0);
        assert_eq!(sending.report(0), Ok(()));
        for seq in 1..=COUNT {
            sending.send(&seq.to_string(), value, seq);
        }
        for seq in 1..=COUNT {
            assert_eq!(sending.report(seq), Ok(()));
        }
        assert_eq!(receiver.received().len() as u64, COUNT + 1, "each once");
    }
}

/// A server of HTTP/2 asks for answers without an end, and reads none. The client stops reading, so what it has to
/// answer stays with the server. Most of the bytes find no reader: the loop ends when nothing was taken for a while.
#[test]
fn answers_that_a_server_provokes_over_http2_are_bounded() {
    const TOTAL: usize = 256 << 20;
    // PING with eight bytes, and SETTINGS without any (RFC 9113, 6.5 and 6.7).
    for question in [
        &b"\0\0\x08\x06\0\0\0\0\0questionsss"[..17],
        &b"\0\0\0\x04\0\0\0\0\0"[..],
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut config = config(&format!("http://{address}/"), HttpVersion::Two, ROOMY);
        config.timeout = PATIENCE;
        let mut sending = Sending::new(config);
        sending.send("k", "v", 0);
        let (mut server, _) = listener.accept().expect("a connection");
        let wait = Some(Duration::from_secs(1));
        server.set_write_timeout(wait).expect("a time-out");
        server
            .write_all(b"\0\0\0\x04\0\0\0\0\0")
            .expect("the settings");
        let questions = question.repeat((1 << 20) / question.len());
        let mut taken = 0;
        while taken < TOTAL
            && let Ok(()) = server.write_all(&questions)
        {
            taken += questions.len();
        }
        assert!(taken < TOTAL, "all were taken");
        drop(server);
        Box::new(sending.sink).close(Duration::ZERO);
    }
}

#[test]
fn an_answer_with_too_many_header_fields_has_a_remedy() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut sending = Sending::new(config(
        &format!("http://{address}/"),
        HttpVersion::One,
        ROOMY,
    ));
    sending.send("k", "v", 0);
    let (mut server, _) = listener.accept().expect("a connection");
    // An answer that arrives before its request is another fault.
    BufReader::new(&server)
        .lines()
        .map(|line| line.expect("a line of the request"))
        .find(String::is_empty)
        .expect("the end of the head");
    let fields = "x-field: 1\r\n".repeat(300);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{fields}\r\n");
    server.write_all(head.as_bytes()).expect("an answer");
    eventually(PATIENCE, || sending.sink.waiting_for().is_some());
    let obstacle = sending.sink.waiting_for().unwrap();
    let remedy = obstacle.remedy.unwrap_or_default();
    assert!(remedy.contains("100 header fields"), "{remedy}");
    Box::new(sending.sink).close(Duration::ZERO);
}
