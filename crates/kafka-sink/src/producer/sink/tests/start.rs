//! What a producer's start waits for.

use super::*;

/// librdkafka looks for its producer id every half second, and when metadata come.
const TIMER: Duration = Duration::from_millis(500);
/// A busy machine may take longer for one start, but not for so many in a row.
const STARTS: usize = 20;

/// Would fail if the poll thread did not ask for metadata: each start then waits for the timer, and
/// none is faster. That says nothing of how fast a start is, so a slow machine does not fail it.
#[test]
fn a_start_does_not_wait_for_the_timer_that_looks_for_a_producer_id() {
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
