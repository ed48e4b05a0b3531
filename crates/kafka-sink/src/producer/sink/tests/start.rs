//! The start of a producer.

use super::*;

/// librdkafka requests its producer id every half second, and when metadata arrive.
const TIMER: Duration = Duration::from_millis(500);

/// Fails if the poll thread does not request metadata: then every start waits for the timer. A busy
/// machine may make a start as slow, so one faster start suffices, and there are as many starts as
/// the patience allows.
#[test]
fn a_start_does_not_wait_for_the_timer_that_requests_a_producer_id() {
    let cluster = cluster(&[("t", 1)]);
    let proxy = Proxy::start(&cluster);
    let mut requested = Vec::new();
    eventually("each start waited for the timer", || {
        let before = proxy.requests(INIT_PRODUCER_ID);
        let started = Instant::now();
        let (mut sink, reports) = sink_through(&cluster, &proxy);
        while proxy.requests(INIT_PRODUCER_ID) == before {
            assert!(started.elapsed() < LONG, "no request after {requested:?}");
            thread::sleep(Duration::from_millis(1));
        }
        let took = started.elapsed();
        send_first(&mut sink, &reports);
        close_delivered(sink, &reports, 1);
        requested.push(took);
        took < TIMER
    });
}
