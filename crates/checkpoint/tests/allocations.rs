//! A million records in steady state without an allocation.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test, also in its helper")]

use std::sync::Arc;

use walrelay_checkpoint::{AckRing, Ledger, Seq};
use walrelay_lsn::{CommitEnd, Lsn};

const WINDOW: u64 = 4096;

/// Sends transactions of 0 to 7 records, acknowledges them in reverse within windows of 4096
/// records, and asserts that everything is confirmed. Returns the number of records.
fn stream(ring: &AckRing, ledger: &mut Ledger, position: &mut u64, records: u64) -> u64 {
    let mut sent = 0;
    let mut window = Vec::<Seq>::new();
    window.reserve_exact(WINDOW as usize);
    while sent < records {
        while ledger.in_flight() < WINDOW {
            ledger.begin().unwrap();
            for _ in 0..(*position % 8).min(WINDOW - ledger.in_flight()) {
                let seq = ledger.next_seq().unwrap();
                ledger.sent(seq).unwrap();
                window.push(seq);
                sent += 1;
            }
            *position += 1;
            ledger
                .commit(CommitEnd::from_commit_message(Lsn::new(*position)))
                .unwrap();
        }
        for seq in window.drain(..).rev() {
            ring.ack(seq);
            if seq.get() % 1000 == 0 {
                ring.park();
                ledger.advance();
                ring.unpark();
            }
        }
        ledger.advance();
        assert_eq!(
            ledger.confirmed().map(|end| end.lsn().get()),
            Some(*position)
        );
    }
    sent
}

#[test]
fn a_million_records_in_steady_state_allocate_nothing() {
    let ring = Arc::new(AckRing::new(WINDOW as usize));
    let mut ledger = Ledger::new(Arc::clone(&ring), None);
    let mut position = 1;
    // Warm up until the deque has its final size.
    let warm_up = allocation_counter::measure(|| {
        stream(&ring, &mut ledger, &mut position, 50_000);
    });
    assert!(warm_up.count_total > 1, "the counter counts: {warm_up:?}");
    let mut sent = 0;
    let steady = allocation_counter::measure(|| {
        sent = stream(&ring, &mut ledger, &mut position, 1_000_000);
    });
    assert!(sent >= 1_000_000);
    // One allocation: the test's own list of records in flight.
    assert_eq!(steady.count_total, 1, "{steady:?}");
    assert_eq!(ring.strays(), 0);
}
