//! Brokers that close idle connections, that stop, and a cluster that reports no brokers, as for a
//! moment while its last broker stops.

use std::io::ErrorKind;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::producer::reachability;

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

/// An idle connection that the only broker closes is no outage: with the metric at 1 somebody would
/// be paged.
#[test]
fn an_idle_connection_that_the_broker_closes_is_no_outage() {
    let cluster = cluster(&[("t", 1)]);
    let proxy = Proxy::start(&cluster);
    let (mut sink, reports) = sink_through(&cluster, &proxy);
    send_first(&mut sink, &reports);
    for _ in 0..2 {
        let before = proxy.connections();
        proxy.close_connections();
        let closed = Instant::now();
        while closed.elapsed() < reachability::LIMIT + Duration::from_millis(500) {
            assert!(!sink.shared.stats.all_down.load(Relaxed));
            thread::sleep(Duration::from_millis(5));
        }
        eventually("connected again", || proxy.connections() > before);
    }
    close_delivered(sink, &reports, 1);
}

/// Waits until the condition holds. Returns the time that it took, without the time for which a busy
/// machine did not run this thread.
fn time_until(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    const ROUND: Duration = Duration::from_millis(20);
    let (begun, mut last, mut late) = (Instant::now(), Instant::now(), Duration::ZERO);
    eventually(what, || {
        late += last.elapsed().saturating_sub(ROUND);
        last = Instant::now();
        condition()
    });
    begun.elapsed().saturating_sub(late)
}

/// A broker that stops while nothing is sent is an outage, and its return ends the outage.
#[test]
fn an_idle_broker_that_stops_is_down_until_it_returns() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = sink(&cluster);
    send_first(&mut sink, &reports);
    let all_down = || sink.shared.stats.all_down.load(Relaxed);
    cluster.broker_down(1).expect("a broker");
    let noticed = time_until("down", all_down);
    assert!(
        noticed < reachability::LIMIT + Duration::from_secs(3),
        "{noticed:?}"
    );
    cluster.broker_up(1).expect("a broker");
    let noticed = time_until("up", || !all_down());
    assert!(noticed < Duration::from_secs(5), "{noticed:?}");
    close_delivered(sink, &reports, 1);
}

/// Returns a sink with statistics, as with `[http]`.
fn observed(cluster: &Cluster, servers: &str) -> (KafkaSink, Arc<Reports>) {
    let config = config_of(cluster, &[("bootstrap.servers", servers)]);
    let factory = KafkaSinkFactory::new(config).with_stats(Arc::default());
    reporting(|reports| factory.with_one_producer().create(None, reports))
}

/// librdkafka calls such a broker up for a minute.
#[test]
fn a_broker_that_answers_nothing_is_down_until_it_answers() {
    let cluster = cluster(&[("t", 1)]);
    let proxy = Proxy::start(&cluster);
    let (mut sink, reports) = observed(&cluster, &proxy.servers());
    send_first(&mut sink, &reports);
    let stats = Arc::clone(&sink.shared.stats);
    let states = || -> Vec<String> {
        let endpoints = stats.endpoints().into_iter();
        endpoints.map(|endpoint| endpoint.state).collect()
    };
    eventually("up", || states() == ["UP"]);
    proxy.withhold(PRODUCE);
    send_seq(&mut sink, &reports, "t", b"k", 1);
    eventually("down", || stats.all_down.load(Relaxed));
    eventually("no answer", || states() == ["NO_ANSWER"]);
    proxy.release(PRODUCE);
    eventually("up", || !stats.all_down.load(Relaxed) && states() == ["UP"]);
    close_delivered(sink, &reports, 2);
}

#[test]
fn a_partition_without_a_leader_is_named_until_it_has_one() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = observed(&cluster, &cluster.bootstrap_servers());
    send_first(&mut sink, &reports);
    let stats = Arc::clone(&sink.shared.stats);
    let leaderless = || stats.unavailable().into_iter().collect::<Vec<_>>();
    // Nothing is sent meanwhile: librdkafka's mock broker crashes at a record without a leader.
    cluster.partition_leader("t", 0, None).expect("a partition");
    let _ = ffi::topic_states(sink.client(), LONG);
    eventually("leaderless", || leaderless() == ["t [0]"]);
    assert!(!stats.all_down.load(Relaxed));
    cluster.partition_leader("t", 0, Some(1)).expect("a broker");
    let _ = ffi::topic_states(sink.client(), LONG);
    eventually("led", || leaderless().is_empty());
    close_delivered(sink, &reports, 1);
}

/// A broker that throttles a client does not read its connection for a time, so it does not respond
/// to a request for metadata either.
#[test]
fn a_broker_that_throttles_is_named_as_what_records_wait_for() {
    let cluster = cluster(&[("t", 1)]);
    let proxy = Proxy::start(&cluster);
    let config = config_of(&cluster, &[("bootstrap.servers", &proxy.servers())]);
    let factory = KafkaSinkFactory::new(config).with_stats(Arc::default());
    let (mut sink, reports) =
        reporting(|reports| factory.with_one_producer().create(None, reports));
    proxy.set_throttle(40_000);
    send_first(&mut sink, &reports);
    proxy.withhold(PRODUCE);
    send_seq(&mut sink, &reports, "t", b"k", 1);
    let mut named = String::new();
    eventually("an obstacle", || {
        named = sink.waiting_for().map_or_else(String::new, |o| o.what);
        named.contains("throttles this client for 40s")
    });
    assert!(named.contains("producer_byte_rate"), "{named}");
    assert!(!named.contains("no broker answers"), "{named}");
    proxy.release(PRODUCE);
    close_delivered(sink, &reports, 2);
}

/// Otherwise the operating system delivers it when the way to the broker comes back, after another relay
/// has sent newer events.
#[test]
fn what_is_given_up_is_not_delivered_later() {
    let cluster = cluster(&[("t", 1)]);
    let proxy = Proxy::start(&cluster);
    let (mut sink, reports) = sink_through(&cluster, &proxy);
    send_first(&mut sink, &reports);
    proxy.withhold(PRODUCE);
    send_seq(&mut sink, &reports, "t", b"k", 1);
    proxy.wait_unanswered(PRODUCE, 1);
    close_soon(sink, Duration::from_millis(1));
    reports.assert_complete(2);
    eventually("connections that have ended", || !proxy.ends().is_empty());
    let reset = |end: &ErrorKind| *end == ErrorKind::ConnectionReset;
    assert!(proxy.ends().iter().all(reset), "{:?}", proxy.ends());
}
