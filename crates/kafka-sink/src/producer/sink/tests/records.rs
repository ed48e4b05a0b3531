//! Single records: refused, or sent and read back unchanged.

use walrelay_sink::RecordKind;

use super::*;

/// `timestamp-zero` of docs/start/debezium.md: for librdkafka 0 means "now".
#[test]
fn the_timestamp_zero_is_sent_as_one() {
    let at = |timestamp_ms| Record {
        timestamp_ms,
        ..record("t", b"k", b"v")
    };
    for (given, sent) in [(Some(0), 1), (Some(1), 1), (Some(2), 2), (None, 0)] {
        assert_eq!(check_record(&at(given)).ok(), Some(sent), "{given:?}");
    }
}

#[test]
fn the_brokers_refusals_have_a_disposition() {
    use RDKafkaRespErr as E;
    for (error, disposition) in [
        (E::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, Fatal),
        (E::RD_KAFKA_RESP_ERR_POLICY_VIOLATION, Fatal),
        (E::RD_KAFKA_RESP_ERR_INVALID_RECORD, Fatal),
        (E::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, Retryable),
    ] {
        let cluster = cluster(&[("t", 1)]);
        let (mut sink, reports) = sink(&cluster);
        cluster.request_errors(RDKafkaApiKey::Produce, &[error]);
        send_first(&mut sink, &reports);
        let failures = reports.failures();
        assert_eq!(failures.len(), 1, "{error:?}");
        assert_eq!(failures[0].disposition, disposition, "{}", failures[0]);
        assert_eq!(&*failures[0].topic, "t");
        Box::new(sink).close(LONG);
    }
}

#[test]
fn invalid_records_are_refused_at_once() {
    let cluster = cluster(&[("t", 2)]);
    let (mut sink, reports) = sink(&cluster);
    let base = record("t", b"k", b"v");
    let topic = |topic| Record { topic, ..base };
    let partition = |partition| Record { partition, ..base };
    let nul = [Header {
        name: "a\0b",
        value: None,
    }];
    let with_nul = Record {
        headers: &nul,
        ..base
    };
    let before_1970 = Record {
        timestamp_ms: Some(-1),
        ..base
    };
    for (record, about) in [
        (topic(""), "empty"),
        (topic("."), "called"),
        (topic(".."), "called"),
        (topic("a b"), "' '"),
        (topic(&"x".repeat(250)), "250 bytes"),
        (
            record("t", b"k", &vec![0; 1_000_001]),
            "message.max.bytes is 1000000",
        ),
        (with_nul, "NUL"),
        (partition(Some(-1)), "no partition -1"),
        (before_1970, "1970"),
    ] {
        assert_refused(Fatal, &mut sink, &record, about);
    }
    // The number of partitions is known once the topic's metadata have arrived.
    send(&mut sink, &reports, &partition(Some(1)), 0);
    reports.wait_for(1);
    // Partitions can be added to the topic.
    let missing = partition(Some(2));
    assert_refused(Retryable, &mut sink, &missing, "no partition 2");
    wait_in_flight(&sink, 0);
    close_complete(sink, &reports, 1);
    assert_eq!(read(&cluster, &["t"], 1)[0].partition, 1);
}

#[test]
fn null_and_empty_are_distinguished_and_headers_keep_their_order() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = sink(&cluster);
    let headers = [
        ("id", Some(&b"42"[..])),
        ("empty", Some(&b""[..])),
        ("null", None),
        ("id", Some(&b"again"[..])),
        ("", Some(&b"\xff\0\x01"[..])),
    ]
    .map(|(name, value)| Header { name, value });
    for (seq, (key, value)) in [(None, None), (Some(&b""[..]), Some(&b""[..]))]
        .into_iter()
        .enumerate()
    {
        let record = Record {
            topic: "t",
            timestamp_ms: Some(1_700_000_000_123),
            key,
            value,
            headers: &headers,
            ..Record::default()
        };
        send(&mut sink, &reports, &record, seq as u64);
    }
    close_complete(sink, &reports, 2);
    let records = read(&cluster, &["t"], 2);
    assert_eq!((&records[0].key, &records[0].value), (&None, &None));
    assert_eq!(records[1].key.as_deref(), Some(&b""[..]));
    assert_eq!(records[1].value.as_deref(), Some(&b""[..]));
    for record in &records {
        assert_eq!(record.timestamp_ms, Some(1_700_000_000_123));
        let shown: Vec<(&str, Option<&[u8]>)> = record
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect();
        assert_eq!(shown, headers.map(|h| (h.name, h.value)));
        assert!(!format!("{record:?}").contains("42"));
    }
}

/// Such an event is poison, and a dead letter that cannot be written stops the relay.
#[test]
fn a_dead_letter_is_written_without_a_header_that_kafka_cannot_have() {
    let cluster = cluster(&[("t", 1)]);
    let (mut sink, reports) = sink(&cluster);
    let headers = ["a", "b\0c", "d"].map(|name| Header { name, value: None });
    let dead_letter = Record {
        kind: RecordKind::DeadLetter,
        headers: &headers,
        ..record("t", b"k", b"v")
    };
    send(&mut sink, &reports, &dead_letter, 0);
    close_complete(sink, &reports, 1);
    let records = read(&cluster, &["t"], 1);
    let names = records[0].headers.iter().map(|(name, _)| name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["a", "d"]);
}

#[test]
fn keys_go_where_javas_client_puts_them() {
    // From Kafka's own UtilsTest.testMurmur2.
    let published: [(&str, i32); 6] = [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        (
            "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
            -58_897_971,
        ),
        ("abc", 479_470_107),
    ];
    for (key, hash) in published {
        assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
    }
    let generated = (0..300).map(|i| format!("order-{i}"));
    let keys: Vec<String> = published
        .iter()
        .map(|(key, _)| (*key).to_owned())
        .chain(generated)
        .chain([String::new()])
        .collect();
    let cluster = cluster(&[("t", 7)]);
    let (mut sink, reports) = sink(&cluster);
    for (seq, key) in keys.iter().enumerate() {
        let record = record("t", key.as_bytes(), key.as_bytes());
        send(&mut sink, &reports, &record, seq as u64);
    }
    Box::new(sink).close(LONG);
    for record in read(&cluster, &["t"], keys.len()) {
        let key = record.key.expect("a key");
        assert_eq!(record.partition as u32, partition_of(&key, 7), "{key:?}");
    }
}

#[test]
fn the_embedded_broker_stores_and_returns_records() {
    let broker = crate::embedded::EmbeddedBroker::start(&[("demo", 3)]).expect("a broker");
    let config = config_at(broker.bootstrap_servers(), KafkaOptions::default(), &[]);
    let factory = KafkaSinkFactory::new(config).with_one_producer();
    let stats = factory.stats();
    let (mut sink, reports) = reporting(|reports| { factory }.create(None, reports));
    let mut tail = Tail::open(broker.bootstrap_servers(), &["demo"], LONG).expect("a tail");
    for seq in 0..10_u64 {
        send_seq(&mut sink, &reports, "demo", b"k", seq);
        let shown = next(&mut tail);
        assert_eq!(seq_in(&shown), seq);
        assert_eq!(shown.offset as u64, seq);
    }
    Box::new(sink).close(LONG);
    assert_eq!(stats.clocks.offset(), None, "it has no clock");
    // A broker that cannot be reached is an error.
    assert!(Tail::open("127.0.0.1:1", &["demo"], Duration::from_millis(200)).is_err());
}

/// A topic may take less than `batch.size`. Its first refusal of a batch is the last one.
#[test]
fn batches_are_smaller_after_a_refusal_for_their_size() {
    const RECORDS: u64 = 50;
    let cluster = cluster(&[("t", 1)]);
    let proxy = Proxy::start(&cluster);
    let config = config_of(&cluster, &[("bootstrap.servers", &proxy.servers())]);
    let mut factory = KafkaSinkFactory::new(config).with_one_producer();
    let mut send_all = || {
        let (mut sink, reports) = reporting(|reports| factory.create(None, reports));
        sink.assume_topic("t");
        // All records are queued when the first request is made.
        proxy.withhold(INIT_PRODUCER_ID);
        for seq in 0..RECORDS {
            send(
                &mut sink,
                &reports,
                &record("t", b"k", &[b'x'; 10_000]),
                seq,
            );
        }
        let before = proxy.requests(PRODUCE);
        proxy.release(INIT_PRODUCER_ID);
        reports.wait_for(RECORDS);
        close_complete(sink, &reports, RECORDS);
        (proxy.requests(PRODUCE) - before, reports.failures())
    };
    let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::Produce, &[too_large]);
    let (requests, failures) = send_all();
    assert_eq!((requests, failures.len() as u64), (1, RECORDS));
    for failure in failures {
        assert_eq!((failure.disposition, failure.poison), (Retryable, None));
        let expected = "batch.size = 100000 instead of 1000000";
        assert!(failure.reason.contains(expected), "{failure}");
    }
    let (requests, failures) = send_all();
    assert_eq!(failures, []);
    // Nine records fit into a batch.
    assert_eq!(requests, 6);
}

/// With batches as small as they may become, the records of a refused one are sent one by one.
#[test]
fn a_small_batch_that_is_refused_for_its_size_has_a_record_at_fault() {
    let cluster = cluster(&[("t", 1)]);
    let proxy = Proxy::start(&cluster);
    let more = [
        ("bootstrap.servers", &*proxy.servers()),
        ("batch.size", "16384"),
    ];
    let (mut sink, reports) = sink_of(&cluster, &more);
    sink.assume_topic("t");
    let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::Produce, &[too_large]);
    proxy.withhold(INIT_PRODUCER_ID);
    for seq in 0..2 {
        send_seq(&mut sink, &reports, "t", b"k", seq);
    }
    proxy.release(INIT_PRODUCER_ID);
    reports.wait_for(2);
    close_complete(sink, &reports, 2);
    for failure in reports.failures() {
        assert_eq!(failure.disposition, Fatal, "{failure}");
    }
}
