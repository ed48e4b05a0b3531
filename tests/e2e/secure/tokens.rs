use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{Background, SecureKafka, eventually};

use super::{Secured, bearer, jwt};
use crate::rig::{PATIENCE, assert_lacks};

const USER: &str = SecureKafka::USER;

/// Replaces the file atomically: a reader sees the old token or the new one.
fn replace(folder: &Path, token: &str) {
    let new = folder.join("token.new");
    fs::write(&new, token).expect("written");
    fs::rename(new, folder.join("token")).expect("renamed");
}

/// There is no token at first, then one that the broker refuses, then a good one. The relay uses
/// each without a restart, and everything arrives.
#[test]
fn a_token_command_is_mended_while_the_relay_runs() {
    let secured = Secured::new();
    // The lifetime of the good token counts, not the longer configured one.
    let section = "token_file = \"token\"\ntoken_lifetime = \"1h\"";
    let config = secured.config(&secured.secure(), &bearer(section));
    let relay = secured.rig.streaming(&config);
    secured.insert(1);
    relay.says("no OAUTHBEARER token for Kafka");
    replace(secured.rig.folder(), "nonsense-token");
    relay.says("check who issued the token");
    replace(secured.rig.folder(), &jwt(USER, 3600));
    secured.rig.caught_up();
    relay.says("there is an OAUTHBEARER token again");
    secured.rig.verdict().assert_clean();
    assert_lacks(&relay.log(), &["nonsense-token"]);
    relay.ends_well();
}

/// The broker ends a session with its token. The relay gets the next token in time, and does not
/// lose the connection.
#[test]
fn tokens_are_renewed_before_their_end() {
    // librdkafka checks once per second whether four fifths of the lifetime have passed, and logs
    // in again at nine tenths. It would be late with a token of less than ten seconds.
    const LIFE: u64 = 16;
    let secured = Secured::new();
    let folder = secured.rig.folder().to_owned();
    replace(&folder, &jwt(USER, LIFE as i64));
    let token = secured.rig.path("token");
    // A program that renews tokens, independent of the relay.
    let renews = Background::start("tokens", move |stop| {
        while !stop.load(SeqCst) {
            replace(&folder, &jwt(USER, LIFE as i64));
            thread::sleep(Duration::from_millis(200));
        }
    });
    let section = format!("token_command = [\"cat\", \"{}\"]", token.display());
    let relay = secured
        .rig
        .streaming(&secured.config(&secured.secure(), &bearer(&section)));
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
    renews.end();
    let parts = [
        "no OAUTHBEARER token",
        "who issued the token",
        "trying again",
    ];
    assert_lacks(&log, &parts);
}
