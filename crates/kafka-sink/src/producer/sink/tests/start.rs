//! The start of a producer.

use super::*;

/// librdkafka requests its producer id every half second, and when metadata arrive.
const TIMER: Duration = Duration::from_millis(500);
/// A busy machine may take longer for one start, but not for this many in a row.
const STARTS: usize = 20;

/// Fails if the poll thread does not request metadata: then every start waits for the timer. One
/// faster start suffices, so a slow machine does not fail the test.
#[test]
fn a_start_does_not_wait_for_the_timer_that_requests_a_producer_id() {
    let cluster = cluster(&[("t", 1)]);
    let mut starts = Vec::new();
    while starts.len() < STARTS {
        let started = Instant::now();
        let (mut sink, reports) = sink(&cluster);
        send(&mut sink, &reports, &record("t", b"k", b"v"), 0);
        reports.wait(|state| state.outcomes.contains_key(&0));
        let took = started.elapsed();
        assert!(reports.failures().is_empty(), "{:?}", reports.failures());
        sink.close(SOON);
        if took < TIMER {
            return;
        }
        starts.push(took);
    }
    panic!("each of {STARTS} starts waited for the timer: {starts:?}");
}
