//! How a sink ends: closing, dropping, and errors after which the producer is over.

use super::*;

#[test]
fn close_without_grace_reports_all_as_failed_while_the_broker_is_down() {
    let cluster = cluster(&[("t", 3)]);
    let (mut sink, reports) = sink(&cluster);
    // Connected first, so that records are queued for a partition and not only for a topic.
    send_first(&mut sink, &reports);
    cluster.broker_down(1).unwrap();
    for seq in 1..1_000 {
        let topic = if seq % 2 == 0 { "t" } else { "never-seen" };
        let key = seq.to_string();
        send(
            &mut sink,
            &reports,
            &record(topic, key.as_bytes(), b"v"),
            seq,
        );
    }
    let start = Instant::now();
    sink.close(Duration::ZERO);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    reports.assert_complete(1_000);
    let failures = reports.failures();
    assert_eq!(failures.len(), 999);
    assert!(
        failures
            .iter()
            .all(|error| error.disposition == Disposition::Retryable)
    );
}

#[test]
fn close_gives_up_after_the_grace_and_a_drop_at_once() {
    let cluster = cluster(&[("t", 3)]);
    // Answers come later than anybody waits.
    answers_after(&cluster, Duration::from_secs(20));
    for closes in [true, false] {
        let (mut sink, reports) = sink(&cluster);
        for seq in 0..100 {
            send(&mut sink, &reports, &record("t", b"k", b"v"), seq);
        }
        let start = Instant::now();
        if closes {
            sink.close(Duration::from_millis(300));
            assert!(start.elapsed() >= Duration::from_millis(300));
        } else {
            drop(sink);
        }
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        reports.assert_complete(100);
        assert_eq!(reports.failures().len(), 100);
    }
}

#[test]
fn requests_in_flight_are_given_up_too() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = sink(&cluster);
    send_first(&mut sink, &reports);
    answers_after(&cluster, Duration::from_secs(20));
    for seq in 1..50 {
        send(&mut sink, &reports, &record("t", b"k", b"v"), seq);
    }
    assert!(!ffi::flush(sink.client(), Duration::from_millis(200)));
    sink.close(Duration::ZERO);
    reports.assert_complete(50);
    assert!(
        reports
            .failures()
            .iter()
            .any(|error| error.reason.contains("flight")),
        "{:?}",
        reports.failures()
    );
}

#[test]
fn a_fatal_error_fails_what_is_in_flight_and_refuses_the_rest() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = sink(&cluster);
    send_first(&mut sink, &reports);
    answers_after(&cluster, Duration::from_secs(60));
    for seq in 1..50 {
        let topic = if seq % 2 == 0 { "t" } else { "never-seen" };
        send(&mut sink, &reports, &record(topic, b"k", b"v"), seq);
    }
    assert!(!ffi::flush(sink.client(), Duration::from_millis(200)));
    ffi::inject_fatal_error(sink.client());
    // Without closing anything.
    reports.wait_for(50);
    assert_ended(&mut sink);
    sink.close(LONG);
    reports.assert_complete(50);
}

#[test]
fn a_broker_that_lost_the_producers_state_ends_it_with_all_reported() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = sink(&cluster);
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER; 8],
    );
    let mut accepted = 0;
    for seq in 0..100 {
        match sink.try_send(&record("t", b"k", b"v"), seq) {
            Ok(()) => accepted += 1,
            Err(SendError::Refused(error)) => {
                assert_eq!(error.disposition, Disposition::Retryable);
                break;
            }
            Err(SendError::Full) => panic!("the window is large"),
        }
    }
    // Whether librdkafka finds a way on is its affair; that each is reported is ours.
    reports.wait_for(accepted);
    sink.close(LONG);
    reports.assert_complete(accepted);
}
