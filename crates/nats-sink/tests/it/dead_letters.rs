//! Dead letters that are read back from a real server.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::support::{Server, options, section};
use serde_json::json;
use walrelay_nats_sink::{NatsKind, NatsSection};
use walrelay_sink::{EventPosition, Header, Parking, Record, RecordKind, dlq_headers};
use walrelay_sink_kind::SinkKind as _;
use walrelay_sink_kind::dead_letters::{
    Action, DeadLetterStore, DlqAddress, DlqRecord, NotRedriven, ReadOpen, ReplayOptions,
    ReplaySummary, Step,
};
use walrelay_testkit::{Nats, NatsClient, NatsMessage, OpenSink, PATIENCE, eventually};

/// The stream of dead letters and of other messages.
const STREAM: &str = "letters";
const SUBJECT: &str = "letters.dead";
const ADDRESS: DlqAddress<'static> = DlqAddress {
    topic: SUBJECT,
    slot: "s",
};
/// The subject that the events are bound for, which is one of the same stream.
const EVENTS: &str = "letters.events";

struct Dlq {
    server: Server,
    kind: NatsKind,
    sink: OpenSink,
}

impl Dlq {
    fn new() -> Self {
        Self::with(|_| {})
    }

    /// `change`: of the section.
    fn with(change: impl Fn(&mut NatsSection)) -> Self {
        let server = Server::start();
        let mut client = server.nats.client();
        let _ = client.api(&format!("STREAM.DELETE.{STREAM}"), &json!({}));
        let mut section = section(server.nats.port());
        change(&mut section);
        let kind = NatsKind::new(&section, &options()).unwrap();
        let sink = OpenSink::new(&mut kind.factory(None).0, None);
        let dlq = Self { server, kind, sink };
        dlq.create();
        dlq
    }

    fn create(&self) {
        let subjects = format!("{STREAM}.>");
        self.client()
            .create_stream(STREAM, &[&subjects], &json!({}));
    }

    fn client(&self) -> NatsClient {
        self.server.nats.client()
    }

    fn store(&self) -> &dyn DeadLetterStore {
        self.kind.dead_letters().unwrap()
    }

    fn reader(&self) -> ReadOpen {
        self.store().read_open(ADDRESS, true, Box::new(|| None))
    }

    /// Writes the dead letter of a record, which has the id `1` whatever its table is.
    fn write(&mut self, slot: &str, event: &Record<'_>) {
        let (lsn, row) = (
            format!("0/{:X}", event.position.lsn),
            event.position.row.to_string(),
        );
        let mut headers = event.headers.to_vec();
        for (name, value) in [
            (dlq_headers::CLASS, "rejected"),
            (dlq_headers::CAUSE, "of 100%25 no reason"),
            (dlq_headers::SLOT, slot),
            (dlq_headers::LSN, &lsn),
            (dlq_headers::ROW, &row),
            (dlq_headers::TOPIC, event.topic),
        ] {
            headers.push(Header {
                name,
                value: Some(value.as_bytes()),
            });
        }
        let millis = event.timestamp_ms.map(|millis| millis.to_string());
        if let Some(millis) = &millis {
            headers.push(Header {
                name: dlq_headers::TIMESTAMP,
                value: Some(millis.as_bytes()),
            });
        }
        headers.push(Header {
            name: dlq_headers::EVENT_ID,
            value: event.event_id,
        });
        self.sink.send(&Record {
            kind: RecordKind::DeadLetter,
            topic: SUBJECT,
            timestamp_ms: None,
            headers: &headers,
            ..*event
        });
        self.sink.delivered();
    }

    /// Writes the dead letter of the event with this number, with a key of its own.
    fn dead_letter(&mut self, number: u64, slot: &str) {
        let key = number.to_string();
        self.write(
            slot,
            &Record {
                topic: EVENTS,
                key: Some(key.as_bytes()),
                value: Some(key.as_bytes()),
                event_id: Some(b"1"),
                position: EventPosition::in_first_epoch(number, 0),
                ..Record::default()
            },
        );
    }

    /// Carries out an action on the open dead letters. Returns how many were done, and why others were
    /// not.
    fn carry_out(&self, action: Action) -> (ReplaySummary, Vec<NotRedriven>) {
        let mut opened = self.store().open(SUBJECT, PATIENCE).unwrap().unwrap();
        let all = |dead_letter: &DlqRecord| dead_letter.slot == "s";
        opened.read(&all).unwrap();
        let options = ReplayOptions {
            action,
            limit: None,
            patience: PATIENCE,
        };
        let mut failed = Vec::new();
        let summary = opened.carry_out(&options, &all, &mut |step| {
            if let Step::Failed(_, _, why) = step {
                failed.push(why);
            }
        });
        (summary.unwrap(), failed)
    }

    fn events(&self) -> Vec<NatsMessage> {
        self.client().messages(STREAM, EVENTS)
    }
}

fn redrive() -> Action {
    Action::Redrive {
        topic: None,
        follow: false,
    }
}

#[test]
fn the_open_ones_are_those_that_are_not_resolved() {
    let mut dlq = Dlq::new();
    let mut read = dlq.reader();
    assert_eq!(read().unwrap().open, [], "there is none");
    // Other subjects of the stream, more than are read at once.
    let mut client = dlq.client();
    let others: Vec<_> = (0..600)
        .map(|_| ("letters.other", String::new(), &b"other"[..]))
        .collect();
    client.publish_all(&others);
    for number in 1..=40 {
        dlq.dead_letter(number, "s");
    }
    client.publish_all(&others);
    dlq.dead_letter(41, "other");
    // The same event, which two slots refuse, is two dead letters.
    dlq.dead_letter(40, "other");
    let other = DlqAddress {
        slot: "other",
        ..ADDRESS
    };
    let mut of_other = dlq.store().read_open(other, true, Box::new(|| None));
    assert_eq!(of_other().unwrap().open.len(), 2);
    client.publish(SUBJECT, "", b"no dead letter");
    assert_eq!(read().unwrap().open.len(), 40);
    // All of them have the id `1`, as those of several tables may.
    let (summary, _) = dlq.carry_out(Action::Drop);
    assert_eq!(summary.done, 40);
    assert_eq!(read().unwrap().open, []);
    assert_eq!(dlq.reader()().unwrap().open, []);
    assert_eq!(of_other().unwrap().open.len(), 2);
    // One that was resolved is written again by a relay that was killed.
    dlq.dead_letter(1, "s");
    dlq.dead_letter(42, "s");
    assert_eq!(read().unwrap().open.len(), 1);
    // Somebody deletes one of another slot.
    let messages = client.messages(STREAM, SUBJECT);
    let last = messages.iter().rfind(|it| {
        it.headers
            .get("walrelay.key")
            .is_some_and(|key| key == "41")
    });
    let delete = json!({"seq": last.unwrap().seq});
    client.api(&format!("STREAM.MSG.DELETE.{STREAM}"), &delete);
    client.publish_all(&others);
    dlq.dead_letter(43, "s");
    assert_eq!(read().unwrap().open.len(), 2);

    let mut opened = dlq.store().open(SUBJECT, PATIENCE).unwrap().unwrap();
    opened.read(&|_| true).unwrap();
    assert_eq!(opened.foreign(), 1);
    let listed = opened.selected(false);
    let mut shown = Vec::new();
    let mut show = |_: &_, found: Option<&DlqRecord>| {
        let found = found.expect("it is there");
        assert_eq!(found.cause.as_deref(), Some("of 100%25 no reason"));
        shown.push(found.id.lsn);
        ControlFlow::Continue(())
    };
    opened.each(&listed, &mut show).unwrap();
    shown.sort_unstable();
    assert_eq!(shown, [40, 42, 43]);
}

/// Headers and payload as they were sent, without what the server adds when it is asked, and without
/// the subject, which the test chooses.
fn content(message: &NatsMessage) -> (BTreeMap<String, String>, Vec<u8>) {
    let mut headers = message.headers.clone();
    headers.retain(|name, _| name == "Nats-Msg-Id" || !name.starts_with("Nats-"));
    headers.remove("walrelay.subject");
    (headers, message.payload.clone())
}

#[test]
fn a_redriven_event_is_the_one_that_was_refused() {
    let mut dlq = Dlq::new();
    let header = |name, value| Header { name, value };
    let headers = [
        header("event-type", Some(&b"Paid: 100%25"[..])),
        header("note", Some(b" two\r\nlines \xff%")),
        header("null", None),
        header("empty", Some(b"")),
        header("z", Some(b"last")),
        header("a", Some(b"first")),
    ];
    let base = Record {
        topic: EVENTS,
        key: Some(b"k%\xff"),
        value: Some(b"\0value\r\n"),
        headers: &headers,
        event_id: Some(b"1"),
        timestamp_ms: Some(-7),
        position: EventPosition::in_first_epoch(1, 0),
        ..Record::default()
    };
    let at = |lsn| EventPosition::in_first_epoch(lsn, 0);
    let events = [
        base,
        Record {
            key: None,
            value: None,
            timestamp_ms: None,
            event_id: Some(b" 2%"),
            position: at(2),
            ..base
        },
        Record {
            key: Some(b""),
            value: Some(b""),
            headers: &[],
            event_id: None,
            position: at(3),
            ..base
        },
    ];
    for event in &events {
        // As the relay sends it, into another stream.
        let sent = Record {
            topic: "sent",
            ..*event
        };
        dlq.server.create("sent");
        dlq.sink.send(&sent);
        dlq.sink.delivered();
        dlq.write("s", event);
        let (summary, failed) = dlq.carry_out(redrive());
        assert_eq!((summary.done, failed.len()), (1, 0), "{failed:?}");
        let redriven = dlq.events().pop().unwrap();
        let expected = dlq.client().messages("sent", ">").pop().unwrap();
        assert_eq!(content(&redriven), content(&expected));
        dlq.client().delete_stream("sent");
    }
    // Neither again, nor with a header that NATS would obey.
    let rollup = [header("Nats-Rollup", Some(b"all"))];
    dlq.write(
        "s",
        &Record {
            headers: &rollup,
            position: at(4),
            ..base
        },
    );
    let (summary, failed) = dlq.carry_out(redrive());
    assert_eq!((summary.done, summary.failed), (0, 1));
    assert!(
        matches!(&failed[..], [NotRedriven::Refused(_)]),
        "{failed:?}"
    );
    assert_eq!(dlq.events().len(), 3);
    assert_eq!(dlq.reader()().unwrap().open.len(), 1);
}

#[test]
fn a_dead_letter_of_an_earlier_version_stays_open_and_is_not_redriven() {
    let mut dlq = Dlq::new();
    // Its headers may have lost a percent sign, a null, or a name.
    let headers = "Nats-Msg-Id: dead-letter/s/0/1 0/1\r\nwalrelay.position: 0/1 0\r\n\
                   walrelay.key: k\r\nnote: 100%25\r\nwalrelay.dlq.class: rejected\r\n\
                   walrelay.dlq.slot: s\r\nwalrelay.dlq.lsn: 0/1\r\nwalrelay.dlq.row: 0\r\n\
                   walrelay.dlq.topic: letters.events\r\nwalrelay.dlq.event.id: 1\r\n";
    dlq.client().publish(SUBJECT, headers, b"value");
    // One behind it of its key waits.
    dlq.write(
        "s",
        &Record {
            topic: EVENTS,
            key: Some(b"k"),
            event_id: Some(b"2"),
            position: EventPosition::in_first_epoch(2, 0),
            ..Record::default()
        },
    );
    let parking = Arc::new(Parking::new());
    let watch = dlq.store().watch(ADDRESS, Arc::clone(&parking)).unwrap();
    eventually(PATIENCE, || parking.is_ready());
    assert_eq!(parking.open(), 2);
    let (summary, failed) = dlq.carry_out(redrive());
    assert_eq!((summary.done, summary.failed, summary.held_back), (0, 1, 1));
    assert!(matches!(&failed[..], [NotRedriven::Inexact]), "{failed:?}");
    assert_eq!(dlq.events(), []);
    assert_eq!(dlq.reader()().unwrap().open.len(), 2);
    let (summary, _) = dlq.carry_out(Action::Drop);
    assert_eq!(summary.done, 2);
    assert_eq!(dlq.reader()().unwrap().open, []);
    eventually(PATIENCE, || parking.open() == 0);
    drop(watch);
}

#[test]
fn a_stream_that_is_made_anew_is_read_anew() {
    let mut dlq = Dlq::new();
    let mut read = dlq.reader();
    for number in 1..=3 {
        dlq.dead_letter(number, "s");
    }
    assert_eq!(read().unwrap().open.len(), 3);
    dlq.client().delete_stream(STREAM);
    let error = read().unwrap_err().to_string();
    assert!(error.contains("recreated"), "{error}");
    assert_eq!(read().unwrap().open, []);
    assert!(dlq.store().open(SUBJECT, PATIENCE).unwrap().is_none());
    dlq.create();
    for number in 1..=3 {
        dlq.dead_letter(number, "s");
    }
    assert_eq!(read().unwrap().open.len(), 3);
    // Nor are more messages than before taken for later ones.
    dlq.client().delete_stream(STREAM);
    dlq.create();
    for number in 4..=8 {
        dlq.dead_letter(number, "s");
    }
    read().unwrap_err();
    assert_eq!(read().unwrap().open.len(), 5);
    // A stream in which dead letters have another subject hides them.
    let transform = json!({"subject_transform": {"src": SUBJECT, "dest": "letters.moved"}});
    dlq.client().delete_stream(STREAM);
    let subjects = format!("{STREAM}.>");
    dlq.client().create_stream(STREAM, &[&subjects], &transform);
    let mut read = dlq.reader();
    let error = read().unwrap_err().to_string();
    assert!(error.contains("other subjects"), "{error}");
}

#[test]
fn a_server_that_goes_away_tells_nothing() {
    let mut dlq = Dlq::new();
    dlq.dead_letter(1, "s");
    let mut read = dlq.reader();
    let parking = Arc::new(Parking::new());
    let watch = dlq.store().watch(ADDRESS, Arc::clone(&parking)).unwrap();
    eventually(PATIENCE, || parking.is_ready());
    assert_eq!(parking.open(), 1);
    assert_eq!(read().unwrap().open.len(), 1);
    dlq.server.nats.kill();
    parking.require_reading();
    read().unwrap_err();
    assert!(!parking.is_ready());
    dlq.server.nats.start_again();
    assert_eq!(read().unwrap().open.len(), 1);
    eventually(PATIENCE, || parking.is_ready());
    // That of another relay is known once a reading was required.
    dlq.dead_letter(2, "s");
    parking.require_reading();
    eventually(PATIENCE, || parking.is_ready());
    assert_eq!(parking.open(), 2);
    dlq.carry_out(Action::Drop);
    eventually(PATIENCE, || parking.open() == 0);
    drop(watch);
}

#[test]
fn a_redriven_event_is_stored_in_an_exclusive_stream() {
    let exclusive = |section: &mut NatsSection| {
        section.exclusive_stream = Some("only".to_owned());
    };
    let mut dlq = Dlq::with(exclusive);
    dlq.client().create_stream("only", &["only.>"], &json!({}));
    dlq.client().publish("only.event", "", b"of the relay");
    dlq.write(
        "s",
        &Record {
            topic: "only.event",
            key: Some(b"k"),
            event_id: Some(b"1"),
            position: EventPosition::in_first_epoch(1, 0),
            ..Record::default()
        },
    );
    assert_eq!(dlq.carry_out(redrive()).0.done, 1);
    let messages = dlq.client().messages("only", ">");
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[1].headers["Nats-Msg-Id"], "1");
    assert_eq!(dlq.reader()().unwrap().open, []);
    dlq.client().delete_stream("only");
}

#[test]
fn a_relay_without_dead_letters_needs_no_right_to_read_them() {
    if !Nats::is_wanted() {
        return;
    }
    let rights =
        |api: &str| format!("{{ publish: [\"events\", {api}], subscribe: [\"_INBOX.>\"] }}");
    let few = rights("\"$JS.API.STREAM.NAMES\"");
    let enough =
        rights("\"$JS.API.STREAM.NAMES\", \"$JS.API.STREAM.INFO.*\", \"$JS.API.STREAM.MSG.GET.*\"");
    let server = Nats::start_with(&format!(
        "authorization {{ users: [ {{ user: all, password: all }}, {{ user: few, password: p, \
         permissions: {few} }}, {{ user: enough, password: p, permissions: {enough} }} ] }}"
    ));
    let mut client = server.client_as("all", "all");
    client.create_stream(STREAM, &[SUBJECT], &json!({}));
    let headers = "walrelay.dlq.class: rejected\r\nwalrelay.dlq.slot: s\r\n\
                   walrelay.dlq.lsn: 0/1\r\nwalrelay.dlq.row: 0\r\n";
    client.publish(SUBJECT, headers, b"");
    let read = |user: &str, writes| {
        let section = NatsSection {
            username: Some(user.to_owned()),
            password: Some("p".to_owned().into()),
            ..section(server.port())
        };
        let kind = NatsKind::new(&section, &options()).unwrap();
        let store = kind.dead_letters().unwrap();
        store.read_open(ADDRESS, writes, Box::new(|| None))()
    };
    assert_eq!(read("enough", true).unwrap().open.len(), 1);
    assert_eq!(read("few", false).unwrap().open, []);
    let error = read("few", true).unwrap_err().to_string();
    assert!(error.contains("cannot be read"), "{error}");
}
