//! Topics and clusters that exist, are missing, or are to be created.

use std::net::TcpListener;

use super::*;
use crate::error::{CLOSED_AT_ONCE, NO_ANSWER};

#[test]
fn a_thousand_topics() {
    let cluster = cluster(&[]);
    let (mut sink, reports) = sink(&cluster);
    let topics: Vec<String> = (0..1_000).map(|i| format!("outbox.event.{i}")).collect();
    let mut seq = 0;
    for round in 0..5 {
        for topic in &topics {
            let value = round.to_string();
            let record = record(topic, b"k", value.as_bytes());
            send(&mut sink, &reports, &record, seq);
            seq += 1;
        }
    }
    close_delivered(sink, &reports, seq);
    let in_one = read(&cluster, &[&topics[500]], 5);
    let rounds: Vec<u64> = in_one.iter().map(seq_in).collect();
    assert_eq!(rounds, [0, 1, 2, 3, 4]);
}

fn creating(partitions: i32) -> KafkaOptions {
    KafkaOptions {
        topics: Some(TopicCreation {
            partitions,
            replication_factor: 1,
            properties: BTreeMap::new(),
        }),
        ..KafkaOptions::default()
    }
}

/// The mock cluster never answers a request to create a topic.
#[test]
fn with_creation_records_to_existing_topics_are_sent_and_those_to_a_missing_one_wait() {
    let cluster = cluster(&[("there", 2)]);
    let (mut sink, reports) = sink_with(&cluster, creating(2), &[]);
    send(&mut sink, &reports, &record("there", b"k", b"v"), 0);
    reports.wait_polling(&mut sink, 1);
    let missing = record("missing", b"k", b"v");
    assert_eq!(sink.try_send(&missing, 1), Ok(()));
    assert_eq!(sink.try_send(&missing, 2), Ok(()));
    // Other topics continue meanwhile, and closing does not wait for the response.
    send(&mut sink, &reports, &record("there", b"k", b"v"), 3);
    reports.wait_with(&mut sink, |state| state.is_delivered(3));
    close_soon(sink, HOUR);
    reports.assert_complete(4);
    assert_eq!(reports.failures().len(), 2, "given up");
}

#[test]
fn closing_does_not_wait_for_a_topic_that_is_never_created() {
    let cluster = cluster(&[]);
    cluster.broker_down(1).unwrap();
    let (mut sink, reports) = sink_with(&cluster, creating(1), &[]);
    let record = record("t", b"k", b"v");
    assert_eq!(sink.try_send(&record, 0), Ok(()));
    close_soon(sink, HOUR);
    reports.assert_complete(1);
}

/// Returns the error of a probe that is the expected one, or of the longest. A probe may last as
/// long as its timeout, and a busy machine needs a longer one.
fn probe_error(config: &KafkaConfig, expected: impl Fn(&KafkaError) -> bool) -> KafkaError {
    let mut timeout = Duration::from_secs(1);
    loop {
        let error = probe(config, timeout).expect_err("there is no such broker");
        if expected(&error) || timeout >= LONG {
            return error;
        }
        timeout *= 5;
    }
}

#[test]
fn a_probe_distinguishes_a_cluster_and_a_closed_port() {
    let cluster = cluster(&[("a", 1), ("b", 1)]);
    let found = probe(&config_of(&cluster, &[]), LONG).expect("a cluster");
    assert_eq!(found.brokers.len(), 1);
    assert_eq!(found.topics, 2);

    // No process listens on port 1.
    let address = "127.0.0.1:1";
    let unreachable = config_at(address, KafkaOptions::default(), &[]);
    match probe_error(&unreachable, |error| error.to_string().contains("refused")) {
        KafkaError::Unreachable { servers, detail } => {
            assert_eq!(servers, address);
            assert!(detail.contains("refused"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    // TLS to a port without TLS: the broker closes the connection.
    let tls = config_of(&cluster, &[("security.protocol", "ssl")]);
    let error = probe_error(&tls, |error| matches!(error, KafkaError::Tls { .. }));
    assert!(matches!(error, KafkaError::Tls { .. }), "{error:?}");
    assert_eq!(error.disposition(), Disposition::Configuration);
}

/// A port that takes connections, and closes them or answers nothing.
#[test]
fn a_probe_distinguishes_a_silent_port_and_one_that_closes_connections() {
    let detail = |listener: &TcpListener, expected: &str| {
        let address = listener.local_addr().expect("an address").to_string();
        let config = config_at(&address, KafkaOptions::default(), &[]);
        match probe_error(&config, |error| error.to_string().contains(expected)) {
            KafkaError::Unreachable { detail, .. } => detail,
            other => panic!("{other:?}"),
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    // The kernel accepts the connection, and nothing reads from it.
    let silent = detail(&listener, NO_ANSWER);
    assert!(silent.starts_with(NO_ANSWER), "{silent}");
    let other = listener.try_clone().expect("the same port");
    // Ends with the process.
    thread::spawn(move || other.incoming().for_each(drop));
    let closed = detail(&listener, CLOSED_AT_ONCE);
    assert!(closed.starts_with(CLOSED_AT_ONCE), "{closed}");
}

#[test]
fn a_missing_certificate_is_a_configuration_error_that_names_the_file() {
    let cluster = cluster(&[]);
    let missing = "/nonexistent/file.pem";
    for property in [
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.keystore.location",
        "ssl.crl.location",
    ] {
        let tls = [("security.protocol", "ssl"), (property, missing)];
        let reports: Arc<dyn Deliveries> = Arc::new(Reports::default());
        let error = KafkaSinkFactory::new(config_of(&cluster, &tls))
            .with_one_producer()
            .create(None, reports)
            .expect_err("no such file");
        assert!(matches!(error, KafkaError::Create { .. }), "{error:?}");
        for part in [property, missing, "No such file"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(
            KafkaSinkFactory::disposition(&error),
            Disposition::Configuration
        );
    }
}
