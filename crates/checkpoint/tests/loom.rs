//! The ring's shared state, in the interleavings and reorderings that the memory model allows.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
//!     cargo test -p walrelay-checkpoint --release --test loom
//! ```
//!
//! Under `cfg(loom)` a word holds two records instead of 32, so a lap of a ring for two records has
//! four records.
//!
//! # Mutations that the models detect
//! Each of these mistakes was planted, one at a time, and failed the models named:
//!
//! | Planted | Failed |
//! |---|---|
//! | no fence in `park`, or none in `after_change` | all four `…slept_through…` |
//! | no fence in `publish`; no second look after it in `collect` | `…after_advancing_while_parked` |
//! | a thread loads `parked` before it sets its bit | both `no_acknowledgement_…` |
//! | the load of `run_from` relaxed | `no_failure_…` |
//! | check and `fetch_or` in place of compare-and-swap | `a_repeated_report_…` |
//! | `turn_over` leaves the lap, or is not called | `a_repeated_report_…`, `a_reused_word_…`, `a_word_is_turned_over_…` |
//! | `turn_over` only when the next lap's record was sent | `a_reused_word_…`, `a_word_is_turned_over_…` |
//! | waking by load and store in place of compare-and-swap | `of_all_reports_…` |
//! | `wake` by a release store in place of a swap; `unpark` clears `woken` relaxed; `has_news` ignores wakes | `no_wake_…`, `no_failure_…` |
//! | `nack` relaxed, or waking before it stores the record; `run_from` loads the failed record before the bits | `no_failure_…` |
//!
//! The models do not show that the swap of `mark` must be a release: with a relaxed swap all still
//! pass, because loom never switches threads between that swap and the fence after it. The
//! reasoning in `ring/mod.rs` shows it. Loom has no total order of a plain store and another
//! thread's swap, so `park` and `unpark` swap where a store would do.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a test, also in its helpers")]

use std::sync::Arc;

use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread::{self, JoinHandle};
use walrelay_checkpoint::{AckRing, Ledger, Seq};
use walrelay_lsn::{CommitEnd, Lsn};

/// Checks all interleavings with up to three preemptions of an owner whose first record is number
/// `first`: this takes seconds and finds each of the mistakes above.
fn model(first: u64, body: impl Fn(Owner) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || body(Owner::starting_at(first)));
}

fn end(position: u64) -> CommitEnd {
    CommitEnd::from_commit_message(Lsn::new(position))
}

/// The owner's side of a ring for two records, and the threads that report to it.
struct Owner {
    ring: Arc<AckRing>,
    ledger: Ledger,
    wake: Arc<Notify>,
    threads: Vec<JoinHandle<()>>,
}

impl Owner {
    fn starting_at(first: u64) -> Self {
        let ring = Arc::new(AckRing::starting_at(Seq::new(first), 2));
        Self {
            ledger: Ledger::new(Arc::clone(&ring), None),
            ring,
            wake: Arc::new(Notify::new()),
            threads: Vec::new(),
        }
    }

    /// Begins a transaction and takes the number of its one record.
    fn begin(&mut self) -> Seq {
        self.ledger.begin().unwrap();
        self.ledger.next_seq().unwrap()
    }

    /// Enters the record as sent and commits its transaction, which ends at 10 times its number.
    fn commit(&mut self, seq: Seq) {
        self.ledger.sent(seq).unwrap();
        self.ledger.commit(end(10 * seq.get())).unwrap();
    }

    fn send_one(&mut self) -> Seq {
        let seq = self.begin();
        self.commit(seq);
        seq
    }

    /// Sends records and acknowledges each at once, up to the one before `seq`.
    fn send_until(&mut self, seq: u64) {
        while self.ledger.next_seq().is_some_and(|next| next.get() < seq) {
            let sent = self.send_one();
            self.ring.ack(sent);
            self.ledger.advance();
        }
    }

    /// Starts a thread that runs `report` and wakes the owner if `report` returns `true`.
    fn spawn(&mut self, report: impl FnOnce(&AckRing) -> bool + Send + 'static) {
        let (ring, wake) = (Arc::clone(&self.ring), Arc::clone(&self.wake));
        self.threads.push(thread::spawn(move || {
            if report(&ring) {
                wake.notify();
            }
        }));
    }

    /// Sends two records, each with a thread that acknowledges it.
    fn send_two(&mut self) {
        for _ in 0..2 {
            let seq = self.send_one();
            self.spawn(move |ring| ring.ack(seq));
        }
    }

    /// Sends two records as [`Owner::send_two`] does; sets a flag for each before it is
    /// acknowledged.
    fn send_two_flagged(&mut self) -> Flags {
        let delivered = Flags::default();
        for at in 0..2 {
            let seq = self.send_one();
            let delivered = Arc::clone(&delivered);
            self.spawn(move |ring| {
                delivered[at].store(true, Ordering::Relaxed);
                ring.ack(seq)
            });
        }
        delivered
    }

    /// Runs an owner's wait loop until `seen` returns `true`.
    fn wait_until(&mut self, mut seen: impl FnMut(&mut Ledger) -> bool) {
        while !seen(&mut self.ledger) {
            self.ring.park();
            if !self.ledger.has_news() {
                // Loom reports a deadlock if no thread wakes the owner.
                self.wake.wait();
            }
            self.ring.unpark();
        }
    }

    /// Returns the confirmed position after every thread has ended.
    fn confirmed_at_the_end(&mut self) -> Option<CommitEnd> {
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        self.ledger.advance();
        self.ledger.confirmed()
    }
}

type Flags = Arc<[AtomicBool; 2]>;

/// Passes the number of a record to the thread that reports it, as a sink's queue does.
#[derive(Clone)]
struct Queue {
    offered: Arc<AtomicU64>,
    queued: Arc<Notify>,
}

impl Queue {
    fn new() -> Self {
        Self {
            offered: Arc::new(AtomicU64::new(0)),
            queued: Arc::new(Notify::new()),
        }
    }

    fn offer(&self, seq: Seq) {
        self.offered.store(seq.get(), Ordering::Release);
        self.queued.notify();
    }

    fn take(&self) -> Seq {
        // `Notify` may wake spuriously.
        while self.offered.load(Ordering::Acquire) == 0 {
            self.queued.wait();
        }
        Seq::new(self.offered.load(Ordering::Acquire))
    }
}

#[test]
fn nothing_is_confirmed_early_and_nothing_is_lost() {
    // Numbers 1 and 2 lie in different words.
    model(1, |mut owner| {
        let delivered = owner.send_two_flagged();
        for _ in 0..2 {
            owner.ledger.advance();
            let confirmed = owner.ledger.confirmed();
            for at in 0..2 {
                // The relaxed load also shows that writes before an acknowledgement are visible to
                // the owner that collects it.
                if confirmed >= Some(end(10 * (at as u64 + 1))) {
                    assert!(delivered[at].load(Ordering::Relaxed), "confirmed early");
                }
            }
        }
        assert_eq!(owner.confirmed_at_the_end(), Some(end(20)));
        assert_eq!(owner.ring.strays(), 0);
    });
}

#[test]
fn two_threads_on_one_word_hand_over_what_they_wrote() {
    model(0, |mut owner| {
        let delivered = owner.send_two_flagged();
        if owner.ledger.advance() == Some(end(10)) {
            assert!(
                delivered.iter().all(|flag| flag.load(Ordering::Relaxed)),
                "confirmed early"
            );
        }
        assert_eq!(owner.confirmed_at_the_end(), Some(end(10)));
    });
}

#[test]
fn no_acknowledgement_is_slept_through() {
    model(1, |mut owner| {
        owner.send_two();
        owner.wait_until(|ledger| {
            ledger.advance();
            ledger.confirmed() == Some(end(20))
        });
        owner.confirmed_at_the_end();
    });
}

#[test]
fn no_acknowledgement_is_slept_through_after_advancing_while_parked() {
    model(1, |mut owner| {
        owner.send_two();
        // This owner moves the prefix after it has parked and then waits without parking again.
        loop {
            owner.ring.park();
            owner.ledger.advance();
            if owner.ledger.confirmed() == Some(end(20)) {
                break;
            }
            owner.wake.wait();
        }
        owner.confirmed_at_the_end();
    });
}

#[test]
fn no_failure_is_slept_through_and_it_blocks_also_when_delivered_later() {
    model(1, |mut owner| {
        let reason = Arc::new(AtomicU64::new(0));
        let first = owner.send_one();
        let second = owner.send_one();
        let thread = {
            let (ring, wake) = (Arc::clone(&owner.ring), Arc::clone(&owner.wake));
            let reason = Arc::clone(&reason);
            thread::spawn(move || {
                reason.store(7, Ordering::Relaxed);
                if ring.nack(second) {
                    wake.notify();
                }
                ring.ack(second);
            })
        };
        owner.threads.push(thread);
        owner.ring.ack(first);
        let ring = Arc::clone(&owner.ring);
        owner.wait_until(|ledger| {
            ledger.advance();
            assert_ne!(ledger.confirmed(), Some(end(20)));
            ring.nacked().is_some()
        });
        assert_eq!(reason.load(Ordering::Relaxed), 7);
        assert_eq!(owner.confirmed_at_the_end(), Some(end(10)));
    });
}

#[test]
fn no_wake_is_slept_through_and_one_call_wakes() {
    model(0, |mut owner| {
        let room = Flags::default();
        for at in 0..2 {
            let room = Arc::clone(&room);
            owner.spawn(move |ring| {
                room[at].store(true, Ordering::Relaxed);
                ring.wake()
            });
        }
        owner.wait_until(|_| room.iter().all(|room| room.load(Ordering::Relaxed)));
        owner.confirmed_at_the_end();
    });
}

#[test]
fn one_park_is_woken_by_at_most_one_report() {
    model(0, |mut owner| {
        let seq = owner.send_one();
        owner.ring.park();
        let spawn = |report: fn(&AckRing, Seq) -> bool| {
            let ring = Arc::clone(&owner.ring);
            thread::spawn(move || report(&ring, seq))
        };
        let acked = spawn(AckRing::ack);
        let woken = spawn(|ring, _| ring.wake());
        let (acked, woken) = (acked.join().unwrap(), woken.join().unwrap());
        assert!(acked ^ woken, "acked {acked}, woken {woken}");
    });
}

#[test]
fn a_repeated_report_cannot_confirm_the_record_one_lap_on() {
    // The first lap is records 0..4; number 4 gets the word and the bit of 0.
    model(0, |mut owner| {
        let first = owner.send_one();
        owner.spawn(move |ring| ring.ack(first));
        owner.ring.ack(first);
        // The rest of the first lap.
        owner.send_until(4);
        let reused = owner.send_one();
        assert_eq!(reused.get(), 4);
        owner.ledger.advance();
        assert_eq!(owner.ledger.confirmed(), Some(end(30)));
        let confirmed = owner.confirmed_at_the_end();
        assert_eq!(confirmed, Some(end(30)), "nobody has delivered it");
        assert_eq!(owner.ring.strays(), 1);
        owner.ring.ack(reused);
        assert_eq!(owner.ledger.advance(), Some(end(40)));
    });
}

#[test]
fn a_reused_word_keeps_an_acknowledgement_that_overtakes_sent() {
    // The last record of the first lap is in flight when the thread starts; the record after
    // it is the first of its word's second lap.
    model(0, |mut owner| {
        owner.send_until(3);
        let last = owner.send_one();
        assert_eq!(last.get(), 3);
        let queue = Queue::new();
        let reporter = queue.clone();
        owner.spawn(move |ring| {
            ring.ack(last);
            ring.ack(reporter.take())
        });
        owner.ledger.advance();
        let seq = owner.begin();
        assert_eq!(seq.get(), 4);
        queue.offer(seq);
        owner.ledger.advance();
        owner.commit(seq);
        owner.ledger.advance();
        assert_eq!(owner.confirmed_at_the_end(), Some(end(40)));
        assert_eq!(owner.ring.strays(), 0);
    });
}

#[test]
fn a_word_is_turned_over_while_its_next_lap_is_acknowledged() {
    // Numbers 2 and 3 fill a word. The owner turns the word over when both are acknowledged,
    // and sends records up to number 6, the first of the word's next lap; another thread
    // acknowledges it.
    model(3, |mut owner| {
        let first = owner.send_one();
        let queue = Queue::new();
        let reporter = queue.clone();
        owner.spawn(move |ring| ring.ack(reporter.take()));
        owner.ring.ack(first);
        owner.ledger.advance();
        owner.send_until(6);
        let reused = owner.begin();
        assert_eq!(reused.get(), 6);
        queue.offer(reused);
        owner.commit(reused);
        owner.ledger.advance();
        let confirmed = owner.confirmed_at_the_end();
        assert_eq!(
            confirmed,
            Some(end(60)),
            "its acknowledgement was wiped out"
        );
        assert_eq!(owner.ring.strays(), 0);
    });
}
