//! A move that is not finished: each view names its state, and both ways on.

use walrelay_testkit::eventually;

use super::{replicated, step};
use crate::endpoint::{address, at, status};
use crate::rig::{PATIENCE, SLOT, assert_has, assert_lacks, done, edit, output_with, said};

const TITLE: &str = "The outbox is being moved to another server";

#[test]
fn a_switch_that_is_not_finished_is_named_with_both_ways_on() {
    let (old, new, from, to) = replicated(17, 18);
    for config in [&from, &to] {
        let listen = "[http]\nlisten = \"127.0.0.1:0\"\n\n[source]\n";
        edit(config, "[source]\n", listen);
    }
    let relay = old.streaming(&from);
    let page = address(&relay);
    let problems = || status(page)["problems"].to_string();
    eventually(PATIENCE, || status(page)["slot"].is_object());
    assert_lacks(&problems(), &[TITLE]);
    done(&step(&to, "prepare"));
    done(&step(&from, "drain --yes"));

    // The old server, whose services are refused: its page, by the relay and without it.
    eventually(PATIENCE, || problems().contains(TITLE));
    let drained = [
        "the outbox is being moved (drained since 20",
        "inserts into it fail here",
        "run walrelay move switch on the new server",
        "walrelay move abort lifts the fence",
    ];
    assert_has(&problems(), &drained);
    assert_eq!(status(page)["moved"]["state"], "drained");
    let shown = || said(&output_with("status", &from, &["--exit-code"]));
    let by_relay = said(&output_with("status", &from, &[&at(page)]));
    assert_has(&by_relay, &drained);
    relay.ends_well();
    assert_has(&shown(), &drained);
    let drop = format!("slots drop {SLOT} --no-bookmark");
    done(&output_with(&drop, &from, &["--yes"]));
    let without_slot = shown();
    assert_has(&without_slot, &drained);
    // A slot that init created would begin behind events of nobody.
    assert_lacks(&without_slot, &["walrelay init"]);
    assert_has(&said(&output_with("check", &from, &[])), &drained);

    // The new server, whose relay waits.
    let prepared = [
        "the outbox of slot walrelay is being moved (prepared)",
        "walrelay move switch --from here",
        "walrelay move abort on both servers",
    ];
    let second = new.start(&to);
    second.says("was not switched to");
    let page = address(&second);
    eventually(PATIENCE, || {
        let waits = status(page)["problems"].to_string();
        prepared.iter().all(|part| waits.contains(part))
    });
    assert_has(&said(&output_with("check", &to, &[])), &prepared);
    second.ends_well();
    let shown = said(&output_with("status", &to, &["--exit-code"]));
    assert_has(&shown, &prepared[1..]);
    assert_lacks(&shown, &["start walrelay run"]);

    // Given up: nothing is shown.
    done(&step(&from, "abort --yes"));
    let shown = said(&output_with("status", &from, &[]));
    assert_lacks(&shown, &["being moved"]);
}
