//! Answers of a server: none, a clock, or one that is larger than it should be.

use super::*;

#[test]
fn a_server_that_answers_nothing_is_shown() {
    for version in VERSIONS {
        let server = Server::start(version);
        let mut config = server.config(ROOMY);
        config.timeout = PATIENCE;
        let stats = Arc::<SinkStats>::default();
        let factory = HttpSinkFactory::new(config, Arc::clone(&stats));
        silence_is_shown(&server, "silence", (any_factory(factory), Some(stats)));
    }
}

#[test]
fn the_clock_of_a_receiver_is_compared() {
    for version in VERSIONS {
        let server = Server::reacting(version, None, |number, _| {
            let ahead = Duration::from_secs(100);
            let date = httpdate::fmt_http_date(std::time::SystemTime::now() + ahead);
            match number {
                0 => Reaction::Store(200),
                _ => Reaction::Answer(200, vec![("date", date)]),
            }
        });
        let mut sending = Sending::new(server.config(ROOMY));
        let offset = |sending: &Sending| sending.stats.clocks.offset();
        assert_eq!(offset(&sending), None);
        sending.send("k", "v", 0);
        assert_eq!(sending.report(0), Ok(()));
        assert_eq!(offset(&sending), Some(0.0), "{version:?}");
        sending.send("k", "v", 1);
        assert_eq!(sending.report(1), Ok(()));
        let found = offset(&sending).expect("it is known");
        assert!((90.0..=100.0).contains(&found), "{version:?}: {found}");
    }
}

/// A server of HTTP/2 that takes one request at a time, all of which take longer than the time-out together: each has
/// its own time, which starts with its stream, so none is sent again.
#[test]
fn a_request_of_http2_that_waits_for_its_stream_does_not_time_out() {
    const COUNT: u64 = 24;
    let pause = Duration::from_millis(250);
    for value in ["v", ""] {
        let receiver = HttpReceiver::with_streams(Some(1), None, move |_, _| {
            std::thread::sleep(pause);
            Reaction::Store(200)
        });
        let url = format!("http://{}/", receiver.address());
        let mut config = config(&url, HttpVersion::Two, ROOMY);
        config.max_in_flight = 100;
        config.timeout = pause * (COUNT as u32 / 2);
        let mut sending = Sending::new(config);
        // Its answer tells the client how many requests the server takes.
        sending.send("first", value, 0);
        assert_eq!(sending.report(0), Ok(()));
        for seq in 1..=COUNT {
            sending.send(&seq.to_string(), value, seq);
        }
        for seq in 1..=COUNT {
            assert_eq!(sending.report(seq), Ok(()));
        }
        assert_eq!(receiver.received().len() as u64, COUNT + 1, "each once");
    }
}

/// A server of HTTP/2 asks for answers without an end, and reads none. The client stops reading, so what it has to
/// answer stays with the server. Most of the bytes find no reader: the loop ends when nothing was taken for a while.
#[test]
fn answers_that_a_server_provokes_over_http2_are_bounded() {
    const TOTAL: usize = 256 << 20;
    // PING with eight bytes, and SETTINGS without any (RFC 9113, 6.5 and 6.7).
    for question in [
        &b"\0\0\x08\x06\0\0\0\0\0questionsss"[..17],
        &b"\0\0\0\x04\0\0\0\0\0"[..],
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut config = config(&format!("http://{address}/"), HttpVersion::Two, ROOMY);
        config.timeout = PATIENCE;
        let mut sending = Sending::new(config);
        sending.send("k", "v", 0);
        let (mut server, _) = listener.accept().expect("a connection");
        let wait = Some(Duration::from_secs(1));
        server.set_write_timeout(wait).expect("a time-out");
        server
            .write_all(b"\0\0\0\x04\0\0\0\0\0")
            .expect("the settings");
        let questions = question.repeat((1 << 20) / question.len());
        let mut taken = 0;
        while taken < TOTAL
            && let Ok(()) = server.write_all(&questions)
        {
            taken += questions.len();
        }
        assert!(taken < TOTAL, "all were taken");
        drop(server);
        Box::new(sending.sink).close(Duration::ZERO);
    }
}

#[test]
fn an_answer_with_too_many_header_fields_has_a_remedy() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut sending = Sending::new(config(
        &format!("http://{address}/"),
        HttpVersion::One,
        ROOMY,
    ));
    sending.send("k", "v", 0);
    let (mut server, _) = listener.accept().expect("a connection");
    // An answer that arrives before its request is another fault.
    BufReader::new(&server)
        .lines()
        .map(|line| line.expect("a line of the request"))
        .find(String::is_empty)
        .expect("the end of the head");
    let fields = "x-field: 1\r\n".repeat(300);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{fields}\r\n");
    server.write_all(head.as_bytes()).expect("an answer");
    eventually(PATIENCE, || sending.sink.waiting_for().is_some());
    let obstacle = sending.sink.waiting_for().unwrap();
    let remedy = obstacle.remedy.unwrap_or_default();
    assert!(remedy.contains("100 header fields"), "{remedy}");
    Box::new(sending.sink).close(Duration::ZERO);
}
