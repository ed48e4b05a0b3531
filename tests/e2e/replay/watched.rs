//! A running replay is in the status of the relay whose database it reads.

use std::process::Stdio;

use super::{SLOWLY, run};
use crate::endpoint::{LISTEN, address, at, status};
use crate::rig::{PATIENCE, Relay, Rig, command_with, done, ends, output_with};
use serde_json::Value;
use walrelay_lsn::Lsn;
use walrelay_testkit::{eventually, eventually_some};
use walrelay_throwaway::Signal;

#[test]
fn a_running_replay_is_in_the_status() {
    let rig = Rig::with_outbox(17);
    let config = rig.config_and(LISTEN);
    let relay = rig.streaming(&config);
    let listen = address(&relay);
    done(&run(&config, "bookmark create start"));
    rig.workload().rows(4_000).run();
    rig.caught_up();
    let replays = || status(listen)["source"]["replays"].clone();
    assert_eq!(replays(), Value::Array(Vec::new()));

    let state = rig.path("replays");
    std::fs::create_dir(&state).expect("a directory");
    let line = format!(
        "replay --from start --topic-prefix again- --rate {SLOWLY} --state-dir {}",
        state.display()
    );
    let mut command = command_with(&line, &config, &[]);
    let mut running = Relay::spawn_to(&mut command, Stdio::null(), &rig.path("replay.log"));
    let position = || {
        let replay = replays()[0].clone();
        assert!(replay.is_null() || replay["pid"].is_i64(), "{replay}");
        replay["position"].as_str()?.parse::<Lsn>().ok()
    };
    let first = eventually_some(PATIENCE, position);
    eventually(PATIENCE, || position().is_some_and(|now| now > first));
    let shown = output_with("status", &config, &[&at(listen)]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("reads walrelay_replay_"), "{shown}");

    running.signal(Signal::Int);
    ends(&mut running, 75, "replay-interrupted");
    eventually(PATIENCE, || replays() == Value::Array(Vec::new()));
    relay.ends_well();
}
