//! Events that are refused for good, and destinations that stay unavailable.

use super::*;

#[test]
fn a_status_that_hits_every_event_stops_the_pipeline() {
    for (status, words) in [
        (410, "the endpoint is gone"),
        (401, "correct token"),
        (403, "correct token"),
        (404, "correct url"),
        (302, "no redirect is followed"),
    ] {
        let server = Server::reacting(HttpVersion::One, None, move |_, _| {
            Reaction::Answer(status, vec![("location", "http://127.0.0.1:1/".to_owned())])
        });
        let url = format!("http://{}/hooks", server.address());
        let mut sending = Sending::new(config(&url, HttpVersion::One, ROOMY));
        sending.send("k", "confidential", 0);
        sending.send("k", "confidential", 1);
        let error = sending.report(0).unwrap_err();
        assert_eq!(
            (error.disposition, error.poison),
            (Disposition::Configuration, None)
        );
        assert!(error.reason.contains(words), "{error}");
        assert!(!error.reason.contains("confidential"), "{error}");
        assert_eq!(sending.report(1).unwrap_err().poison, None);
        assert_eq!(server.received().len(), 1, "{status}");
    }
}

#[test]
fn a_refused_event_is_poison_after_it_was_tried_for_a_while() {
    for (status, poison) in [(422, Poison::Rejected), (413, Poison::Oversize)] {
        let server = Server::reacting(HttpVersion::One, None, move |_, received| match &*received
            .body
        {
            b"bad" => Reaction::Answer(status, Vec::new()),
            _ => Reaction::Store(200),
        });
        let mut config = server.config(ROOMY);
        config.options.retry_for = Duration::from_millis(200);
        let mut sending = Sending::new(config);
        sending.send("k", "bad", 0);
        sending.send("k", "behind", 1);
        let error = sending.report(0).unwrap_err();
        assert_eq!(
            (error.disposition, error.poison),
            (Disposition::Fatal, Some(poison))
        );
        assert!(server.received().len() > 1, "it was sent once");
        assert_eq!(server.bodies(), <[&str; 0]>::default());
        let withdrawn = sending.sink.withdraw(0, false);
        assert_eq!(withdrawn.len(), 1);
        assert_eq!(sending.report(1), Ok(()), "its key goes on");
        assert_eq!(server.bodies(), ["behind"]);
    }
}

/// Judged by what the server has received, which no load disturbs.
#[test]
fn a_refused_event_costs_no_other_one_a_repeat_and_its_key_one_retry_for() {
    for version in VERSIONS {
        let server = Server::reacting(version, None, |_, received| {
            if received.body.starts_with(b"bad") {
                Reaction::Answer(422, Vec::new())
            } else {
                Reaction::Store(200)
            }
        });
        let mut config = server.config(ROOMY);
        config.options.retry_for = Duration::from_millis(300);
        let mut sending = Sending::new(config);
        for seq in 0..10 {
            sending.send("k", &format!("bad {seq}"), seq);
        }
        for seq in 10..410 {
            sending.send(&format!("other {}", seq % 40), &format!("good {seq}"), seq);
        }
        for seq in 0..10 {
            assert!(sending.report(seq).is_err());
            assert_eq!(sending.sink.withdraw(seq, false).len(), 1);
        }
        for seq in 10..410 {
            assert_eq!(sending.report(seq), Ok(()));
        }
        let mut times = std::collections::BTreeMap::<Vec<u8>, usize>::new();
        for received in server.received() {
            *times.entry(received.body).or_default() += 1;
        }
        assert!(times.remove(&b"bad 0"[..]) > Some(1));
        let more: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
        assert_eq!((times.len(), more.len()), (409, 0), "{version:?}: {more:?}");
    }
}

/// A tenant's address answers with this, and another one's names no host.
#[test]
fn an_address_that_a_row_has_chosen_stops_no_other_one() {
    for (status, headers) in [
        (404, None),
        (410, None),
        (401, None),
        (403, None),
        (302, Some(("location", "/elsewhere"))),
        (503, Some(("retry-after", "300"))),
        (503, None),
    ] {
        let server = Server::reacting(HttpVersion::One, None, move |_, received| {
            if received.path.starts_with("/bad") {
                let headers = headers.map(|(name, value)| (name, value.to_owned()));
                Reaction::Answer(status, headers.into_iter().collect())
            } else {
                Reaction::Store(200)
            }
        });
        let url = format!("http://{}/{{tenant}}", server.address());
        let mut config = config(&url, HttpVersion::One, ROOMY);
        config.options.retry_for = Duration::from_millis(300);
        config.options.max_retrying_keys = 2;
        config.max_in_flight = 4;
        let mut sending = Sending::new(config);
        let url = |tenant: &str| format!("http://{}/{tenant}", server.address());
        for seq in 0..20 {
            sending.send_to(&url("bad"), seq);
        }
        for seq in 20..60 {
            sending.send_to(&url(&format!("good{}", seq % 3)), seq);
        }
        for seq in 20..60 {
            assert_eq!(sending.report(seq), Ok(()), "{status}");
        }
        assert_eq!(server.stored().len(), 40, "{status}");
        if status == 503 {
            assert_eq!(sending.reports.failures(), [], "it may pass");
            continue;
        }
        for seq in 0..20 {
            let error = sending.report(seq).unwrap_err();
            assert_eq!(error.poison, Some(Poison::Rejected), "{status}");
        }
    }
}

/// With `unavailable_for`, a destination that stays away becomes poison, and does not fill the window for ever.
#[test]
fn a_destination_that_stays_unavailable_is_given_up_if_the_user_says_so() {
    let server = Server::reacting(HttpVersion::One, None, |_, received| {
        if received.path.starts_with("/busy") {
            Reaction::Answer(503, Vec::new())
        } else {
            Reaction::Store(200)
        }
    });
    let nobody = TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("its address");
    let mut config = config("http://{address}/{path}", HttpVersion::One, ROOMY);
    config.allow_private = true;
    config.unavailable_for = Some(Duration::from_millis(300));
    config.max_in_flight = 8;
    let mut sending = Sending::new(config);
    for seq in 0..20 {
        let url = match seq % 2 {
            0 => format!("http://{nobody}/gone"),
            _ => format!("http://{}/busy", server.address()),
        };
        sending.send_to(&url, seq);
    }
    for seq in 20..60 {
        sending.send_to(&format!("http://{}/good", server.address()), seq);
        assert_eq!(sending.report(seq), Ok(()));
    }
    for seq in 0..20 {
        let error = sending.report(seq).unwrap_err();
        assert_eq!(error.poison, Some(Poison::Rejected), "{error}");
        assert!(error.reason.contains("unavailable_for"), "{error}");
    }
    assert_eq!(server.stored().len(), 40);
}

/// Each refused event is an answer, so the destination is not away, though no event succeeds. A dead letter waits.
#[test]
fn a_destination_that_answers_and_one_of_dead_letters_are_not_given_up() {
    let answers = AtomicUsize::new(0);
    let server = Server::reacting(HttpVersion::One, None, move |_, received| {
        let is_away =
            received.path.starts_with("/dead") || answers.fetch_add(1, Relaxed).is_multiple_of(2);
        Reaction::Answer(if is_away { 503 } else { 422 }, Vec::new())
    });
    let url = format!("http://{}/{{tenant}}", server.address());
    let mut config = config(&url, HttpVersion::One, ROOMY);
    config.allow_private = true;
    config.unavailable_for = Some(Duration::from_millis(200));
    config.options.retry_for = Duration::from_millis(800);
    let dead = format!("http://{}/dead/{{topic}}", server.address());
    config.dead_letter_url = Some(UrlTemplate::parse_of_topic(&dead).expect("a URL"));
    let mut sending = Sending::new(config);
    sending.send_to(&format!("http://{}/a", server.address()), 0);
    let dead_letter = Record {
        topic: "t",
        kind: RecordKind::DeadLetter,
        position: EventPosition::in_first_epoch(16, 1),
        ..Record::default()
    };
    sending.sink.try_send(&dead_letter, 1).expect("accepted");
    let error = sending.report(0).unwrap_err();
    assert!(error.reason.contains("422"), "{error}");
    assert_eq!(sending.reports.failures().len(), 1, "the dead letter waits");
}

#[test]
fn hosts_that_do_not_resolve_stop_no_other_one() {
    let server = Server::start(HttpVersion::One);
    let url = format!("http://{{host}}:{}/", server.address().port());
    let mut config = config(&url, HttpVersion::One, ROOMY);
    config.allow_private = true;
    config.max_in_flight = 4;
    let mut sending = Sending::new(config);
    let url = |host: &str| format!("http://{host}:{}/", server.address().port());
    for seq in 0..120 {
        sending.send_to(&url(&format!("tenant-{seq}.invalid")), seq);
    }
    for seq in 120..160 {
        sending.send_to(&url("localhost"), seq);
    }
    for seq in 120..160 {
        assert_eq!(sending.report(seq), Ok(()));
    }
    for seq in 0..120 {
        let error = sending.report(seq).unwrap_err();
        assert_eq!(error.poison, Some(Poison::Unroutable));
        assert!(!error.reason.contains("check url"), "{error}");
    }
}
