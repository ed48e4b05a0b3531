//! The parts of the core that are measured.

use std::hint::black_box;
use std::sync::Arc;

use walrelay_checkpoint::{AckRing, Ledger};
use walrelay_event_router::{Event, Options, Router};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_pgoutput::{Message, PgTimestamp, decode};
use walrelay_sink::Sink;
use walrelay_walsender::framing::parse_frame;

use crate::feed::{AcceptingSink, MAX_IN_FLIGHT, MemoryStream, WholePipeline, insert, table};

/// Rows in a pass.
pub(crate) const ROWS: usize = 1_000;

/// One pass over the rows.
type Pass = Box<dyn FnMut()>;

/// A part's name, and the function that prepares it.
type Part = (&'static str, fn() -> Pass);

/// All parts.
pub(crate) const PARTS: &[Part] = &[
    ("core, 100 rows a transaction", || whole(100, |sink| sink)),
    ("core, to a sink that is an object", || {
        whole(100, |sink| Box::new(sink) as Box<dyn Sink>)
    }),
    ("core, 1 row a transaction", || whole(1, |sink| sink)),
    ("framing", framing),
    ("decoder", decoder),
    ("router", router),
    ("ledger", ledger),
];

fn whole<S: Sink + 'static>(per_transaction: usize, wrap: fn(AcceptingSink) -> S) -> Pass {
    let router = Router::new(Options::default());
    let mut pipeline = WholePipeline::new(router, ROWS, per_transaction, wrap);
    Box::new(move || pipeline.pass())
}

/// Measures the way from bytes to frames.
fn framing() -> Pass {
    let stream = MemoryStream::new(ROWS, 100);
    Box::new(move || {
        let mut rest = stream.bytes();
        while let Some((frame, length)) = parse_frame(rest).expect("frames") {
            black_box(&frame);
            rest = &rest[length..];
        }
    })
}

fn inserts() -> Vec<Vec<u8>> {
    let table = table();
    (0..ROWS).map(|number| insert(&table, number)).collect()
}

/// Measures the way from the body of a frame to a row.
fn decoder() -> Pass {
    let messages = inserts();
    Box::new(move || {
        for message in &messages {
            black_box(&decode(message).expect("a message"));
        }
    })
}

/// Measures the way from a row to a record. The rows are decoded once, before the passes.
fn router() -> Pass {
    let messages: &'static [Vec<u8>] = inserts().leak();
    let rows: Vec<_> = messages
        .iter()
        .map(|message| match decode(message) {
            Ok(Message::Insert(insert)) => insert,
            other => panic!("{other:?}"),
        })
        .collect();
    let mut router = Router::new(Options::default());
    let announced = table().relation();
    match decode(&announced) {
        Ok(Message::Relation(relation)) => router.relation(&relation).expect("a plan"),
        other => panic!("{other:?}"),
    }
    Box::new(move || {
        for row in &rows {
            let event = Event {
                epoch: 0,
                commit_lsn: Lsn::new(0x016b_3748),
                row: 0,
                commit_time: PgTimestamp::new(0),
            };
            let routed = router.route(row.relation, &row.tuple, &event);
            black_box(routed.expect("a record").record());
        }
    })
}

/// Measures the way from sequence numbers and acknowledgements to the position to confirm.
fn ledger() -> Pass {
    let ring = Arc::new(AckRing::new(MAX_IN_FLIGHT));
    let mut ledger = Ledger::new(Arc::clone(&ring), None);
    let mut position = 1;
    Box::new(move || {
        let first = ledger.next_seq().expect("room").get();
        for _ in 0..ROWS / 100 {
            ledger.begin().expect("none is open");
            for _ in 0..100 {
                let seq = ledger.next_seq().expect("room");
                ledger.sent(black_box(seq)).expect("the next");
            }
            position += 1;
            let end = CommitEnd::from_commit_message(Lsn::new(position));
            ledger.commit(end).expect("one is open");
        }
        for seq in first..first + ROWS as u64 {
            ring.ack(walrelay_checkpoint::Seq::new(black_box(seq)));
        }
        assert!(ledger.advance().is_some());
    })
}
