//! Messages that are refused where they are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::*;

#[test]
fn unroutable_events_of_one_address_take_one_patience_and_repeat_no_other() {
    let retry_for = Duration::from_millis(300);
    let is_bound = Arc::new(AtomicBool::new(false));
    let server = Scripted::start({
        let is_bound = Arc::clone(&is_bound);
        move |message, out| {
            if message.routing_key == "unbound" && !is_bound.load(Ordering::Relaxed) {
                message.give_back(out);
            }
            ack(message, out);
        }
    });
    let mut under = Under::with(server.login(), with_patience(retry_for));
    let start = Instant::now();
    for number in 0..10 {
        under.send_by(("e", "unbound"), "same", number).unwrap();
    }
    for number in 0..400 {
        let key = format!("k{}", number % 40);
        under
            .send(&format!("e{}", number % 3), &key, number)
            .unwrap();
    }
    for seq in 0..10 {
        let error = under.reports.outcome(seq).unwrap_err();
        assert_eq!(error.poison, Some(Poison::Unroutable));
        // As the relay does.
        assert_eq!(under.sink.withdraw(seq, false).len(), 1);
    }
    let took = start.elapsed();
    assert!(took >= retry_for && took < 8 * retry_for, "{took:?}");
    assert_eq!(under.settled().len(), 10);
    let healthy = server
        .bodies()
        .iter()
        .filter(|it| it.starts_with('k'))
        .count();
    assert_eq!(healthy, 400, "each once");
    assert_eq!(lock(&server.logins).len(), 1);

    // A delivery to the address ends the patience with it.
    is_bound.store(true, Ordering::Relaxed);
    under.send_by(("e", "unbound"), "same", 10).unwrap();
    assert_eq!(under.reports.outcome(410), Ok(()));
    is_bound.store(false, Ordering::Relaxed);
    under.send_by(("e", "unbound"), "same", 11).unwrap();
    assert!(under.reports.outcome(411).is_err());
    assert!(counts(&server)["same-11"] > 1, "it is sent again first");
}
