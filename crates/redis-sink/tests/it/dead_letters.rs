//! Dead letters that are read back from a real server.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::support::{Server, options, section};
use walrelay_redis_sink::{Ids, RedisKind};
use walrelay_sink::{EventPosition, Header, Parking, Record, dlq_headers};
use walrelay_sink_kind::SinkKind as _;
use walrelay_sink_kind::dead_letters::{DeadLetterStore, DlqAddress, ReadOpen};
use walrelay_testkit::{OpenSink, PATIENCE, RedisClient, eventually};

const STREAM: &str = "letters";
const ADDRESS: DlqAddress<'static> = DlqAddress {
    topic: STREAM,
    slot: "s",
};

struct Dlq {
    server: Server,
    kind: RedisKind,
    sink: OpenSink,
}

impl Dlq {
    fn new(ids: Ids) -> Self {
        let server = Server::start(ids);
        server.redis.client().run(&format!("DEL {STREAM}"));
        let kind = RedisKind::new(&section(server.redis.port(), ids), &options()).unwrap();
        let sink = OpenSink::new(&mut kind.factory(None).0, None);
        Self { server, kind, sink }
    }

    fn client(&self) -> RedisClient {
        self.server.redis.client()
    }

    fn store(&self) -> &dyn DeadLetterStore {
        self.kind.dead_letters().unwrap()
    }

    fn reader(&self) -> ReadOpen {
        self.store().read_open(ADDRESS, true, Box::new(|| None))
    }

    /// Writes a record with the position, key and id of this number, and no value.
    fn write(&mut self, number: u64, headers: &[(&str, &str)]) {
        let headers: Vec<Header<'_>> = headers
            .iter()
            .map(|(name, value)| Header {
                name,
                value: Some(value.as_bytes()),
            })
            .collect();
        let text = number.to_string();
        self.sink.send(&Record {
            topic: STREAM,
            key: Some(text.as_bytes()),
            event_id: Some(text.as_bytes()),
            headers: &headers,
            position: EventPosition::in_first_epoch(number, 0),
            ..Record::default()
        });
        self.sink.delivered();
    }

    fn dead_letter(&mut self, number: u64, slot: &str) {
        let lsn = format!("0/{number:X}");
        let headers = [
            (dlq_headers::CLASS, "unroutable"),
            (dlq_headers::SLOT, slot),
            (dlq_headers::LSN, &lsn),
            (dlq_headers::ROW, "0"),
            (dlq_headers::EVENT_ID, "secret"),
        ];
        self.write(number, &headers);
    }

    fn resolve(&mut self, number: u64) {
        let resolves = format!("s 0/{number:X} 0");
        let headers = [
            (dlq_headers::RESOLVES, &*resolves),
            (dlq_headers::RESOLUTION, dlq_headers::DROPPED),
        ];
        self.write(number, &headers);
    }
}

#[test]
fn the_open_ones_are_those_that_are_not_resolved() {
    for ids in [Ids::Position, Ids::Server] {
        let mut dlq = Dlq::new(ids);
        let mut read = dlq.reader();
        assert_eq!(read().unwrap().open, [], "there is no stream");
        for number in 1..=40 {
            dlq.dead_letter(number, "s");
        }
        dlq.dead_letter(41, "other");
        // The same event, which two slots refuse, is two dead letters.
        dlq.dead_letter(40, "other");
        let other = DlqAddress {
            slot: "other",
            ..ADDRESS
        };
        let mut of_other = dlq.store().read_open(other, true, Box::new(|| None));
        assert_eq!(of_other().unwrap().open.len(), 2);
        dlq.client().run(&format!("XADD {STREAM} * a b"));
        assert_eq!(read().unwrap().open.len(), 40);
        for number in 1..=30 {
            dlq.resolve(number);
        }
        assert_eq!(read().unwrap().open.len(), 10);
        assert_eq!(dlq.reader()().unwrap().open.len(), 10);
        // One that was resolved is written again by a relay that was killed.
        dlq.dead_letter(1, "s");
        assert_eq!(read().unwrap().open.len(), 10);

        let mut opened = dlq.store().open(STREAM, PATIENCE).unwrap().unwrap();
        opened.read(&|_| true).unwrap();
        assert_eq!(opened.foreign(), 1);
        let listed = opened.selected(false);
        let mut shown = Vec::new();
        let mut show = |_: &_, found: Option<&walrelay_sink_kind::dead_letters::DlqRecord>| {
            shown.push(found.expect("it is there").id.lsn);
            ControlFlow::Continue(())
        };
        opened.each(&listed, &mut show).unwrap();
        shown.sort_unstable();
        assert!(shown.into_iter().eq((31..=40).chain(40..=41)));
    }
}

#[test]
fn a_stream_that_is_deleted_is_read_anew() {
    let mut dlq = Dlq::new(Ids::Position);
    let mut read = dlq.reader();
    for number in 1..=3 {
        dlq.dead_letter(number, "s");
    }
    assert_eq!(read().unwrap().open.len(), 3);
    dlq.client().run(&format!("DEL {STREAM}"));
    let error = read().unwrap_err().to_string();
    assert!(error.contains("another one than before"), "{error}");
    assert_eq!(read().unwrap().open, []);
    dlq.client().done(&format!("SET {STREAM} text"));
    let error = read().unwrap_err().to_string();
    assert!(error.contains("WRONGTYPE"), "{error}");
    assert!(dlq.store().open(STREAM, PATIENCE).is_err());
    dlq.client().run(&format!("DEL {STREAM}"));
    assert!(dlq.store().open(STREAM, PATIENCE).unwrap().is_none());
}

#[test]
fn a_replica_and_a_server_that_goes_away_tell_nothing() {
    let mut dlq = Dlq::new(Ids::Position);
    dlq.dead_letter(1, "s");
    let mut read = dlq.reader();
    let parking = Arc::new(Parking::new());
    let watch = dlq.store().watch(ADDRESS, Arc::clone(&parking)).unwrap();
    eventually(PATIENCE, || parking.is_ready());
    assert_eq!(parking.open(), 1);
    dlq.client().done("REPLICAOF 127.0.0.1 1");
    let error = read().unwrap_err().to_string();
    assert!(error.contains("replica"), "{error}");
    parking.require_reading();
    dlq.client().done("REPLICAOF NO ONE");
    assert_eq!(read().unwrap().open.len(), 1);
    dlq.server.redis.kill();
    read().unwrap_err();
    dlq.server.redis.start_again();
    assert_eq!(read().unwrap().open.len(), 1);
    eventually(PATIENCE, || parking.is_ready());
    dlq.resolve(1);
    eventually(PATIENCE, || parking.open() == 0);
    drop(watch);
}
