//! Back-pressure by the in-flight window.

use super::*;

#[test]
fn full_is_followed_by_capacity_under_small_bounds() {
    let cluster = cluster(&[("t", 3)]);
    for (max_in_flight_records, max_in_flight_bytes) in [(1, 1 << 20), (3, 1 << 20), (1_000, 700)] {
        let options = KafkaOptions {
            max_in_flight_records,
            max_in_flight_bytes,
            ..KafkaOptions::default()
        };
        let proxy = Proxy::start(&cluster);
        let more = [("bootstrap.servers", &*proxy.servers()), ("linger.ms", "0")];
        // Nothing is reported until the window is full.
        proxy.withhold(PRODUCE);
        let (mut sink, reports) = sink_with(&cluster, options, &more);
        let headers = [Header {
            name: "id",
            value: Some(b"1"),
        }];
        for seq in 0..500_u64 {
            let value = vec![b'v'; (seq % 97) as usize];
            let record = Record {
                headers: &headers[..(seq % 2) as usize],
                ..record("t", b"k", &value)
            };
            let offered = sink.try_send(&record, seq);
            if offered == Err(SendError::Full) {
                proxy.release(PRODUCE);
                send(&mut sink, &reports, &record, seq);
            } else {
                assert_eq!(offered, Ok(()));
            }
            assert!(sink.in_flight() <= max_in_flight_records);
        }
        assert!(reports.capacity_calls() > 0, "it was never full");
        close_delivered(sink, &reports, 500);
    }
}

#[test]
fn a_record_larger_than_the_window_passes_when_nothing_is_in_flight() {
    let cluster = cluster(&[("t", 1)]);
    let options = KafkaOptions {
        max_in_flight_records: 10,
        max_in_flight_bytes: 1_000,
        ..KafkaOptions::default()
    };
    let (mut sink, reports) = sink_with(&cluster, options, &[]);
    let giant = vec![b'x'; 100_000];
    for seq in 0..6 {
        let value: &[u8] = if seq % 2 == 0 { b"small" } else { &giant };
        send(&mut sink, &reports, &record("t", b"k", value), seq);
    }
    close_delivered(sink, &reports, 6);
}
