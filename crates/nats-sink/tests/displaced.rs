//! Two relays that write to one stream (`exclusive_stream`): what a displaced one sends late is not
//! stored. The events have no ids, so the stream's duplicate window drops none of them.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

mod support;

use std::sync::Arc;

use serde_json::json;
use support::{Server, factory, options, section, start};
use walrelay_nats_sink::NatsSection;
use walrelay_sink::{
    Deliveries, Disposition, EventPosition, Header, Record, Sink, SinkFactory as _, SinkOptions,
    StreamStart, dlq_headers,
};
use walrelay_testkit::{Nats, NatsClient, PATIENCE, Reports, eventually};

const STREAM: &str = "fenced";
const SUBJECTS: [&str; 2] = ["fenced.a", "fenced.b"];

struct Relay {
    sink: Box<dyn Sink>,
    reports: Arc<Reports>,
    sent: u64,
    /// The number of the subject of an event with the number 0.
    shift: usize,
}

impl Relay {
    fn new(server: &Server, start: Option<&StreamStart>) -> Self {
        Self::with(section(server.nats.port()), start)
    }

    fn with(section: NatsSection, start: Option<&StreamStart>) -> Self {
        let section = NatsSection {
            exclusive_stream: Some(STREAM.to_owned()),
            ..section
        };
        let reports = Arc::<Reports>::default();
        let deliveries = Arc::clone(&reports) as Arc<dyn Deliveries>;
        let options = SinkOptions {
            retry_for: PATIENCE,
            ..options()
        };
        let mut factory = factory(&section, &options);
        Self {
            sink: factory.create(start, deliveries).unwrap(),
            reports,
            sent: 0,
            shift: 0,
        }
    }

    /// A relay that has the slot, or had it.
    fn of(server: &Server) -> Self {
        Self::new(server, Some(&start("walrelay", 1)))
    }

    /// Sends the events of these numbers, all of one key, to two subjects in turn.
    fn send(&mut self, numbers: std::ops::RangeInclusive<u64>) {
        for number in numbers {
            let value = number.to_string();
            let record = Record {
                topic: SUBJECTS[(number as usize + self.shift) % 2],
                key: Some(b"k"),
                value: Some(value.as_bytes()),
                position: EventPosition {
                    lsn: number / 3,
                    row: number % 3,
                },
                ..Record::default()
            };
            self.sink.try_send(&record, self.sent).unwrap();
            self.sent += 1;
        }
    }

    fn delivers(&mut self, numbers: std::ops::RangeInclusive<u64>) {
        self.send(numbers);
        self.reports.wait_for(self.sent);
        assert_eq!(self.reports.failures(), []);
    }
}

/// Starts a server with the empty stream.
fn stream() -> (Server, NatsClient) {
    let server = Server::start();
    let mut client = server.nats.client();
    let _ = client.api(&format!("STREAM.DELETE.{STREAM}"), &json!({}));
    client.create_stream(STREAM, &SUBJECTS, &json!({}));
    (server, client)
}

fn stored(client: &mut NatsClient) -> Vec<u64> {
    let messages = client.messages(STREAM, ">");
    let number = |payload: &[u8]| std::str::from_utf8(payload).unwrap().parse().unwrap();
    messages
        .iter()
        .map(|message| number(&message.payload))
        .collect()
}

#[test]
fn what_a_displaced_relay_sends_late_is_stored_once() {
    let (server, mut client) = stream();
    let mut displaced = Relay::of(&server);
    displaced.delivers(1..=20);
    let mut second = Relay::of(&server);
    // It does not know what the first one has had acknowledged.
    second.delivers(11..=40);
    displaced.delivers(21..=30);
    assert!(stored(&mut client).into_iter().eq(1..=40));
    // An event that the other relay has not sent yet, and then sends.
    displaced.delivers(31..=45);
    second.delivers(41..=50);
    displaced.delivers(46..=50);
    assert!(stored(&mut client).into_iter().eq(1..=50));
    // One that asks for the first time when the other one has gone on.
    let mut third = Relay::of(&server);
    second.delivers(51..=600);
    third.delivers(40..=610);
    assert!(stored(&mut client).into_iter().eq(1..=610));
}

#[test]
fn a_relay_that_is_started_again_repeats_nothing() {
    let (server, mut client) = stream();
    for first in [1, 1, 300, 900, 1_000] {
        let mut relay = Relay::of(&server);
        relay.delivers(first..=1_000 + first);
        relay.sink.close(PATIENCE);
    }
    assert!(stored(&mut client).into_iter().eq(1..=2_000));
}

#[test]
fn a_transaction_that_is_sent_again_from_its_begin_is_stored_once() {
    let (server, mut client) = stream();
    let mut relay = Relay::of(&server);
    relay.delivers(1..=4);
    relay.delivers(3..=6);
    relay.send(3..=7);
    relay.delivers(6..=8);
    assert!(stored(&mut client).into_iter().eq(1..=8));
}

#[test]
fn events_of_another_slot_or_system_are_stored_whatever_their_positions() {
    let (server, mut client) = stream();
    let other_system = StreamStart {
        system_id: "8".to_owned(),
        ..start("walrelay", 1)
    };
    for start in [start("walrelay", 1), start("other", 1), other_system] {
        Relay::new(&server, Some(&start)).delivers(1..=5);
    }
    let snapshot = StreamStart {
        snapshot: true,
        ..start("walrelay", 1)
    };
    Relay::new(&server, Some(&snapshot)).delivers(1..=5);
    // A replay, on purpose.
    Relay::new(&server, None).delivers(1..=5);
    let expected = (0..5).flat_map(|_| 1..=5);
    assert!(stored(&mut client).into_iter().eq(expected));
}

#[test]
fn another_publisher_makes_no_event_be_lost_or_overtaken() {
    let (server, mut client) = stream();
    let mut relay = Relay::of(&server);
    for round in 0..20 {
        let first = round * 100 + 1;
        relay.send(first..=first + 99);
        client.publish(SUBJECTS[0], "", b"0");
        relay.delivers(first + 100..=first + 99);
    }
    let events = stored(&mut client);
    assert_eq!(events.iter().filter(|event| **event == 0).count(), 20);
    let events = events.into_iter().filter(|event| *event > 0);
    assert!(events.eq(1..=2_000));
}

#[test]
fn a_relay_that_cannot_read_what_another_one_has_written_gives_up() {
    let (server, mut client) = stream();
    let mut displaced = Relay::of(&server);
    displaced.delivers(1..=5);
    Relay::of(&server).delivers(6..=9);
    // A consumer has taken it.
    let deleted = client.api(&format!("STREAM.MSG.DELETE.{STREAM}"), &json!({"seq": 6}));
    assert_eq!(deleted["success"], true, "{deleted}");
    displaced.send(6..=9);
    displaced.reports.wait_for(displaced.sent);
    let failures = displaced.reports.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert_eq!(failures[0].disposition, Disposition::Retryable);
    assert_eq!(stored(&mut client), [1, 2, 3, 4, 5, 7, 8, 9]);
    // A relay that has the slot again repeats it, because it may never have been there, and what follows,
    // so that the key does not end on it.
    Relay::of(&server).delivers(6..=10);
    assert_eq!(
        stored(&mut client),
        [1, 2, 3, 4, 5, 7, 8, 9, 6, 7, 8, 9, 10]
    );
}

#[test]
fn a_stream_that_is_purged_or_made_anew_gets_the_next_events() {
    let (server, mut client) = stream();
    let mut relay = Relay::of(&server);
    relay.delivers(1..=5);
    client.api(&format!("STREAM.PURGE.{STREAM}"), &json!({}));
    relay.delivers(6..=8);
    assert_eq!(stored(&mut client), [6, 7, 8]);
    client.delete_stream(STREAM);
    relay.send(9..=9);
    eventually(PATIENCE, || relay.sink.waiting_for().is_some());
    client.create_stream(STREAM, &SUBJECTS, &json!({}));
    relay.reports.wait_for(relay.sent);
    assert_eq!(relay.reports.failures().len(), 0);
    relay.delivers(10..=12);
    assert_eq!(stored(&mut client), [9, 10, 11, 12]);
}

#[test]
fn a_stream_that_was_made_anew_and_written_to_by_another_relay_is_read() {
    let (server, mut client) = stream();
    let mut displaced = Relay::of(&server);
    displaced.delivers(1..=5);
    client.delete_stream(STREAM);
    client.create_stream(STREAM, &SUBJECTS, &json!({}));
    Relay::of(&server).delivers(4..=7);
    displaced.delivers(6..=8);
    assert_eq!(stored(&mut client), [4, 5, 6, 7, 8]);
}

#[test]
fn events_behind_a_dead_letter_are_looked_for() {
    let (server, mut client) = stream();
    Relay::of(&server).delivers(4..=600);
    let mut again = Relay::of(&server);
    let class = Header {
        name: dlq_headers::CLASS,
        value: Some(b"unroutable"),
    };
    let dead_letter = Record {
        topic: SUBJECTS[0],
        key: Some(b"k"),
        value: Some(b"0"),
        headers: &[class],
        position: EventPosition { lsn: 1, row: 0 },
        ..Record::default()
    };
    again.sink.try_send(&dead_letter, 0).unwrap();
    again.sent = 1;
    again.delivers(4..=620);
    let expected = (4..=600).chain([0]).chain(601..=620);
    assert!(stored(&mut client).into_iter().eq(expected));
}

#[test]
fn a_relay_that_finds_its_event_under_another_subject_gives_up() {
    let (server, mut client) = stream();
    let mut displaced = Relay::of(&server);
    displaced.delivers(1..=2);
    let mut second = Relay::of(&server);
    second.shift = 1;
    second.delivers(3..=6);
    displaced.send(3..=6);
    displaced.reports.wait_for(displaced.sent);
    assert_eq!(displaced.reports.failures().len(), 4);
    assert!(stored(&mut client).into_iter().eq(1..=6));
    // The other relay has lost the slot again.
    Relay::of(&server).delivers(3..=6);
    let expected = (1..=6).chain(3..=6);
    assert!(stored(&mut client).into_iter().eq(expected));
}

#[test]
fn a_backlog_larger_than_a_batch_is_not_stored_where_one_message_is_deleted() {
    let (server, mut client) = stream();
    let mut displaced = Relay::of(&server);
    displaced.delivers(1..=5);
    Relay::of(&server).delivers(6..=1_800);
    let deleted = client.api(
        &format!("STREAM.MSG.DELETE.{STREAM}"),
        &json!({"seq": 1_700}),
    );
    assert_eq!(deleted["success"], true, "{deleted}");
    displaced.send(6..=1_800);
    displaced.reports.wait_for(displaced.sent);
    assert!(!displaced.reports.failures().is_empty());
    let events = stored(&mut client);
    assert!(events.into_iter().eq((1..=1_699).chain(1_701..=1_800)));
}

#[test]
fn a_backlog_larger_than_a_batch_is_found() {
    let (server, mut client) = stream();
    let mut displaced = Relay::of(&server);
    displaced.delivers(1..=5);
    Relay::of(&server).delivers(6..=3_000);
    displaced.delivers(6..=3_010);
    assert!(stored(&mut client).into_iter().eq(1..=3_010));
}

#[test]
fn a_user_without_the_rights_to_read_the_stream_ends_the_relay() {
    if !Nats::is_wanted() {
        return;
    }
    let rights = "\"fenced.>\", \"$JS.API.STREAM.NAMES\", \"$JS.API.STREAM.MSG.GET.*\"";
    let user = |name: &str, more: &str| {
        format!(
            "{{ user: {name}, password: word, permissions: {{ publish: [{rights}{more}], \
             subscribe: [\"_INBOX.>\"] }} }}"
        )
    };
    let nats = Nats::start_with(&format!(
        "authorization {{ users: [ {{ user: all, password: word }}, {}, {} ] }}",
        user("few", ""),
        user("right", ", \"$JS.API.STREAM.INFO.fenced\"")
    ));
    let mut client = nats.client_as(json!({"user": "all", "pass": "word"}));
    client.create_stream(STREAM, &SUBJECTS, &json!({}));
    let relay = |name: &str| {
        let section = NatsSection {
            username: Some(name.to_owned()),
            password: Some("word".into()),
            ..section(nats.port())
        };
        Relay::with(section, Some(&start("walrelay", 1)))
    };
    let mut few = relay("few");
    few.send(1..=1);
    few.reports.wait_for(1);
    let failures = few.reports.failures();
    assert_eq!(failures[0].disposition, Disposition::Configuration);
    assert!(failures[0].reason.contains("STREAM.INFO"), "{failures:?}");
    relay("right").delivers(1..=3);
    relay("right").delivers(1..=5);
    assert_eq!(stored(&mut client), [1, 2, 3, 4, 5]);
}
