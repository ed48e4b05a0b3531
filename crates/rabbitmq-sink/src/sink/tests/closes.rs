//! Channels that the server closes, and exchanges that accept no message.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[track_caller]
fn assert_rejected(error: &DeliveryError, reason: &str) {
    assert_eq!(error.poison, Some(Poison::Rejected), "{error}");
    // The exchange is at fault.
    assert_eq!(error.disposition, Disposition::Configuration);
    assert!(error.reason.contains(reason), "{error}");
}

#[test]
fn a_missing_exchange_is_asked_for_and_never_published_to() {
    let server = Scripted::start(ack);
    lock(&server.missing).insert("none".to_owned());
    let mut under = Under::new(&server);
    for (exchange, key) in [("e", "a"), ("none", "b"), ("e", "c"), ("none", "d")] {
        under.send(exchange, key, 1).unwrap();
    }
    let failures = under.settled();
    assert_eq!(failures.keys().copied().collect::<Vec<_>>(), [1, 3]);
    for error in failures.values() {
        assert_rejected(error, "there is no such exchange");
    }
    assert_eq!(server.bodies(), ["a-1", "c-1"], "nothing is repeated");
    assert_eq!(lock(&server.logins).len(), 1);
}

#[test]
fn events_of_a_missing_exchange_wait_and_others_go_on() {
    let server = Scripted::start(ack);
    lock(&server.missing).insert("none".to_owned());
    let mut under = Under::with(server.login(), with_patience(HOUR));
    for number in 0..20 {
        under.send("none", &format!("n{number}"), 0).unwrap();
        under.send("e", &format!("e{number}"), 0).unwrap();
    }
    under.reports.wait_for(20);
    let asked = |count: usize| {
        let questions = lock(&server.questions);
        questions.iter().filter(|name| *name == "none").count() >= count
    };
    eventually(PATIENCE, || asked(3));
    let what = under.obstacle().unwrap();
    assert!(what.contains("\"none\" does not exist"), "{what}");
    lock(&server.missing).clear();
    assert!(under.settled().is_empty());
    assert!(counts(&server).values().all(|count| *count == 1));
    assert_eq!(under.obstacle(), None);
}

#[test]
fn ten_events_of_a_missing_exchange_take_one_patience() {
    let retry_for = Duration::from_millis(300);
    let server = Scripted::start(ack);
    lock(&server.missing).insert("none".to_owned());
    let mut under = Under::with(server.login(), with_patience(retry_for));
    let start = std::time::Instant::now();
    for number in 0..10 {
        under.send("none", "same", number).unwrap();
        under.send("e", "good", number).unwrap();
    }
    for seq in (0..20).step_by(2) {
        assert_rejected(&under.reports.outcome(seq).unwrap_err(), "no such exchange");
        // As the relay does.
        let withdrawn = under.sink.withdraw(seq, false);
        assert_eq!(withdrawn.len(), 1);
    }
    let took = start.elapsed();
    assert!(took >= retry_for && took < 8 * retry_for, "{took:?}");
    assert_eq!(under.settled().len(), 10);
    assert_eq!(server.bodies().len(), 10);
}

/// Refuses messages to an exchange as RabbitMQ does: it closes the channel, and loses the answers to
/// the others.
fn closing_for(
    exchange: &str,
    code: u16,
    text: String,
    is_refused: Arc<AtomicBool>,
) -> impl FnMut(&Published, &mut Vec<u8>) + Send + use<> {
    let exchange = exchange.to_owned();
    let mut has_closed = false;
    move |message, out| {
        if message.exchange == exchange && is_refused.load(Ordering::Relaxed) {
            has_closed = true;
            message.close_channel(out, code, &text);
        } else if has_closed {
            ack(message, out);
        }
    }
}

/// The names quote others, and the text of the server quotes the names.
#[test]
fn the_exchange_at_fault_is_found_whatever_its_name_is() {
    for name in [
        "none",
        "none' in vhost '/', and exchange 'e",
        "x' access to topic '",
        "x' message size 'e",
    ] {
        for (code, text, reason) in [
            (
                404,
                format!("NOT_FOUND - no exchange '{name}' in vhost '/'"),
                "no such exchange",
            ),
            (
                403,
                format!(
                    "ACCESS_REFUSED - access to exchange '{name}' in vhost '/' refused for user 'u'"
                ),
                "may not write",
            ),
        ] {
            let is_refused = Arc::new(AtomicBool::new(true));
            let server = Scripted::start(closing_for(name, code, text, is_refused));
            let mut under = Under::new(&server);
            for (exchange, key) in [("e", "a"), ("f", "b"), (name, "c"), ("e", "d"), (name, "g")] {
                under.send(exchange, key, 1).unwrap();
            }
            let failures = under.settled();
            assert_eq!(
                failures.keys().copied().collect::<Vec<_>>(),
                [2, 4],
                "{name}"
            );
            for error in failures.values() {
                assert_rejected(error, reason);
            }
            // What was in flight on the channel is repeated once.
            assert!(counts(&server).values().all(|count| *count <= 2), "{name}");
            assert_eq!(lock(&server.logins).len(), 1);
        }
    }
}

#[test]
fn a_right_that_is_missing_holds_back_its_exchange_only() {
    let is_refused = Arc::new(AtomicBool::new(true));
    let text = "ACCESS_REFUSED - access to exchange 'denied' in vhost '/' refused for user 'u'";
    let react = closing_for("denied", 403, text.to_owned(), Arc::clone(&is_refused));
    let server = Scripted::start(react);
    let mut under = Under::with(server.login(), with_patience(HOUR));
    for number in 0..10 {
        under.send("e", &format!("e{number}"), 0).unwrap();
        under.send("denied", &format!("d{number}"), 0).unwrap();
    }
    under.reports.wait_for(10);
    let before = server.bodies().len();
    for number in 10..200 {
        under.send("e", &format!("e{number}"), 0).unwrap();
    }
    under.reports.wait_for(200);
    let tried = || {
        server
            .bodies()
            .iter()
            .filter(|it| it.starts_with('d'))
            .count()
    };
    let tried_before = tried();
    eventually(PATIENCE, || tried() > tried_before + 2);
    let what = under.obstacle().unwrap();
    assert!(
        what.contains("may not write to the exchange \"denied\""),
        "{what}"
    );
    let counted = counts(&server);
    let repeats = (0..200).map(|number| counted[&format!("e{number}-0")] - 1);
    assert!(
        repeats.sum::<usize>() <= before,
        "those of one channel, once"
    );
    assert!((10..200).all(|number| counted[&format!("e{number}-0")] == 1));
    is_refused.store(false, Ordering::Relaxed);
    assert!(under.settled().is_empty());
    assert_eq!(lock(&server.logins).len(), 1);
}

#[test]
fn a_closed_channel_repeats_none_of_the_messages_of_others() {
    let mut held: Vec<Published> = Vec::new();
    let server = Scripted::start(move |message, out| {
        held.push(message.clone());
        if held.len() > 9 {
            if message.exchange == "none" {
                message.close_channel(out, 404, "NOT_FOUND - no exchange");
            } else {
                ack(message, out);
            }
        } else if held.len() == 9 {
            let bad = held.iter().find(|it| it.exchange == "none").unwrap();
            for other in held.iter().filter(|it| it.channel != bad.channel) {
                ack(other, out);
            }
            bad.close_channel(out, 404, "NOT_FOUND - no exchange");
        }
    });
    let settings = Settings {
        channels: 3,
        ..settings()
    };
    let mut under = Under::with(server.login(), settings);
    // Both exist at first, and all are published after that is known.
    for exchange in ["e", "none"] {
        under.send(exchange, "first", 0).unwrap();
    }
    eventually(PATIENCE, || server.bodies().len() == 2);
    for number in 2..9 {
        under.send("e", &format!("k{number}"), 0).unwrap();
    }
    let failures = under.settled();
    assert_eq!(failures.keys().copied().collect::<Vec<_>>(), [1]);
    assert_rejected(&failures[&1], "there is no such exchange");
    let published = lock(&server.published);
    let mut channels: BTreeMap<u16, usize> = BTreeMap::new();
    for message in published.iter().take(9) {
        *channels.entry(message.channel).or_default() += 1;
    }
    assert_eq!(channels.into_values().collect::<Vec<_>>(), [3, 3, 3]);
    // Three of the closed one, once more.
    assert_eq!(published.len(), 12);
}

#[test]
fn a_message_that_closes_the_channel_is_found_by_sending_each_alone() {
    for (code, text, poison) in [
        (
            406,
            "PRECONDITION_FAILED - message size 9 is larger",
            Poison::Oversize,
        ),
        (
            406,
            "PRECONDITION_FAILED - invalid expiration 'message size secret-route'",
            Poison::Rejected,
        ),
        (
            403,
            "ACCESS_REFUSED - access to topic 'secret-route' in exchange 'e' in vhost '/' refused",
            Poison::Rejected,
        ),
    ] {
        let mut has_closed = false;
        let server = Scripted::start(move |message, out| {
            if message.body.starts_with(b"bad") {
                has_closed = true;
                message.close_channel(out, code, text);
            } else if has_closed {
                ack(message, out);
            }
        });
        let mut under = Under::new(&server);
        for key in ["a", "b", "bad", "c", "d"] {
            under.send("e", key, 1).unwrap();
        }
        let failures = under.settled();
        let error = &failures[&2];
        assert_eq!(error.poison, Some(poison), "{error}");
        assert!(!error.to_string().contains("secret-route"), "{error}");
        assert_eq!(failures.len(), 1, "the others are sent again: {failures:?}");
        assert!(counts(&server).values().all(|count| *count <= 2));
        // The size that the server refuses is known.
        if poison == Poison::Oversize {
            let before = server.bodies().len();
            assert_eq!(under.sink.withdraw(2, false).len(), 1);
            under.send("e", "bad", 22).unwrap();
            assert_eq!(under.settled().len(), 2);
            assert_eq!(server.bodies().len(), before);
        }
    }
}

#[test]
fn a_routing_key_without_a_right_repeats_the_messages_of_one_channel_once() {
    let mut has_closed = false;
    let server = Scripted::start(move |message, out| {
        if message.routing_key == "denied" {
            has_closed = true;
            let text = "ACCESS_REFUSED - access to topic 'denied' in exchange 'e' refused";
            message.close_channel(out, 403, text);
        } else if has_closed {
            ack(message, out);
        }
    });
    let mut under = Under::new(&server);
    for number in 0..100 {
        let route = if number % 10 == 5 { "denied" } else { "r" };
        let key = format!("{route}{number}");
        under.send_by(("e", route), &key, number).unwrap();
        if number == 49 {
            // The first channel is closed, and why is known.
            under.settled();
        }
    }
    let failures = under.settled();
    assert_eq!(failures.len(), 10);
    assert!(
        failures
            .values()
            .all(|error| error.poison == Some(Poison::Rejected))
    );
    let counted = counts(&server);
    let of_good = |range: std::ops::Range<u64>| {
        let good = range.filter(|number| number % 10 != 5);
        good.map(|number| counted[&format!("r{number}-{number}")])
            .max()
    };
    assert!(of_good(0..50) <= Some(2));
    assert_eq!(of_good(50..100), Some(1));
}

/// A queue without a majority confirms nothing, and a message to it is no reason to hold back others.
#[test]
fn a_message_that_is_accepted_and_not_confirmed_clears_its_exchange() {
    let first = Arc::new(Mutex::new(true));
    let server = Scripted::start({
        let first = Arc::clone(&first);
        move |message, out| {
            if message.exchange == "bad" && std::mem::take(&mut *lock(&first)) {
                message.close_channel(out, 404, "NOT_FOUND - no exchange 'e'");
            } else if message.exchange != "slow" {
                ack(message, out);
            }
        }
    });
    let mut under = Under::new(&server);
    for (exchange, key) in [("slow", "a"), ("slow", "b"), ("bad", "c")] {
        under.send(exchange, key, 1).unwrap();
    }
    // Its second attempt is accepted.
    under.reports.outcome(2).unwrap();
    eventually(PATIENCE, || counts(&server).get("b-1") == Some(&2));
}
