//! What a record costs: `cargo run --release -p walrelay-checkpoint --example ns_per_record`.
//!
//! One thread plays the owner and the sink, so it is the work that is measured and not the
//! traffic between caches.
#![expect(clippy::print_stdout, reason = "prints a figure")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use walrelay_checkpoint::{AckRing, Ledger, Seq};
use walrelay_lsn::{CommitEnd, Lsn};

const RECORDS: u64 = 20_000_000;
const WINDOW: u64 = 16_384;

fn main() -> Result<(), Box<dyn Error>> {
    for per_transaction in [1, 100] {
        let ring = Arc::new(AckRing::new(WINDOW as usize));
        let mut ledger = Ledger::new(Arc::clone(&ring), None);
        let (mut acked, mut position) = (0, 0);
        let start = Instant::now();
        while acked < RECORDS {
            while ledger.in_flight() + per_transaction <= WINDOW {
                ledger.begin()?;
                for _ in 0..per_transaction {
                    let seq = ledger.next_seq().ok_or("the ring is full")?;
                    ledger.sent(seq)?;
                }
                position += 1;
                ledger.commit(CommitEnd::from_commit_message(Lsn::new(position)))?;
            }
            for seq in acked..acked + ledger.in_flight() {
                ring.ack(Seq::new(seq));
            }
            acked += ledger.in_flight();
            ledger.advance();
        }
        let each = start.elapsed().as_secs_f64() * 1e9 / acked as f64;
        println!("{per_transaction:>4} records per transaction: {each:.1} ns per record");
    }
    Ok(())
}
