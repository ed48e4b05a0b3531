use super::*;

fn ack(ring: &AckRing, seq: u64) -> bool {
    ring.ack(Seq::new(seq))
}

#[test]
fn capacity_is_the_next_power_of_two_within_bounds() {
    for (asked, given) in [
        (0, 32),
        (1, 32),
        (33, 64),
        (64, 64),
        (65, 128),
        (100_000, 131_072),
    ] {
        assert_eq!(AckRing::new(asked).capacity(), given, "asked for {asked}");
    }
    assert_eq!(AckRing::new(usize::MAX).capacity(), AckRing::MAX_CAPACITY);
}

#[test]
fn reports_out_of_the_window_or_repeated_are_strays() {
    let ring = AckRing::starting_at(Seq::new(1000), 64);
    ring.park();
    for seq in [0, 999, 1064, 1000 + 128, u64::MAX] {
        assert!(!ack(&ring, seq), "{seq}");
        assert!(!ring.nack(Seq::new(seq)), "{seq}");
    }
    assert_eq!(ring.strays(), 10);
    assert_eq!(ring.nacked(), None);
    assert!(!ack(&ring, 1063));
    assert_eq!(ring.strays(), 10);
    assert!(!ack(&ring, 1063));
    assert_eq!(ring.strays(), 11);
    assert_eq!(ring.run_from(1000), 1000);
}

#[test]
fn a_run_ends_with_its_chunk_and_at_a_failed_record() {
    let ring = AckRing::new(64);
    for seq in 0..40 {
        ack(&ring, seq);
    }
    assert_eq!(ring.run_from(0), 32);
    assert_eq!(ring.run_from(32), 40);
    ring.nack(Seq::new(35));
    ring.nack(Seq::new(37));
    assert_eq!(ring.nacked(), Some(Seq::new(35)));
    assert_eq!(ring.run_from(0), 32);
    assert_eq!(ring.run_from(32), 35);
    assert_eq!(ring.run_from(35), 35);
}

#[test]
fn a_word_that_was_turned_over_takes_no_late_report() {
    let ring = AckRing::new(64);
    for seq in 0..32 {
        ack(&ring, seq);
    }
    ring.turn_over(32);
    // Record 0 is still in the window: the tail is published after the turning over.
    assert!(!ack(&ring, 0));
    assert_eq!(ring.strays(), 1);
    ring.publish(32);
    // The word belongs to the chunk one lap on now (four words of 32), without a bit set.
    assert_eq!(ring.run_from(128), 128);
}

#[test]
fn only_what_the_owner_waits_for_wakes_it_and_only_once() {
    let ring = AckRing::new(64);
    assert!(!ack(&ring, 5), "not parked");
    ring.park();
    assert!(!ack(&ring, 1), "the prefix does not move");
    assert!(ack(&ring, 0));
    assert!(!ring.wake(), "somebody wakes it already");
    ring.park();
    assert!(ring.wake());
    ring.unpark();
    ring.park();
    assert!(ring.nack(Seq::new(7)));
    ring.park();
    ring.unpark();
    assert!(!ring.wake(), "not parked any more");
}

#[test]
fn debug_shows_capacity_and_failed_record() {
    let ring = AckRing::new(64);
    ring.nack(Seq::new(3));
    let shown = format!("{ring:?}");
    assert!(
        shown.contains("capacity: 64") && shown.contains("nacked: Some(Seq(3))"),
        "{shown}"
    );
}
