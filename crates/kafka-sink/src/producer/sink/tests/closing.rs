//! The end of a sink: closing, dropping, and errors that break the producer.

use rdkafka::ClientContext as _;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::producer::Producer as _;

use super::*;

#[test]
fn close_without_grace_reports_all_as_failed_while_the_broker_is_down() {
    let cluster = cluster(&[("t", 3)]);
    let (mut sink, reports) = sink(&cluster);
    // Connect first, so that records are queued for a partition and not only for a topic.
    send_first(&mut sink, &reports);
    cluster.broker_down(1).unwrap();
    for seq in 1..1_000 {
        let topic = if seq % 2 == 0 { "t" } else { "never-seen" };
        send_seq(&mut sink, &reports, topic, seq.to_string().as_bytes(), seq);
    }
    close_soon(sink, Duration::ZERO);
    reports.assert_complete(1_000);
    let failures = reports.failures();
    assert_eq!(failures.len(), 999);
    assert!(failures.iter().all(|error| error.disposition == Retryable));
}

#[test]
fn close_gives_up_after_the_grace_and_a_drop_at_once() {
    let cluster = cluster(&[("t", 3)]);
    // Responses come later than any wait of the test.
    answers_after(&cluster, HOUR);
    for closes in [true, false] {
        let (mut sink, reports) = sink(&cluster);
        for seq in 0..100 {
            send(&mut sink, &reports, &record("t", b"k", b"v"), seq);
        }
        ends("the sink is closed", move || {
            let start = Instant::now();
            if closes {
                Box::new(sink).close(Duration::from_millis(300));
                assert!(start.elapsed() >= Duration::from_millis(300));
            } else {
                drop(sink);
            }
        });
        reports.assert_complete(100);
        assert_eq!(reports.failures().len(), 100);
    }
}

#[test]
fn requests_in_flight_are_given_up() {
    let cluster = cluster(&[("t", 1)]);
    let proxy = Proxy::start(&cluster);
    let (mut sink, reports) = sink_through(&cluster, &proxy);
    send_first(&mut sink, &reports);
    proxy.withhold(PRODUCE);
    for seq in 1..50 {
        send(&mut sink, &reports, &record("t", b"k", b"v"), seq);
    }
    assert!(!ffi::flush(sink.client(), Duration::from_millis(200)));
    proxy.wait_unanswered(PRODUCE, 1);
    Box::new(sink).close(Duration::ZERO);
    reports.assert_complete(50);
    let failures = reports.failures();
    let in_flight = |error: &DeliveryError| error.reason.contains("flight");
    assert!(failures.iter().any(in_flight), "{failures:?}");
}

#[test]
fn a_fatal_error_fails_records_in_flight_and_refuses_further_ones() {
    let cluster = cluster(&[("t", 1)]);
    let proxy = Proxy::start(&cluster);
    let (mut sink, reports) = sink_through(&cluster, &proxy);
    send_first(&mut sink, &reports);
    proxy.withhold(PRODUCE);
    for seq in 1..50 {
        let topic = if seq % 2 == 0 { "t" } else { "never-seen" };
        send(&mut sink, &reports, &record(topic, b"k", b"v"), seq);
    }
    assert!(!ffi::flush(sink.client(), Duration::from_millis(200)));
    proxy.wait_unanswered(PRODUCE, 1);
    ffi::inject_fatal_error(sink.client());
    // All are reported before the sink is closed.
    reports.wait_for(50);
    assert_ended(&mut sink);
    close_complete(sink, &reports, 50);
}

/// librdkafka does not try again to start a broker's thread, so the relay must make a new producer.
#[test]
fn a_producer_without_a_thread_for_a_broker_is_given_up() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = sink(&cluster);
    send_first(&mut sink, &reports);
    let before = reports.capacity_calls();
    let error = ClientError::Global(RDKafkaErrorCode::CriticalSystemResource);
    let context = sink.client().context();
    context.error(error, "Unable to create broker thread");
    assert_ended(&mut sink);
    assert!(reports.capacity_calls() > before, "the relay is woken");
    close_complete(sink, &reports, 1);
}

#[test]
fn a_broker_that_lost_the_producers_state_ends_it_with_all_reported() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = sink(&cluster);
    sink.assume_topic("t");
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER; 8],
    );
    let mut accepted = 0;
    for seq in 0..100 {
        match sink.try_send(&record("t", b"k", b"v"), seq) {
            Ok(()) => accepted += 1,
            Err(SendError::Refused(error)) => {
                assert_eq!(error.disposition, Retryable);
                break;
            }
            Err(SendError::Full) => panic!("the window is large"),
        }
    }
    // librdkafka may recover or not; each record must be reported in either case.
    reports.wait_for(accepted);
    close_complete(sink, &reports, accepted);
}
