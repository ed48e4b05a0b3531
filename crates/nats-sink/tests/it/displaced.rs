//! Two relays that write to one stream (`exclusive_stream`): what a displaced one sends late is not
//! stored. The events have no ids, so the stream's duplicate window drops none of them.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use crate::support::{Server, WINDOW_NANOS, factory, options, section, start, window_passes};
use serde_json::json;
use walrelay_nats_sink::NatsSection;
use walrelay_sink::{
    DeliveryError, Disposition, EventPosition, Header, Record, RecordKind, SendError, SinkOptions,
    StreamStart, dlq_headers,
};
use walrelay_testkit::{Nats, NatsClient, OpenSink, PATIENCE, eventually, eventually_some};

const STREAM: &str = "fenced";
const SUBJECTS: [&str; 2] = ["fenced.a", "fenced.b"];
/// The subject and stream of dead letters.
const LETTERS: &str = "letters";

struct Relay {
    sink: OpenSink,
    /// The number of the subject of an event with the number 0.
    shift: usize,
    /// Events have ids.
    has_ids: bool,
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
        let options = SinkOptions {
            retry_for: PATIENCE,
            ..options()
        };
        Self {
            sink: OpenSink::new(&mut factory(&section, &options), start),
            shift: 0,
            has_ids: false,
        }
    }

    /// A relay that has the slot, or had it.
    fn with_slot(server: &Server) -> Self {
        Self::new(server, Some(&start("walrelay", 1)))
    }

    /// Sends the events of these numbers, all of one key, to two subjects in turn.
    fn send(&mut self, numbers: std::ops::RangeInclusive<u64>) {
        for number in numbers {
            self.try_send(number).unwrap();
        }
    }

    fn try_send(&mut self, number: u64) -> Result<(), SendError> {
        let value = number.to_string();
        let record = Record {
            topic: SUBJECTS[(number as usize + self.shift) % 2],
            key: Some(b"k"),
            value: Some(value.as_bytes()),
            event_id: self.has_ids.then_some(value.as_bytes()),
            position: EventPosition::in_first_epoch(number / 3, number % 3),
            ..Record::default()
        };
        self.sink.try_send(&record)
    }

    /// Sends events until the sink gives up, which may be before the last one. Returns why.
    fn gives_up(&mut self, numbers: std::ops::RangeInclusive<u64>) -> DeliveryError {
        for number in numbers {
            if self.try_send(number).is_err() {
                break;
            }
        }
        self.sink.reports.wait_for(self.sink.sent);
        self.sink.reports.failures().remove(0)
    }

    /// Sends a dead letter of this position.
    fn send_dead_letter(&mut self, number: u64) {
        let class = Header {
            name: dlq_headers::CLASS,
            value: Some(b"unroutable"),
        };
        let dead_letter = Record {
            kind: RecordKind::DeadLetter,
            topic: LETTERS,
            key: Some(b"k"),
            value: Some(b"0"),
            headers: &[class],
            position: EventPosition::in_first_epoch(number / 3, number % 3),
            ..Record::default()
        };
        self.sink.send(&dead_letter);
    }

    fn delivers(&mut self, numbers: std::ops::RangeInclusive<u64>) {
        self.send(numbers);
        self.sink.delivered();
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
    let mut displaced = Relay::with_slot(&server);
    displaced.delivers(1..=20);
    let mut second = Relay::with_slot(&server);
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
    second.delivers(51..=600);
    let mut third = Relay::with_slot(&server);
    third.delivers(40..=610);
    assert!(stored(&mut client).into_iter().eq(1..=610));
}

#[test]
fn a_relay_that_is_started_again_repeats_nothing() {
    let (server, mut client) = stream();
    for first in [1, 1, 300, 900, 1_000] {
        let mut relay = Relay::with_slot(&server);
        relay.delivers(first..=1_000 + first);
        relay.sink.close(PATIENCE);
    }
    assert!(stored(&mut client).into_iter().eq(1..=2_000));
}

#[test]
fn a_transaction_that_is_sent_again_from_its_begin_is_stored_once() {
    let (server, mut client) = stream();
    let mut relay = Relay::with_slot(&server);
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
    let mut relay = Relay::with_slot(&server);
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
    let mut displaced = Relay::with_slot(&server);
    displaced.delivers(1..=5);
    Relay::with_slot(&server).delivers(6..=9);
    // A consumer has taken it.
    let deleted = client.api(&format!("STREAM.MSG.DELETE.{STREAM}"), &json!({"seq": 6}));
    assert_eq!(deleted["success"], true, "{deleted}");
    let failure = displaced.gives_up(6..=9);
    assert_eq!(failure.disposition, Disposition::Retryable);
    assert_eq!(stored(&mut client), [1, 2, 3, 4, 5, 7, 8, 9]);
    // A relay that has the slot again repeats it, because it may never have been there, and what follows,
    // so that the key does not end on it.
    Relay::with_slot(&server).delivers(6..=10);
    assert_eq!(
        stored(&mut client),
        [1, 2, 3, 4, 5, 7, 8, 9, 6, 7, 8, 9, 10]
    );
}

#[test]
fn a_stream_that_is_purged_or_made_anew_gets_the_next_events() {
    let (server, mut client) = stream();
    let mut relay = Relay::with_slot(&server);
    relay.delivers(1..=5);
    client.api(&format!("STREAM.PURGE.{STREAM}"), &json!({}));
    relay.delivers(6..=8);
    assert_eq!(stored(&mut client), [6, 7, 8]);
    client.delete_stream(STREAM);
    relay.send(9..=9);
    eventually(PATIENCE, || relay.sink.waiting_for().is_some());
    client.create_stream(STREAM, &SUBJECTS, &json!({}));
    relay.sink.reports.wait_for(relay.sink.sent);
    assert_eq!(relay.sink.reports.failures().len(), 0);
    relay.delivers(10..=12);
    assert_eq!(stored(&mut client), [9, 10, 11, 12]);
}

#[test]
fn a_stream_that_was_made_anew_and_written_to_by_another_relay_is_read() {
    let (server, mut client) = stream();
    let mut displaced = Relay::with_slot(&server);
    displaced.delivers(1..=5);
    client.delete_stream(STREAM);
    client.create_stream(STREAM, &SUBJECTS, &json!({}));
    Relay::with_slot(&server).delivers(4..=7);
    displaced.delivers(6..=8);
    assert_eq!(stored(&mut client), [4, 5, 6, 7, 8]);
}

#[test]
fn events_behind_a_dead_letter_are_looked_for() {
    let (server, mut client) = stream();
    let _ = client.api(&format!("STREAM.DELETE.{LETTERS}"), &json!({}));
    client.create_stream(LETTERS, &[LETTERS], &json!({}));
    Relay::with_slot(&server).delivers(4..=600);
    let mut again = Relay::with_slot(&server);
    again.send_dead_letter(3);
    again.send(4..=300);
    again.send_dead_letter(301);
    again.delivers(302..=620);
    // The other relay could route it.
    assert!(stored(&mut client).into_iter().eq(4..=620));
    // A displaced one that has a dead letter amid what another relay has stored.
    let mut second = Relay::with_slot(&server);
    second.delivers(621..=1_900);
    again.send(621..=700);
    again.send_dead_letter(701);
    again.delivers(702..=1_900);
    assert!(stored(&mut client).into_iter().eq(4..=1_900));
    assert_eq!(client.messages(LETTERS, ">").len(), 3);
}

#[test]
fn all_events_from_a_deleted_one_on_are_repeated_in_order() {
    let (server, mut client) = stream();
    client.delete_stream(STREAM);
    client.create_stream(
        STREAM,
        &SUBJECTS,
        &json!({"duplicate_window": WINDOW_NANOS}),
    );
    let relay = || Relay {
        has_ids: true,
        ..Relay::with_slot(&server)
    };
    relay().delivers(1..=2_000);
    let deleted = client.api(&format!("STREAM.MSG.DELETE.{STREAM}"), &json!({"seq": 6}));
    assert_eq!(deleted["success"], true, "{deleted}");
    window_passes(&mut client);
    relay().delivers(1..=2_010);
    let expected = (1..=5).chain(7..=2_000).chain(6..=2_010);
    assert!(stored(&mut client).into_iter().eq(expected));
}

#[test]
fn events_that_are_stored_under_another_subject_are_found() {
    let (server, mut client) = stream();
    let mut displaced = Relay::with_slot(&server);
    displaced.delivers(1..=2);
    let mut second = Relay::with_slot(&server);
    second.shift = 1;
    second.delivers(3..=6);
    displaced.delivers(3..=7);
    // The other relay has lost the slot again.
    Relay::with_slot(&server).delivers(3..=7);
    assert!(stored(&mut client).into_iter().eq(1..=7));
}

#[test]
fn a_relay_that_finds_another_event_at_its_position_gives_up() {
    let (server, mut client) = stream();
    let mut displaced = Relay::with_slot(&server);
    displaced.delivers(1..=2);
    let headers = "walrelay.position: 0/1 0\r\nwalrelay.source: 7/1/walrelay\r\n";
    client.publish(SUBJECTS[1], headers, b"0");
    let failure = displaced.gives_up(3..=6);
    assert_eq!(failure.disposition, Disposition::Retryable);
    assert_eq!(stored(&mut client), [1, 2, 0]);
    // A relay that has the slot repeats it.
    Relay::with_slot(&server).delivers(3..=6);
    assert_eq!(stored(&mut client), [1, 2, 0, 3, 4, 5, 6]);
}

#[test]
fn a_backlog_larger_than_a_batch_is_not_stored_where_one_message_is_deleted() {
    let (server, mut client) = stream();
    let mut displaced = Relay::with_slot(&server);
    displaced.delivers(1..=5);
    Relay::with_slot(&server).delivers(6..=1_800);
    let deleted = client.api(
        &format!("STREAM.MSG.DELETE.{STREAM}"),
        &json!({"seq": 1_700}),
    );
    assert_eq!(deleted["success"], true, "{deleted}");
    let failure = displaced.gives_up(6..=1_800);
    assert_eq!(failure.disposition, Disposition::Retryable);
    let events = stored(&mut client);
    assert!(events.into_iter().eq((1..=1_699).chain(1_701..=1_800)));
}

#[test]
fn a_backlog_larger_than_a_batch_is_found() {
    let (server, mut client) = stream();
    let mut displaced = Relay::with_slot(&server);
    displaced.delivers(1..=5);
    Relay::with_slot(&server).delivers(6..=3_000);
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
    let mut client = nats.client_as("all", "word");
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
    let refused = eventually_some(PATIENCE, || match few.try_send(1) {
        Err(SendError::Refused(error)) => Some(error),
        _ => None,
    });
    assert_eq!(refused.disposition, Disposition::Configuration);
    assert!(refused.reason.contains("STREAM.INFO"), "{refused:?}");
    relay("right").delivers(1..=3);
    relay("right").delivers(1..=5);
    assert_eq!(stored(&mut client), [1, 2, 3, 4, 5]);
}
