use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{SecureKafka, eventually};

use super::{Secured, bearer, jwt};
use crate::rig::PATIENCE;

const USER: &str = SecureKafka::USER;

/// Replaces the file as whoever renews tokens should: a reader sees the old one or the new one.
fn replace(secured: &Secured, token: &str) {
    let new = secured.rig.path("token.new");
    fs::write(&new, token).expect("written");
    fs::rename(new, secured.rig.path("token")).expect("renamed");
}

/// No token at first, then one that the broker refuses, then a good one: each is taken up without
/// a restart, and what was written meanwhile arrives.
#[test]
fn what_makes_tokens_is_mended_while_the_relay_runs() {
    let secured = Secured::new();
    // The longer of two lifetimes does not count: the good token's own does.
    let section = "token_file = \"token\"\ntoken_lifetime = \"1h\"";
    let config = secured.config(&secured.secure(), &bearer(section));
    let relay = secured.rig.streaming(&config);
    secured.insert(1);
    relay.says("no OAUTHBEARER token for Kafka");
    replace(&secured, "nonsense-token");
    relay.says("check who issued the token");
    replace(&secured, &jwt(USER, 3600));
    secured.rig.caught_up();
    relay.says("there is an OAUTHBEARER token again");
    secured.rig.verdict().assert_clean();
    assert!(!relay.log().contains("nonsense-token"), "{}", relay.log());
    relay.ends_well();
}

/// The broker ends a session with its token. The relay gets the next one in time, and does not so
/// much as lose the connection.
#[test]
fn tokens_are_renewed_before_their_end() {
    // librdkafka looks once a second whether four fifths are over, and logs in anew at nine tenths: a
    // token of less than ten seconds would be late.
    const LIFE: u64 = 16;
    let secured = Secured::new();
    replace(&secured, &jwt(USER, LIFE as i64));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(SeqCst) {
                replace(&secured, &jwt(USER, LIFE as i64));
                thread::sleep(Duration::from_millis(200));
            }
        });
        let _done = OnDrop(&done);
        let section = "token_command = [\"cat\", \"token\"]".replace(
            "\"token\"]",
            &format!("\"{}\"]", secured.rig.path("token").display()),
        );
        let config = secured.config(&secured.secure(), &bearer(&section));
        let relay = secured.rig.streaming(&config);
        let start = Instant::now();
        let mut number = 0;
        eventually(PATIENCE, || {
            number += 1;
            secured.insert(number);
            secured.rig.caught_up();
            start.elapsed() > Duration::from_secs(LIFE + 2)
        });
        let verdict = secured.rig.verdict();
        verdict.assert_clean();
        assert_eq!(verdict.committed as u32, number);
        let log = relay.ends_well();
        for trouble in [
            "no OAUTHBEARER token",
            "who issued the token",
            "trying again",
        ] {
            assert!(!log.contains(trouble), "{trouble}: {log}");
        }
    });
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
