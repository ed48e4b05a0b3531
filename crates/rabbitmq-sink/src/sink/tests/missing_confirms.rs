//! Messages without a confirm.

use std::thread;
use std::time::Instant;

use super::*;

/// The longest wait for a confirm in these tests. No load makes an answer take so long.
const LIMIT: Duration = Duration::from_secs(2);

fn limited() -> Settings {
    Settings {
        confirm: LIMIT,
        ..settings()
    }
}

/// Sends an answer to the message with this body that was published last.
fn push_ack(server: &Scripted, body: &str) {
    let mut frames = Vec::new();
    eventually(PATIENCE, || {
        let published = lock(&server.published);
        let last = published.iter().rfind(|it| it.body == body.as_bytes());
        last.is_some_and(|message| {
            frames.clear();
            ack(message, &mut frames);
            true
        })
    });
    server.push.try_send(frames).unwrap();
}

/// Closes the connection, as a server does that an operator stops.
fn push_close(server: &Scripted) {
    let mut frames = Vec::new();
    put_method(&mut frames, 0, (10, 50), |out| {
        out.extend_from_slice(&320_u16.to_be_bytes());
        put_short(out, b"CONNECTION_FORCED");
        out.extend_from_slice(&[0; 4]);
    });
    server.push.try_send(frames).unwrap();
}

#[test]
fn a_server_that_confirms_others_is_not_given_up_and_the_one_that_waits_is_shown() {
    const COUNT: u64 = 30;
    let server = Scripted::start(|_, _| ());
    let mut under = Under::with(server.login(), limited());
    under.send("slow", "slow", 0).unwrap();
    for number in 0..COUNT {
        under.send("e", &format!("k{number}"), 0).unwrap();
    }
    // A queue that is slow, in all slower than the limit.
    let pace = 2 * LIMIT / COUNT as u32;
    for number in 0..COUNT {
        thread::sleep(pace);
        push_ack(&server, &format!("k{number}-0"));
        assert_eq!(under.reports.outcome(number + 1), Ok(()));
    }
    let what = under.obstacle().unwrap();
    assert!(what.contains("exchange \"slow\" has no confirm"), "{what}");
    assert_eq!(lock(&server.logins).len(), 1);
    assert_eq!(
        server.bodies().len() as u64,
        COUNT + 1,
        "nothing is repeated"
    );
    // Nothing else is in flight, and the server says nothing.
    eventually(PATIENCE, || server.bodies().len() as u64 == COUNT + 2);
    assert_eq!(server.bodies().last().unwrap(), "slow-0");
    push_ack(&server, "slow-0");
    assert!(under.settled().is_empty());
    eventually(PATIENCE, || under.obstacle().is_none());
}

/// A queue that stands, behind an exchange that has others too, with a server that may lose messages to streams.
#[test]
fn confirmed_messages_behind_one_that_is_not_are_repeated_once_at_most() {
    const COUNT: u64 = 50;
    let server = Scripted::start(|message, out| {
        if !message.body.starts_with(b"stuck") {
            ack(message, out);
        }
    });
    let settings = Settings {
        confirm: LIMIT / 4,
        ..settings()
    };
    let mut under = Under::with(server.login(), settings);
    under.send("e", "stuck", 0).unwrap();
    for number in 0..COUNT {
        under.send("e", &format!("k{number}"), 0).unwrap();
    }
    let bodies = |text: &str| {
        server
            .bodies()
            .iter()
            .filter(|it| it.starts_with(text))
            .count()
    };
    let start = Instant::now();
    // Others keep the connection alive, until the one is sent again.
    let mut others = 0;
    while bodies("stuck") < 2 {
        assert!(start.elapsed() < PATIENCE);
        under.send("other", "other", others).unwrap();
        others += 1;
        under
            .reports
            .wait(|state| state.outcomes.len() as u64 == others);
    }
    assert_eq!(bodies("k") as u64, COUNT, "the server has confirmed them");
    assert_eq!(lock(&server.logins).len(), 1);
    // The connection breaks, and the server still says nothing of it.
    push_close(&server);
    eventually(PATIENCE, || bodies("stuck") > 3);
    assert_eq!(bodies("k") as u64, COUNT);
    push_ack(&server, "stuck-0");
    assert!(under.settled().is_empty());
    assert_eq!(
        bodies("k") as u64,
        2 * COUNT,
        "the server may have dropped them"
    );
}

#[test]
fn a_connection_without_confirms_is_replaced() {
    let mut seen = 0;
    let server = Scripted::start(move |message, out| {
        seen += 1;
        if seen > 1 {
            ack(message, out);
        }
    });
    let settings = Settings {
        confirm: Duration::from_millis(100),
        ..settings()
    };
    let mut under = Under::with(server.login(), settings);
    under.send("e", "a", 1).unwrap();
    assert!(under.settled().is_empty());
    assert!(server.bodies().len() > 1);
}

#[test]
fn a_confirm_is_not_counted_before_that_of_an_earlier_message_of_its_exchange() {
    let mut seen = 0;
    let server = Scripted::start(move |message, out| {
        seen += 1;
        if seen > 1 {
            ack(message, out);
        }
    });
    let mut under = Under::new(&server);
    for (exchange, key) in [("e", "a"), ("e", "b"), ("other", "c")] {
        under.send(exchange, key, 1).unwrap();
    }
    // Its confirm comes behind that of the second.
    under.reports.outcome(2).unwrap();
    assert!(under.reports.is(|state| state.outcomes.len() == 1));
    push_close(&server);
    assert!(under.settled().is_empty());
    assert_eq!(server.bodies(), ["a-1", "b-1", "c-1", "a-1", "b-1"]);
    // Of queues that are no streams it counts when it comes.
    let server = Scripted::start(|message, out| {
        if message.body != b"a-1" {
            ack(message, out);
        }
    });
    let settings = Settings {
        streams: false,
        ..settings()
    };
    let mut under = Under::with(server.login(), settings);
    for key in ["a", "b"] {
        under.send("e", key, 1).unwrap();
    }
    assert_eq!(under.reports.outcome(1), Ok(()));
    assert!(under.reports.is(|state| state.outcomes.len() == 1));
}
