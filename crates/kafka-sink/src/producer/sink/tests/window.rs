//! Back-pressure by the window of what is in flight, and what a record costs.

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
        let (mut sink, reports) = sink_with(&cluster, options, &[("linger.ms", "0")]);
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
            send(&mut sink, &reports, &record, seq);
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

/// Prints what a record costs; asserts nothing about time.
#[test]
fn what_a_record_costs() {
    const RECORDS: u64 = 100_000;
    let all_headers = ["id", "type", "traceparent"].map(|name| Header {
        name,
        value: Some(b"0123456789abcdef0123456789abcdef"),
    });
    let payload = [b'x'; 300];
    let options = KafkaOptions {
        max_in_flight_records: RECORDS,
        max_in_flight_bytes: 1 << 30,
        ..KafkaOptions::default()
    };
    for (linger, headers) in [("0", 0), ("1", 0), ("1", 3), ("5", 0)] {
        let cluster = cluster(&[("t", 8)]);
        let (mut sink, reports) = sink_with(&cluster, options.clone(), &[("linger.ms", linger)]);
        let keys: Vec<String> = (0..1_000).map(|i| i.to_string()).collect();
        let key = |seq: u64| keys[(seq % 1_000) as usize].as_bytes();
        let record = |seq| Record {
            headers: &all_headers[..headers],
            ..record("t", key(seq), &payload)
        };
        let mut latencies = Vec::new();
        for seq in 0..200 {
            let start = Instant::now();
            send(&mut sink, &reports, &record(seq), seq);
            reports.wait(|state| state.outcomes.len() as u64 > seq);
            latencies.push(start.elapsed());
        }
        latencies.sort();
        let start = Instant::now();
        for seq in 200..RECORDS {
            send(&mut sink, &reports, &record(seq), seq);
        }
        let sent = start.elapsed();
        sink.close(LONG);
        println!(
            "linger {linger} ms, {headers} headers: try_send {} ns a record, {} k/s to the last \
             report, one alone takes {:?} (median)",
            sent.as_nanos() / u128::from(RECORDS),
            u128::from(RECORDS) / start.elapsed().as_millis().max(1),
            latencies[latencies.len() / 2],
        );
        reports.assert_complete(RECORDS);
    }
}
