//! What threads share, in every interleaving and with every reordering the memory model allows.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
//!     cargo test -p walrelay-checkpoint --release --test loom
//! ```
//!
//! Under `cfg(loom)` a word holds two records instead of 32, so a ring for two records is gone
//! around after four.
//!
//! # That the models bite
//! Each of these mistakes was planted, one at a time, and failed the models named:
//!
//! | Planted | Failed |
//! |---|---|
//! | no fence in `park`, or none in `after_change` | all four `…slept_through…` |
//! | no fence in `publish`; no second look after it in `collect` | `…after_advancing_while_parked` |
//! | a thread looks at `parked` before it sets its bit | both `no_acknowledgement_…` |
//! | the load of `run_from` relaxed | `no_failure_…` |
//! | check and `fetch_or` in place of compare-and-swap | `a_repeated_report_…` |
//! | `turn_over` leaves the lap, or is not called | `a_repeated_report_…`, `a_reused_word_…`, `a_word_is_turned_over_…` |
//! | `turn_over` only when the next lap's record was sent | `a_reused_word_…`, `a_word_is_turned_over_…` |
//! | waking by load and store in place of compare-and-swap | `of_all_reports_…` |
//! | `wake` by a release store in place of a swap; `unpark` taking note relaxed; `has_news` blind to wakes | `no_nudge_…`, `no_failure_…` |
//! | `nack` relaxed, or nudging before it notes the record; `run_from` looking at the failed record before the bits | `no_failure_…` |
//!
//! What they do not show: with the swap of `mark` relaxed all models still pass, as loom never
//! switches threads between that swap and the fence after it; that it must be a release rests on the
//! reasoning in `ring.rs`. And loom knows no total order of a plain store and another thread's swap,
//! which is why `park` and `unpark` swap where a store would do.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a test, also in its helpers")]

use std::sync::Arc;

use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use walrelay_checkpoint::{AckRing, Ledger, Seq};
use walrelay_lsn::{CommitEnd, Lsn};

/// All interleavings with up to three preemptions, which keeps the whole to seconds and finds each
/// of the mistakes above.
fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

fn end(position: u64) -> CommitEnd {
    CommitEnd::from_commit_message(Lsn::new(position))
}

fn ledger(first: u64, capacity: usize) -> (Arc<AckRing>, Ledger) {
    let ring = Arc::new(AckRing::starting_at(Seq::new(first), capacity));
    (Arc::clone(&ring), Ledger::new(ring, None))
}

/// A transaction with one record, which ends at 10 times its number.
fn send_one(ledger: &mut Ledger) -> Seq {
    ledger.begin().unwrap();
    let seq = ledger.next_seq().unwrap();
    ledger.sent(seq).unwrap();
    ledger.commit(end(10 * seq.get())).unwrap();
    seq
}

/// Waits as an owner does until `seen` everything.
fn wait_until(
    ring: &AckRing,
    ledger: &mut Ledger,
    wake: &Notify,
    mut seen: impl FnMut(&mut Ledger) -> bool,
) {
    loop {
        if seen(ledger) {
            return;
        }
        ring.park();
        if !ledger.has_news() {
            // Loom reports a deadlock if nobody ever wakes us.
            wake.wait();
        }
        ring.unpark();
    }
}

#[test]
fn nothing_is_confirmed_early_and_nothing_is_lost() {
    model(|| {
        // Numbers 1 and 2 lie in different words.
        let (ring, mut ledger) = ledger(1, 2);
        let delivered = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let threads: Vec<_> = (0..2)
            .map(|at| {
                let seq = send_one(&mut ledger);
                let (ring, delivered) = (Arc::clone(&ring), Arc::clone(&delivered));
                thread::spawn(move || {
                    delivered[at].store(true, Ordering::Relaxed);
                    ring.ack(seq);
                })
            })
            .collect();
        for _ in 0..2 {
            ledger.advance();
            let confirmed = ledger.confirmed();
            for at in 0..2 {
                // Also: what was written before an acknowledgement is seen by who acts on it.
                if confirmed >= Some(end(10 * (at as u64 + 1))) {
                    assert!(delivered[at].load(Ordering::Relaxed), "confirmed early");
                }
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        ledger.advance();
        assert_eq!(ledger.confirmed(), Some(end(20)));
        assert_eq!(ring.strays(), 0);
    });
}

#[test]
fn two_threads_on_one_word_hand_over_what_they_wrote() {
    model(|| {
        let (ring, mut ledger) = ledger(0, 2);
        let delivered = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let threads: Vec<_> = (0..2)
            .map(|at| {
                let seq = send_one(&mut ledger);
                let (ring, delivered) = (Arc::clone(&ring), Arc::clone(&delivered));
                thread::spawn(move || {
                    delivered[at].store(true, Ordering::Relaxed);
                    ring.ack(seq);
                })
            })
            .collect();
        if ledger.advance() == Some(end(10)) {
            assert!(
                delivered.iter().all(|flag| flag.load(Ordering::Relaxed)),
                "confirmed early"
            );
        }
        for thread in threads {
            thread.join().unwrap();
        }
        ledger.advance();
        assert_eq!(ledger.confirmed(), Some(end(10)));
    });
}

#[test]
fn no_acknowledgement_is_slept_through() {
    model(|| {
        let (ring, mut ledger) = ledger(1, 2);
        let wake = Arc::new(Notify::new());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let seq = send_one(&mut ledger);
                let (ring, wake) = (Arc::clone(&ring), Arc::clone(&wake));
                thread::spawn(move || {
                    if ring.ack(seq) {
                        wake.notify();
                    }
                })
            })
            .collect();
        wait_until(&ring, &mut ledger, &wake, |ledger| {
            ledger.advance();
            ledger.confirmed() == Some(end(20))
        });
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn no_acknowledgement_is_slept_through_after_advancing_while_parked() {
    model(|| {
        let (ring, mut ledger) = ledger(1, 2);
        let wake = Arc::new(Notify::new());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let seq = send_one(&mut ledger);
                let (ring, wake) = (Arc::clone(&ring), Arc::clone(&wake));
                thread::spawn(move || {
                    if ring.ack(seq) {
                        wake.notify();
                    }
                })
            })
            .collect();
        // This owner moves the prefix after it has parked and then waits without parking again.
        loop {
            ring.park();
            ledger.advance();
            if ledger.confirmed() == Some(end(20)) {
                break;
            }
            wake.wait();
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn no_failure_is_slept_through_and_it_blocks_also_when_delivered_later() {
    model(|| {
        let (ring, mut ledger) = ledger(1, 2);
        let wake = Arc::new(Notify::new());
        let reason = Arc::new(AtomicU64::new(0));
        let first = send_one(&mut ledger);
        let second = send_one(&mut ledger);
        let thread = {
            let (ring, wake, reason) = (Arc::clone(&ring), Arc::clone(&wake), Arc::clone(&reason));
            thread::spawn(move || {
                reason.store(7, Ordering::Relaxed);
                if ring.nack(second) {
                    wake.notify();
                }
                ring.ack(second);
            })
        };
        ring.ack(first);
        wait_until(&ring, &mut ledger, &wake, |ledger| {
            ledger.advance();
            assert_ne!(ledger.confirmed(), Some(end(20)));
            ring.nacked().is_some()
        });
        assert_eq!(reason.load(Ordering::Relaxed), 7);
        thread.join().unwrap();
        ledger.advance();
        assert_eq!(ledger.confirmed(), Some(end(10)));
    });
}

#[test]
fn no_nudge_is_slept_through_and_one_call_wakes() {
    model(|| {
        let (ring, mut ledger) = ledger(0, 2);
        let wake = Arc::new(Notify::new());
        let room = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let threads: Vec<_> = (0..2)
            .map(|at| {
                let (ring, wake, room) = (Arc::clone(&ring), Arc::clone(&wake), Arc::clone(&room));
                thread::spawn(move || {
                    room[at].store(true, Ordering::Relaxed);
                    if ring.wake() {
                        wake.notify();
                    }
                })
            })
            .collect();
        wait_until(&ring, &mut ledger, &wake, |_| {
            room.iter().all(|room| room.load(Ordering::Relaxed))
        });
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn of_all_reports_after_one_park_at_most_one_wakes() {
    model(|| {
        let (ring, mut ledger) = ledger(0, 2);
        let seq = send_one(&mut ledger);
        ring.park();
        let acked = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.ack(seq))
        };
        let woken = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.wake())
        };
        let (acked, woken) = (acked.join().unwrap(), woken.join().unwrap());
        assert!(acked ^ woken, "acked {acked}, woken {woken}");
    });
}

#[test]
fn a_repeated_report_cannot_confirm_the_record_one_lap_on() {
    model(|| {
        // Four words' worth of records are 0..4; number 4 gets the word and the bit of 0.
        let (ring, mut ledger) = ledger(0, 2);
        let first = send_one(&mut ledger);
        let repeated = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.ack(first))
        };
        ring.ack(first);
        // The first lap.
        while let Some(seq) = ledger.next_seq().filter(|seq| seq.get() < 4) {
            assert_eq!(send_one(&mut ledger), seq);
            ring.ack(seq);
            ledger.advance();
        }
        let reused = send_one(&mut ledger);
        assert_eq!(reused.get(), 4);
        ledger.advance();
        assert_eq!(ledger.confirmed(), Some(end(30)));
        repeated.join().unwrap();
        ledger.advance();
        assert_eq!(ledger.confirmed(), Some(end(30)), "nobody has delivered it");
        assert_eq!(ring.strays(), 1);
        ring.ack(reused);
        assert_eq!(ledger.advance(), Some(end(40)));
    });
}

#[test]
fn a_reused_word_keeps_an_acknowledgement_that_overtakes_sent() {
    model(|| {
        // The last record of the first lap is in flight when the thread starts; the record after
        // it is the first of its word's second lap.
        let (ring, mut ledger) = ledger(0, 2);
        for _ in 0..3 {
            let seq = send_one(&mut ledger);
            ring.ack(seq);
            ledger.advance();
        }
        let last = send_one(&mut ledger);
        assert_eq!(last.get(), 3);
        // What a sink's queue does: hands the number to the thread that will report it.
        let offered = Arc::new(AtomicU64::new(0));
        let queued = Arc::new(Notify::new());
        let thread = {
            let (ring, offered, queued) =
                (Arc::clone(&ring), Arc::clone(&offered), Arc::clone(&queued));
            thread::spawn(move || {
                ring.ack(last);
                // `Notify` may wake without a cause.
                while offered.load(Ordering::Acquire) == 0 {
                    queued.wait();
                }
                ring.ack(Seq::new(offered.load(Ordering::Acquire)));
            })
        };
        ledger.advance();
        ledger.begin().unwrap();
        let seq = ledger.next_seq().unwrap();
        assert_eq!(seq.get(), 4);
        offered.store(seq.get(), Ordering::Release);
        queued.notify();
        ledger.advance();
        ledger.sent(seq).unwrap();
        ledger.commit(end(40)).unwrap();
        ledger.advance();
        thread.join().unwrap();
        ledger.advance();
        assert_eq!(ledger.confirmed(), Some(end(40)));
        assert_eq!(ring.strays(), 0);
    });
}

#[test]
fn a_word_is_turned_over_while_its_next_lap_is_acknowledged() {
    model(|| {
        // Numbers 2 and 3 fill a word. The owner turns it over as soon as both are acknowledged and
        // offers what the window then allows, up to the word's next lap (6), to a second thread.
        let (ring, mut ledger) = ledger(3, 2);
        let first = send_one(&mut ledger);
        let offered = Arc::new(AtomicU64::new(0));
        let queued = Arc::new(Notify::new());
        let reporter = {
            let (ring, offered, queued) =
                (Arc::clone(&ring), Arc::clone(&offered), Arc::clone(&queued));
            thread::spawn(move || {
                while offered.load(Ordering::Acquire) == 0 {
                    queued.wait();
                }
                ring.ack(Seq::new(offered.load(Ordering::Acquire)));
            })
        };
        ring.ack(first);
        ledger.advance();
        while ledger.next_seq().is_some_and(|seq| seq.get() < 6) {
            let seq = send_one(&mut ledger);
            ring.ack(seq);
            ledger.advance();
        }
        ledger.begin().unwrap();
        let reused = ledger.next_seq().unwrap();
        assert_eq!(reused.get(), 6);
        offered.store(reused.get(), Ordering::Release);
        queued.notify();
        ledger.sent(reused).unwrap();
        ledger.commit(end(60)).unwrap();
        ledger.advance();
        reporter.join().unwrap();
        ledger.advance();
        assert_eq!(
            ledger.confirmed(),
            Some(end(60)),
            "its acknowledgement was wiped out"
        );
        assert_eq!(ring.strays(), 0);
    });
}
