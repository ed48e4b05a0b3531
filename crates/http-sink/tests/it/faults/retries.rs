//! Requests that are sent again: after a refusal that may pass, a pause that the server asks for, or a lost connection.

use super::*;

#[test]
fn what_may_pass_is_sent_again_under_the_same_id_and_in_order() {
    for version in VERSIONS {
        let server = Server::reacting(version, None, |number, _| match number {
            0 => Reaction::Answer(500, Vec::new()),
            1 => Reaction::Answer(503, vec![("retry-after", "0".to_owned())]),
            2 => Reaction::Answer(408, Vec::new()),
            3 => Reaction::Break,
            _ => Reaction::Store(202),
        });
        let mut sending = Sending::new(server.config(ROOMY));
        sending.send("k", "first", 0);
        sending.send("k", "second", 1);
        assert_eq!(sending.report(1), Ok(()));
        assert_eq!(sending.report(0), Ok(()));
        let sent = ids(&server.received());
        let (last, first) = sent.split_last().unwrap();
        assert_eq!(last, "10-1");
        assert!(
            first.len() == 5 && first.iter().all(|id| id == "10-0"),
            "{sent:?}"
        );
        assert_eq!(server.bodies(), ["first", "first", "second"]);
        let endpoint = sending.stats.endpoints().pop().unwrap();
        assert_eq!(&*endpoint.state, "UP");
        assert!(endpoint.retries >= 3, "{endpoint:?}");
        assert_eq!(endpoint.name, server.address().to_string());
    }
}

#[test]
fn an_answer_that_does_not_come_holds_back_its_key_alone() {
    for version in VERSIONS {
        let server = Server::reacting(version, None, |_, received| match &*received.body {
            b"stuck" => Reaction::Never,
            _ => Reaction::Store(200),
        });
        let mut sending = Sending::new(server.config(ROOMY));
        sending.send("a", "stuck", 0);
        sending.send("a", "behind", 1);
        for seq in 2..10 {
            sending.send("b", "other", seq);
        }
        assert_eq!(sending.report(9), Ok(()));
        eventually(PATIENCE, || sending.sink.waiting_for().is_some());
        let obstacle = sending.sink.waiting_for().unwrap();
        assert_eq!(obstacle.disposition, Disposition::Retryable);
        assert!(
            obstacle.what.contains("no answer came within 2s"),
            "{obstacle:?}"
        );
        assert!(
            sending.reports.is(|state| !state.outcomes.contains_key(&1)),
            "it passed the first of its key"
        );
        Box::new(sending.sink).close(Duration::ZERO);
        let error = sending.reports.outcome(0).unwrap_err();
        assert_eq!(
            (error.disposition, error.poison),
            (Disposition::Retryable, None)
        );
        assert!(!server.bodies().contains(&"behind".to_owned()));
    }
}

#[test]
fn retry_after_is_waited_for_and_bounded() {
    let answers = ["1".to_owned(), "3600".to_owned()];
    for (asked, least, most) in [
        (&answers[0], 1_000, 3_600_000),
        (&answers[1], 200, 3_600_000),
    ] {
        let asked = asked.clone();
        let server = Server::reacting(HttpVersion::One, None, move |number, _| match number {
            0 => Reaction::Answer(429, vec![("retry-after", asked.clone())]),
            _ => Reaction::Store(200),
        });
        let mut config = server.config(ROOMY);
        if least < 1_000 {
            config.retry_after_max = Duration::from_millis(200);
        }
        let begun = Instant::now();
        let mut sending = Sending::new(config);
        sending.send("k", "v", 0);
        // Bounded: it comes within the patience of the test and not after an hour.
        assert_eq!(sending.report(0), Ok(()));
        let taken = begun.elapsed();
        assert!(taken >= Duration::from_millis(least), "{taken:?}");
        assert!(taken < Duration::from_millis(most), "{taken:?}");
    }
}

#[test]
fn retry_after_holds_back_the_other_events_of_its_server_alone() {
    let answer = |number| match number {
        0 => Reaction::Answer(503, vec![("retry-after", "2".to_owned())]),
        _ => Reaction::Store(200),
    };
    for of_dead_letters in [false, true] {
        let server = Server::reacting(HttpVersion::One, None, move |number, _| {
            answer(number + usize::from(of_dead_letters))
        });
        let dead_letters =
            Server::reacting(HttpVersion::One, None, move |number, _| answer(number));
        let mut config = server.config(ROOMY);
        config.max_in_flight = 1;
        config.dead_letter_url = Some(UrlTemplate::parse(&dead_letters.url()).unwrap());
        let mut sending = Sending::new(config);
        let kind = if of_dead_letters {
            RecordKind::DeadLetter
        } else {
            RecordKind::Event
        };
        let record = Record {
            kind,
            topic: "t",
            key: Some(b"a"),
            ..Record::default()
        };
        let begun = Instant::now();
        sending.sink.try_send(&record, 0).expect("accepted");
        sending.send("b", "other", 1);
        assert_eq!(sending.report(1), Ok(()));
        let waited = begun.elapsed() >= Duration::from_secs(2);
        let asker_is_done = sending.reports.is(|state| state.outcomes.contains_key(&0));
        assert_eq!(sending.report(0), Ok(()));
        if of_dead_letters {
            assert!(!asker_is_done, "the event waited for the dead letter");
        } else {
            assert!(waited, "the event was sent during the pause");
        }
    }
}

#[test]
fn all_keys_wait_once_so_many_are_sent_again() {
    let opened = Arc::new(AtomicBool::new(false));
    let reacting = Arc::clone(&opened);
    let server = Server::reacting(HttpVersion::One, None, move |_, received| {
        if received.body == b"bad" && !reacting.load(Relaxed) {
            Reaction::Answer(500, Vec::new())
        } else {
            Reaction::Store(200)
        }
    });
    let mut config = server.config(ROOMY);
    config.options.max_retrying_keys = 2;
    config.max_in_flight = 1;
    let mut sending = Sending::new(config);
    sending.send("a", "bad", 0);
    sending.send("b", "good", 1);
    assert_eq!(sending.report(1), Ok(()), "one key alone is held back");
    sending.send("c", "bad", 2);
    let tried = |body: &[u8]| {
        let received = server.received();
        received.iter().filter(|it| it.body == body).count()
    };
    eventually(PATIENCE, || sending.stats.endpoints()[0].retries >= 6);
    sending.send("d", "behind", 3);
    let before = tried(b"bad");
    eventually(PATIENCE, || tried(b"bad") >= before + 6);
    assert_eq!(tried(b"behind"), 0);
    opened.store(true, Relaxed);
    for seq in [0, 2, 3] {
        assert_eq!(sending.report(seq), Ok(()));
    }
}

#[test]
fn a_connection_that_was_closed_while_idle_is_replaced_and_a_slow_body_delays_nothing() {
    for version in VERSIONS {
        let server = Server::reacting(version, None, |_, received| match &*received.body {
            b"slow" => Reaction::SlowBody,
            _ => Reaction::Store(200),
        });
        let mut sending = Sending::new(server.config(ROOMY));
        for (seq, value) in ["a", "slow", "b"].into_iter().enumerate() {
            sending.send("k", value, seq as u64);
            assert_eq!(sending.report(seq as u64), Ok(()));
            server.end_connections();
        }
        assert_eq!(server.bodies(), ["a", "slow", "b"]);
    }
}
