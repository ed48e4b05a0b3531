//! A cluster that reports no brokers, as for a moment while its last broker stops.

use super::*;

/// The most rounds without brokers. The defect depends on a race of two of librdkafka's threads, so
/// one round may not show it. After it has happened, librdkafka never looks for brokers again.
const TIMES: u64 = 40;
/// The test ends when the rebootstrap has found the cluster this often.
const OURS: u32 = 2;
/// A recovery that takes longer is by the rebootstrap (2.9 s), and not by librdkafka itself (1.9
/// s).
const OUR_TIME: Duration = Duration::from_millis(2_500);

/// librdkafka forgets all brokers, and may never look for new ones again
/// (confluentinc/librdkafka#5301).
#[test]
fn a_cluster_that_has_no_brokers_for_a_moment_is_found_again() {
    // Many partitions: librdkafka's work on them gives the broker's thread time for the race.
    let cluster = cluster(&[("t", 1_000)]);
    let proxy = Proxy::start(&cluster);
    let (mut sink, reports) = sink_through(&cluster, &proxy);
    let (mut sent, mut ours) = (0, 0);
    while sent < TIMES && ours < OURS {
        let started = Instant::now();
        send_seq(&mut sink, &reports, "t", b"k", sent);
        sent += 1;
        reports.wait_for(sent);
        ours += u32::from(started.elapsed() > OUR_TIME);
        proxy.set_without_broker(true);
        let _ = ffi::topic_states(sink.client(), LONG);
        proxy.set_without_broker(false);
    }
    close_delivered(sink, &reports, sent);
    let records = read(&cluster, &["t"], sent as usize);
    let seqs: Vec<u64> = records.iter().map(seq_in).collect();
    assert_eq!(seqs, (0..sent).collect::<Vec<_>>());
}
