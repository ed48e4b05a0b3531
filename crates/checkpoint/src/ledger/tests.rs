use super::*;

fn end(position: u64) -> CommitEnd {
    CommitEnd::from_commit_message(Lsn::new(position))
}

fn ledger(capacity: usize) -> (Arc<AckRing>, Ledger) {
    let ring = Arc::new(AckRing::new(capacity));
    (Arc::clone(&ring), Ledger::new(ring, None))
}

fn send(ledger: &mut Ledger, count: u64) -> Vec<Seq> {
    (0..count)
        .map(|_| {
            let seq = ledger.next_seq().unwrap();
            ledger.sent(seq).unwrap();
            seq
        })
        .collect()
}

fn transaction(ledger: &mut Ledger, records: u64, position: u64) -> Vec<Seq> {
    ledger.begin().unwrap();
    let seqs = send(ledger, records);
    ledger.commit(end(position)).unwrap();
    seqs
}

fn ack_all(ring: &AckRing, seqs: &[Seq]) {
    for seq in seqs {
        ring.ack(*seq);
    }
}

#[test]
fn a_transaction_waits_for_all_its_records_and_all_before_them() {
    let (ring, mut ledger) = ledger(64);
    let first = transaction(&mut ledger, 2, 10);
    let second = transaction(&mut ledger, 1, 20);
    ack_all(&ring, &second);
    ring.ack(first[1]);
    assert_eq!(ledger.advance(), None);
    assert_eq!((ledger.in_flight(), ledger.pending()), (3, 2));
    ring.ack(first[0]);
    assert_eq!(ledger.advance(), Some(end(20)));
    assert_eq!(ledger.advance(), None);
    assert_eq!(ledger.confirmed(), Some(end(20)));
    assert_eq!((ledger.in_flight(), ledger.pending()), (0, 0));
}

#[test]
fn acknowledged_records_of_an_open_transaction_confirm_nothing() {
    let (ring, mut ledger) = ledger(64);
    let first = transaction(&mut ledger, 1, 10);
    ledger.begin().unwrap();
    let open = send(&mut ledger, 3);
    ack_all(&ring, &first);
    ack_all(&ring, &open);
    assert_eq!(ledger.advance(), Some(end(10)));
    assert_eq!(ledger.in_flight(), 0);
    assert!(!ledger.idle(Lsn::new(50)), "a transaction is open");
    assert_eq!((ledger.pending(), ledger.is_open()), (0, true));
    ledger.commit(end(30)).unwrap();
    assert_eq!(ledger.advance(), Some(end(30)));
}

#[test]
fn an_acknowledgement_may_overtake_the_note_that_the_record_was_sent() {
    let (ring, mut ledger) = ledger(64);
    ledger.begin().unwrap();
    let seq = ledger.next_seq().unwrap();
    ring.ack(seq);
    assert_eq!(ledger.advance(), None);
    assert!(!ledger.has_news(), "nothing was sent yet");
    ledger.sent(seq).unwrap();
    ledger.commit(end(10)).unwrap();
    assert!(ledger.has_news());
    assert_eq!(ledger.advance(), Some(end(10)));
    assert_eq!(ring.strays(), 0);
}

#[test]
fn a_full_ring_gives_no_number_until_the_lowest_record_is_acknowledged() {
    let (ring, mut ledger) = ledger(64);
    ledger.begin().unwrap();
    let seqs = send(&mut ledger, 64);
    assert_eq!(ledger.next_seq(), None);
    assert_eq!(
        ledger.sent(Seq::new(64)),
        Err(LedgerError::Full { in_flight: 64 })
    );
    ack_all(&ring, &seqs[1..]);
    ledger.advance();
    assert_eq!(ledger.next_seq(), None);
    assert_eq!(ring.strays(), 0);
    ring.ack(seqs[0]);
    ledger.advance();
    assert_eq!(ledger.next_seq(), Some(Seq::new(64)));
    // The capacity is exact in the middle of a chunk, too.
    ack_all(&ring, &send(&mut ledger, 5));
    ledger.advance();
    let lap = send(&mut ledger, 64);
    assert_eq!(ledger.next_seq(), None);
    ack_all(&ring, &lap);
    ledger.commit(end(10)).unwrap();
    assert_eq!(ledger.advance(), Some(end(10)));
    assert_eq!(ring.strays(), 0);
}

#[test]
fn abandoned_records_stay_in_the_way_of_what_comes_after() {
    let (ring, mut ledger) = ledger(64);
    ledger.begin().unwrap();
    let cut = send(&mut ledger, 2);
    ledger.abandon();
    let again = transaction(&mut ledger, 2, 10);
    ack_all(&ring, &again);
    assert_eq!(ledger.advance(), None);
    ledger.begin().unwrap();
    ledger.commit(end(11)).unwrap();
    assert_eq!(
        ledger.advance(),
        None,
        "a transaction without records waits as well"
    );
    assert!(!ledger.idle(Lsn::new(50)));
    ack_all(&ring, &cut);
    assert_eq!(ledger.advance(), Some(end(11)));
}

#[test]
fn empty_transactions_confirm_at_once_or_share_an_entry() {
    let (ring, mut ledger) = ledger(64);
    transaction(&mut ledger, 0, 10);
    assert_eq!(ledger.advance(), Some(end(10)));
    let seqs = transaction(&mut ledger, 1, 20);
    for position in 21..1000 {
        transaction(&mut ledger, 0, position);
    }
    assert_eq!(ledger.pending(), 1);
    ledger.begin().unwrap();
    ledger.abandon();
    // The next connection repeats commits; the shared entry is not lowered.
    transaction(&mut ledger, 0, 500);
    assert_eq!(ledger.advance(), None);
    ack_all(&ring, &seqs);
    assert_eq!(ledger.advance(), Some(end(999)));
    assert_eq!(ledger.last_commit(), Some(end(999)));
}

#[test]
fn a_keepalive_counts_only_while_nothing_is_under_way() {
    let (ring, mut ledger) = ledger(64);
    assert!(!ledger.idle(Lsn::ZERO), "not a position");
    assert_eq!(ledger.confirmed(), None);
    assert!(ledger.idle(Lsn::new(5)));
    assert!(!ledger.idle(Lsn::new(5)));
    assert!(!ledger.idle(Lsn::new(4)));
    let seqs = transaction(&mut ledger, 1, 10);
    assert!(!ledger.idle(Lsn::new(40)));
    ack_all(&ring, &seqs);
    assert!(!ledger.idle(Lsn::new(40)), "not collected yet");
    assert_eq!(ledger.advance(), Some(end(10)));
    assert!(ledger.idle(Lsn::new(40)));
    assert_eq!(
        ledger.confirmed(),
        Some(CommitEnd::from_idle_keepalive(Lsn::new(40)))
    );
    // `idle` also settles an empty transaction that `advance` has not seen.
    transaction(&mut ledger, 0, 50);
    assert!(ledger.idle(Lsn::new(60)));
    assert_eq!(ledger.pending(), 0);
    assert_eq!(ledger.advance(), None);
}

#[test]
fn confirmed_never_moves_backwards_when_a_connection_repeats_commits() {
    let (ring, mut ledger) = ledger(64);
    let first = transaction(&mut ledger, 1, 10);
    let second = transaction(&mut ledger, 1, 20);
    ledger.abandon();
    let again = transaction(&mut ledger, 1, 10);
    ack_all(&ring, &first);
    ack_all(&ring, &second);
    assert_eq!(ledger.advance(), Some(end(20)));
    ack_all(&ring, &again);
    assert_eq!(ledger.advance(), None);
    assert_eq!(ledger.confirmed(), Some(end(20)));
    assert_eq!(ledger.last_commit(), Some(end(20)));
}

#[test]
fn a_failed_record_ends_the_prefix_for_good() {
    let (ring, mut ledger) = ledger(64);
    let first = transaction(&mut ledger, 1, 10);
    let second = transaction(&mut ledger, 3, 20);
    ring.nack(second[1]);
    assert!(ledger.has_news());
    ring.unpark();
    assert!(!ledger.has_news(), "taken note of");
    ack_all(&ring, &first);
    ack_all(&ring, &second);
    assert_eq!(ledger.advance(), Some(end(10)));
    assert_eq!(ledger.advance(), None);
    assert!(!ledger.has_news());
    assert_eq!(ledger.in_flight(), 2);
    assert_eq!(ring.nacked(), Some(second[1]));
    let known = second.iter().map(|seq| ledger.is_acknowledged(*seq));
    assert_eq!(known.collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn records_that_are_acknowledged_out_of_order_are_not_open() {
    let (ring, mut ledger) = ledger(256);
    let records = transaction(&mut ledger, 200, 10);
    let mut open = 200;
    // 77 and 200 have no common divisor, so each comes once.
    for seq in (0..200).map(|number| records[number * 77 % 200]) {
        assert_eq!(ledger.unacknowledged(), open);
        assert!(!ledger.is_acknowledged(seq));
        ring.ack(seq);
        assert!(ledger.is_acknowledged(seq));
        ledger.advance();
        assert!(ledger.is_acknowledged(seq));
        open -= 1;
    }
    assert_eq!((ledger.unacknowledged(), ledger.in_flight()), (0, 0));
}

#[test]
fn calls_out_of_order_are_errors_and_change_nothing() {
    let (_, mut ledger) = ledger(64);
    assert_eq!(ledger.sent(Seq::new(0)), Err(LedgerError::NotOpen));
    assert_eq!(ledger.commit(end(10)), Err(LedgerError::NotOpen));
    ledger.begin().unwrap();
    assert_eq!(ledger.begin(), Err(LedgerError::AlreadyOpen));
    assert_eq!(
        ledger.sent(Seq::new(1)),
        Err(LedgerError::UnexpectedSeq {
            expected: Seq::new(0),
            got: Seq::new(1)
        })
    );
    ledger.commit(end(10)).unwrap();
    ledger.begin().unwrap();
    let backwards = LedgerError::CommitBackwards {
        last: end(10),
        end: end(9),
    };
    assert_eq!(ledger.commit(end(9)), Err(backwards));
    assert!(ledger.is_open());
    assert_eq!(ledger.last_commit(), Some(end(10)));
    assert_eq!(ledger.advance(), Some(end(10)));
    ledger.commit(end(10)).unwrap();
    assert_eq!(
        backwards.to_string(),
        "a commit that ends at 0/9 after one that ends at 0/A"
    );
}

#[test]
fn numbers_run_out_without_a_panic() {
    let ring = Arc::new(AckRing::starting_at(Seq::new(u64::MAX - 2), 64));
    let mut ledger = Ledger::new(Arc::clone(&ring), Some(end(1)));
    ledger.begin().unwrap();
    let seqs = send(&mut ledger, 2);
    assert_eq!(ledger.next_seq(), None);
    ack_all(&ring, &seqs);
    ring.ack(Seq::new(u64::MAX));
    ring.nack(Seq::new(u64::MAX));
    ledger.commit(end(10)).unwrap();
    assert_eq!(ledger.advance(), Some(end(10)));
    assert_eq!(ledger.next_seq(), None);
}
